"""How many images a second a chip could encode if it did nothing but the network's multiplications."""

from typing import NamedTuple

import onnx
from onnx import NodeProto

# Multiply-adds per clock and multiprocessor, by compute capability: float32 in the ordinary units; float16
# with sums in float32 in the tensor cores, without sparsity. GeForce cards of 8.6, 8.9 and 12.0 do half of
# the latter. Sources: CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions"; NVIDIA's
# white papers on Volta, Turing, the A100, GA102, Ada, Hopper and Blackwell. With the boost clocks they give
# the peaks in the data sheets: V100 15.7 and 125 TFLOP/s, T4 8.1 and 65, A100 19.5 and 312, A10 31 and 125,
# L4 30 and 121. Of newer ones float32 is stated at a higher clock than the tensor cores: H100 SXM 67 at
# 1.98 GHz and 989 at 1.83, B200 75 at 1.97 and 2250 at 1.85.
MULTIPLY_ADDS_PER_CLOCK = {
    (7, 0): (64, 512),
    (7, 5): (64, 512),
    (8, 0): (64, 1024),
    (8, 6): (128, 512),
    (8, 9): (128, 512),
    (9, 0): (128, 2048),
    (10, 0): (128, 4096),
    (12, 0): (128, 512),
}


class Chip(NamedTuple):
    """What a GPU says of itself.

    Attributes:
        capability: compute capability, major and minor.
        multiprocessors: how many it has.
        clock_hz: the highest they run at.
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    clock_hz: float


class Limit(NamedTuple):
    """Images per second, at most; direct convolution is assumed, Winograd's could go beyond."""

    float32: float
    tensor_cores: float


def arithmetic_limit(chip: Chip, multiply_adds: int) -> Limit | None:
    """The limit for a network of so many multiply-adds per image; None of a chip that is not in the table."""
    if chip.capability not in MULTIPLY_ADDS_PER_CLOCK:
        return None
    clocks = chip.multiprocessors * chip.clock_hz
    float32, tensor_cores = MULTIPLY_ADDS_PER_CLOCK[chip.capability]
    return Limit(clocks * float32 / multiply_adds, clocks * tensor_cores / multiply_adds)


def multiply_adds_per_image(encoder: onnx.ModelProto) -> int:
    """Multiply-adds of the graph's convolutions and matrix products for one image."""
    model = onnx.ModelProto()
    model.CopyFrom(encoder)
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = 1
    for output in model.graph.output:
        output.type.tensor_type.shape.dim[0].dim_value = 1
    del model.graph.value_info[:]
    graph = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    shapes = {
        value.name: [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.value_info, *graph.output)
    }
    shapes |= {weight.name: list(weight.dims) for weight in graph.initializer}
    return sum(_multiply_adds(node, shapes) for node in graph.node)


def _multiply_adds(node: NodeProto, shapes: dict[str, list[int]]) -> int:
    """Numbers that come out, times the terms that each is the sum of."""
    if node.op_type == "Conv":
        terms = _product(shapes[node.input[1]][1:])  # weights [out, in, rows, columns]
    elif node.op_type == "MatMul":
        terms = shapes[node.input[0]][-1]
    else:
        return 0
    return _product(shapes[node.output[0]]) * terms


def _product(sizes: list[int]) -> int:
    product = 1
    for size in sizes:
        if size < 1:
            raise ValueError(f"a shape of the graph is not known: {sizes}")
        product *= size
    return product
