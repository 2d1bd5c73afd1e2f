"""How long a training step takes, and how much memory, beside a straightforward implementation of the same.

    python -m benchmarks.training.step                              two minutes on two CPU cores
    python -m benchmarks.training.step --network matrix-capsnet     four minutes
    python -m benchmarks.training.step --network cnn                two minutes
    python -m benchmarks.training.step --device cuda
    python -m benchmarks.training.step --give-memory-back

A step is forward, backward and Adam: of the dynamic-routing paper's MNIST network with its decoder, of the
smaller network of the EM-routing paper (68K parameters, stereo pictures of 32x32), or of the CNN that CapsNet
is compared with on affNIST, without dropout, whose draws would differ. Straightforward is straightforward.py,
with its votes as a broadcast product or by einsum; for matrix capsules it is straightforward_em.py, a loop
over positions, and there are array operations over all positions as well, which is what is exported. Ours is
what `capsnet-train fit` runs, on a CPU with instructions for bfloat16 with its convolutions, and a CNN's
fully connected layers, in that, where the others are float32, and on CUDA once more with its kernels launched
one by one, as those of the others are. All begin with the same weights and see the same images, one step each
in turn, so that what else the machine does meets all of them. The table shows medians, and of the ratios of
neighbors the median, the lowest and the highest: other programs on the same cores disturb what runs in
parallel far beyond their share. Memory is what a few steps add to a fresh process at their highest; on CUDA,
what they allocate there.
"""

import argparse
import json
import multiprocessing
import platform
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks import machine, option_types
from benchmarks.training.straightforward import StraightforwardCapsNet, StraightforwardStep
from benchmarks.training.straightforward_em import by_array_operations, looped
from training.config import CnnConfig, RunConfig, load_preset
from training.data.batches import Batch
from training.fit.memory import keep_freed_memory
from training.fit.step import TrainStep
from training.loss.objective import total_loss
from training.models.baselines import BaselineCnn
from training.models.build import Network, build
from training.models.capsnet import CapsNet
from training.models.cuda.device import use_full_float32
from training.models.matrix_capsnet import MatrixCapsNet

STRAIGHTFORWARD, EINSUM = "straightforward", "the same, einsum"
LOOP, ARRAYS = "a loop over positions", "array operations"
OURS, EAGER = "ours", "ours, no CUDA graphs"
WARM_STEPS = 3
FEWEST_STEPS = 5  # timed, however long they take
MEMORY_STEPS = 3

Learn = Callable[[], Tensor]  # takes a step and gives its loss


@dataclass(frozen=True)
class Contest:
    """What is compared.

    Attributes:
        preset: whose network is trained.
        batch: images in a step, unless asked for otherwise.
        others: that ours is compared with; the first one is straightforward.
        compared_steps: the first so many, whose losses are compared; later ones drift apart, as any rounding
            makes them: Adam's first steps go by the sign of a gradient, also where it is near 0.
        spread_margin: of spread loss in these steps.
    """

    preset: str
    batch: int
    others: tuple[str, ...]
    compared_steps: int
    spread_margin: float = 0.0


CONTESTS = {
    "capsnet": Contest("mnist", 128, (STRAIGHTFORWARD, EINSUM), 3),
    "matrix-capsnet": Contest("matrix-smallnorb-small", 64, (LOOP, ARRAYS), 1, spread_margin=0.2),
    "cnn": Contest("affnist-cnn", 128, (STRAIGHTFORWARD,), 1),
}


