"""Derive a graph's faster forms, measure them and write those in use into a folder, with their plan."""

import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import onnx
import onnxruntime as ort

from export.optimize.choice import (
    MAX_ERROR,
    SIZES,
    choose,
    cpu_options,
    largest_errors,
    measure,
    open_forms,
)
from export.optimize.plan import FILE, PLAIN, Form, Plan, read_plan
from export.optimize.rewrite import rewritten

LARGE_TENSOR_BYTES = 64 * 1024
ASIDE = ".deriving-"


def derive(encoder: bytes, folder: Path, threads: tuple[int, int]) -> Plan:
    """Make the folder, with a plan and the graphs that it names; it is there whole or not at all.

    Args:
        encoder: the plain graph, as in its file.
        folder: to be made; a plan that another process has just made there is taken.
        threads: of a batch that is alone and of one that shares the cores.

    Raises:
        OSError: the folder cannot be written.
        google.protobuf.message.DecodeError: this is no graph.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(folder.parent):
        return read_plan(folder) or _derive(encoder, folder, threads)


def _derive(encoder: bytes, folder: Path, threads: tuple[int, int]) -> Plan:
    model = onnx.load_model_from_string(encoder)
    forms: dict[Form, onnx.ModelProto] = {"plain": model, **rewritten(model)}
    for left in folder.parent.glob(f"{ASIDE}*"):  # by one that was killed: nobody else is at work
        shutil.rmtree(left, ignore_errors=True)
    aside = Path(tempfile.mkdtemp(prefix=ASIDE, dir=folder.parent))
    try:
        del model  # a form is only held until it is written; from then on it is mapped
        files = {form: prepare(forms.pop(form), aside / f"{form}.onnx") for form in list(forms)}
        plan = _plan(files, threads)
        for file in aside.iterdir():
            if file.stem not in plan.forms - {"plain"}:
                file.unlink()
        digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in aside.iterdir()}
        plan = plan.model_copy(update={"sha256": digests})
        (aside / FILE).write_text(plan.model_dump_json(indent=2) + "\n")
        shutil.rmtree(folder, ignore_errors=True)  # it holds no plan, or one that is damaged
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return plan


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


def _plan(files: Mapping[Form, Path], threads: tuple[int, int]) -> Plan:
    if len(files) == 1:
        return PLAIN
    errors = largest_errors(open_forms(files, threads[1], prepared=True))
    exact = {form: file for form, file in files.items() if errors.get(form, 0.0) <= MAX_ERROR}
    times = {count: measure(open_forms(exact, count, prepared=True), SIZES) for count in set(threads)}
    alone, beside = (choose(times[count]) for count in threads)
    return Plan(alone=alone, beside=beside, errors=errors, milliseconds=times, sha256={})


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
