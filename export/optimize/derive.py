"""Derive a graph's faster forms, measure them and write those in use into a folder, with their plan."""

import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import onnx

from export.optimize.choice import (
    MAX_ERROR,
    SIZES,
    SMALL_SIZES,
    Milliseconds,
    choose,
    largest_errors,
    measure,
    open_forms,
)
from export.optimize.plan import FILE, PLAIN, Form, Plan
from export.optimize.rewrite import rewritten

LARGE_TENSOR_BYTES = 64 * 1024


def derive(encoder: bytes, folder: Path, threads: tuple[int, int]) -> Plan:
    """Make the folder, with a plan and the graphs that it names; it is there whole or not at all.

    Args:
        encoder: the plain graph, as in its file.
        folder: to be made; one that is there is replaced.
        threads: of a batch that is alone and of one that shares the cores.

    Raises:
        OSError: the folder cannot be written.
        google.protobuf.message.DecodeError: this is no graph.
    """
    model = onnx.load_model_from_string(encoder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".deriving-", dir=folder.parent))
    try:
        files = write_forms({"plain": model, **rewritten(model)}, aside)
        plan = _plan(files, threads)
        for file in aside.iterdir():
            if file.stem not in plan.forms - {"plain"}:
                file.unlink()
        digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in aside.iterdir()}
        plan = plan.model_copy(update={"sha256": digests})
        (aside / FILE).write_text(plan.model_dump_json(indent=2) + "\n")
        _replace(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return plan


def write_forms(forms: Mapping[Form, onnx.ModelProto], folder: Path) -> dict[Form, Path]:
    """Write each as FORM.onnx with its weights in FORM.weights, which a runtime reads without copying."""
    files: dict[Form, Path] = {}
    for form, model in forms.items():
        files[form] = folder / f"{form}.onnx"
        onnx.save_model(
            model,
            files[form],
            save_as_external_data=True,
            location=f"{form}.weights",
            size_threshold=LARGE_TENSOR_BYTES,
        )
    return files


def _plan(files: Mapping[Form, Path], threads: tuple[int, int]) -> Plan:
    if len(files) == 1:
        return PLAIN
    sessions = open_forms(files, threads[1])
    errors = largest_errors(sessions)
    for form, error in errors.items():
        if not error <= MAX_ERROR:
            del sessions[form]
    times: dict[int, Milliseconds] = {threads[1]: measure(sessions, SIZES)}
    small, small_up_to, large = choose(times[threads[1]])
    alone = small
    if threads[0] != threads[1]:
        several = open_forms({form: files[form] for form in sessions}, threads[0])
        times[threads[0]] = measure(several, [size for size in SMALL_SIZES if size <= small_up_to])
        alone = min(several, key=lambda form: times[threads[0]][form][1])
    return Plan(
        alone=alone,
        small=small,
        small_up_to=small_up_to,
        large=large,
        errors=errors,
        milliseconds=times,
        sha256={},
    )


def _replace(aside: Path, folder: Path) -> None:
    """Rename it into place; another process may have been faster, then either one will do."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        aside.rename(folder)
    except OSError:
        if not (folder / FILE).exists():
            raise
