"""How many images a second a chip could encode if it did nothing but the network's multiplications."""

from importlib.util import find_spec
from typing import NamedTuple

import onnx
from onnx import NodeProto

from benchmarks.gpu.timing import seconds_per_run

SIDE = {"cuda": 8192, "cpu": 512}  # of the matrices


class Limit(NamedTuple):
    """Images per second, at most; direct convolution is assumed, Winograd's could go beyond."""

    float32: float
    float16: float


def measured_limit(device: str, multiply_adds: int, seconds: float) -> Limit | None:
    """The limit at the speed of large matrix products, which is measured: clocks fall under load.

    Args:
        device: cuda or cpu.
        multiply_adds: of the network for one image.
        seconds: to measure each precision.

    Returns:
        None without torch, or where torch has no such device.
    """
    if not find_spec("torch"):
        return None
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        return None
    side = SIDE[device]

    def images_per_second(dtype: torch.dtype) -> float:
        left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        product = torch.empty_like(left)

        def multiply() -> None:
            torch.mm(left, right, out=product)
            if device == "cuda":
                torch.cuda.synchronize()

        return float(side**3 / seconds_per_run(multiply, seconds) / multiply_adds)

    return Limit(images_per_second(torch.float32), images_per_second(torch.float16))


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
    elif node.op_type == "Einsum":
        terms = _summed_over(node, shapes)
    else:
        return 0
    return _product(shapes[node.output[0]]) * terms


def _summed_over(node: NodeProto, shapes: dict[str, list[int]]) -> int:
    """Terms of each number that an Einsum gives: the sizes of the letters that are not in its output."""
    inputs, output = node.attribute[0].s.decode().replace(" ", "").split("->")
    sizes = {
        letter: size
        for letters, name in zip(inputs.split(","), node.input, strict=True)
        for letter, size in zip(letters, shapes[name], strict=True)
    }
    return _product([size for letter, size in sizes.items() if letter not in output])


def _product(sizes: list[int]) -> int:
    product = 1
    for size in sizes:
        if size < 1:
            raise ValueError(f"a shape of the graph is not known: {sizes}")
        product *= size
    return product
