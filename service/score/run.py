"""One run of capsnet-score: from what the command line asks for to the last row and the summary."""

import argparse
import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capsnet import DEFAULT_URL
from service.score.output import Destination, choose_destination, find_record, open_output
from service.score.pictures import Upcoming, check_pairs, in_batches
from service.score.query import Batch, Chosen, Outcome, Query, ScoreError
from service.score.record import Asked, NamesHash, Record, check_same, skip_done
from service.score.remote import HttpScorer, open_service
from service.score.sources import Sources
from service.score.table import Columns, choose_format
from service.score.terminal import progress_bar, report, summarise
from service.settings import read_settings

if TYPE_CHECKING:
    from service.score.local import LocalScorer


@dataclass(frozen=True)
class Job:
    """What is to be done.

    Attributes:
        sources: of all pictures.
        destination: where the rows go.
        before: how far an earlier run is, if this one goes on with it.
        names: of the pictures done.
        left: the other pictures.
    """

    sources: Sources
    destination: Destination
    before: Record | None
    names: NamesHash
    left: Upcoming

    @property
    def done_before(self) -> int:
        """Pictures that the earlier run has done."""
        return self.before.pictures if self.before else 0


def run(options: argparse.Namespace) -> int:
    """Score what the command line asks for; the exit status."""
    job, seconds = _plan(options), 0.0
    if job.before is not None and job.before.finished and job.left.peek() is None:
        record = job.before  # without a model or a service
    else:
        record, seconds = asyncio.run(_score(options, job))
    summarise(record, job.destination, record.pictures - job.done_before, seconds)
    if not record.scored:
        return 2
    return 1 if record.skipped else 0


def _plan(options: argparse.Namespace) -> Job:
    """What the command line asks for, checked as far as it can be without a model; no file is touched."""
    destination = choose_destination(options.out, options.errors, choose_format(options.out, options.format))
    if not options.paths and not options.files_from:
        raise ScoreError(
            "no pictures named: give files or folders, or --files-from FILE; --help has examples"
        )
    sources = Sources(options.paths, options.files_from, options.image_column, options.id_column)
    before = find_record(destination, options.existing)
    pictures = sources.pictures()
    if before is None:
        return Job(sources, destination, None, NamesHash(), pictures)
    check_same(before.asked, _asked(options, _chosen_before(options, before.asked), destination), options.out)
    return Job(sources, destination, before, skip_done(pictures, before, options.out), pictures)


async def _score(options: argparse.Namespace, job: Job) -> tuple[Record, float]:
    """Score the pictures that are left; the record of all pictures, and the seconds that these took."""
    async with _open_scorer(options, _query(options, job.before)) as scorer:
        columns = Columns(scorer.chosen.class_names, options.poses)
        asked = _asked(options, scorer.chosen, job.destination)
        views = scorer.chosen.views
        if views == 2:
            check_pairs(job.sources.pictures_known_by_name())
        opened = open_output(job.destination, asked, columns, job.before, job.names)
        with opened as output, progress_bar(job.sources, job.destination, job.done_before, views) as bar:
            began_s = time.monotonic()
            batches = in_batches(job.left, options.batch, read_settings().max_body_bytes, views)
            async with aclosing(in_order(scorer.score, batches, options.concurrency)) as done:
                async for outcomes in done:
                    output.write(outcomes)
                    if job.destination.errors is None:
                        report(outcomes)
                    bar.update(len(outcomes))
            output.finish()
            seconds = time.monotonic() - began_s
    return output.record, seconds


def _query(options: argparse.Namespace, before: Record | None) -> Query:
    """What the command line asks for; a run that goes on keeps to its version where none is named."""
    model, version = options.model, options.version
    if before is not None and model in {None, before.asked.model}:
        model, version = before.asked.model, version or before.asked.version
    return Query(model, version, options.top_k, options.preprocess, options.poses, options.min_probability)


def _chosen_before(options: argparse.Namespace, before: Asked) -> Chosen:
    """What answers, as far as it is known without a model: as the run was begun, or as it is named now."""
    model, version = options.model or before.model, options.version or before.version
    return Chosen(model, version, class_names=(), digest=before.digest, views=before.views)


def _asked(options: argparse.Namespace, chosen: Chosen, destination: Destination) -> Asked:
    return Asked(
        model=chosen.model,
        version=chosen.version,
        digest=chosen.digest,
        top_k=options.top_k,
        preprocess=options.preprocess,
        poses=options.poses,
        min_probability=options.min_probability,
        format=destination.format,
        image_column=options.image_column,
        id_column=options.id_column,
        views=chosen.views,
    )


def _open_scorer(
    options: argparse.Namespace, query: Query
) -> "AbstractAsyncContextManager[HttpScorer | LocalScorer]":
    if not options.local:
        if options.models:
            raise ScoreError("--models is for --local; a service has its own CAPSNET_MODELS")
        return open_service(options.url or DEFAULT_URL, query, options.patience)
    if options.url:
        raise ScoreError("--url names a service, --local does without one; give one of the two")
    # Imported late: --help and a service elsewhere do without onnxruntime.
    try:
        from service.score.local import open_local
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        raise ScoreError("--local needs onnxruntime: pip install -e '.[cpu]'") from None
    return open_local(options.models, query, options.batch)


async def in_order(
    score: Callable[[Batch], Coroutine[Any, Any, list[Outcome]]], batches: Iterator[Batch], concurrency: int
) -> AsyncGenerator[list[Outcome], None]:
    """Outcomes of each batch in the order of the batches, with up to `concurrency` of them in flight."""
    running: deque[asyncio.Task[list[Outcome]]] = deque()
    try:
        # In a thread, because files are read and archives unpacked for the next one.
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            running.append(asyncio.create_task(score(batch)))
            if len(running) == concurrency:
                yield await running.popleft()
        while running:
            yield await running.popleft()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
