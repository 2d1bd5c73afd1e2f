"""What a run tells whoever watches it, on stderr: its progress, pictures it skipped, and a summary."""

import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

from service.score.output import Destination
from service.score.query import Outcome, Skipped
from service.score.record import Record
from service.score.sources import Sources

LABELS_SHOWN = 12


def progress_bar(sources: Sources, destination: Destination, done: int, views: int) -> "tqdm[Any]":
    """A bar on a terminal, unless the rows go to one as well; pairs of views count once."""
    shown = sys.stderr.isatty() and not (destination.out is None and sys.stdout.isatty())
    total = sources.count() // views if shown and sources.are_countable() else None
    unit = " pictures" if views == 1 else " pairs"
    return tqdm(total=total, initial=done, unit=unit, file=sys.stderr, disable=not shown)


def report(outcomes: Iterable[Outcome]) -> None:
    """The pictures without a row, a line for each."""
    for outcome in outcomes:
        if isinstance(outcome, Skipped):
            say(f"skipped {outcome.name}: {outcome.reason}")


def summarise(record: Record, destination: Destination, done_now: int, seconds: float) -> None:
    """Counts of all pictures, the rate of those of this run, and how often each label came."""
    why = f" ({destination.errors} says why)" if record.skipped and destination.errors else ""
    asked = record.asked
    say(
        f"{record.scored} scored with {asked.model}/{asked.version}, {record.skipped} skipped{why}; "
        f"{done_now} in this run" + (f", {done_now / seconds:.0f} a second" if done_now else "")
    )
    if record.labels:
        common = sorted(record.labels.items(), key=lambda item: -item[1])
        shown = [f"{label} {count}" for label, count in common[:LABELS_SHOWN]]
        more = [f"{len(common) - LABELS_SHOWN} more"] if len(common) > LABELS_SHOWN else []
        say(f"labels: {', '.join(shown + more)}")


def say(message: str) -> None:
    """One line on stderr, above the progress bar."""
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in message)  # file names may hold anything
    tqdm.write(f"capsnet-score: {line}", file=sys.stderr)
