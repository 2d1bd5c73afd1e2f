"""Derive a graph's faster variants, measure them and write those in use into a folder, with their plan."""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from filelock import FileLock

from export.contract.architecture import CPU_BATCH, StatedArchitecture
from export.contract.manifest import Architecture
from export.optimize.choice import (
    MAX_ERROR,
    choose,
    cpu_options,
    largest_errors,
    open_variant,
    open_variants,
    slower_than_fastest,
)
from export.optimize.encoder import NotOptimizableError
from export.optimize.measure import SIZES, measure
from export.optimize.plan import FILE, MAX_PARALLEL_BATCHES, PLAIN, Plan, Variant, files_of, read_plan
from export.optimize.rewrite import rewritten

LARGE_TENSOR_BYTES = 64 * 1024
ASIDE = ".deriving-"
TILES = 2  # of the most promising, how many are measured
MEASURED_SIZES: Mapping[Variant, Sequence[int]] = {
    "toom_cook_1d": (1, 4),
    "toom_cook_2d": (8, 16),
    "em_moments": (1, 2),
}  # sizes of batches


def derive(
    encoder: bytes,
    decoder: bytes,
    folder: Path,
    threads: tuple[int, int],
    architecture: StatedArchitecture,
    *,
    again: bool = False,
) -> Plan:
    """Make the folder, with a plan and the graphs that it names; it is there whole or not at all.

    Args:
        encoder: the plain graph, as in its file.
        decoder: what a service runs between batches of the encoder, as in its file; empty for nothing.
        folder: to be made; a plan that another process has just made there is taken.
        threads: of a batch that has all cores, and of one that shares them.
        architecture: of the network, from the bundle's manifest.
        again: replace a plan that was measured under load by one that is measured now, under less load.

    Raises:
        OSError: the folder cannot be written.
        google.protobuf.message.DecodeError: this is no graph.
    """
    if (found := read_plan(folder)) and not again:  # of another user, maybe, whose folder we cannot write
        return found
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Others would measure our noise, and we theirs. The file stays, so other users must be able to open it.
    with FileLock(folder.parent / ".lock", mode=0o666):
        found = read_plan(folder)
        if found and not (again and found.is_under_load):
            return found
        return _derive(encoder, decoder, folder, threads, architecture, found)


def _derive(
    encoder: bytes,
    decoder: bytes,
    folder: Path,
    threads: tuple[int, int],
    architecture: StatedArchitecture,
    found: Plan | None,
) -> Plan:
    for left in folder.parent.glob(f"{ASIDE}*"):  # of a process that was killed: the lock is ours
        shutil.rmtree(left, ignore_errors=True)
    aside = Path(tempfile.mkdtemp(prefix=ASIDE, dir=folder.parent))
    try:
        files = write_variants(onnx.load_model_from_string(encoder), architecture, aside, threads[0])
        plan = _plan(files, decoder, threads, architecture.architecture)
        if found and found.waited <= plan.waited:
            return found
        for file in aside.iterdir():
            if file.stem not in plan.variants - {"plain"}:
                file.unlink()
        digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in aside.iterdir()}
        plan = plan.model_copy(update={"sha256": digests})
        (aside / FILE).write_text(plan.model_dump_json(indent=2) + "\n")
        shutil.rmtree(folder, ignore_errors=True)  # it holds no plan, or one that is damaged or replaced
        aside.chmod(0o755)  # mkdtemp makes it private
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return plan


