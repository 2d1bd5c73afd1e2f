"""The export: a wrapped model to one static ONNX graph whose values carry the paper's names.

torch.onnx unrolls the routing loop, because the loop is Python's. What it names `matmul_3` is renamed here
after the module it belongs to and the variable that the model's code assigns it to, which is the paper's
letter: `class_caps/routing/c_2` are the coupling coefficients of the second iteration.
"""

import itertools
import logging
import math
import re
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Literal

import onnx
import onnx_ir as ir
import torch
from torch import Tensor
from torch.fx.traceback import annotate_fn

from export.fold import fold_coupling
from export.graph import CapsuleNetwork, DecoderGraph, EncoderGraph, pose_shape
from export.onnx_ops import TRANSLATIONS
from training.models import em
from training.models.matrix_capsules import MatrixCapsules

OPSET = 20  # of the default domain; ONNX Runtime 1.17 and TensorRT 10 read it
BATCH_AXIS = "batch"
TRACED_BATCH = 2  # 1 would be taken for a constant

_SCOPES = "pkg.torch.onnx.name_scopes"
_STACK = "pkg.torch.onnx.stack_trace"
_FRAME = re.compile(r'File ".+", line \d+, in (\w+)\n *(.+)')
_ASSIGNMENT = re.compile(r"(\w+)(?:\s*:[^=]+)?\s*=[^=]")
# torch notes the line of a value in a module's `forward`, and in functions that are said to matter.
for _function in (MatrixCapsules._routed, em.EMRouting.steps, em.EMRouting._fit, em._assign):
    annotate_fn({})(_function)


@dataclass(frozen=True)
class Graphs:
    """The graphs of a model; no decoder for a model that was trained without reconstruction."""

    encoder: onnx.ModelProto
    decoder: onnx.ModelProto | None

    def by_role(self) -> dict[Literal["encoder", "decoder"], onnx.ModelProto]:
        """The graphs there are, keyed as in the manifest."""
        encoder: dict[Literal["encoder", "decoder"], onnx.ModelProto] = {"encoder": self.encoder}
        return encoder | ({"decoder": self.decoder} if self.decoder is not None else {})


def trace(model: CapsuleNetwork) -> Graphs:
    """All graphs of a model."""
    return Graphs(trace_encoder(model), trace_decoder(model))


def trace_encoder(model: CapsuleNetwork) -> onnx.ModelProto:
    """The encoder as an ONNX graph; it has the same nodes with a primary coupling and without."""
    size, channels = model.config.image_size, model.config.image_channels
    return to_onnx(EncoderGraph(fold_coupling(model)), (torch.rand(TRACED_BATCH, size, size, channels),))


def trace_decoder(model: CapsuleNetwork) -> onnx.ModelProto | None:
    """The decoder as an ONNX graph, or None for a model without one."""
    if model.decoder is None:
        return None
    classes, elements = model.config.classes, math.prod(pose_shape(model))
    example = (torch.rand(TRACED_BATCH, classes, elements), torch.rand(TRACED_BATCH, classes))
    return to_onnx(DecoderGraph(model.decoder), example)


def to_onnx(graph: EncoderGraph | DecoderGraph, example: tuple[Tensor, ...]) -> onnx.ModelProto:
    """Trace a wrapper with example inputs and give its graph.

    Args:
        graph: the wrapper; its `input_names` and `output_names` become those of the graph.
        example: one tensor per input, batch first, of TRACED_BATCH examples.

    Returns:
        A checked model with inferred shapes; only the batch axis is free.
    """
    free_batch = {0: torch.export.Dim(BATCH_AXIS)}
    _quieten_torch()
    with warnings.catch_warnings():
        # Of torch 2.13 about itself: a deprecated call of its own, and axes that share the name `batch`.
        warnings.filterwarnings("ignore", "`isinstance\\(treespec, LeafSpec\\)`", FutureWarning)
        warnings.filterwarnings("ignore", "# The axis name: batch will not be used", UserWarning)
        program = torch.onnx.export(
            graph.eval(),
            example,
            dynamo=True,
            verbose=False,
            input_names=graph.input_names,
            output_names=graph.output_names,
            dynamic_shapes=(free_batch,) * len(example),
            opset_version=OPSET,
            custom_translation_table=TRANSLATIONS,
        )
    assert program is not None  # torch gives None only when it writes a file
    drop_additions_of_nothing(program.model)
    name_values(program.model)
    _strip_metadata(program.model)
    proto = ir.to_proto(program.model)
    proto.producer_name, proto.producer_version = "capsnet-export", ""
    proto = onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def drop_additions_of_nothing(model: ir.Model) -> None:
    """Remove what adds a constant 0 to all elements, as votes without coordinates do."""
    for node in list(model.graph):
        if node.op_type == "Add":
            value, added = node.inputs
            assert value is not None
            assert added is not None
            zeros = added.const_value if added.is_initializer() else None
            if zeros is not None and value.shape == node.outputs[0].shape and not zeros.numpy().any():
                node.outputs[0].replace_all_uses_with(value, replace_graph_outputs=True)
                model.graph.remove(node, safe=True)
    for name in [name for name, weight in model.graph.initializers.items() if not weight.uses()]:
        del model.graph.initializers[name]


