"""Derive a graph's faster forms, measure them and write those in use into a folder, with their plan."""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from export.optimize.choice import (
    MAX_ERROR,
    choose,
    cpu_options,
    largest_errors,
    open_form,
    open_forms,
    slower_than_fastest,
)
from export.optimize.measure import SIZES, measure
from export.optimize.plan import FILE, MAX_LANES, PLAIN, Form, Plan, files_of, read_plan
from export.optimize.rewrite import rewritten

LARGE_TENSOR_BYTES = 64 * 1024
ASIDE = ".deriving-"
TILES = 2  # of the most promising, how many are measured
MEANT_FOR: Mapping[Form, Sequence[int]] = {"one_axis": (1, 4), "both_axes": (8, 16)}  # sizes of batches


def derive(
    encoder: bytes, decoder: bytes, folder: Path, threads: tuple[int, int], *, again: bool = False
) -> Plan:
    """Make the folder, with a plan and the graphs that it names; it is there whole or not at all.

    Args:
        encoder: the plain graph, as in its file.
        decoder: what a service runs between batches of the encoder, as in its file; empty for nothing.
        folder: to be made; a plan that another process has just made there is taken.
        threads: of a batch that is alone and of one that shares the cores.
        again: replace a plan that was measured under load by one that is measured now, under less load.

    Raises:
        OSError: the folder cannot be written.
        google.protobuf.message.DecodeError: this is no graph.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(folder.parent):
        found = read_plan(folder)
        if found and not (again and found.is_under_load):
            return found
        return _derive(encoder, decoder, folder, threads, found)


def _derive(
    encoder: bytes, decoder: bytes, folder: Path, threads: tuple[int, int], found: Plan | None
) -> Plan:
    for left in folder.parent.glob(f"{ASIDE}*"):  # by one that was killed: nobody else is at work
        shutil.rmtree(left, ignore_errors=True)
    aside = Path(tempfile.mkdtemp(prefix=ASIDE, dir=folder.parent))
    try:
        files = write_forms(onnx.load_model_from_string(encoder), aside, threads[0])
        plan = _plan(files, decoder, threads)
        if found and found.waited <= plan.waited:
            return found
        for file in aside.iterdir():
            if file.stem not in plan.forms - {"plain"}:
                file.unlink()
        digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in aside.iterdir()}
        plan = plan.model_copy(update={"sha256": digests})
        (aside / FILE).write_text(plan.model_dump_json(indent=2) + "\n")
        shutil.rmtree(folder, ignore_errors=True)  # it holds no plan, or one that is damaged or replaced
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return plan


def write_forms(model: onnx.ModelProto, folder: Path, threads: int) -> dict[Form, Path]:
    """Write each form of a plain graph into the folder, with the faster of its two most promising tiles.

    Args:
        model: the plain graph; its weights are in the files afterwards, no longer in it.
        folder: gets FORM.onnx and their weights.
        threads: that a run may use.
    """
    rivals: dict[Form, list[Path]] = {}
    for rank in range(TILES):
        part = folder / f"rank-{rank}"
        part.mkdir()
        forms = rewritten(model, rank)
        for form in list(forms):  # a form is only held until it is written; from then on it is mapped
            rivals.setdefault(form, []).append(prepare(forms.pop(form), part / f"{form}.onnx"))
    # Last, as it takes the weights out of the model.
    files: dict[Form, Path] = {"plain": prepare(model, folder / "plain.onnx")}
    for form, found in rivals.items():
        best = _fastest(found, MEANT_FOR[form], threads)
        for name in files_of(form):  # a graph names its weights, so both keep their names
            (best.parent / name).rename(folder / name)
        files[form] = folder / best.name
    for rank in range(TILES):
        shutil.rmtree(folder / f"rank-{rank}")
    return files


def _fastest(files: Sequence[Path], sizes: Sequence[int], threads: int) -> Path:
    """The graph that loses least at these sizes of batches, all together."""
    if len(files) == 1:
        return files[0]
    sessions = {file: open_form(file, threads, prepared=True) for file in files}
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
    return file


def _plan(files: Mapping[Form, Path], decoder: bytes, threads: tuple[int, int]) -> Plan:
    if len(files) == 1:
        return PLAIN
    alone, share = threads
    errors = largest_errors(open_forms(files, share, prepared=True))
    exact = {form: file for form, file in files.items() if errors.get(form, 0.0) <= MAX_ERROR}
    between = _runs(decoder, share) if decoder else lambda: None
    by_itself = measure(open_forms(exact, alone, prepared=True), SIZES, between=between)
    in_company = by_itself
    if share < alone:
        sessions = open_forms(exact, share, prepared=True)
        in_company = measure(sessions, SIZES, lanes=min(alone // share, MAX_LANES), between=between)
    return Plan(
        alone=choose(by_itself.milliseconds),
        beside=choose(in_company.milliseconds),
        threads=threads,
        errors=errors,
        milliseconds={"alone": by_itself.milliseconds, "beside": in_company.milliseconds},
        waited=max(by_itself.waited, in_company.waited),
        sha256={},
    )


def _runs(decoder: bytes, threads: int) -> Callable[[], object]:
    """What runs a decoder once, for one image."""
    session = ort.InferenceSession(decoder, cpu_options(threads), providers=["CPUExecutionProvider"])
    feeds = {tensor.name: np.zeros([1, *tensor.shape[1:]], np.float32) for tensor in session.get_inputs()}
    return lambda: session.run(None, feeds)


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Wait for other processes that derive here: they would measure each other's noise."""
    try:
        import fcntl
    except ImportError:  # Windows: there they do
        yield
        return
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