def write_variants(
    model: onnx.ModelProto, architecture: StatedArchitecture | None, folder: Path, threads: int
) -> dict[Variant, Path]:
    """Write each variant of a plain graph into the folder, with the faster of its two most promising tiles.

    Args:
        model: the plain graph; its weights are in the files afterwards, no longer in it.
        architecture: of the network, from the bundle's manifest; None for one without faster variants.
        folder: gets VARIANT.onnx and their weights.
        threads: that a run may use.
    """
    rivals: dict[Variant, list[Path]] = {}
    for rank in range(TILES):
        part = folder / f"rank-{rank}"
        part.mkdir()
        try:
            variants = rewritten(model, architecture, rank)
        except NotOptimizableError:  # it runs as it is
            variants = {}
        while variants:  # each is only held until it is written; from then on it is mapped
            variant = next(iter(variants))
            rivals.setdefault(variant, []).append(prepare(variants.pop(variant), part / f"{variant}.onnx"))
    # Last, as it takes the weights out of the model.
    files: dict[Variant, Path] = {"plain": prepare(model, folder / "plain.onnx")}
    for variant, found in rivals.items():
        best = _fastest(found, MEASURED_SIZES[variant], threads)
        for name in files_of(variant):  # a graph names its weights, so both keep their names
            (best.parent / name).rename(folder / name)
        files[variant] = folder / best.name
    for rank in range(TILES):
        shutil.rmtree(folder / f"rank-{rank}")
    return files


def _fastest(files: Sequence[Path], sizes: Sequence[int], threads: int) -> Path:
    """The graph that loses least at these sizes of batches, all together."""
    if len(files) == 1:
        return files[0]
    sessions = {file: open_variant(file, threads, prepared=True) for file in files}
    slower = slower_than_fastest(measure(sessions, sizes).milliseconds)
    return min(files, key=lambda file: sum(slower[file].values()))


def prepare(model: onnx.ModelProto, file: Path) -> Path:
    """Write a graph as ONNX Runtime rearranges it for this processor, its weights beside it; gives the file.

    A session of it maps the weights into memory as they lie in the file: it opens in milliseconds, has no
    second copy, and shares them with others of the same file.
    """
    options = cpu_options(threads=1)
    options.optimized_model_filepath = str(file)
    for key, value in (
        ("session.optimized_model_external_initializers_file_name", f"{file.stem}.weights"),
        ("session.optimized_model_external_initializers_min_size_in_bytes", str(LARGE_TENSOR_BYTES)),
    ):
        options.add_session_config_entry(key, value)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        portable = Path(folder) / "graph.onnx"
        onnx.save_model(
            model,
            portable,
            save_as_external_data=True,  # which ONNX Runtime maps instead of copying it
            location="graph.weights",
            size_threshold=LARGE_TENSOR_BYTES,
        )
        ort.InferenceSession(portable, options, providers=["CPUExecutionProvider"])
    file.with_suffix(".weights").touch()  # none is written if all are small
    return file


def _plan(
    files: Mapping[Variant, Path], decoder: bytes, threads: tuple[int, int], architecture: Architecture
) -> Plan:
    if len(files) == 1:
        return PLAIN
    exclusive_threads, shared_threads = threads
    largest_batch, largest_error = CPU_BATCH[architecture], MAX_ERROR[architecture]
    errors = largest_errors(open_variants(files, shared_threads, prepared=True), at_once=largest_batch)
    exact = {variant: file for variant, file in files.items() if errors.get(variant, 0.0) <= largest_error}
    between = _runs(decoder, shared_threads) if decoder else lambda: None
    sizes = [size for size in SIZES if size <= largest_batch]
    exclusive = measure(open_variants(exact, exclusive_threads, prepared=True), sizes, between=between)
    shared = exclusive
    if shared_threads < exclusive_threads:
        sessions = open_variants(exact, shared_threads, prepared=True)
        parallel = min(exclusive_threads // shared_threads, MAX_PARALLEL_BATCHES)
        shared = measure(sessions, sizes, parallel=parallel, between=between)
    return Plan(
        exclusive=choose(exclusive.milliseconds),
        shared=choose(shared.milliseconds),
        threads=threads,
        errors=errors,
        milliseconds={"exclusive": exclusive.milliseconds, "shared": shared.milliseconds},
        waited=max(exclusive.waited, shared.waited),
        sha256={},
    )


def _runs(decoder: bytes, threads: int) -> Callable[[], object]:
    """What runs a decoder once, for one image."""
    session = ort.InferenceSession(decoder, cpu_options(threads), providers=["CPUExecutionProvider"])
    feeds = {tensor.name: np.zeros([1, *tensor.shape[1:]], np.float32) for tensor in session.get_inputs()}
    return lambda: session.run(None, feeds)
