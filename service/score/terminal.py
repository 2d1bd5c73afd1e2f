"""What a run prints to stderr: its progress, skipped pictures, and a summary."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from service.score.output import Destination
from service.score.query import Outcome, Skipped
from service.score.run_record import Record
from service.score.sources import Sources

LABELS_SHOWN = 12


def progress_bar(sources: Sources, destination: Destination, done: int, views: int) -> "tqdm[Any]":
    """A progress bar on a terminal, unless rows go to the terminal, too; a pair of views counts once."""
    shown = sys.stderr.isatty() and not (destination.out is None and sys.stdout.isatty())
    total = sources.count() // views if shown and sources.are_countable() else None
    return count_bar(total, done, views, shown)


def count_bar(total: int | None, done: int, views: int, shown: bool = True) -> "tqdm[Any]":
    """A progress bar of so many pictures or pairs, on a terminal if it is to be shown."""
    unit = " pictures" if views == 1 else " pairs"
    disable = not (shown and sys.stderr.isatty())
    return tqdm(total=total, initial=done, unit=unit, file=sys.stderr, disable=disable)


def report(outcomes: Iterable[Outcome]) -> None:
    """Print a line for each picture without a row."""
    for outcome in outcomes:
        if isinstance(outcome, Skipped):
            say(f"skipped {outcome.name}: {outcome.reason}")


def summarize(record: Record, errors: Path | str | None, done_now: int, seconds: float) -> None:
    """Print the number of pictures, the rate of this run, and the number of rows of each label.

    Args:
        record: of all pictures.
        errors: where the pictures without a row are listed; None if they have been printed.
        done_now: pictures of this run.
        seconds: that these took.
    """
    reasons = f" ({errors} has the reasons)" if record.skipped and errors else ""
    spec = record.spec
    say(
        f"{record.scored} scored with {spec.model}/{spec.version}, {record.skipped} skipped{reasons}; "
        f"{done_now} in this run" + (f", {done_now / seconds:.0f} a second" if done_now else "")
    )
    if record.labels:
        common = sorted(record.labels.items(), key=lambda item: -item[1])
        shown = [f"{label} {count}" for label, count in common[:LABELS_SHOWN]]
        more = [f"{len(common) - LABELS_SHOWN} more"] if len(common) > LABELS_SHOWN else []
        say(f"labels: {', '.join(shown + more)}")


def say(message: str) -> None:
    """Print one line to stderr, above the progress bar."""
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in message)  # names may contain anything
    tqdm.write(f"capsnet-score: {line}", file=sys.stderr)
