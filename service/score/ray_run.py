"""A run of capsnet-score --ray: cut the pictures into shards, let a Ray cluster score them, and sum up."""

import argparse
import json
import logging
import os
import pickle
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from uuid import uuid4

from export.contract.one_line import first_line
from service.score.output import Existing
from service.score.picture_stream import check_pairs
from service.score.query import ChosenModel, ScoreError
from service.score.run import model_without_loading, query_of, run_spec
from service.score.run_record import NamesHash, Record, check_same_spec
from service.score.table import Columns
from service.score.terminal import count_bar, summarize
from service.settings import PREFIX, SECRETS, Settings, read_settings

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else Ray reports its use to its authors
try:
    import ray
    import ray.data

    from service.score.part_folder import ERRORS, PartFacts, PartFolder, PartsRecord
    from service.score.shard_scorer import Job, choose_model, score_shard
    from service.score.shards import ADDRESS, FileShard, Shard, find_shards, shown_place
except ModuleNotFoundError as error:
    if error.name not in {"ray", "pyarrow", "pandas", "onnxruntime"}:
        raise
    raise ScoreError(f"--ray needs {error.name}: pip install -e '.[cpu,ray]'") from None

CONNECT_S = 10
CPUS = 2  # for each process, whose threads decode and compute


def score_on_ray(options: argparse.Namespace) -> int:
    """Score the pictures that the options name on a Ray cluster; returns the exit status.

    Raises:
        ScoreError: the options do not fit, there is nothing to score, or the run cannot go on.
    """
    _check_options(options)
    place = options.out if ADDRESS.match(options.out) else str(Path(options.out).absolute())
    folder = PartFolder(place, shown_place(options.out))
    shards = find_shards(options.paths, options.part_size, options.image_column, options.id_column)
    previous = _find_record(folder, options.existing)
    done: dict[int, PartFacts] = {}
    if previous is not None:
        _check_same(previous, options, shards, folder)
        folder = replace(folder, run=previous.run)
        done = folder.done()
    before, seconds = _count(done), 0.0
    if previous is None or len(done) < len(shards):
        job = _job(options, previous)
        with _cluster() as cpus:
            job = replace(job, threads=cpus)
            previous, made, seconds = _run(options, job, shards, previous, done, folder)
        done |= made
    folder.finish()
    labels = sum((Counter(facts.labels) for facts in done.values()), Counter[str]())
    record = Record(spec=previous.spec, pictures=_count(done), labels=dict(labels), finished=True)
    summarize(record, f"{folder.shown}/{ERRORS}", record.pictures - before, seconds)
    if not record.scored:
        return 2
    return 1 if record.skipped else 0


