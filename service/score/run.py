"""One run of capsnet-score, from the options of the command line to the last row and the summary."""

import argparse
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from capsnet import DEFAULT_URL
from capsnet.in_order import in_order
from service.score.ctrl_c import run_until_ctrl_c
from service.score.http_scorer import HttpScorer, open_service
from service.score.output import (
    Destination,
    Found,
    check_inputs_stay,
    choose_destination,
    find_existing,
    open_output,
)
from service.score.picture_stream import PictureStream, check_pairs, in_batches
from service.score.query import ChosenModel, Outcome, Query, Row, ScoreError
from service.score.run_record import NamesHash, Record, RunSpec, check_same_spec, skip_done
from service.score.sources import Sources
from service.score.table import Columns, Format, choose_format
from service.score.terminal import progress_bar, report, summarize
from service.settings import read_settings

if TYPE_CHECKING:
    from service.score.local_scorer import LocalScorer

MAX_BUGS = 100  # of the service, in a row: more are not those of single pictures


@dataclass(frozen=True)
class Run:
    """What a run has to do.

    Attributes:
        sources: of all pictures.
        destination: of the rows.
        found: what was there before.
        names: of the pictures that are done.
        remaining: the other pictures.
        max_file_bytes: of a picture.
    """

    sources: Sources
    destination: Destination
    found: Found
    names: NamesHash
    remaining: PictureStream
    max_file_bytes: int

    @property
    def previous(self) -> Record | None:
        """The record of the run that this one resumes, if any."""
        return self.found.record

    @property
    def done_before(self) -> int:
        """Pictures that the previous run has done."""
        return self.previous.pictures if self.previous else 0


def score(options: argparse.Namespace) -> int:
    """Score the pictures that the options name; returns the exit status."""
    run, seconds = _prepare(options), 0.0
    if run.previous is not None and run.previous.finished and run.remaining.peek() is None:
        record = run.previous  # neither a model nor a service is needed
    else:
        record, seconds = run_until_ctrl_c(_score_remaining(options, run))
    summarize(record, run.destination.errors, record.pictures - run.done_before, seconds)
    if not record.scored:
        return 2
    return 1 if record.skipped else 0


def _prepare(options: argparse.Namespace) -> Run:
    """Check the options as far as possible without a model; touches no file."""
    destination = choose_destination(options.out, options.errors, choose_format(options.out, options.format))
    if not options.paths and not options.files_from:
        raise ScoreError("no pictures given: name files or folders, or use --files-from; --help has examples")
    sources = Sources(options.paths, options.files_from, options.image_column, options.id_column)
    check_inputs_stay(destination, [*options.paths, *([options.files_from] if options.files_from else [])])
    limit = read_settings().max_body_bytes
    found = find_existing(destination, options.existing)
    pictures, previous = sources.pictures(), found.record
    if previous is None:
        return Run(sources, destination, found, NamesHash(), pictures, limit)
    spec = run_spec(options, model_without_loading(options, previous.spec), destination.format)
    check_same_spec(previous.spec, spec, options.out)
    return Run(sources, destination, found, skip_done(pictures, previous, options.out), pictures, limit)


async def _score_remaining(options: argparse.Namespace, run: Run) -> tuple[Record, float]:
    """Score the remaining pictures; returns the record of all pictures, and the seconds that these took."""
    async with _open_scorer(
        options, query_of(options, run.previous.spec if run.previous else None)
    ) as scorer:
        model = scorer.model
        if model.views == 2:
            check_pairs(run.sources.pictures_known_by_name())
        columns = Columns(model.class_names, options.poses)
        if run.destination.format == "parquet":
            columns.refuse_equal_names()
        spec = run_spec(options, model, run.destination.format)
        opened = open_output(run.destination, spec, columns, run.found, run.names)
        progress = progress_bar(run.sources, run.destination, run.done_before, model.views)
        with opened as output, progress as bar:
            started_s, bugs = time.monotonic(), 0
            batches = in_batches(run.remaining, options.batch, run.max_file_bytes, model.views)
            async with aclosing(in_order(scorer.score, batches, options.concurrency)) as done:
                async for outcomes in done:
                    output.write(outcomes)
                    if run.destination.errors is None:
                        report(outcomes)
                    bar.update(len(outcomes))
                    bugs = _count_bugs(bugs, outcomes)
            output.finish()
            seconds = time.monotonic() - started_s
    return output.record, seconds


def _count_bugs(before: int, outcomes: Sequence[Outcome]) -> int:
    """How many pictures since the last row have met a bug of the service; they are recorded as skipped.

    Raises:
        ScoreError: so many that it is not about single pictures.
    """
    bugs = before
    for one in outcomes:
        if isinstance(one, Row):
            bugs = 0
        elif one.is_bug:  # others were not sent, or say nothing of the service
            bugs += 1
    if bugs >= MAX_BUGS:
        raise ScoreError(
            f"the service answered the last {bugs} pictures with an internal error, which its log describes; "
            "once it is fixed, continue behind them with --resume, or score them, too, with --overwrite"
        )
    return bugs


def query_of(options: argparse.Namespace, previous: RunSpec | None) -> Query:
    """The query of the options; a resumed run keeps its version unless the options name one."""
    model, version = options.model, options.version
    if previous is not None and model in {None, previous.model}:
        model, version = previous.model, version or previous.version
    return Query(model, version, options.top_k, options.preprocess, options.poses, options.min_probability)


def model_without_loading(options: argparse.Namespace, previous: RunSpec) -> ChosenModel:
    """The model that the options name, or the previous run's; its classes are not known yet."""
    name, version = options.model or previous.model, options.version or previous.version
    return ChosenModel(name, version, class_names=(), digest=previous.digest, views=previous.views)


def run_spec(options: argparse.Namespace, model: ChosenModel, table: Format) -> RunSpec:
    """What determines the rows of a run with these options."""
    return RunSpec(
        model=model.name,
        version=model.version,
        digest=model.digest,
        top_k=options.top_k,
        preprocess=options.preprocess,
        poses=options.poses,
        min_probability=options.min_probability,
        format=table,
        image_column=options.image_column,
        id_column=options.id_column,
        views=model.views,
    )


def _open_scorer(
    options: argparse.Namespace, query: Query
) -> "AbstractAsyncContextManager[HttpScorer | LocalScorer]":
    if not options.local:
        if options.models:
            raise ScoreError("--models needs --local; a service has its own CAPSNET_MODELS")
        return open_service(options.url or DEFAULT_URL, query, options.retry_timeout)
    if options.url:
        raise ScoreError("give --url or --local, not both: --local needs no service")
    # Imported late: --help and scoring over HTTP need no onnxruntime.
    try:
        from service.score.local_scorer import open_local
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        raise ScoreError("--local needs onnxruntime: pip install -e '.[cpu]'") from None
    return open_local(options.models, query, options.batch)
