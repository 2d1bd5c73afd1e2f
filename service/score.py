"""capsnet-score: many pictures to one table, over HTTP or in process.

Everything streams: pictures are found and read as scoring goes on, a few batches are in flight at once, and
rows are written in the pictures' order as soon as their batch is done. Memory does not grow with the number
of pictures. One that cannot be scored has no row; it is among the errors.

Exit status: 0 every picture has a row; 1 some were skipped; 2 wrong usage, no service or nothing scored; 130
stopped with Ctrl-C, 141 the reader of stdout went away. However it ends, rows written before stay, and
--resume goes on from there.
"""

import argparse
import asyncio
import logging
import os
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from service.client import DEFAULT_URL
from service.score_http import HttpScorer, open_service
from service.score_output import Destination, choose_destination, find_record, open_output
from service.score_pictures import Picture, in_batches
from service.score_query import Batch, Chosen, Outcome, Query, ScoreError, Skipped
from service.score_record import Asked, NamesHash, Record, skip_done
from service.score_sources import Sources
from service.score_table import Columns, choose_format
from service.settings import SettingsError, read_settings

if TYPE_CHECKING:
    from service.score_local import LocalScorer

BATCH = 32
CONCURRENCY = 4
PATIENCE_S = 120
LABELS_SHOWN = 12
STOPPED_BY_SIGNAL = 130  # what a shell gives a command that SIGINT ended
READER_LEFT = 141  # the same for SIGPIPE

EXAMPLES = """examples:
  capsnet-score 7.png                                           one picture, to the terminal
  capsnet-score digits/ --out scores.csv                        every picture in a folder and its subfolders
  capsnet-score 'scans/**/*.png' --out scores.jsonl             a pattern, quoted for more than a shell takes
  capsnet-score scans.tar.gz more.zip --out scores.parquet      archives are read as they are
  capsnet-score 'set/*.parquet' --out scores.csv --poses        pictures in Parquet files, poses in the table
  find / -name '*.png' | capsnet-score --files-from - --out scores.csv
  capsnet-score digits/ --out scores.csv --resume               go on after a crash, or begin
  capsnet-score digits/ --out scores.csv --url http://gpu:8001  a service elsewhere
  capsnet-score digits/ --out scores.csv --local                no service: the model runs in this process

Folders, archives and patterns give files with picture suffixes whose names do not begin with a dot; folders
sorted, archives in their own order. A file named itself is taken whatever its suffix. Rows of Parquet files
are called set.parquet#12; files in archives scans.zip/a/7.png.

Pictures without a row and the reasons go to scores.errors.jsonl beside the table (to stderr when rows go to
stdout). scores.csv.run.json tells how far a run is and what it was asked; --resume needs the same pictures in
the same order. A key for the service is read from CAPSNET_API_KEY.

exit status: 0 every picture has a row, 1 some were skipped, 2 wrong usage, no service, or nothing was scored
"""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; errors of the user's end with one line and status 2."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(format="capsnet-score: %(message)s")  # warnings: versions and devices passed over
    try:
        sys.exit(_run(options))
    except KeyboardInterrupt:
        again = "" if options.out == "-" else "; --resume goes on with them"
        _say(f"interrupted; the rows written so far stay{again}")
        sys.exit(STOPPED_BY_SIGNAL)
    except BrokenPipeError:  # as `| head` does once it has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit fails again
        sys.exit(READER_LEFT)
    except (ScoreError, SettingsError, OSError) as error:
        _say(str(error))
        sys.exit(2)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="capsnet-score",
        usage="%(prog)s [PATH ...] [--out FILE] [options]",
        description="Class probabilities of many pictures, as CSV, JSON lines or Parquet.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_pictures(parser.add_argument_group("pictures"))
    _add_table(parser.add_argument_group("table"))
    _add_model(parser.add_argument_group("model"))
    return parser


def _add_pictures(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="file, folder, quoted pattern, archive (.zip, .tar, .tar.gz, .tar.bz2, .tar.xz) or .parquet",
    )
    group.add_argument("--files-from", metavar="FILE", help="a list of further paths, one a line; - is stdin")
    group.add_argument(
        "--image-column",
        metavar="NAME",
        help="of Parquet files (default: the only one that can hold pictures)",
    )
    group.add_argument(
        "--id-column",
        metavar="NAME",
        help="of Parquet files: what rows are called (default: file and number)",
    )


