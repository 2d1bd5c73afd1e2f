"""The faster forms of a graph: which there are, and how each is made."""

import onnx

from export.optimize.cost import both_axes_tiles, one_axis_tiles
from export.optimize.nodes import Nodes, with_nodes
from export.optimize.plain_encoder import NotOptimizableError, known_shapes, read_convolution, read_encoder
from export.optimize.plan import Form
from export.optimize.toom_cook_1d import add_one_axis
from export.optimize.toom_cook_2d import both_axes


def rewritten(model: onnx.ModelProto, rank: int = 0) -> dict[Form, onnx.ModelProto]:
    """A plain graph in each other form that may be faster, with the same inputs and outputs.

    Args:
        model: a static graph with a free batch and inferred shapes, as capsnet-export writes it; any other is
            left alone as far as it is not understood. It is not changed.
        rank: of the tiles that may be the best (`cost`), which to take; 0 is the most promising.

    Returns:
        `one_axis` if there is a convolution for which it pays (for small batches), `both_axes` if it is an
        encoder of dynamic routing for which it pays (for large ones); maybe neither. None for which no tile
        has this rank.
    """
    forms: dict[Form, onnx.ModelProto] = {}
    with_one_axis = one_axis(model, rank)
    if with_one_axis is not None:
        forms["one_axis"] = with_one_axis
    try:
        encoder = read_encoder(model)
    except NotOptimizableError:
        return forms
    tiles = both_axes_tiles(encoder)
    if rank < len(tiles):
        forms["both_axes"] = both_axes(encoder, tiles[rank])
    return forms


def one_axis(model: onnx.ModelProto, rank: int) -> onnx.ModelProto | None:
    """The graph with every convolution for which it pays in `one_axis` form; None if no tile has this rank.

    A convolution with fewer tiles takes the last of its own.
    """
    weights, shapes = {tensor.name: tensor for tensor in model.graph.initializer}, known_shapes(model)
    nodes, has_rank = Nodes(), False
    for node in model.graph.node:
        tiles: list[int] = []
        if node.op_type == "Conv":
            try:
                convolution = read_convolution(node, weights, shapes)
                tiles = one_axis_tiles(convolution)
            except NotOptimizableError:
                pass
        if not tiles:
            nodes.nodes.append(node)
            continue
        has_rank = has_rank or rank < len(tiles)
        tile = tiles[min(rank, len(tiles) - 1)]
        add_one_axis(nodes, node.input[0], node.output[0], convolution, tile)
    return with_nodes(model, nodes) if has_rank else None
