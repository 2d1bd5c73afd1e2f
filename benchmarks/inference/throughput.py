"""Images per second of an encoder on a CPU, by runtime and batch size, in one run on one machine.

    python -m benchmarks.inference.throughput     the shipped capsnet-mnist; about five minutes
    python -m benchmarks.inference.throughput --only plain,ours    those with one of these in the name
    python -m benchmarks.inference.throughput models/NAME/VERSION --batches 1,32 --threads 2 --json found.json

It needs `pip install -e '.[cpu,train,bench]'` and, for torch.compile, a C++ compiler. What is missing is said
and left out.

All have the same weights, pixels and number of threads, and compute in float32. Each is a process of its own,
so that neither threads nor memory of one are in another's way. They take turns, in a new order every round,
so that other load on the machine slows them all alike. A time is that of one batch, numpy in and numpy out;
shown are medians of the rounds' medians. A ratio is the median of ratios within a round, that to the best
other to whichever was the fastest in that round, so it may differ from that of two medians in the table.

The plain graph is the bundle's on ONNX Runtime. Ours is, at each size, the graph that export/optimize chooses
on this machine before anything else is measured; it stands in bold. As served are the sessions that a service
has, several of them, with a batch shared between threads; it is meant to be within 5 % of the best variant.

The last column, "differs by", is the largest difference of an output from the plain graph's, at any size.
Memory is the highest resident memory of the process until it has run batches of that size and the smaller
ones; Python, libraries and compilation are part of it.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import onnx

from benchmarks import option_types
from benchmarks.inference.contender import COMPARED_IMAGES, Floats, open_onnxruntime
from benchmarks.inference.report import SERVED, VARIANTS, Report, Row
from benchmarks.machine import installed, processor
from benchmarks.paths import ROOT
from export.contract.architecture import CPU_BATCH, stated_architecture
from export.contract.manifest import Manifest, read_checked, read_manifest
from export.contract.processors import usable_cpus
from export.optimize.choice import choose, open_variants
from export.optimize.derive import write_variants
from export.optimize.measure import SIZES, measure
from export.optimize.plan import Variant

# N images, H rows, W columns, C channels

CONTENDER = "benchmarks.inference.contender"
RUNTIMES = ("onnxruntime", "openvino", "torch")  # whose versions are told
BATCHES = (1, 4, 16, 32, 64)
ROUNDS = 5
SETTLE_S = 0.02  # until threads that wait actively for more work have given up
OUTPUTS = ("probabilities", "poses")


class Contender(NamedTuple):
    """What is measured: a runtime of contender.py, and the file that it opens."""

    name: str
    runtime: str
    file: str


CONTENDERS = (
    Contender("torch eager", "torch", "weights.npz"),
    Contender("torch.compile", "torch.compile", "weights.npz"),
    Contender("OpenVINO", "openvino", "plain.onnx"),
    *(Contender(name, "onnxruntime", f"{variant}.onnx") for variant, name in VARIANTS.items()),
    Contender(SERVED, "service", "bundle"),
)


class ContenderError(RuntimeError):
    """A contender cannot go on; says why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit status."""
    options = _parser().parse_args(arguments)
    manifest = read_manifest(options.bundle)
    encoder = read_checked(options.bundle, manifest.graphs["encoder"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        choice = write_files(folder, options.bundle, manifest, encoder, options)
        print(_heading(options, manifest), flush=True)
        rows = measure_all(folder, options)
    for row in rows:
        if row.left_out:
            print(f"{row.name} is left out: {row.left_out}", file=sys.stderr)
    report = Report([row for row in rows if not row.left_out], choice)
    print("\n".join(report.lines()) if report.rows else "nothing was measured")
    if options.json:
        options.json.write_text(json.dumps(_record(options, manifest, report), indent=2) + "\n")
    return 0 if report.rows else 1


# -- measuring --------------------------------------------------------------------------------------------


def write_files(
    folder: Path, bundle: Path, manifest: Manifest, encoder: bytes, options: argparse.Namespace
) -> dict[int, Variant]:
    """Write all that contenders open and the plain graph's outputs; return which variant is ours, by size."""
    model = onnx.load_model_from_string(encoder)
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    variants = write_variants(model, stated_architecture(manifest), folder, options.threads)
    (folder / "plain.onnx").write_bytes(encoder)
    shutil.copytree(bundle, folder / "bundle")
    np.savez(folder / "weights.npz", **weights)  # type: ignore[arg-type]
    pixels = pictures(bundle, manifest, max(*options.batches, COMPARED_IMAGES))
    np.save(folder / "pixels.npy", pixels)
    outputs = open_onnxruntime(folder / "plain.onnx", options.threads)(pixels)
    np.savez(folder / "expected.npz", **dict(zip(OUTPUTS, outputs, strict=True)))  # type: ignore[arg-type]
    sizes = [size for size in SIZES if size <= CPU_BATCH[manifest.architecture]]
    choice = choose(measure(open_variants(variants, options.threads), sizes).milliseconds)
    return {size: choice.variant(size) for size in options.batches}


