"""The faster forms of a graph: which there are, and how each is made."""

import onnx

from export.optimize.both_axes import both_axes
from export.optimize.cost import both_axes_tile, one_axis_tile
from export.optimize.nodes import Nodes, with_nodes
from export.optimize.one_axis import add_one_axis
from export.optimize.plain_encoder import NotOptimizableError, known_shapes, read_convolution, read_encoder
from export.optimize.plan import Form


def rewritten(model: onnx.ModelProto) -> dict[Form, onnx.ModelProto]:
    """A plain graph in each other form that may be faster, with the same inputs and outputs.

    Args:
        model: a static graph with a free batch and inferred shapes, as capsnet-export writes it; any other is
            left alone as far as it is not understood. It is not changed.

    Returns:
        `one_axis` if there is a convolution for which it pays (for small batches), `both_axes` if it is an
        encoder of dynamic routing for which it pays (for large ones); maybe neither.
    """
    forms: dict[Form, onnx.ModelProto] = {}
    with_one_axis = one_axis(model)
    if with_one_axis is not None:
        forms["one_axis"] = with_one_axis
    try:
        encoder = read_encoder(model)
    except NotOptimizableError:
        return forms
    tile = both_axes_tile(encoder)
    if tile is not None:
        forms["both_axes"] = both_axes(encoder, tile)
    return forms


def one_axis(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """The graph with every convolution for which it pays in `one_axis` form, or None if there is none."""
    weights, shapes = {tensor.name: tensor for tensor in model.graph.initializer}, known_shapes(model)
    nodes, count = Nodes(), 0
    for node in model.graph.node:
        tile = None
        if node.op_type == "Conv":
            try:
                convolution = read_convolution(node, weights, shapes)
                tile = one_axis_tile(convolution)
            except NotOptimizableError:
                pass
        if tile is None:
            nodes.nodes.append(node)
            continue
        add_one_axis(nodes, node.input[0], node.output[0], convolution, tile)
        count += 1
    return with_nodes(model, nodes) if count else None
