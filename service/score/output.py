"""The files that a run leaves: a table, its errors, and the record from which a killed run goes on.

The record is replaced after rows and errors have reached the disk. Whenever a run is killed, there is a
record, and behind the lengths that it tells a few rows more or a part of one; a resumed run cuts those off
and scores their pictures again. No row is lost, none comes twice.
"""

import fcntl
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, Literal

from service.score.query import Outcome, Row, ScoreError, Skipped
from service.score.record import Asked, NamesHash, Record, check_same, read_record, write_record
from service.score.table import Columns, Csv, Format, JsonLines, error_lines

COMMIT_SHARE = 0.1  # of the time, at most, is spent waiting for the disk; a slow one commits less often
Existing = Literal["refuse", "resume", "overwrite"]


@dataclass(frozen=True)
class Destination:
    """Where a run's rows and errors go.

    Attributes:
        format: of the table.
        out: the table; None is stdout.
        errors: the pictures without a row; None leaves them to be told on stderr.
    """

    format: Format
    out: Path | None
    errors: Path | None

    @property
    def rows(self) -> Path | None:
        """The file that rows are appended to: the table, or JSON lines beside it that become Parquet.

        A Parquet file that is being written has no footer yet and is lost when its writer is killed.
        """
        if self.out is None or self.format != "parquet":
            return self.out
        return self.out.with_name(f"{self.out.name}.rows.jsonl")

    @property
    def record(self) -> Path | None:
        """The run's record; None where rows go to a pipe or a device, and nothing can be resumed."""
        if self.out is None or (self.out.exists() and not self.out.is_file()):
            return None
        return self.out.with_name(f"{self.out.name}.run.json")


def choose_destination(out: str, errors: str | None, kind: Format) -> Destination:
    """The files that the command line names; errors lie beside the table unless it names another place.

    They have the table's whole name in theirs: scores.csv and scores.parquet are two runs.

    Raises:
        ScoreError: Parquet or the errors are to go where there can be no file, or to the table's; or Parquet
            cannot be written, because pyarrow is not installed.
    """
    if kind == "parquet":
        import_module("service.score.parquet")  # or the error that pyarrow lacks, before a night's work
    path = None if out == "-" else Path(out)
    chosen = Destination(kind, path, Path(errors) if errors else None)
    if chosen.errors and (chosen.errors == path or (chosen.errors.exists() and not chosen.errors.is_file())):
        raise ScoreError(f"--errors is to name a file of its own, got {errors}")
    if path is None or chosen.record is None:
        if kind == "parquet":
            raise ScoreError(f"Parquet is written to a file; name one with --out instead of {out}")
        return chosen
    return chosen if errors else Destination(kind, path, path.with_name(f"{path.name}.errors.jsonl"))


def find_record(destination: Destination, existing: Existing) -> Record | None:
    """The record of the run that this one goes on with; None where it begins.

    Raises:
        ScoreError: there are files already, and they are neither to be overwritten nor can be resumed.
    """
    record = destination.record
    if existing == "resume" and record is None:
        raise ScoreError("--resume goes on with a file; name it with --out FILE")
    if existing == "resume" and record is not None and record.exists():
        before = read_record(record)
        _check_length(destination.rows, before.rows_bytes, record)
        _check_length(destination.errors, before.errors_bytes, record)
        return before
    places = (destination.out, destination.rows, destination.errors)
    found = [str(path) for path in places if path and path.is_file() and path.stat().st_size]
    if not found or existing == "overwrite":
        return None
    if existing == "resume":
        raise ScoreError(
            f"{found[0]} cannot be resumed without {record}, which tells how far it is; "
            "--overwrite begins again"
        )
    resume = "--resume goes on with it, " if record else ""
    raise ScoreError(f"{found[0]} exists already; {resume}--overwrite begins again")


def _check_length(path: Path | None, length: int, record: Path) -> None:
    """What the record tells of is there."""
    size = path.stat().st_size if path is not None and path.exists() else 0
    if size < length:
        raise ScoreError(
            f"{path} cannot be resumed: it has {size} bytes, and {record} tells of {length}; "
            "--overwrite begins again"
        )