def pictures(bundle: Path, manifest: Manifest, count: int) -> Floats:
    """The bundle's samples and as much noise in turn, [N, H, W, C] in 0-1."""
    with np.load(bundle / manifest.samples.file, allow_pickle=False) as samples:
        drawn: Floats = samples["pixels"]
    noise = np.random.default_rng(0).random(drawn.shape, np.float32)
    both = np.stack((drawn, noise), axis=1).reshape(-1, *drawn.shape[1:])
    return np.resize(both, (count, *drawn.shape[1:]))


def measure_all(folder: Path, options: argparse.Namespace) -> list[Row]:
    """Measure the contenders that were asked for, in turns."""
    asked = [one for one in CONTENDERS if _is_asked_for(one.name, options.only)]
    rows = {one.name: Row(one.name, {size: [] for size in options.batches}) for one in asked}
    with ExitStack() as stack:
        children: dict[str, Child] = {}
        for one in asked:
            print(f"opening {one.name}", file=sys.stderr)
            try:
                with a_busy_core() if options.busy and one.name == SERVED else nullcontext():
                    children[one.name] = stack.enter_context(opened(one, folder, options.threads))
            except ContenderError as error:
                rows[one.name].left_out = str(error)
        for turn in range(ROUNDS):
            print(f"round {turn + 1} of {ROUNDS}", file=sys.stderr)
            for size in options.batches:
                for name in rotated(list(children), turn):
                    try:
                        take_turn(children[name], rows[name], size, options.seconds / ROUNDS)
                    except ContenderError as error:
                        rows[name].left_out = str(error)
                        del children[name]
    return list(rows.values())


@contextmanager
def a_busy_core() -> Iterator[None]:
    """Meanwhile another process keeps one core busy."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """Every round begins with another one."""
    first = turn % max(len(names), 1)
    return [*names[first:], *names[:first]]


def take_turn(child: "Child", row: Row, size: int, seconds: float) -> None:
    """Measure a batch size of one contender; in the first round its outputs and its memory, too."""
    if not row.seconds[size]:
        for name, difference in child.differences(size).items():
            row.difference[name] = max(row.difference.get(name, 0.0), difference)
    found = child.ask(batch=size, seconds=seconds)
    row.seconds[size].append(found["seconds"])
    row.peak_bytes.setdefault(size, found["peak_bytes"])
    time.sleep(SETTLE_S)


class Child:
    """A contender's process."""

    def __init__(self, process: "subprocess.Popen[str]", folder: Path, log: IO[str]):
        self._process, self._folder, self._log = process, folder, log

    def ask(self, **question: object) -> dict[str, Any]:
        """Ask and wait.

        Raises:
            ContenderError: it cannot answer, now or any more.
        """
        assert self._process.stdin
        with suppress(BrokenPipeError):  # it is over; reading tells why
            self._process.stdin.write(json.dumps(question) + "\n")
        return self.read()

    def read(self) -> dict[str, Any]:
        """Its next answer.

        Raises:
            ContenderError: there is none.
        """
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            self._log.seek(0)
            words = (self._log.read().strip().splitlines() or ["it said nothing"])[-1]
            raise ContenderError(f"its process ended with status {status}: {words}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ContenderError(answer["error"])
        return answer

    def differences(self, size: int) -> dict[str, float]:
        """The largest difference of each output from the plain graph's, in batches of this size."""
        file = self._folder / "outputs.npz"
        self.ask(batch=size, outputs=str(file))
        with np.load(file) as found, np.load(self._folder / "expected.npz") as expected:
            return {
                name: float(np.abs(found[name] - expected[name][: len(found[name])]).max())
                for name in OUTPUTS
            }


@contextmanager
def opened(contender: Contender, folder: Path, threads: int) -> Iterator[Child]:
    """A process with the contender open in it, which ends with the context.

    Raises:
        ContenderError: it cannot be opened.
    """
    file = folder / contender.file
    if not file.exists():
        raise ContenderError("export/optimize does not derive this variant from this graph")
    command = [sys.executable, "-m", CONTENDER, contender.runtime, str(file), str(threads)]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            bufsize=1,
            cwd=ROOT,
            env=_environment(folder, threads),
        ) as process,
    ):
        try:
            child = Child(process, folder, log)
            child.read()
            yield child
        finally:
            process.kill()


