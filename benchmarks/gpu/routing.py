"""Routing by kernels in Triton beside array operations, forward and backward, layer by layer.

    python -m benchmarks.gpu.routing                    the layers of the papers' networks, about a minute
    python -m benchmarks.gpu.routing --only class       only those with class in their name
    python -m benchmarks.gpu.routing --device cpu       without a GPU: tiny layers, interpreted, untimed

A row shows images per second of both, forward and backward, with kernels that are launched one by one; the
memory that each allocates; and how far they differ: of the results and of the gradients the largest
difference, as a share of the largest value in the same tensor. Rows are printed as they are found, and
appended to a file with --json. `python -m benchmarks.training.step --device cuda` measures whole steps, with
CUDA graphs. With --device cpu the kernels run in Triton's interpreter, which shows the differences alone and
needs `pip install triton==3.9.0`.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks import option_types
from training.config import MatrixCapsNetConfig, load_preset
from training.models.build import build
from training.models.capsules import ClassCapsules, squash
from training.models.cuda.class_capsules import CudaClassCapsules
from training.models.cuda.device import use_full_float32
from training.models.em import Capsules
from training.models.fused_matrix_capsules import FusedMatrixCapsules
from training.models.matrix_capsnet import MatrixCapsNet

# B images, S child positions, I child types

BATCHES = {"cuda": 64, "cpu": 2}
PRESET = "matrix-smallnorb-small"
TINY = {"image_size": 17, "conv_channels": 4, "primary_types": 1, "conv_caps_types": (2, 2), "classes": 2}
ROUNDS = 5
ROUND_SECONDS = 0.2

Route = Callable[[], Sequence[Tensor]]


class Contest(NamedTuple):
    """A layer with its input.

    Attributes:
        arrays: routes by array operations.
        kernels: the same by kernels in Triton.
        inputs: what gradients are asked for.
    """

    name: str
    arrays: Route
    kernels: Route
    inputs: list[Tensor]


@dataclass
class Row:
    """What was found of a layer; [array operations, Triton] where there are two."""

    layer: str
    images_per_second: list[float | None]
    peak_mib: list[float | None]
    difference: float
    gradient_difference: float


def em_layers(device: torch.device, batch: int) -> Iterator[Contest]:
    """The three layers of the smaller network with EM routing, untrained, and what comes into them."""
    from training.models.cuda import fused_em

    config = load_preset(PRESET).model
    assert isinstance(config, MatrixCapsNetConfig)
    if device.type == "cpu":
        config = replace(config, **TINY)  # type: ignore[arg-type]  # of several types
    torch.manual_seed(0)
    network = build(config).to(device)
    assert isinstance(network, MatrixCapsNet)
    pixels = torch.rand(batch, config.image_channels, config.image_size, config.image_size, device=device)
    with torch.no_grad():
        children = network.primary_capsules(torch.nn.functional.avg_pool2d(pixels, 3, stride=1, padding=1))
    for number, layer in enumerate([*network.conv_caps, network.class_caps], start=1):
        assert isinstance(layer, FusedMatrixCapsules)
        capsules = Capsules(*(part.detach().requires_grad_() for part in children))

        def arrays(layer: FusedMatrixCapsules = layer, capsules: Capsules = capsules) -> Capsules:
            *_, last = layer.iterations(capsules)
            return Capsules(last.mean, last.log_activations.exp())

        def kernels(layer: FusedMatrixCapsules = layer, capsules: Capsules = capsules) -> Capsules:
            return layer.fused(capsules, fused_em.route)

        name = "EM, class capsules" if layer is network.class_caps else f"EM, convolutional capsules {number}"
        learned = [parameter for parameter in layer.parameters() if parameter.requires_grad]
        yield Contest(name, arrays, kernels, [*capsules, *learned])
        with torch.no_grad():
            children = arrays()


def agreement_layer(device: torch.device, batch: int) -> Iterator[Contest]:
    """The class capsules of the MNIST network, untrained, and random capsules that come into them."""
    lower, upper = (1152, 10) if device.type == "cuda" else (20, 3)
    torch.manual_seed(0)
    layer = ClassCapsules(lower, 8, upper, 16, iterations=3).to(device)
    u = squash(torch.randn(batch, lower, 8)).to(device).requires_grad_()

    def arrays() -> list[Tensor]:
        layer.__class__ = ClassCapsules
        return [layer(u)]

    def kernels() -> list[Tensor]:
        layer.__class__ = CudaClassCapsules
        assert isinstance(layer, CudaClassCapsules)
        return [layer.fused(u)]

    yield Contest("by agreement, class capsules", arrays, kernels, [u, layer.weight])


def both_ways(route: Route, inputs: list[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Results of a layer, and gradients by its inputs for what comes back to it."""
    results = route()
    generator = torch.Generator().manual_seed(1)
    given = [torch.randn(result.shape, generator=generator).to(result) for result in results]
    return results, torch.autograd.grad(results, inputs, given)