def _add_table(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--out", default="-", metavar="FILE", help="table to write (default: -, stdout)")
    existing = group.add_mutually_exclusive_group()
    existing.add_argument(
        "--resume",
        dest="existing",
        action="store_const",
        const="resume",
        default="refuse",
        help="go on with the table if it has been begun",
    )
    existing.add_argument(
        "--overwrite", dest="existing", action="store_const", const="overwrite", help="begin it again"
    )
    group.add_argument(
        "--format",
        choices=["csv", "jsonl", "parquet"],
        help="default: as --out ends, .csv, .jsonl or .parquet; csv on stdout",
    )
    group.add_argument("--top-k", type=_whole, metavar="K", help="the K most probable classes (default: all)")
    group.add_argument("--poses", action="store_true", help="the pose of every class, too")
    group.add_argument(
        "--errors", metavar="FILE", help="pictures without a row, as JSON lines (default: beside the table)"
    )


def _add_model(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--url", metavar="URL", help=f"the service (default: {DEFAULT_URL})")
    group.add_argument(
        "--patience",
        type=_whole,
        default=PATIENCE_S,
        metavar="S",
        help=f"seconds to insist where the service is overloaded or gone (default: {PATIENCE_S})",
    )
    group.add_argument(
        "--local", action="store_true", help="run the model in this process, without a service"
    )
    group.add_argument(
        "--models",
        metavar="PATH",
        help="with --local: folders of bundles (default: $CAPSNET_MODELS, else models)",
    )
    group.add_argument("--model", metavar="NAME", help="default: the service's default model")
    group.add_argument("--version", type=_whole, metavar="N", help="default: the newest")
    group.add_argument(
        "--preprocess",
        choices=["auto", "off"],
        default="auto",
        help="off: a plain resize instead of the model's own rule (default: auto)",
    )
    group.add_argument(
        "--batch", type=_whole, default=BATCH, metavar="N", help=f"pictures at a time (default: {BATCH})"
    )
    group.add_argument(
        "--concurrency",
        type=_whole,
        default=CONCURRENCY,
        metavar="N",
        help=f"batches in flight at once (default: {CONCURRENCY})",
    )


def _whole(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, got {text!r}")
    return number


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
    left: Iterator[Picture]


def _run(options: argparse.Namespace) -> int:
    """Score what the command line asks for; the exit status."""
    job, seconds = _plan(options), 0.0
    first = next(job.left, None)
    if first is None and job.before is not None and job.before.finished:
        record = job.before  # without a model or a service
    else:
        left = job.left if first is None else chain([first], job.left)
        record, seconds = asyncio.run(_score(options, replace(job, left=left)))
    done_now = record.pictures - (job.before.pictures if job.before else 0)
    _summarise(record, job.destination, done_now, seconds)
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
    names = NamesHash() if before is None else skip_done(pictures, before, options.out)
    return Job(sources, destination, before, names, pictures)


async def _score(options: argparse.Namespace, job: Job) -> tuple[Record, float]:
    """Score the pictures that are left; the record of all pictures, and the seconds that these took."""
    async with _open_scorer(options, _query(options, job.before)) as scorer:
        columns = Columns(scorer.chosen.class_names, options.poses)
        asked = _asked(options, scorer.chosen, job.destination)
        opened = open_output(job.destination, asked, columns, job.before, job.names)
        with opened as output, _progress_bar(job) as bar:
            began_s = time.monotonic()
            batches = in_batches(job.left, options.batch, read_settings().max_body_bytes)
            async with aclosing(in_order(scorer.score, batches, options.concurrency)) as done:
                async for outcomes in done:
                    output.write(outcomes)
                    if job.destination.errors is None:
                        _report(outcomes)
                    bar.update(len(outcomes))
            output.finish()
            seconds = time.monotonic() - began_s
    return output.record, seconds


def _query(options: argparse.Namespace, before: Record | None) -> Query:
    """What the command line asks for; a run that goes on keeps to its version where none is named."""
    model, version = options.model, options.version
    if before is not None and model in {None, before.asked.model}:
        model, version = before.asked.model, version or before.asked.version
    return Query(model, version, options.top_k, options.preprocess, options.poses)


def _asked(options: argparse.Namespace, chosen: Chosen, destination: Destination) -> Asked:
    return Asked(
        model=chosen.model,
        version=chosen.version,
        encoder_sha256=chosen.encoder_sha256,
        top_k=options.top_k,
        preprocess=options.preprocess,
        poses=options.poses,
        format=destination.format,
        image_column=options.image_column,
        id_column=options.id_column,
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
        from service.score_local import open_local
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        raise ScoreError("--local needs onnxruntime: pip install -e '.[cpu]'") from None
    return open_local(options.models, query, options.batch)


def _progress_bar(job: Job) -> "tqdm[Any]":
    """A bar on a terminal, unless the rows go to one as well; only for a bar are the pictures counted."""
    shown = sys.stderr.isatty() and not (job.destination.out is None and sys.stdout.isatty())
    total = sum(1 for _ in job.sources.pictures()) if shown and job.sources.are_countable() else None
    done = job.before.pictures if job.before else 0
    return tqdm(total=total, initial=done, unit=" pictures", file=sys.stderr, disable=not shown)


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


def _report(outcomes: Iterable[Outcome]) -> None:
    for outcome in outcomes:
        if isinstance(outcome, Skipped):
            _say(f"skipped {outcome.name}: {outcome.reason}")


def _summarise(record: Record, destination: Destination, done_now: int, seconds: float) -> None:
    """Counts of all pictures, the rate of those of this run, and how often each label came."""
    why = f" ({destination.errors} says why)" if record.skipped and destination.errors else ""
    asked = record.asked
    _say(
        f"{record.scored} scored with {asked.model}/{asked.version}, {record.skipped} skipped{why}; "
        f"{done_now} in this run" + (f", {done_now / seconds:.0f} a second" if done_now else "")
    )
    if record.labels:
        common = sorted(record.labels.items(), key=lambda item: -item[1])
        shown = [f"{label} {count}" for label, count in common[:LABELS_SHOWN]]
        more = [f"{len(common) - LABELS_SHOWN} more"] if len(common) > LABELS_SHOWN else []
        _say(f"labels: {', '.join(shown + more)}")


def _say(message: str) -> None:
    """One line on stderr, above the progress bar."""
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in message)  # file names may hold anything
    tqdm.write(f"capsnet-score: {line}", file=sys.stderr)


if __name__ == "__main__":
    main()
