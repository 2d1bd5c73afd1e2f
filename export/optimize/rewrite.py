"""The faster variants of a graph: which there are, and how each is made."""

import onnx

from export.contract.architecture import MatrixCapsNetArchitecture, StatedArchitecture
from export.optimize.cost import toom_cook_1d_tiles, toom_cook_2d_tiles
from export.optimize.em_moments import em_moments
from export.optimize.encoder import Encoder, read_encoder
from export.optimize.nodes import Nodes, with_nodes
from export.optimize.plan import Variant
from export.optimize.toom_cook_1d import add_toom_cook_1d
from export.optimize.toom_cook_2d import toom_cook_2d


def rewritten(
    model: onnx.ModelProto, architecture: StatedArchitecture | None, rank: int = 0
) -> dict[Variant, onnx.ModelProto]:
    """The other variants of an encoder that may be faster, with the same inputs and outputs.

    Args:
        model: the plain graph, as capsnet-export writes it. It is not changed.
        architecture: of the network, from the bundle's manifest; None for one without faster variants.
        rank: which of the most promising tiles (`cost`) to take; 0 is the best.

    Returns:
        Of a CapsNet `toom_cook_1d` (for small batches) if there is a convolution that gains from it, and
        `toom_cook_2d` (for large batches) if the whole encoder gains from it. Of matrix capsules
        `em_moments`, of rank 0 alone. None if no tile has this rank.

    Raises:
        NotOptimizableError: the graph lacks something that the manifest says it has.
    """
    if architecture is None:
        return {}
    if isinstance(architecture, MatrixCapsNetArchitecture):
        return {} if rank else {"em_moments": em_moments(model, architecture)}
    return variants_of(read_encoder(model, architecture), rank)


def variants_of(encoder: Encoder, rank: int = 0) -> dict[Variant, onnx.ModelProto]:
    """`rewritten` from the parts of an encoder."""
    variants: dict[Variant, onnx.ModelProto] = {}
    small = toom_cook_1d(encoder, rank)
    if small is not None:
        variants["toom_cook_1d"] = small
    tiles = toom_cook_2d_tiles(encoder)
    if rank < len(tiles):
        variants["toom_cook_2d"] = toom_cook_2d(encoder, tiles[rank])
    return variants


def toom_cook_1d(encoder: Encoder, rank: int) -> onnx.ModelProto | None:
    """The graph with `toom_cook_1d` for every convolution that gains from it; None if no tile has this rank.

    A convolution with fewer tiles takes the last of its own.
    """
    tiles = {name: toom_cook_1d_tiles(found) for name, found in encoder.convolutions.items()}
    if max(map(len, tiles.values())) <= rank:
        return None
    nodes = Nodes()
    for node in encoder.model.graph.node:
        promising = tiles.get(node.name)
        if promising:
            tile = promising[min(rank, len(promising) - 1)]
            add_toom_cook_1d(nodes, node.input[0], node.output[0], encoder.convolutions[node.name], tile)
        else:
            nodes.nodes.append(node)
    return with_nodes(encoder.model, nodes)