def images_per_second(route: Route, inputs: list[Tensor], batch: int, device: torch.device) -> float | None:
    """Forward and backward, median; None: an interpreter is not timed."""
    if device.type == "cpu":
        return None
    given = [torch.ones_like(result) for result in route()]

    def seconds(times: int) -> float:
        begin = time.perf_counter()
        for _ in range(times):
            torch.autograd.grad(route(), inputs, given)
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / times

    seconds(1)  # compiles
    times = max(1, round(ROUND_SECONDS / seconds(1)))
    return batch / median(seconds(times) for _ in range(ROUNDS))


def peak_mib(route: Route, inputs: list[Tensor], device: torch.device) -> float | None:
    """What is allocated beyond the inputs at the highest; None: it is not measured on a CPU."""
    if device.type == "cpu":
        return None
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    both_ways(route, inputs)
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest of any tensor, as a share of its largest value."""
    pairs = zip((x.detach() for x in found), (x.detach() for x in expected), strict=True)
    return max(float((one - other).abs().max() / other.abs().max()) for one, other in pairs)


def measure(contest: Contest, batch: int, device: torch.device) -> Row:
    """Both ways of routing a layer."""
    routes, inputs = (contest.arrays, contest.kernels), contest.inputs
    expected, found = (both_ways(route, inputs) for route in routes)
    return Row(
        contest.name,
        [images_per_second(route, inputs, batch, device) for route in routes],
        [peak_mib(route, inputs, device) for route in routes],
        difference(found[0], expected[0]),
        difference(found[1], expected[1]),
    )


def line(row: Row) -> str:
    """Of the table."""
    arrays, kernels = row.images_per_second
    times = kernels / arrays if arrays and kernels else None
    numbers = "".join(
        f"{'-':>10}" if number is None else f"{number:10.{digits}f}"
        for number, digits in ((arrays, 0), (kernels, 0), (times, 2), *((peak, 0) for peak in row.peak_mib))
    )
    return f"{row.layer:30}{numbers}{row.difference:12.1e}{row.gradient_difference:12.1e}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table as it grows; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", type=option_types.device, default="cuda", help="cuda or cpu (cuda)")
    parser.add_argument("--batch", type=option_types.positive, help="images (64, on a CPU 2)")
    parser.add_argument("--only", default="", help="only layers with this in their name")
    parser.add_argument("--json", type=Path, help="append each row to this file, too")
    parser.add_argument(
        "--tiles",
        type=option_types.positive,
        nargs=3,
        metavar=("IMAGES", "CHUNK", "WARPS"),
        help="of routing by agreement: images in a tile, lower capsules and warps of a program (as trained)",
    )
    options = parser.parse_args(arguments)
    device, batch = options.device, options.batch or BATCHES[options.device.type]
    if device.type == "cuda" and not torch.cuda.is_available():
        print(
            "routing: there is no CUDA device here; --device cpu uses Triton's interpreter", file=sys.stderr
        )
        return 2
    if find_spec("triton") is None:
        print("routing: Triton is missing: pip install triton==3.9.0", file=sys.stderr)
        return 2
    if device.type == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are defined
    use_full_float32()
    if options.tiles:
        from training.models.cuda import fused_routing

        fused_routing.IMAGES, fused_routing.CHUNK, fused_routing.WARPS = options.tiles
    print(f"{torch.cuda.get_device_name() if device.type == 'cuda' else 'interpreted'}, batch {batch}\n")
    print(f"{'':30}{'images/s':>20}{'':10}{'MiB':>20}{'largest difference':>24}")
    heads = "".join(f"{head:>10}" for head in ("arrays", "Triton", "times", "arrays", "Triton"))
    print(f"{'':30}{heads}{'results':>12}{'gradients':>12}", flush=True)
    for contest in (*agreement_layer(device, batch), *em_layers(device, batch)):
        if options.only.lower() not in contest.name.lower():
            continue
        row = measure(contest, batch, device)
        print(line(row), flush=True)
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps(asdict(row)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
