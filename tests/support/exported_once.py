"""Exports that the test processes of a session share: each takes seconds."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import onnx


def exported_once(name: str, export: Callable[[], onnx.ModelProto]) -> onnx.ModelProto:
    """A graph of a name that no other has, exported by the first process that asks for it."""
    folder = Path(os.environ["CAPSNET_CACHE"]).parent  # for all processes, see conftest.py
    file = folder / f"{name}.onnx"
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            onnx.save(export(), file)
        return onnx.load(file)