def batch_of(config: RunConfig, images: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Blurred noise as images [B, C, H, W], 0 to 1, and what is present in them [B, J]."""
    model = config.model
    generator = torch.Generator().manual_seed(1)
    noise = torch.rand(images, model.image_channels, model.image_size, model.image_size, generator=generator)
    pixels = torch.nn.functional.avg_pool2d(noise, 3, stride=1, padding=1)
    labels = torch.arange(images) % model.classes
    targets = torch.nn.functional.one_hot(labels, model.classes).float()
    return pixels.to(device), targets.to(device)


def make_step(network: str, kind: str, images: int, device: torch.device) -> Learn:
    """A network with weights that depend on nothing but the seed, ready to learn from one batch."""
    use_full_float32()
    contest = CONTESTS[network]
    config = load_preset(contest.preset)
    if isinstance(config.model, CnnConfig):
        config = replace(config, model=replace(config.model, dropout=0.0))
    pixels, targets = batch_of(config, images, device)
    torch.manual_seed(0)
    ours, rate = build(config.model), config.optimizer.learning_rate
    if kind in (STRAIGHTFORWARD, EINSUM):
        plain = StraightforwardStep(straightforward(ours, kind).to(device), rate)
        return lambda: plain(pixels, targets)
    if isinstance(ours, MatrixCapsNet) and kind in (LOOP, ARRAYS):
        ours = looped(ours) if kind == LOOP else by_array_operations(ours)
    step = TrainStep(ours.to(device), config.loss, rate, config.optimizer.weight_decay, graphs=kind == OURS)
    shown = Batch.of(pixels, targets)

    def learn() -> Tensor:
        classification, reconstruction = step(shown, rate, contest.spread_margin)
        return total_loss(classification, reconstruction, config.loss)

    return learn


def straightforward(ours: Network, kind: str) -> StraightforwardCapsNet | BaselineCnn:
    """The network in plain PyTorch, with the weights of ours."""
    if isinstance(ours, CapsNet):
        return StraightforwardCapsNet(ours, einsum=kind == EINSUM)
    assert isinstance(ours, BaselineCnn)
    plain = BaselineCnn(ours.config)
    plain.load_state_dict(ours.state_dict())
    return plain


def timed(learn: Learn, device: torch.device) -> tuple[float, Tensor]:
    """Seconds of a step, and its loss."""
    begin = time.perf_counter()
    loss = learn()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin, loss


def peak_bytes(network: str, kind: str, images: int, device_name: str, threads: int, keep: bool) -> int:
    """What a network and some steps of it take; run in a process of its own."""
    device = torch.device(device_name)
    torch.set_num_threads(threads)
    if keep:
        keep_freed_memory()
    if device.type == "cuda":
        learn = make_step(network, kind, images, device)
        for _ in range(MEMORY_STEPS):
            learn()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()
    torch.ones(64, 64) @ torch.ones(64, 64)  # the libraries' own buffers
    before = machine.peak_bytes()
    learn = make_step(network, kind, images, device)
    for _ in range(MEMORY_STEPS):
        learn()
    return machine.peak_bytes() - before


def measured(network: str, device: torch.device) -> tuple[str, ...]:
    """What is compared on the device."""
    others = CONTESTS[network].others
    return (*others, OURS, EAGER) if device.type == "cuda" else (*others, OURS)


def measure_memory(network: str, images: int, device: torch.device, keep: bool) -> dict[str, int]:
    """Peak bytes of each, in a fresh process."""
    found = {}
    for kind in measured(network, device):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            threads = torch.get_num_threads()
            asked = process.submit(peak_bytes, network, kind, images, str(device), threads, keep)
            found[kind] = asked.result()
    return found


def measure_time(network: str, images: int, device: torch.device, seconds: float) -> dict[str, Any]:
    """Seconds of each step by kind, how they compare with ours, and how far the first losses differ."""
    steps = {kind: make_step(network, kind, images, device) for kind in measured(network, device)}
    losses: dict[str, list[float]] = {kind: [] for kind in steps}
    taken: dict[str, list[float]] = {kind: [] for kind in steps}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken[OURS]) < WARM_STEPS + FEWEST_STEPS:
        for kind, learn in steps.items():
            spent, loss = timed(learn, device)
            taken[kind].append(spent)
            losses[kind].append(loss.item())
    taken = {kind: times[WARM_STEPS:] for kind, times in taken.items()}
    return {
        "steps": len(taken[OURS]),
        "seconds": {kind: median(times) for kind, times in taken.items()},
        "times_ours": {kind: spread(times, taken[OURS]) for kind, times in taken.items()},
        "loss": losses[OURS][0],
        "loss_difference": {
            kind: difference(found, losses[OURS], CONTESTS[network].compared_steps)
            for kind, found in losses.items()
        },
    }


def spread(times: list[float], ours: list[float]) -> dict[str, float]:
    """Of the ratios of neighbors."""
    ratios = [other / own for other, own in zip(times, ours, strict=True)]
    return {"median": median(ratios), "lowest": min(ratios), "highest": max(ratios)}


def difference(losses: list[float], ours: list[float], steps: int) -> float:
    """The largest of the first steps."""
    pairs = zip(losses[:steps], ours[:steps], strict=True)
    return max(abs(other - own) for other, own in pairs)


def report(found: dict[str, Any]) -> str:
    """The table, and in words what memory and losses are beside the straightforward one."""
    preset = CONTESTS[found["network"]].preset
    lines = [f"{preset}: {found['hardware']}, batch {found['batch']}, {found['steps']} steps each", ""]
    lines.append(f"{'':22}{'s/step':>9}{'images/s':>10}{'times ours':>22}{'peak MiB':>10}")
    for kind, seconds in found["seconds"].items():
        ratios = found["times_ours"][kind]
        ratio = f"{ratios['median']:.2f} ({ratios['lowest']:.2f} to {ratios['highest']:.2f})"
        rate, peak = found["batch"] / seconds, found["peak_bytes"][kind] / 2**20
        lines.append(f"{kind:22}{seconds:9.4f}{rate:10.0f}{ratio:>22}{peak:10.0f}")
    contest = CONTESTS[found["network"]]
    plain = contest.others[0]
    share = found["peak_bytes"][OURS] / found["peak_bytes"][plain]
    apart = f"{found['loss_difference'][plain]:.1e} of {found['loss']:.4f}"
    lines += ["", f"ours takes {share:.2f} times the memory of {plain}"]
    steps = "step differ" if contest.compared_steps == 1 else f"{contest.compared_steps} steps differ"
    lines.append(f"their losses in the first {steps} by up to {apart}")
    return "\n".join(lines)


def hardware(device: torch.device) -> str:
    """What it ran on, in words."""
    name = f"{torch.get_num_threads()} CPU threads ({machine.processor() or platform.machine()})"
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    return f"{name}, torch {torch.__version__}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", choices=CONTESTS, default="capsnet", help="whose step (capsnet)")
    parser.add_argument(
        "--batch", type=option_types.positive, help="images in a step (128, matrix-capsnet 64)"
    )
    parser.add_argument(
        "--seconds",
        type=option_types.seconds,
        default=45.0,
        help="for all timed steps together, at least (45)",
    )
    parser.add_argument("--device", type=option_types.device, default="cpu", help="cpu or cuda (cpu)")
    parser.add_argument("--json", type=Path, help="write what was found here, too")
    parser.add_argument(
        "--give-memory-back",
        action="store_true",
        help="do not keep freed memory, as `capsnet-train` does, but hand it back, as PyTorch does by itself",
    )
    asked = parser.parse_args()
    if asked.device.type == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device here; use --device cpu")
    contest = CONTESTS[asked.network]
    batch = asked.batch or contest.batch
    keep = not asked.give_memory_back
    peaks = measure_memory(asked.network, batch, asked.device, keep)
    if keep:
        keep_freed_memory()
    found = {
        "network": asked.network,
        "hardware": hardware(asked.device),
        "device": asked.device.type,
        "batch": batch,
        "freed_memory_kept": keep,
        "peak_bytes": peaks,
        **measure_time(asked.network, batch, asked.device, asked.seconds),
    }
    print(report(found))
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
