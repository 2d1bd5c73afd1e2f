"""The whole encoder with PrimaryCapsules transformed along both axes and the batch as the last axis.

Nearly all arithmetic of a CapsNet is PrimaryCapsules' convolution. Transformed along rows and columns
(`strided`), each of its n_h n_w products is a matrix product of all channels, weights [F', F] times
[F, tiles * B]: 361 of them for the paper's network, whose 6 x 6 outputs make one tile, instead of 36 x 81.
The steps around it decide whether that is a gain, so the data is laid out for it from the pixels on:

1. Conv1 is computed where the transform wants its outputs, tile by tile and in the order of its columns:
   its patches are gathered from the pixels, which is cheap with few image channels. Nothing is moved later.
2. The two transforms are products with a small constant matrix from the left: over rows, then over columns.
3. The products between the channels are a Conv node of 1 x 1 filters with n_h n_w groups. A runtime keeps its
   weights in the order in which its kernels read them, so that a small batch does not wait for packing.
   The bias is added to those products that bring it to each output unchanged.
4. Two more small matrices take the products to outputs; squash and routing go on in the same layout
   (`routing`), with the votes' weights in the order in which the capsules come out here.

The weights of step 3 are n_h n_w / (k_h k_w) times as large as the convolution's, 4.5 in the example. For one
or two images reading them takes longer than computing with them: `toom_cook_1d` is for those.
"""

# B images, C image channels, K = C k_h k_w pixels of a patch, F channels of Conv1, E pose of a primary
# capsule, Y types of primary capsules, J classes, D pose of a class
# Rows: P products, M outputs of a tile, S tiles. Columns: Q products, N outputs of a tile, T tiles.

import numpy as np
import onnx
from numpy.typing import NDArray

from export.fast_convolution.strided import StridedConvolution, strided_convolution
from export.optimize.encoder import Encoder
from export.optimize.nodes import Nodes, with_nodes
from export.optimize.routing import Routing, add_routing, add_squash
from export.optimize.toom_cook_1d import Convolution

Floats = NDArray[np.float32]


