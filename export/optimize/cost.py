"""Estimate how long a convolution takes in each variant, from a few numbers that were measured once.

The estimates only rank tiles and drop variants that cannot gain. Which of the two best tiles and which graph
runs a batch is measured on the machine itself (`measure`). So only the proportions of the numbers below have
to be about right. They come from two Zen 3 cores with ONNX Runtime 1.31 and the paper's network.
"""

# C channels in, F channels out

from collections.abc import Mapping
from itertools import product
from typing import TypeVar

from export.fast_convolution.strided import StridedConvolution, strided_convolution
from export.optimize.encoder import Encoder
from export.optimize.toom_cook_1d import Convolution

Tile = TypeVar("Tile", int, tuple[int, int])

# Per nanosecond: multiply-adds of a direct convolution and of products between channels, of a product with
# a small matrix, and numbers that are only moved.
DIRECT, BETWEEN_CHANNELS, NARROW, MOVED = 80.0, 65.0, 28.0, 8.0
# Bytes of weights per nanosecond, once a batch. Memory gives less; half of it happens beside the arithmetic.
WEIGHT_BYTES = 50.0
NODE_NS = 5000.0  # to start one more node, once a batch
TOOM_COOK_1D_NODES = 8  # that replace one
SMALL_BATCH, LARGE_BATCH = 1, 16  # for which the variants are made
LARGEST_TILE = 6  # beyond it float32 loses too much


def toom_cook_1d_tiles(convolution: Convolution) -> list[int]:
    """The tiles along rows with which one image is faster than as the convolution is, best first."""
    rows = convolution.output_size[0]
    tiles = _possible_tiles(rows, convolution.weight.shape[2], convolution.strides[0])
    times = {tile: toom_cook_1d_ns(convolution, tile) for tile in tiles}
    return _faster_than(direct_ns(convolution, SMALL_BATCH), times)


def toom_cook_2d_tiles(encoder: Encoder) -> list[tuple[int, int]]:
    """The tiles with which a large batch is faster than in the plain encoder, best first."""
    primary = encoder.primary
    sizes = zip(primary.output_size, primary.weight.shape[2:], primary.strides, strict=True)
    times = {
        (rows, columns): toom_cook_2d_ns(encoder, (rows, columns))
        for rows, columns in product(*(_possible_tiles(*size) for size in sizes))
    }
    return _faster_than(direct_ns(encoder.conv1, LARGE_BATCH) + direct_ns(primary, LARGE_BATCH), times)


def direct_ns(convolution: Convolution, batch: int) -> float:
    """Nanoseconds per image of the convolution as it is."""
    rows, columns = convolution.output_size
    return rows * columns * convolution.weight.size / DIRECT + _weights_ns(convolution.weight.size, batch)


def toom_cook_1d_ns(convolution: Convolution, tile: int) -> float:
    """Nanoseconds for one image with rows transformed (`toom_cook_1d`)."""
    features, channels, kernel, kernel_width = convolution.weight.shape
    (rows, columns), (height, width) = convolution.output_size, convolution.size
    size = strided_convolution(tile, kernel, convolution.strides[0]).size
    tiles = -(-rows // tile)
    products = tiles * size
    between = products * columns * kernel_width * channels * features / DIRECT
    narrow = products * (height * channels * width + tile * features * columns) / NARROW
    moved = (channels * width * (height + products) + features * columns * (rows + products)) / MOVED
    weights = _weights_ns(size * kernel_width * channels * features, SMALL_BATCH)
    return between + narrow + moved + weights + TOOM_COOK_1D_NODES * NODE_NS / SMALL_BATCH


def toom_cook_2d_ns(encoder: Encoder, tile: tuple[int, int]) -> float:
    """Nanoseconds per image of Conv1 and PrimaryCapsules with both axes transformed (`toom_cook_2d`)."""
    primary = encoder.primary
    features, channels = primary.weight.shape[:2]
    along_rows, along_columns = (
        strided_convolution(*size)
        for size in zip(tile, primary.weight.shape[2:], primary.strides, strict=True)
    )
    tiles = 1
    for outputs, side in zip(primary.output_size, tile, strict=True):
        tiles *= -(-outputs // side)
    places = along_rows.size * along_columns.size
    between = places * tiles * channels * (features + encoder.conv1.weight[0].size) / BETWEEN_CHANNELS
    inputs = places * (along_rows.size + along_columns.size) * channels
    narrow = tiles * (inputs + _outputs(along_rows, along_columns) * features) / NARROW
    moved = places * tiles * (encoder.conv1.weight[0].size + 2 * channels + features) / MOVED
    return between + narrow + moved + _weights_ns(places * channels * features, LARGE_BATCH)


def _outputs(along_rows: StridedConvolution, along_columns: StridedConvolution) -> int:
    """Multiply-adds per channel from a tile's products to its outputs: first the rows, then the columns."""
    by_row = along_rows.outputs * along_rows.size * along_columns.size
    return by_row + along_rows.outputs * along_columns.outputs * along_columns.size


def _faster_than(plain: float, times: Mapping[Tile, float]) -> list[Tile]:
    return sorted((tile for tile in times if times[tile] < plain), key=times.__getitem__)


def _possible_tiles(outputs: int, kernel: int, stride: int) -> list[int]:
    """Tile sizes, from 2 on, that Toom and Cook's algorithm can do."""
    possible = []
    for tile in range(2, min(outputs, LARGEST_TILE) + 1):
        try:
            strided_convolution(tile, kernel, stride)
        except ValueError:
            break
        possible.append(tile)
    return possible


def _weights_ns(numbers: int, batch: int) -> float:
    return 4 * numbers / WEIGHT_BYTES / batch
