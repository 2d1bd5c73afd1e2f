"""The faster graphs of a bundle's encoder on CPUs: derived once and kept in the cache."""

import asyncio
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from shutil import rmtree

import onnxruntime as ort

from export.contract.architecture import CapsNetArchitecture, StatedArchitecture
from export.contract.manifest import Graph
from export.optimize.plan import PLAIN, Plan, plan_key, read_plan

SMALLEST_BYTES = 2 * 2**20  # below that the convolutions of a CapsNet are too small to gain anything
DERIVE_S = 300.0  # at most; on two idle cores it takes about 12
UNUSED_DAYS = 30.0  # then a plan is removed
PLAN_NAME = re.compile(r"[0-9a-f]{16}")

log = logging.getLogger(__name__)


@contextmanager
def cached_graphs(
    encoder: bytes,
    graph: Graph,
    architecture: StatedArchitecture | None,
    cache: Path | None,
    threads: tuple[int, int],
    decoder: bytes = b"",
) -> Iterator[tuple[Plan, Path]]:
    """Which graph to run when, and the folder of the derived graphs; PLAIN where there are none.

    A failure to derive graphs is logged; the bundle's own graph is used then.

    Args:
        encoder: the plain graph; its hash has been checked.
        graph: what the manifest says of it.
        architecture: of the network; None for one that has no faster graphs.
        cache: where plans are kept; if it cannot be written, they are made anew each time. None for PLAIN.
        threads: of a batch that has all cores and of one that shares them.
        decoder: runs between batches of the encoder; empty for none.
    """
    if cache is None or architecture is None or not _may_gain(encoder, architecture):
        yield PLAIN, Path()
        return
    plans = cache.expanduser() / "cpu"
    folder = plans / plan_key(graph.sha256, architecture, threads, ort.__version__)
    _mark_used(folder)  # before it is read, or another process might remove it meanwhile
    plan = read_plan(folder)
    if plan is not None:
        yield plan, folder
        return
    if _can_write(plans):
        _remove_unused(plans)
        yield _derive(encoder, decoder, folder, threads, architecture), folder
        return
    with ExitStack() as stack:
        try:
            temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="capsnet-")))
        except OSError as error:
            log.warning("no faster graphs: %s cannot be written, nor any other folder: %s", plans, error)
            yield PLAIN, Path()
            return
        log.warning("%s cannot be written; faster graphs are derived again at every start", plans)
        folder = temporary / "plan"
        yield _derive(encoder, decoder, folder, threads, architecture), folder


async def measure_again(
    folder: Path, threads: tuple[int, int], architecture: StatedArchitecture, encoder: bytes, decoder: bytes
) -> None:
    """Make a plan anew, which replaces the one in the folder if it was measured under less load.

    The process that does it is killed when this is cancelled.

    Raises:
        OSError: no process can be started, or it failed; says why.
        TimeoutError: it took longer than DERIVE_S.
    """
    command = _derive_command(folder, threads, architecture, encoder, again=True)
    process = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        _, said = await asyncio.wait_for(process.communicate(encoder + decoder), DERIVE_S)
        if process.returncode:
            raise OSError(_why(process.returncode, said))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _why(status: int | None, stderr: bytes) -> str:
    """Why a process made no plan: how it ended, and the last that it said."""
    said = stderr.decode(errors="replace").strip().splitlines()
    return ": ".join([f"the process ended with status {status}", *(line[:200] for line in said[-1:])])


def _may_gain(encoder: bytes, architecture: StatedArchitecture) -> bool:
    """Matrix capsules gain by their routing, however small the encoder."""
    return not isinstance(architecture, CapsNetArchitecture) or len(encoder) >= SMALLEST_BYTES


def _can_write(plans: Path) -> bool:
    try:
        plans.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(plans, os.R_OK | os.W_OK | os.X_OK)


def _mark_used(folder: Path) -> None:
    with suppress(OSError):  # a cache that came with the image may be read-only
        os.utime(folder)


def _remove_unused(plans: Path) -> None:
    """Remove plans that no start has used for UNUSED_DAYS: every version of a model leaves graphs behind."""
    oldest = time.time() - UNUSED_DAYS * 24 * 3600
    for folder in plans.iterdir():
        with suppress(OSError):  # another process may be removing or renaming it
            if PLAN_NAME.fullmatch(folder.name) and folder.stat().st_mtime < oldest:
                rmtree(folder, ignore_errors=True)


def _derive_command(
    folder: Path,
    threads: tuple[int, int],
    architecture: StatedArchitecture,
    encoder: bytes,
    *,
    again: bool = False,
) -> list[str]:
    """The command that makes a plan; it reads the encoder from standard input, then the decoder."""
    numbers = map(str, (*threads, len(encoder), int(again)))
    # -P: a module `export` in the working directory is not ours.
    command = [sys.executable, "-P", "-m", "export.optimize", str(folder), *numbers]
    return [*command, architecture.model_dump_json()]


def _derive(
    encoder: bytes, decoder: bytes, folder: Path, threads: tuple[int, int], architecture: StatedArchitecture
) -> Plan:
    """Derive in a process of its own, which returns the memory that it takes."""
    log.info("deriving faster graphs for this processor, once")
    began = time.monotonic()
    command = _derive_command(folder, threads, architecture, encoder)
    try:
        done = subprocess.run(
            command, input=encoder + decoder, capture_output=True, timeout=DERIVE_S, check=False
        )
    except subprocess.TimeoutExpired:
        log.warning("no faster graphs within %.0f s; the bundle's own is used", DERIVE_S)
        return PLAIN
    except OSError as error:  # no process can be started
        log.warning("no faster graphs: %s; the bundle's own is used", error)
        return PLAIN
    plan = read_plan(folder)
    if plan is None:
        log.warning("no faster graphs: %s; the bundle's own is used", _why(done.returncode, done.stderr))
        return PLAIN
    log.info("derived faster graphs in %.1f s", time.monotonic() - began)
    if plan.is_under_load:
        log.info("they were measured under load; they are measured again once the service is idle")
    return plan
