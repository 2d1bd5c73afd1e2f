"""The encoder in half precision, for GPUs: float16 where the arithmetic is, float32 where it is delicate.

Tensor cores multiply float16 and add in float32, many times faster than they do anything in float32, and
votes of half the size are read in half the time. Nine tenths of an encoder's arithmetic, convolutions and
matrix products, bear it: their sums have many terms, whose rounding errors cancel. What does not is left in
float32: the norms that squashing divides by, and the routing logits and their softmax, where an error is
exponentiated and fed back. Inputs and outputs stay float32, so the graph takes the plain one's place.

The rule is one of types. A product takes float16 and gives it. What only moves numbers (reshaping,
transposing) and the rectifier, which rounds nothing, leave the type as it comes. Everything else takes and
gives float32. A tensor that is wanted in its other type is cast, once.

The converters of onnxruntime.transformers and onnxconverter-common are not used because theirs is another
rule: what they keep in float32 is still rounded to float16 between any two operators, which squashing and
logits must not be. (With onnxruntime 1.31 their graph is also invalid where one operator reads a tensor
twice or two read the same one.)
"""

from collections.abc import Generator, Iterator

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import NodeProto, TensorProto, helper, numpy_helper

from export.contract.manifest import Architecture

PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})
# Their first input's numbers come out as they went in; further inputs are shapes and axes.
MOVES = frozenset({"Flatten", "Identity", "Relu", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})

LARGEST_HALF = float(np.finfo(np.float16).max)


class HalfPrecisionError(ValueError):
    """The graph cannot be computed in half precision, or not accurately enough."""


def half_precision(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph with its products in float16; its inputs and outputs, by name and type, are the same.

    Args:
        model: a static float32 graph, opset 13 or later; it is not changed.

    Raises:
        HalfPrecisionError: a weight is too large for float16; names it.
    """
    half = onnx.ModelProto()
    half.CopyFrom(model)
    graph = half.graph
    del graph.value_info[:]  # describes tensors whose types have changed; runtimes infer it anew
    rewriting = _Rewriting(graph)
    nodes = [made for node in model.graph.node for made in rewriting.of(node)]
    del graph.node[:]
    graph.node.extend(nodes)
    rewriting.keep_used_weights()
    onnx.checker.check_model(half, full_check=True)
    return half


def check_architecture(architecture: Architecture) -> None:
    """Whether networks of this architecture can be computed in half precision.

    Raises:
        HalfPrecisionError: it routes by EM, whose products are mostly distances and variances.
    """
    if architecture == "matrix-capsnet":
        raise HalfPrecisionError(
            "EM routing divides by variances near 0, for which float16 is too coarse; "
            "this model has to stay in float32"
        )


def halved(graph: bytes, architecture: Architecture) -> bytes:
    """`half_precision` of a graph as it is in its file.

    Args:
        graph: the bytes of the file.
        architecture: of the network, from the bundle's manifest.

    Raises:
        HalfPrecisionError: this is no graph, or one that cannot be computed in half precision.
    """
    check_architecture(architecture)
    try:
        model = onnx.load_model_from_string(graph)
        onnx.checker.check_model(model)
    except (DecodeError, onnx.checker.ValidationError) as error:
        raise HalfPrecisionError(f"no ONNX graph: {error}") from error
    half: bytes = half_precision(model).SerializeToString()
    return half


class _Rewriting:
    """The types of the tensors so far, and the casts there are already."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph = graph
        self._weights = {
            weight.name: weight for weight in graph.initializer if weight.data_type == TensorProto.FLOAT
        }
        self._outputs = {output.name for output in graph.output}
        self._halves: set[str] = set()  # tensors that are float16 under their own name
        self._others: dict[str, str] = {}  # a tensor's name in its other type, once it has been cast

    def of(self, node: NodeProto) -> Iterator[NodeProto]:
        """The node with the types it wants, after the casts that it needs."""
        is_half = node.op_type in PRODUCTS or (node.op_type in MOVES and node.input[0] in self._halves)
        made = NodeProto()
        made.CopyFrom(node)
        for position, name in enumerate(node.input):
            if is_half and (node.op_type in PRODUCTS or position == 0):
                made.input[position] = yield from self._as_half(name)
            elif name in self._halves:
                made.input[position] = yield from self._cast(name, TensorProto.FLOAT)
        yield made
        if is_half:
            yield from self._note_half_outputs(made)

    def _note_half_outputs(self, node: NodeProto) -> Iterator[NodeProto]:
        """An output of the whole graph keeps its name for float32."""
        for position, name in enumerate(node.output):
            if name in self._outputs:
                node.output[position] = f"{name}/half"
                self._others[name] = node.output[position]
                yield helper.make_node("Cast", [f"{name}/half"], [name], f"{name}/cast", to=TensorProto.FLOAT)
            else:
                self._halves.add(name)

    def _as_half(self, name: str) -> Generator[NodeProto, None, str]:
        """Makes what is needed and returns the tensor's name as float16."""
        if name in self._halves or not name:  # an optional input that is left out has no name
            return name
        if name in self._weights and name not in self._others:
            self._graph.initializer.append(_rounded(self._weights[name], f"{name}/half"))
            self._others[name] = f"{name}/half"
        return (yield from self._cast(name, TensorProto.FLOAT16))

    def _cast(self, name: str, to: int) -> Generator[NodeProto, None, str]:
        """Casts the tensor unless that has been done and returns its name in the other type."""
        if name not in self._others:
            other = f"{name}/{'half' if to == TensorProto.FLOAT16 else 'float'}"
            self._others[name] = other
            yield helper.make_node("Cast", [name], [other], f"{other}/cast", to=to)
        return self._others[name]

    def keep_used_weights(self) -> None:
        """Leave out those that are read only as float16."""
        used = {name for node in self._graph.node for name in node.input}
        kept = [weight for weight in self._graph.initializer if weight.name in used]
        del self._graph.initializer[:]
        self._graph.initializer.extend(kept)


def _rounded(weight: TensorProto, name: str) -> TensorProto:
    values = numpy_helper.to_array(weight)
    largest = float(np.abs(values).max(initial=0))
    if not largest <= LARGEST_HALF:
        raise HalfPrecisionError(
            f"{weight.name} holds {largest:g}; float16 ends at {LARGEST_HALF:g}, "
            "so this model has to stay in float32"
        )
    return numpy_helper.from_array(values.astype(np.float16), name)