def toom_cook_2d(encoder: Encoder, tile: tuple[int, int]) -> onnx.ModelProto:
    """The encoder as such a graph, with the plain one's inputs and outputs.

    Args:
        encoder: what is to be computed.
        tile: M and N.

    Raises:
        ValueError: the tile is larger than Toom and Cook's algorithm can be.
    """
    primary, votes = encoder.primary, encoder.votes
    kernels, strides = primary.weight.shape[2:], primary.strides
    along_rows, along_columns = (
        strided_convolution(*sizes) for sizes in zip(tile, kernels, strides, strict=True)
    )
    rows, columns = primary.output_size
    tiles = -(-rows // tile[0]), -(-columns // tile[1])
    pose, types = votes.shape[1], len(primary.weight) // votes.shape[1]
    nodes = Nodes()
    nodes.nodes.extend(encoder.prologue)
    features = _conv1(nodes, encoder, along_rows.windows(tiles[0]), along_columns.windows(tiles[1]))
    s = _primary(nodes, features, _by_pose(primary, pose), along_rows, along_columns)
    s = nodes.reshape(s, [tile[0] * tile[1], pose, types * tiles[0] * tiles[1], -1], "primary_caps/s")
    u = add_squash(nodes, s, 1, "primary_caps/u")
    v = add_routing(nodes, u, _routing(encoder, tile, tiles), "class_caps/routing")
    nodes.transpose(v, [2, 0, 1], "poses")
    nodes.add("ReduceL2", "poses", nodes.constant("pose", np.array([-1])), name="probabilities", keepdims=0)
    return with_nodes(encoder.model, nodes)


def _conv1(nodes: Nodes, encoder: Encoder, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> str:
    """Conv1 and its ReLU at these rows [P, S] and columns [Q, T] of its output: [P Q, F, 1, S T B]."""
    conv1 = encoder.conv1
    height, width = conv1.size
    features, channels, kernel_height, kernel_width = conv1.weight.shape
    places, tiles = len(rows) * len(columns), rows.shape[1] * columns.shape[1]
    patch = channels * kernel_height * kernel_width
    # [P, k_h, S] and [Q, k_w, T]: which pixels; behind the last output of a last tile any will do.
    y = rows[:, None] * conv1.strides[0] + np.arange(kernel_height)[:, None]
    x = columns[:, None] * conv1.strides[1] + np.arange(kernel_width)[:, None]
    index = _pixel_index(np.minimum(y, height - 1), np.minimum(x, width - 1), channels, height, width)

    flat = nodes.reshape(conv1_input(encoder), [-1, channels * height * width], "conv1/flat")
    pixels = nodes.transpose(flat, [1, 0], "conv1/pixels")  # [C H W, B]
    places_first = nodes.constant("conv1/patches/index", index.reshape(places, patch, tiles))
    patches = nodes.add("Gather", pixels, places_first, name="conv1/patches", axis=0)
    patches = nodes.reshape(patches, [places, patch, 1, -1], "conv1/patches/joined")  # [P Q, K, 1, S T B]
    convolved = nodes.add(
        "Conv",
        patches,
        nodes.constant("conv1/weight", conv1.weight.reshape(features, patch, 1, 1)),
        nodes.constant("conv1/bias", conv1.bias),
        name="conv1",
        kernel_shape=[1, 1],
    )
    return nodes.add("Relu", convolved, name="features")


def conv1_input(encoder: Encoder) -> str:
    """The value that Conv1 reads."""
    return encoder.prologue[-1].output[0]


def _pixel_index(
    y: NDArray[np.int64], x: NDArray[np.int64], channels: int, height: int, width: int
) -> NDArray[np.int32]:
    """Rows y [P, k_h, S] and columns x [Q, k_w, T] to places in a flat picture, [P, Q, C, k_h, k_w, S, T]."""
    c = np.arange(channels)[:, None, None, None, None]
    down = y[:, None, None, :, None, :, None]
    right = x[None, :, None, None, :, None, :]
    return ((c * height + down) * width + right).astype(np.int32)


def _by_pose(primary: Convolution, pose: int) -> Convolution:
    """The same convolution with its channels as pose elements times types, not types times pose elements."""
    order = np.arange(len(primary.weight)).reshape(-1, pose).T.reshape(-1)
    return Convolution(primary.weight[order], primary.bias[order], primary.strides, primary.size)


def _primary(
    nodes: Nodes,
    features: str,
    primary: Convolution,
    along_rows: StridedConvolution,
    along_columns: StridedConvolution,
) -> str:
    """The features [P Q, F, 1, S T B] to outputs, [M, N, F' S T B]."""
    rows, columns = along_rows.size, along_columns.size
    inputs = primary.weight.shape[1]
    by_row = nodes.reshape(features, [rows, -1], "primary_caps/rows")
    by_row = nodes.matmul("primary_caps/rows_transformed", along_rows.inputs, by_row)
    by_column = nodes.reshape(by_row, [rows, columns, -1], "primary_caps/columns")
    by_column = nodes.matmul("primary_caps/columns_transformed", along_columns.inputs, by_column)
    groups = nodes.reshape(by_column, [1, rows * columns * inputs, 1, -1], "primary_caps/groups")
    constant = np.multiply.outer(along_rows.constant, along_columns.constant)
    bias = np.multiply.outer(constant, primary.bias.astype(np.float64))
    products = nodes.add(
        "Conv",
        groups,
        nodes.constant("primary_caps/conv/weight", transformed_weight(primary, along_rows, along_columns)),
        nodes.constant("primary_caps/conv/bias", bias.reshape(-1)),
        name="primary_caps/conv/products",  # [1, P Q F', 1, S T B]
        group=rows * columns,
        kernel_shape=[1, 1],
    )
    by_row = nodes.reshape(products, [rows, -1], "primary_caps/conv/products/rows")
    by_row = nodes.matmul("primary_caps/conv/rows", along_rows.result, by_row)
    by_column = nodes.reshape(by_row, [along_rows.outputs, columns, -1], "primary_caps/conv/columns")
    return nodes.matmul("primary_caps/conv", along_columns.result, by_column)


def transformed_weight(
    convolution: Convolution, along_rows: StridedConvolution, along_columns: StridedConvolution
) -> Floats:
    """The weights between channels for each product, [P Q F', F, 1, 1]; computed in float64."""
    outputs, inputs, _, width = convolution.weight.shape
    # [k_h, F' F k_w]; a row of products at a time, so that what is in float64 stays small
    by_tap = convolution.weight.astype(np.float64).transpose(2, 0, 1, 3).reshape(-1, outputs * inputs * width)
    transformed = np.empty((along_rows.size, along_columns.size, outputs * inputs), np.float32)
    for row, taps in zip(transformed, along_rows.filter, strict=True):
        row[:] = along_columns.filter @ (taps @ by_tap).reshape(-1, width).T
    return transformed.reshape(-1, inputs, 1, 1)


def _routing(encoder: Encoder, tile: tuple[int, int], tiles: tuple[int, int]) -> Routing:
    """The class capsules' weights in the order of the primary capsules here: [M N, E, Y S T].

    A capsule that a last tile has too much gets no vote.
    """
    _, pose, _ = encoder.votes.shape
    classes, class_pose = encoder.poses
    rows, columns = encoder.primary.output_size
    order = _capsule_order(rows, columns, tile, tiles)  # [M N, S T]
    grid = encoder.votes.reshape(-1, rows * columns, pose, classes, class_pose)  # [Y, rows columns, E, J, D]
    votes = np.where(
        (order >= 0)[None, :, :, None, None, None], grid[:, order], np.float32(0)
    )  # [Y, M N, S T, E, J, D]
    votes = votes.transpose(1, 3, 0, 2, 4, 5).reshape(len(order), pose, -1, classes, class_pose)
    priors = encoder.priors
    if priors is not None:
        priors = priors.reshape(classes, -1, rows * columns)[:, :, order]  # [J, Y, M N, S T]
        priors = priors.transpose(0, 2, 1, 3).reshape(classes, len(order), 1, -1, 1)
    return Routing(
        votes=votes,
        iterations=encoder.iterations,
        none_of_the_above=encoder.none_of_the_above,
        priors=priors,
        bias=None if encoder.bias is None else encoder.bias[:, :, None],
    )


def _capsule_order(
    rows: int, columns: int, tile: tuple[int, int], tiles: tuple[int, int]
) -> NDArray[np.int64]:
    """Which place of the grid each place in a tile and each tile have, [M N, S T]; -1 for none."""
    y = np.arange(tile[0])[:, None, None, None] + tile[0] * np.arange(tiles[0])[:, None]  # [M, 1, S, 1]
    x = np.arange(tile[1])[:, None, None] + tile[1] * np.arange(tiles[1])  # [N, 1, T]
    place = np.where((y < rows) & (x < columns), y * columns + x, -1)
    return place.reshape(tile[0] * tile[1], -1)