class Output:
    """The files of a run while it goes on. Use `open_output`.

    Attributes:
        record: how far the run is; what it tells is written, though not yet safe from a power failure.
    """

    def __init__(
        self,
        destination: Destination,
        files: tuple[BinaryIO, BinaryIO | None],
        columns: Columns,
        record: Record,
        names: NamesHash,
    ) -> None:
        self.record = record
        self._destination = destination
        self._rows, self._errors = files
        self._columns = columns
        self._lines = Csv(columns) if destination.format == "csv" else JsonLines()
        self._names = names
        self._next_commit_s = 0.0
        if record.rows_bytes == 0:
            self._append([], [], self._lines.header())

    def write(self, outcomes: Sequence[Outcome]) -> None:
        """Append the rows and errors of the pictures that come next."""
        rows = [outcome for outcome in outcomes if isinstance(outcome, Row)]
        for outcome in outcomes:
            self._names.add(outcome.name)
        skipped = [outcome for outcome in outcomes if isinstance(outcome, Skipped)]
        self._append(rows, skipped, self._lines.lines(rows))
        if time.monotonic() >= self._next_commit_s:
            self.commit()

    def finish(self) -> None:
        """All pictures are done; this writes the Parquet file, if there is to be one."""
        rows, out = self._destination.rows, self._destination.out
        changes: dict[str, object] = {"finished": True}
        if rows is not None and out is not None and rows != out:
            from service.score.parquet import write_parquet  # pyarrow is an extra

            write_parquet(rows, out, self._columns)
            changes["rows_bytes"] = 0  # they go once the record says so
        self.record = self.record.model_copy(update=changes)

    def commit(self) -> None:
        """From now on a resumed run goes on from here."""
        if self._destination.record is None:
            return
        began_s = time.monotonic()
        for file in (self._rows, self._errors):
            if file is not None:
                os.fsync(file.fileno())
        write_record(self._destination.record, self.record)
        ended_s = time.monotonic()
        self._next_commit_s = ended_s + (ended_s - began_s) * (1 / COMMIT_SHARE - 1)

    def _append(self, rows: Sequence[Row], skipped: Sequence[Skipped], lines: bytes) -> None:
        self._rows.write(lines)
        self._rows.flush()
        told = error_lines(skipped)
        if self._errors is not None:
            self._errors.write(told)
            self._errors.flush()
        labels = Counter(self.record.labels) + Counter(row.classes[0].label for row in rows)
        self.record = self.record.model_copy(  # last, so that it never tells more than there is
            update={
                "pictures": self.record.pictures + len(rows) + len(skipped),
                "labels": dict(labels),
                "names_sha256": self._names.hexdigest(),
                "rows_bytes": self.record.rows_bytes + len(lines),
                "errors_bytes": self.record.errors_bytes + len(told),
                "finished": False,
            }
        )


@contextmanager
def open_output(
    destination: Destination, asked: Asked, columns: Columns, before: Record | None, names: NamesHash
) -> Iterator[Output]:
    """Open the files for a run that begins, or goes on from the record `before`.

    Args:
        destination: the files.
        asked: what decides the rows.
        columns: of the table.
        before: what `find_record` found.
        names: those of the pictures done before, which `skip_done` gave.

    Raises:
        ScoreError: the run before was asked for something else, or another process is writing.
    """
    if before is not None:
        check_same(before.asked, asked, str(destination.out))
        if before.finished and destination.format == "parquet":
            raise ScoreError(
                f"{destination.out} is finished with {before.pictures} pictures and cannot be added to; "
                "score the others to another file, or all of them again with --overwrite"
            )
    with ExitStack() as files:
        rows = files.enter_context(_open_rows(destination))
        if destination.record is not None:
            _check_unchanged(destination.record, before)
        record = before or Record(asked=asked, names_sha256=names.hexdigest())
        if before is None and destination.record is not None:
            _begin(destination, destination.record, record)
        errors = files.enter_context(_open_file(destination.errors)) if destination.errors else None
        if destination.record is not None:
            _cut(rows, record.rows_bytes)
        if errors is not None:
            _cut(errors, record.errors_bytes)
        output = Output(destination, (rows, errors), columns, record, names)
        try:
            yield output
        finally:
            output.commit()
            _tidy(destination, output.record)


def _open_rows(destination: Destination) -> AbstractContextManager[BinaryIO]:
    if destination.rows is None:
        return nullcontext(sys.stdout.buffer)
    if destination.record is None:  # a pipe or a device
        return destination.rows.open("wb")
    file = _open_file(destination.rows)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ScoreError(f"another process is writing {destination.out}") from None
    return file


def _open_file(path: Path) -> BinaryIO:
    """Open for writing without emptying it."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b")


def _check_unchanged(record: Path, before: Record | None) -> None:
    """No other process has gone on with the run since it was looked at."""
    if before is not None and read_record(record) != before:
        raise ScoreError(f"another process has changed {record} just now")


def _begin(destination: Destination, path: Path, record: Record) -> None:
    """Nothing of an earlier run counts any more."""
    write_record(path, record)
    if destination.out is not None and destination.out != destination.rows:
        destination.out.unlink(missing_ok=True)


def _cut(file: BinaryIO, length: int) -> None:
    file.truncate(length)
    file.seek(length)


def _tidy(destination: Destination, record: Record) -> None:
    """Remove what nobody needs: errors if there are none, and rows that have become Parquet."""
    if destination.errors is not None and record.errors_bytes == 0:
        destination.errors.unlink(missing_ok=True)
    if record.finished and destination.rows is not None and destination.rows != destination.out:
        destination.rows.unlink(missing_ok=True)
