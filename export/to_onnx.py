"""The export: a wrapped model to one static ONNX graph whose values carry the paper's names (`value_names`).

torch.export unrolls the routing loop, because the loop is Python's.
"""

import logging
import math
import warnings
from dataclasses import dataclass
from typing import Literal

import onnx
import onnx_ir as ir
import torch
from torch import Tensor

from export.fold import fold_coupling
from export.graph import CapsuleNetwork, DecoderGraph, EncoderGraph, pose_shape
from export.onnx_ops import TRANSLATIONS
from export.value_names import keep_steps, name_values, note_steps

OPSET = 20  # of the default domain; ONNX Runtime 1.17 and TensorRT 10 read it
BATCH_AXIS = "batch"
TRACED_BATCH = 2  # 1 would be taken for a constant


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
        traced = torch.export.export(graph.eval(), example, dynamic_shapes=(free_batch,) * len(example))
        note_steps(traced)
        program = torch.onnx.export(
            traced,
            example,
            dynamo=True,
            verbose=False,
            input_names=graph.input_names,
            output_names=graph.output_names,
            dynamic_shapes=(free_batch,) * len(example),
            opset_version=OPSET,
            custom_translation_table=TRANSLATIONS,
            optimize=False,
        )
        assert program is not None  # torch gives None only when it writes a file
        keep_steps(program.model)
        program.optimize()
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