def _run(
    options: argparse.Namespace,
    job: Job,
    shards: Sequence[Shard],
    previous: PartsRecord | None,
    done: Mapping[int, PartFacts],
    folder: PartFolder,
) -> tuple[PartsRecord, dict[int, PartFacts], float]:
    """Score the shards that are not done.

    Returns:
        The run's record, what these parts stand for, and the seconds that they took.
    """
    try:
        model = ray.get(ray.remote(num_cpus=job.threads)(choose_model).remote(job))
    except ray.exceptions.RayError as error:
        raise ScoreError(_gave_up(error)) from None
    if isinstance(model, str):
        raise ScoreError(model)
    spec = run_spec(options, model, "parquet")
    if previous is not None:
        check_same_spec(previous.spec, spec, folder.shown)
    if model.views == 2:
        files = (shard for shard in shards if isinstance(shard, FileShard))
        check_pairs(chain.from_iterable(shard.pictures(None, None) for shard in files))
    Columns(model.class_names, options.poses).refuse_equal_names("use --local and .jsonl")
    record = previous or PartsRecord(
        run=uuid4().hex,
        spec=spec,
        part_size=options.part_size,
        parts=len(shards),
        names_sha256=_names_hash(shards),
    )
    if previous is None:
        folder.begin(record)
    folder = replace(folder, run=record.run)
    left = {number: shard for number, shard in enumerate(shards) if number not in done}
    pinned = replace(job, query=replace(job.query, model=model.name, version=model.version))
    made: dict[int, PartFacts] = {}
    rows = sum(shard.rows for shard in shards)
    started_s = time.monotonic()
    with count_bar(rows // model.views, _count(done), model.views) as bar:
        for number, facts in _score(left, pinned, model, folder):
            made[number] = facts
            bar.update(_count({number: facts}))
    return record, made, time.monotonic() - started_s


def _score(
    shards: Mapping[int, Shard], job: Job, model: ChosenModel, folder: PartFolder
) -> Iterator[tuple[int, PartFacts]]:
    """The parts, as they are written, in any order."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    rows = [{"part": number, "shard": pickle.dumps(shard)} for number, shard in shards.items()]
    # Tasks, not actors: a task of a node that has died runs again on any other, while an actor would wait for
    # room to be started again. The processes stay, and so does the model that each has loaded.
    parts = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
        score_shard,
        num_cpus=job.threads,
        fn_kwargs={"job": job, "model": model, "folder": folder},
    )
    try:
        for part in parts.iter_rows():
            if part["fault"]:
                raise ScoreError(_ended(part["fault"], folder))
            yield part["part"], PartFacts(json.loads(part["labels"]), part["skipped"])
    except ray.exceptions.RayError as error:
        raise ScoreError(_ended(_gave_up(error), folder)) from None


def _gave_up(error: "ray.exceptions.RayError") -> str:
    return f"Ray gave up: {str(error).strip().splitlines()[-1]}"


def _ended(fault: str, folder: PartFolder) -> str:
    """Why a run has ended early, and what stays of it."""
    with suppress(OSError):  # the folder may be away, which then is the fault
        if folder.is_taken():
            return f"another command has begun a new run in {folder.shown}; this one has ended"
    return f"{fault}; the parts written so far stay, --resume continues"


def _check_options(options: argparse.Namespace) -> None:
    if not options.paths:
        raise ScoreError("--ray needs pictures: name files, folders or addresses; lists do not go with --ray")
    refused = {
        "--local": options.local,
        "--url": options.url,
        "--files-from": options.files_from,
        "--errors": options.errors,
    }
    if given := [name for name, value in refused.items() if value]:
        raise ScoreError(f"--ray does not go with {' and '.join(given)}")
    is_file = options.out == "-" or options.out.lower().endswith((".csv", ".jsonl", ".parquet"))
    if is_file or options.format not in {None, "parquet"}:
        raise ScoreError(f"--ray writes a folder of Parquet files: name it with --out, got {options.out}")


def _find_record(folder: PartFolder, existing: Existing) -> PartsRecord | None:
    """The record of the run to resume; None for a new run.

    Raises:
        ScoreError: there is a run already, which must not be overwritten, or something else.
    """
    if not folder.names():
        return None
    if existing == "overwrite" and folder.has_record():
        return None
    record = folder.record()
    if record is None:
        raise ScoreError(f"{folder.shown} is not empty and holds no run of capsnet-score; name a new folder")
    if existing == "refuse":
        raise ScoreError(f"{folder.shown} exists already; --resume continues it, --overwrite starts over")
    return record


def _check_same(
    previous: PartsRecord, options: argparse.Namespace, shards: Sequence[Shard], folder: PartFolder
) -> None:
    """Check that the options and the pictures are those of the run to resume."""
    spec = run_spec(options, model_without_loading(options, previous.spec), "parquet")
    check_same_spec(previous.spec, spec, folder.shown)
    if options.part_size != previous.part_size:
        difference = f"--part-size was {previous.part_size}, now {options.part_size}"
    elif len(shards) != previous.parts or _names_hash(shards) != previous.names_sha256:
        difference = "the pictures have changed; name the same ones"
    else:
        return
    raise ScoreError(f"{folder.shown} cannot be resumed: {difference}; --overwrite starts over")


def _job(options: argparse.Namespace, previous: PartsRecord | None) -> Job:
    settings = read_settings(models=options.models)
    if settings.device not in {"auto", "cpu"}:
        raise ScoreError(
            f"--ray runs on processors, but CAPSNET_DEVICE is {settings.device}; unset it, or use --local "
            "where the GPU is"
        )
    return Job(
        models=os.pathsep.join(str(root.absolute()) for root in settings.roots),
        query=query_of(options, previous.spec if previous else None),
        batch=options.batch,
        concurrency=options.concurrency,
        threads=CPUS,
        image_column=options.image_column,
        id_column=options.id_column,
    )


@contextmanager
def _cluster() -> Iterator[int]:
    """Connect to the cluster of RAY_ADDRESS, else to one of this machine, else start one.

    Yields the number of CPUs for each process.

    Raises:
        ScoreError: none answers at RAY_ADDRESS, or it has no CPU.
    """
    _check_address(os.environ.get("RAY_ADDRESS", ""))
    names = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields.keys() - SECRETS}
    settings = {name: value for name, value in os.environ.items() if name.upper() in names}
    settings["CAPSNET_DEVICE"] = "cpu"
    try:
        ray.init(log_to_driver=False, logging_level=logging.CRITICAL, runtime_env={"env_vars": settings})
    except (ValueError, RuntimeError, OSError) as error:
        raise ScoreError(f"no Ray cluster can be used: {first_line(error)}") from None
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C; Ray's handler would dump its stack
    try:
        cpus = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
        if max(cpus, default=0) < 1:
            raise ScoreError("no node of the Ray cluster has a CPU for tasks")
        yield min(CPUS, int(max(cpus)))
    finally:
        # Not after Ctrl-C: Ray's threads would dump their stacks. `main` ends the process at once.
        if not isinstance(sys.exception(), KeyboardInterrupt):
            ray.shutdown()


def _check_address(address: str) -> None:
    """Check that something listens there: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:  # Ray's own words, such as `local`
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ScoreError(f"no Ray cluster answers at RAY_ADDRESS={address}: {reason}") from None


def _names_hash(shards: Sequence[Shard]) -> str:
    names = NamesHash()
    for number, shard in enumerate(shards):
        names.add(f"part {number}")
        for name in shard.row_names:
            names.add(name)
    return names.hexdigest()


def _count(parts: Mapping[int, PartFacts]) -> int:
    """Number of pictures, or of pairs, with or without a row."""
    return sum(sum(facts.labels.values()) + facts.skipped for facts in parts.values())
