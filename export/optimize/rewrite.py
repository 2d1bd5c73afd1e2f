"""The faster variants of a graph: which there are, and how each is made."""

import onnx

from export.optimize.cost import toom_cook_1d_tiles, toom_cook_2d_tiles
from export.optimize.nodes import Nodes, with_nodes
from export.optimize.plain_encoder import NotOptimizableError, known_shapes, read_convolution, read_encoder
from export.optimize.plan import Variant
from export.optimize.toom_cook_1d import add_toom_cook_1d
from export.optimize.toom_cook_2d import toom_cook_2d


def rewritten(model: onnx.ModelProto, rank: int = 0) -> dict[Variant, onnx.ModelProto]:
    """A plain graph in each other variant that may be faster, with the same inputs and outputs.

    Args:
        model: a static graph with a free batch and inferred shapes, as capsnet-export writes it; any other is
            left alone as far as it is not understood. It is not changed.
        rank: of the tiles that may be the best (`cost`), which to take; 0 is the most promising.

    Returns:
        `toom_cook_1d` (for small batches) if there is a convolution that gains from it, `toom_cook_2d` (for
        large batches) if the whole encoder gains from it. Neither if no tile has this rank.
    """
    variants: dict[Variant, onnx.ModelProto] = {}
    with_toom_cook_1d = toom_cook_1d(model, rank)
    if with_toom_cook_1d is not None:
        variants["toom_cook_1d"] = with_toom_cook_1d
    try:
        encoder = read_encoder(model)
    except NotOptimizableError:
        return variants
    tiles = toom_cook_2d_tiles(encoder)
    if rank < len(tiles):
        variants["toom_cook_2d"] = toom_cook_2d(encoder, tiles[rank])
    return variants


def toom_cook_1d(model: onnx.ModelProto, rank: int) -> onnx.ModelProto | None:
    """The graph with `toom_cook_1d` for every convolution that gains from it; None if no tile has this rank.

    A convolution with fewer tiles takes the last of its own.
    """
    weights, shapes = {tensor.name: tensor for tensor in model.graph.initializer}, known_shapes(model)
    nodes, has_rank = Nodes(), False
    for node in model.graph.node:
        tiles: list[int] = []
        if node.op_type == "Conv":
            try:
                convolution = read_convolution(node, weights, shapes)
                tiles = toom_cook_1d_tiles(convolution)
            except NotOptimizableError:
                pass
        if not tiles:
            nodes.nodes.append(node)
            continue
        has_rank = has_rank or rank < len(tiles)
        tile = tiles[min(rank, len(tiles) - 1)]
        add_toom_cook_1d(nodes, node.input[0], node.output[0], convolution, tile)
    return with_nodes(model, nodes) if has_rank else None
