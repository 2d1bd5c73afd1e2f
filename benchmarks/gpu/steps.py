"""Training steps of whole presets: images a second, memory, and the kernels that take the time.

    python -m benchmarks.gpu.steps                                        about half a minute
    python -m benchmarks.gpu.steps --presets mnist,affnist --batch 1024 --kernels kernels.txt
    python -m benchmarks.gpu.steps --device cpu --presets drawn           the same code without a GPU

A step is forward, backward and Adam on one batch that is on the device already: that of `capsnet-train fit`
without the making of the batch and the average of the weights, and once more with the kernels launched one by
one, not replayed by CUDA graphs. Networks are untrained, and matrix capsules not calibrated.
`python -m benchmarks.training.step` compares a step with a straightforward implementation.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks import option_types
from benchmarks.gpu.timing import PROFILED_RUNS, kernels
from training.config import RunConfig, load_preset
from training.data.batches import Batch, make_batches
from training.data.images import Images
from training.data.seeding import generator_for
from training.fit.step import TrainStep
from training.models.build import build
from training.models.cuda.device import use_full_float32

PRESETS = ("mnist", "multimnist", "mnist-cnn", "matrix-smallnorb-small")
WARM_STEPS = 3  # the first one captures CUDA graphs
SYNCHRONIZED_EVERY = 20  # steps, so that the host does not run far ahead


@dataclass(frozen=True)
class Row:
    """What was found of a preset.

    Attributes:
        graphs: whether CUDA graphs replay the kernels.
        milliseconds: of a step.
        peak_mib: allocated at the highest; None on a CPU.
    """

    preset: str
    batch: int
    graphs: bool
    milliseconds: float
    images_per_second: float
    peak_mib: float | None


class Learner:
    """A preset's network, ready to learn from one batch."""

    def __init__(self, preset: str, batch: int | None, device: torch.device, *, graphs: bool) -> None:
        config = load_preset(preset)
        self.batch = batch or config.optimizer.batch_size
        self._device, self._rate = device, config.optimizer.learning_rate
        torch.manual_seed(0)
        self._shown = _a_batch(config, self.batch, device)
        network, decay = build(config.model).to(device), config.optimizer.weight_decay
        self._step = TrainStep(network, config.loss, self._rate, decay, graphs=graphs)
        self.learn(WARM_STEPS)

    def learn(self, steps: int) -> None:
        """Some steps, until the device has finished them."""
        for _ in range(steps):
            self._step(self._shown, self._rate)
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def seconds_per_step(self, seconds: float) -> float:
        """The mean over at least so many seconds."""
        began, steps = time.perf_counter(), 0
        while (spent := time.perf_counter() - began) < seconds or not steps:
            self.learn(SYNCHRONIZED_EVERY if self._device.type == "cuda" else 1)
            steps += SYNCHRONIZED_EVERY if self._device.type == "cuda" else 1
        return spent / steps


def _a_batch(config: RunConfig, size: int, device: torch.device) -> Batch:
    """Noise, as training would show it."""
    model, spec = config.model, config.data.spec
    side, channels = spec.image_size or model.image_size, spec.channels or model.image_channels
    pixels = torch.randint(256, (size, channels, side, side), dtype=torch.uint8)
    shown = Images(pixels, torch.arange(size) % model.classes)
    batches = make_batches(config.data, model.classes, shown).to(device)
    return batches.random(torch.arange(size, device=device), generator_for(0, 0, device))


def measure(preset: str, options: argparse.Namespace, *, graphs: bool) -> Row:
    """One way to launch a preset's steps; the kernels of the faster one are written down, too."""
    on_cuda = options.device.type == "cuda"
    gc.collect()  # CUDA graphs of the row before refer to each other
    if on_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    learner = Learner(preset, options.batch, options.device, graphs=graphs)
    seconds = learner.seconds_per_step(options.seconds)
    peak = torch.cuda.max_memory_allocated() / 2**20 if on_cuda else None
    if options.kernels and (graphs or not on_cuda):
        with options.kernels.open("a") as file:
            table = kernels(lambda: learner.learn(1), options.device.type)
            file.write(f"{preset}, batch {learner.batch}, {PROFILED_RUNS} steps\n{table}\n")
    return Row(preset, learner.batch, graphs, 1000 * seconds, learner.batch / seconds, peak)


def line(row: Row) -> str:
    """Of the table."""
    peak = "-" if row.peak_mib is None else f"{row.peak_mib:.0f}"
    how = "CUDA graphs" if row.graphs else "one by one"
    numbers = f"{row.milliseconds:>9.2f}{row.images_per_second:>10.0f}{peak:>9}"
    return f"{row.preset:26}{row.batch:>7}  {how:12}{numbers}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table as it grows; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.device.type == "cuda" and not torch.cuda.is_available():
        print("steps: there is no CUDA device here; use --device cpu", file=sys.stderr)
        return 2
    names = options.presets.split(",")
    try:
        for name in names:
            load_preset(name)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    use_full_float32()
    on_cuda = options.device.type == "cuda"
    print(f"{torch.cuda.get_device_name() if on_cuda else 'CPU'}, torch {torch.__version__}\n")
    print(f"{'':26}{'batch':>7}  {'launched':12}{'ms/step':>9}{'images/s':>10}{'MiB':>9}", flush=True)
    for preset in names:
        for graphs in (True, False) if on_cuda else (False,):
            row = measure(preset, options, graphs=graphs)
            print(line(row), flush=True)
            if options.json:
                with options.json.open("a") as file:
                    file.write(json.dumps(asdict(row)) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.steps",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", type=option_types.device, default="cuda", help="cuda or cpu (cuda)")
    parser.add_argument(
        "--presets", default=",".join(PRESETS), help="separated by commas (%(default)s)", metavar="NAME,NAME"
    )
    parser.add_argument("--batch", type=option_types.positive, help="images in a step (the preset's)")
    parser.add_argument("--seconds", type=option_types.seconds, default=1.0, help="for each row (1)")
    parser.add_argument("--kernels", type=Path, metavar="FILE", help="append tables of the kernels' times")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append each row to this file, too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