def _environment(folder: Path, threads: int) -> dict[str, str]:
    """Of the contenders; what torch compiles goes with the folder."""
    return {
        # Where another process takes a core now and then, torch is several times slower with threads that
        # wait actively for each other.
        "OMP_WAIT_POLICY": "PASSIVE",
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }


# -- reporting -------------------------------------------------------------------------------------------


def _heading(options: argparse.Namespace, manifest: Manifest) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in installed(*RUNTIMES).items())
    return (
        f"{processor()}, {options.threads} threads on {usable_cpus()} CPUs, "
        f"Python {platform.python_version()}, {versions}; {manifest.model}/{options.bundle.name}, "
        f"{ROUNDS} rounds, {options.seconds:g} s for each contender and size\n"
    )


def _record(options: argparse.Namespace, manifest: Manifest, report: Report) -> dict[str, Any]:
    return {
        "model": f"{manifest.model}/{options.bundle.name}",
        "processor": processor(),
        "cpus": usable_cpus(),
        "threads": options.threads,
        "versions": {"python": platform.python_version(), **installed(*RUNTIMES)},
        "rounds": ROUNDS,
        "seconds": options.seconds,
        "rows": [
            {**vars(row), "images_per_second": {size: row.images_per_second(size) for size in row.seconds}}
            for row in report.rows
        ],
        "chosen": report.chosen_names(),
        "of_best_variant": report.of_best_variant,
        "ratios": {
            name: {size: one._asdict() for size, one in found.items()}
            for name, found in report.ratios.items()
        },
    }


# -- options ----------------------------------------------------------------------------------------------


def _is_asked_for(name: str, words: Sequence[str]) -> bool:
    return any(word.lower() in name.lower() for word in words)


def _sizes(text: str) -> list[int]:
    return sorted({option_types.positive(part) for part in text.split(",")})  # memory is that up to a size


def _words(text: str) -> list[str]:
    words = text.split(",")
    for word in words:
        if not any(_is_asked_for(one.name, [word]) for one in CONTENDERS):
            names = "; ".join(one.name for one in CONTENDERS)
            raise argparse.ArgumentTypeError(f"no contender has {word!r} in its name; there are: {names}")
    return words


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        epilog="\n\n".join((__doc__ or "").split("\n\n")[1:]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "bundle",
        type=option_types.bundle,
        nargs="?",
        metavar="BUNDLE",
        default=str(ROOT / "models" / "capsnet-mnist"),
        help="a version of a model, or the model's folder for its newest (models/capsnet-mnist)",
    )
    parser.add_argument(
        "--batches", type=_sizes, default=list(BATCHES), metavar="N,...", help="sizes of batches"
    )
    parser.add_argument(
        "--threads", type=option_types.positive, default=usable_cpus(), help="of each contender (usable CPUs)"
    )
    parser.add_argument(
        "--seconds", type=option_types.seconds, default=5.0, help="for each contender and size of batch (5)"
    )
    parser.add_argument(
        "--only",
        type=_words,
        default=[""],
        metavar="TEXT,...",
        help="contenders whose name has one of these in it",
    )
    parser.add_argument(
        "--busy", action="store_true", help="keep one core busy while the service chooses its graphs"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there, too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
