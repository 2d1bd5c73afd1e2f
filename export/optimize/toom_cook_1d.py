"""A convolution with its rows transformed: it replaces a Conv node and is faster even for one image.

Along the rows it uses Toom and Cook's algorithm (`strided`), along the columns it is direct. In between are n
independent convolutions of 1 x k filters, one per product: one Conv node with n groups, which a runtime
computes with the kernels and the memory layout that it has for convolutions. For m of m rows of outputs,
kernel k, stride s, that is n / (m k) of the multiplications: 19 of 54 for k = 9, s = 2, m = 6.

The weights grow by n / k, 2.1 times in the example. A transform along both axes saves more, but its weights
grow by the square, and a single image must wait for all of them to come from memory.
"""

# N images, C channels in, F channels out, H and W rows and columns in, P and Q rows and columns out
# n products, m rows in a tile, T tiles

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from export.fast_convolution.strided import strided_convolution
from export.optimize.nodes import Nodes


@dataclass(frozen=True)
class Convolution:
    """A convolution without padding, groups or dilation.

    Attributes:
        weight: [F, C, k_h, k_w].
        bias: [F].
        strides: along rows and columns.
        size: of the input, rows and columns.
    """

    weight: NDArray[np.float32]
    bias: NDArray[np.float32]
    strides: tuple[int, int]
    size: tuple[int, int]

    @property
    def output_size(self) -> tuple[int, int]:
        """Rows and columns of the output."""
        rows, columns = (
            (size - kernel) // stride + 1
            for size, kernel, stride in zip(self.size, self.weight.shape[2:], self.strides, strict=True)
        )
        return rows, columns


def add_toom_cook_1d(nodes: Nodes, value: str, name: str, convolution: Convolution, tile: int) -> None:
    """Add nodes that take the value [N, C, H, W] to `name`, [N, F, P, Q].

    Args:
        nodes: where to add them.
        value: the input.
        name: of the output; what comes before it is called after it.
        convolution: what is to be computed.
        tile: m, rows of outputs that are computed together.
    """
    features, channels, kernel, kernel_width = convolution.weight.shape
    rows, columns = convolution.output_size
    height, width = convolution.size
    along_rows = strided_convolution(tile, kernel, convolution.strides[0])
    products, tiles = along_rows.size, -(-rows // tile)

    by_row = nodes.transpose(value, [0, 2, 1, 3], f"{name}/by_row")
    flat = nodes.reshape(by_row, [-1, height, channels * width], f"{name}/rows")
    windows = along_rows.windows(tiles)
    transform = np.zeros((products, tiles, height))
    for tile_number in range(tiles):  # what lies below the picture is 0 and has no column
        inside = windows[:, tile_number] < height
        transform[:, tile_number, windows[inside, tile_number]] = along_rows.inputs[:, inside]
    transformed = nodes.matmul(f"{name}/transformed", transform.reshape(-1, height), flat)  # [N, n T, C W]
    if tiles > 1:
        parted = nodes.reshape(transformed, [-1, products, tiles, channels, width], f"{name}/tiles")
        transformed = nodes.transpose(parted, [0, 1, 3, 2, 4], f"{name}/by_product")
    groups = nodes.reshape(transformed, [-1, products * channels, tiles, width], f"{name}/groups")

    weight = np.tensordot(along_rows.filter, convolution.weight.astype(np.float64), (1, 2))  # [n, F, C, k_w]
    bias = np.einsum("n,f->nf", along_rows.constant, convolution.bias.astype(np.float64))
    multiplied = nodes.add(
        "Conv",
        groups,
        nodes.constant(f"{name}/weight", weight.reshape(products * features, channels, 1, kernel_width)),
        nodes.constant(f"{name}/bias", bias.reshape(-1)),
        name=f"{name}/products",  # [N, n F, T, Q]
        group=products,
        kernel_shape=[1, kernel_width],
        strides=[1, convolution.strides[1]],
    )
    per_product = nodes.reshape(multiplied, [-1, products, features * tiles * columns], f"{name}/per_product")
    outputs = nodes.matmul(f"{name}/outputs", along_rows.result, per_product)  # [N, m, F T Q]
    parted = nodes.reshape(outputs, [-1, tile, features, tiles, columns], f"{name}/outputs/tiles")
    in_order = nodes.transpose(parted, [0, 2, 3, 1, 4], f"{name}/outputs/in_order")  # [N, F, T, m, Q]
    if tiles * tile == rows:
        nodes.reshape(in_order, [-1, features, rows, columns], name)
        return
    joined = nodes.reshape(in_order, [-1, features, tiles * tile, columns], f"{name}/outputs/joined")
    ends = [np.array([value]) for value in (0, rows, 2)]
    names = [
        nodes.constant(f"{name}/outputs/{end}", v)
        for end, v in zip(("first", "end", "axis"), ends, strict=True)
    ]
    nodes.add("Slice", joined, *names, name=name)
