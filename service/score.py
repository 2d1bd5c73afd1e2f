"""capsnet-score: many pictures to one table, over HTTP or in process.

Everything streams: folders are walked as scoring goes on, a few batches are in flight at once, and rows are
written in the pictures' order as soon as their batch is done. Memory does not grow with the number of
pictures. One that cannot be scored is reported on stderr and has no row.

Exit status: 0 every picture has a row; 1 some were skipped; 2 wrong usage, no service or nothing scored; 130
stopped with Ctrl-C, 141 the reader of stdout went away. However it ends, rows written before stay, whole.
"""

import argparse
import asyncio
import logging
import os
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from service.score_files import find_pictures, in_batches
from service.score_http import DEFAULT_URL, HttpScorer, open_service
from service.score_query import Outcome, Query, Row, ScoreError, Skipped
from service.score_table import Table, choose_format, open_output

if TYPE_CHECKING:
    from service.score_local import LocalScorer

BATCH = 32
CONCURRENCY = 4
STOPPED_BY_SIGNAL = 130  # what a shell gives a command that SIGINT ended
READER_LEFT = 141  # the same for SIGPIPE

EXAMPLES = """examples:
  capsnet-score 7.png                                           one picture, to the terminal
  capsnet-score digits/ --out scores.csv                        every picture in a folder and its subfolders
  capsnet-score 'scans/**/*.png' --out scores.jsonl             a pattern, quoted for more than a shell takes
  capsnet-score digits/ --out scores.csv --url http://gpu:8001  a service elsewhere
  capsnet-score digits/ --out scores.csv --local                no service: the model runs in this process

Folders and patterns give files with picture suffixes whose names do not begin with a dot, sorted; a file
named itself is taken whatever its suffix. A bad file is reported on stderr and has no row.

exit status: 0 every picture has a row, 1 some were skipped, 2 wrong usage, no service, or nothing was scored
"""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; errors of the user's end with one line and status 2."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(format="capsnet-score: %(message)s")  # warnings: versions and devices passed over
    try:
        sys.exit(asyncio.run(_score(options)))
    except KeyboardInterrupt:
        _say("interrupted; the rows written so far stay")
        sys.exit(STOPPED_BY_SIGNAL)
    except BrokenPipeError:  # as `| head` does once it has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit fails again
        sys.exit(READER_LEFT)
    except (ScoreError, OSError) as error:
        _say(str(error))
        sys.exit(2)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="capsnet-score",
        description="Class probabilities of many pictures, as CSV or JSON lines.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", help="file, folder or quoted pattern")
    parser.add_argument("--out", default="-", metavar="FILE", help="table to write (default: -, stdout)")
    parser.add_argument(
        "--format", choices=["csv", "jsonl"], help="default: as --out ends, .csv or .jsonl; csv on stdout"
    )
    parser.add_argument("--url", metavar="URL", help=f"the service (default: {DEFAULT_URL})")
    parser.add_argument(
        "--local", action="store_true", help="run the model in this process, without a service"
    )
    parser.add_argument(
        "--models",
        metavar="PATH",
        help="with --local: folders of bundles (default: $CAPSNET_MODELS, else models)",
    )
    parser.add_argument("--model", metavar="NAME", help="default: the service's default model")
    parser.add_argument("--version", type=_whole, metavar="N", help="default: the newest")
    parser.add_argument(
        "--top-k", type=_whole, metavar="K", help="the K most probable classes (default: all)"
    )
    parser.add_argument(
        "--preprocess",
        choices=["auto", "off"],
        default="auto",
        help="off: a plain resize instead of the model's own rule (default: auto)",
    )
    parser.add_argument(
        "--batch", type=_whole, default=BATCH, metavar="N", help=f"pictures at a time (default: {BATCH})"
    )
    parser.add_argument(
        "--concurrency",
        type=_whole,
        default=CONCURRENCY,
        metavar="N",
        help=f"batches in flight at once (default: {CONCURRENCY})",
    )
    return parser


def _whole(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, got {text!r}")
    return number


async def _score(options: argparse.Namespace) -> int:
    """Score what the command line asks for; the exit status."""
    kind = choose_format(options.out, options.format)
    pictures = find_pictures(options.paths)  # before a service is asked or a file overwritten
    async with _open_scorer(options) as scorer:
        scored = skipped = 0
        with open_output(options.out) as file, _progress_bar(options.paths, options.out) as bar:
            table = Table(file, kind, scorer.class_names)
            batches = in_batches(pictures, options.batch)
            async with aclosing(in_order(scorer.score, batches, options.concurrency)) as done:
                async for outcomes in done:
                    rows = [outcome for outcome in outcomes if isinstance(outcome, Row)]
                    table.write(rows)
                    _report(outcomes)
                    bar.update(len(outcomes))
                    scored, skipped = scored + len(rows), skipped + len(outcomes) - len(rows)
        _say(f"{scored} scored with {scorer.model}/{scorer.version}, {skipped} skipped")
    if scored == 0:
        return 2
    return 1 if skipped else 0


def _open_scorer(options: argparse.Namespace) -> "AbstractAsyncContextManager[HttpScorer | LocalScorer]":
    query = Query(options.model, options.version, options.top_k, options.preprocess)
    if not options.local:
        if options.models:
            raise ScoreError("--models is for --local; a service has its own CAPSNET_MODELS")
        return open_service(options.url or DEFAULT_URL, query)
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


def _progress_bar(paths: Sequence[str], out: str) -> "tqdm[Any]":
    """A bar on a terminal, unless the rows go to one as well; only for a bar are the pictures counted."""
    shown = sys.stderr.isatty() and not (out == "-" and sys.stdout.isatty())
    total = sum(1 for _ in find_pictures(paths)) if shown else None
    return tqdm(total=total, unit=" pictures", file=sys.stderr, disable=not shown)


async def in_order(
    score: Callable[[list[Path]], Coroutine[Any, Any, list[Outcome]]],
    batches: Iterable[list[Path]],
    concurrency: int,
) -> AsyncGenerator[list[Outcome], None]:
    """Outcomes of each batch in the order of the batches, with up to `concurrency` of them in flight."""
    running: deque[asyncio.Task[list[Outcome]]] = deque()
    try:
        for batch in batches:
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
            _say(f"skipped {outcome.path}: {outcome.reason}")


def _say(message: str) -> None:
    """One line on stderr, above the progress bar."""
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in message)  # file names may hold anything
    tqdm.write(f"capsnet-score: {line}", file=sys.stderr)


if __name__ == "__main__":
    main()