def name_values(model: ir.Model) -> None:
    """Rename every value that is not an input, output or weight: `<module>/<variable>[_<iteration>]`.

    The last node of a statement gives the variable its value; those before it add their operator to the
    name. A constant is named after the value that it goes into.
    """
    ends = {id(value) for value in (*model.graph.inputs, *model.graph.outputs)}
    statements = [list(group) for _, group in itertools.groupby(model.graph, key=_place)]
    occurrences = Counter(_variable(nodes[0]) for nodes in statements)
    turns: Counter[str] = Counter()  # of the loop in a module: how often its busiest variable is assigned
    for nodes in statements:
        turns[_module(nodes[0])] = max(turns[_module(nodes[0])], occurrences[_variable(nodes[0])])
    seen: Counter[str] = Counter()
    for nodes in statements:
        variable = _variable(nodes[0])
        seen[variable] += 1
        # What is constant in a first iteration is folded away: count so that the last turns agree.
        turn = turns[_module(nodes[0])] - occurrences[variable] + seen[variable]
        name = f"{variable}_{turn}" if occurrences[variable] > 1 else variable
        for position, node in enumerate(nodes):
            last = position == len(nodes) - 1
            node.name = name if last else f"{name}/{node.op_type.lower()}_{position}"
            if id(node.outputs[0]) not in ends:
                node.outputs[0].name = node.name
    _name_initializers(model.graph)


def _place(node: ir.Node) -> tuple[str, str]:
    """Module and source line that a node comes from; a loop's next turn comes after other lines.

    Of a module's functions that call each other it is the innermost line that assigns a variable.
    """
    line = ""
    for function, code in reversed(_FRAME.findall(node.metadata_props.get(_STACK, ""))):
        line = line if _ASSIGNMENT.match(line) else code
        if function == "forward":
            break
    return _module(node), line or node.op_type


def _module(node: ir.Node) -> str:
    """Innermost module of ours, as a path: `class_caps/routing`."""
    scopes = [scope for scope in _literal_list(node.metadata_props.get(_SCOPES, "[]"))[:-1] if scope]
    dotted = scopes[-1] if scopes else ""
    return dotted.removeprefix("model").removeprefix(".").replace(".", "/")


def _variable(node: ir.Node) -> str:
    """Module and the variable that the node's statement assigns; the module alone when it assigns none."""
    module, line = _place(node)
    assigned = _ASSIGNMENT.match(line)
    parts = [module, assigned[1] if assigned else ""]
    output = node.outputs[0].name if node.outputs[0].is_graph_output() else None
    return "/".join(part for part in parts if part) or output or node.op_type.lower()


def _literal_list(text: str) -> list[str]:
    return re.findall(r"'([^']*)'", text)


def _name_initializers(graph: ir.Graph) -> None:
    """Weights by their place in the model, constants by the first value they go into."""
    weights = {id(value) for value in graph.initializers.values() if "." in (value.name or "")}
    named: set[int] = set()
    for node in graph:
        for value in node.inputs:
            if value is None or not value.is_initializer() or id(value) in named:
                continue
            named.add(id(value))
            assert value.name is not None  # an initializer is found by its name
            weight = value.name.removeprefix("model.").removeprefix("decoder.")
            value.name = weight if id(value) in weights else f"{node.name}/{_role(node, value)}"


def _role(node: ir.Node, value: ir.Value) -> str:
    """What a constant is to the node that takes it first."""
    if node.op_type == "Reshape":
        return "shape"
    if node.op_type in {"ReduceMax", "ReduceSum", "ReduceL2", "ReduceMean", "Squeeze", "Unsqueeze"}:
        return "axes"
    return f"constant_{list(node.inputs).index(value)}"


def _strip_metadata(model: ir.Model) -> None:
    """Remove what the tracer noted: source lines and paths of the machine that exported."""
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    values = [*model.graph.inputs, *model.graph.initializers.values()]
    for node in model.graph:
        node.metadata_props.clear()
        node.doc_string = None
        values.extend(node.outputs)
    for value in values:
        value.metadata_props.clear()


def _quieten_torch() -> None:
    """Without torchvision the exporter warns that it cannot export torchvision's operators."""
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
