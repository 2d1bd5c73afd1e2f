"""The files of a run: a table, its errors, and the record with which a killed run can be resumed.

The record is replaced after rows and errors have reached the disk. Whenever a run is killed, the files hold
what the record says, and perhaps some rows more, the last one incomplete; a resumed run cuts those off and
scores their pictures again. So no row is lost, and none appears twice.
"""

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
from urllib.parse import quote_from_bytes, unquote_to_bytes

from filelock import lock_descriptor

from service.score.query import Outcome, Row, ScoreError, Skipped
from service.score.run_record import NamesHash, Record, RunSpec, check_same_spec, read_record, write_record
from service.score.table import Columns, Csv, Format, JsonLines, error_lines

COMMIT_FRACTION = 0.1  # of the time, at most, is spent waiting for the disk; a slow one commits less often
Existing = Literal["refuse", "resume", "overwrite"]


@dataclass(frozen=True)
class Destination:
    """Where a run's rows and errors go.

    Attributes:
        format: of the table.
        out: the table; None is stdout.
        errors: the file of the pictures without a row; None prints them to stderr.
    """

    format: Format
    out: Path | None
    errors: Path | None

    @property
    def rows(self) -> Path | None:
        """The file that rows are appended to: the table, or JSON lines beside it that become Parquet.

        An unfinished Parquet file has no footer and would be lost if the process is killed.
        """
        if self.out is None or self.format != "parquet":
            return self.out
        return self.out.with_name(f"{self.out.name}.rows.jsonl")

    @property
    def errors_elsewhere(self) -> str | None:
        """A file of errors that is not the one beside the table, from the table's folder and quoted."""
        if self.out is None or self.errors is None:
            return None
        errors = real(self.errors)
        if errors == real(errors_beside(self.out)):
            return None
        return quote_from_bytes(os.fsencode(os.path.relpath(errors, real(self.out.parent))))

    @property
    def record(self) -> Path | None:
        """The run's record; None if rows go to a pipe or a device: such a run cannot be resumed."""
        if self.out is None or (self.out.exists() and not self.out.is_file()):
            return None
        return record_beside(self.out)


def choose_destination(out: str, errors: str | None, kind: Format) -> Destination:
    """The files of a command line; the errors go beside the table by default.

    Their name contains the table's whole name: scores.csv and scores.parquet are two runs.

    Raises:
        ScoreError: Parquet or the errors cannot go to a file of their own, pyarrow is not installed, or rows
            would go to a stdout that is closed.
    """
    if kind == "parquet":
        import_module("service.score.parquet")  # without pyarrow this fails now, not hours later
    path = None if out == "-" else Path(out)
    if path is None and sys.stdout is None:
        raise ScoreError("stdout, where the rows would go, is closed; name a file with --out")
    chosen = Destination(kind, path, Path(errors) if errors else None)
    if chosen.errors:
        taken = {real(place) for place in (chosen.out, chosen.rows, chosen.record) if place}
        if real(chosen.errors) in taken or (chosen.errors.exists() and not chosen.errors.is_file()):
            raise ScoreError(f"--errors must name a file of its own, got {errors}")
    if path is None or chosen.record is None:
        if kind == "parquet":
            raise ScoreError(f"Parquet can only be written to a file; name one with --out, not {out}")
        return chosen
    return chosen if errors else Destination(kind, path, errors_beside(path))


def errors_beside(out: Path) -> Path:
    """Where the errors of a table are by default."""
    return out.with_name(f"{out.name}.errors.jsonl")


def record_beside(out: Path) -> Path:
    """Where the record of a table is."""
    return out.with_name(f"{out.name}.run.json")


def real(path: Path) -> Path:
    """Where a path leads; of a link to itself, for which `Path.resolve` raises, the path as it is."""
    return Path(os.path.realpath(path))


def check_inputs_stay(destination: Destination, sources: Sequence[str]) -> None:
    """Check that no file that is read is also written.

    Raises:
        ScoreError: one is; names it.
    """
    written = {real(place) for place in (destination.out, destination.rows, destination.errors) if place}
    for source in sources:
        if Path(source).is_file() and real(Path(source)) in written:
            raise ScoreError(f"{source} would be read and overwritten; choose another file to write")


@dataclass(frozen=True)
class Found:
    """What was there before a run.

    Attributes:
        existing: what to do with it.
        content: of the file with the record; None if there is none.
        record: of the run to resume; None for a new run.
    """

    existing: Existing
    content: bytes | None
    record: Record | None


def find_existing(destination: Destination, existing: Existing) -> Found:
    """What is there before a run; touches no file.

    Raises:
        ScoreError: there are files already, which must not be overwritten or cannot be resumed.
    """
    path = destination.record
    content = path.read_bytes() if path is not None and path.exists() else None
    return Found(existing, content, _find_record(destination, existing))


def _find_record(destination: Destination, existing: Existing) -> Record | None:
    """The record of the run to resume; None for a new run."""
    record = destination.record
    if existing == "resume" and record is None:
        raise ScoreError("--resume needs a table in a file; name it with --out FILE")
    if existing == "resume" and record is not None and record.exists():
        previous = read_record(record)
        _check_errors(destination, previous)
        if previous.finished and destination.out is not None and not destination.out.exists():
            raise ScoreError(f"{destination.out} was finished, and is gone; --overwrite starts over")
        _check_length(destination.rows, previous.rows_bytes, record)
        _check_length(destination.errors, previous.errors_bytes, record)
        return previous
    places = (destination.out, destination.rows, destination.errors)
    found = [str(path) for path in places if path and path.is_file() and path.stat().st_size]
    if not found or existing == "overwrite":
        return None
    if existing == "resume":
        raise ScoreError(
            f"{found[0]} cannot be resumed without {record}, which says how far it is; "
            "--overwrite starts over"
        )
    resume = "--resume continues it, " if record else ""
    raise ScoreError(f"{found[0]} exists already; {resume}--overwrite starts over")


def _check_errors(destination: Destination, previous: Record) -> None:
    """Check that the errors go on where they were begun: another file would be cut to their length."""
    out, errors = destination.out, destination.errors
    if out is None or errors is None or destination.errors_elsewhere == previous.errors:
        return
    begun = errors_beside(out)
    if previous.errors is not None:
        begun = out.parent / os.fsdecode(unquote_to_bytes(previous.errors))
    raise ScoreError(f"{out} was begun with its errors in {begun}; name that file with --errors")


def _check_length(path: Path | None, length: int, record: Path) -> None:
    """Check that the file is as long as the record says."""
    size = path.stat().st_size if path is not None and path.exists() else 0
    if size < length:
        raise ScoreError(
            f"{path} cannot be resumed: it has {size} bytes, but {length} according to {record}; "
            "--overwrite starts over"
        )


class WriteError(ScoreError):
    """A file of a run cannot be written, because the disk is full for example."""


@contextmanager
def _writing(path: Path | None, *, can_resume: bool) -> Iterator[None]:
    """Name the file that is written here in errors of the operating system, which do not.

    Args:
        path: the file; None is stdout.
        can_resume: whether the run can go on with --resume.

    Raises:
        WriteError: it cannot be written.
        BrokenPipeError: the reader of a pipe has gone, which is no fault.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        remedy = "; the rows written so far stay; continue with --resume" if can_resume else ""
        raise WriteError(f"{path or 'stdout'}: {error.strerror or error}{remedy}") from error


class Output:
    """The open files of a run. Use `open_output`.

    Attributes:
        record: how far the run is; all of that is written, but not yet safe from a power failure.
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
        """Append the rows and errors of the next pictures."""
        rows = [outcome for outcome in outcomes if isinstance(outcome, Row)]
        for outcome in outcomes:
            self._names.add(outcome.name)
        skipped = [outcome for outcome in outcomes if isinstance(outcome, Skipped)]
        self._append(rows, skipped, self._lines.lines(rows))
        if time.monotonic() >= self._next_commit_s:
            self.commit()

    def finish(self) -> None:
        """Note that all pictures are done; a Parquet table is written now."""
        rows, out = self._destination.rows, self._destination.out
        changes: dict[str, object] = {"finished": True}
        if rows is not None and out is not None and rows != out:
            from service.score.parquet import write_parquet  # pyarrow is an extra

            self.commit()  # the table may not fit on the disk
            with self._writing(out):
                write_parquet(rows, out, self._columns)
            changes["rows_bytes"] = 0  # the JSON lines are removed once the record says so
        self.record = self.record.model_copy(update=changes)

    def commit(self) -> None:
        """Make the files safe: a resumed run will go on from here."""
        destination = self._destination
        if destination.record is None:
            return
        started_s = time.monotonic()
        for file, path in ((self._rows, destination.rows), (self._errors, destination.errors)):
            if file is not None:
                with self._writing(path):
                    os.fsync(file.fileno())
        with self._writing(destination.record):
            write_record(destination.record, self.record)
        ended_s = time.monotonic()
        self._next_commit_s = ended_s + (ended_s - started_s) * (1 / COMMIT_FRACTION - 1)

    def _append(self, rows: Sequence[Row], skipped: Sequence[Skipped], lines: bytes) -> None:
        with self._writing(self._destination.rows):
            _write(self._rows, lines)
        errors = error_lines(skipped)
        if self._errors is not None:
            with self._writing(self._destination.errors):
                _write(self._errors, errors)
        labels = Counter(self.record.labels) + Counter(row.classes[0].label for row in rows)
        self.record = self.record.model_copy(  # last, so that it never says more than the files hold
            update={
                "pictures": self.record.pictures + len(rows) + len(skipped),
                "labels": dict(labels),
                "names_sha256": self._names.hexdigest(),
                "rows_bytes": self.record.rows_bytes + len(lines),
                "errors_bytes": self.record.errors_bytes + len(errors),
                "finished": False,
            }
        )

    def _writing(self, path: Path | None) -> AbstractContextManager[None]:
        return _writing(path, can_resume=self._destination.record is not None)


def _write(file: BinaryIO, content: bytes) -> None:
    """Write all of it; a file without a buffer may take a part at a time."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]
    file.flush()


@contextmanager
def open_output(
    destination: Destination, spec: RunSpec, columns: Columns, found: Found, names: NamesHash
) -> Iterator[Output]:
    """Open the files of a new run, or of a resumed one.

    Args:
        destination: the files.
        spec: what determines the rows.
        columns: of the table.
        found: what was there before, from `find_existing`.
        names: of the pictures that are done, from `skip_done`.

    Raises:
        ScoreError: the previous run had another spec, or another process is writing.
        WriteError: a file cannot be written.
    """
    previous = found.record
    if previous is not None:
        check_same_spec(previous.spec, spec, str(destination.out))
        if previous.finished and destination.format == "parquet":
            raise ScoreError(
                f"{destination.out} is finished with {previous.pictures} pictures and cannot be extended; "
                "score the others to another file, or all of them again with --overwrite"
            )
    with ExitStack() as files:
        rows = files.enter_context(_open_rows(destination))
        errors = files.enter_context(_open_locked(destination.errors)) if destination.errors else None
        _check_unchanged(destination, found)
        record = previous or Record(
            spec=spec, names_sha256=names.hexdigest(), errors=destination.errors_elsewhere
        )
        if previous is None and destination.record is not None:
            _start(destination, destination.record, record)
        if destination.record is not None:
            _cut(rows, record.rows_bytes)
        if errors is not None:
            _cut(errors, record.errors_bytes)
        output = Output(destination, (rows, errors), columns, record, names)
        try:
            yield output
        finally:
            # The record that is there stays true, and a full disk would not take another.
            if not isinstance(sys.exception(), WriteError):
                output.commit()
                _remove_leftovers(destination, output.record)


def _open_rows(destination: Destination) -> AbstractContextManager[BinaryIO]:
    if destination.rows is None:
        return nullcontext(sys.stdout.buffer)
    if destination.record is None:  # a pipe or a device
        return destination.rows.open("wb", buffering=0)
    return _open_locked(destination.rows, destination.out)


def _open_locked(path: Path, shown: Path | None = None) -> BinaryIO:
    """Open for writing, without truncating it, and keep other processes from doing so.

    Without a buffer: closing it would write once more what a full disk has not taken.
    """
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b", buffering=0)
    if not lock_descriptor(file.fileno(), blocking=False):
        file.close()
        raise ScoreError(f"another process is writing {shown or path}")
    return file


def _check_unchanged(destination: Destination, found: Found) -> None:
    """Check that no other process has scored to these files since they were looked at."""
    if find_existing(destination, found.existing) != found:
        raise ScoreError(f"another process has changed {destination.record} just now")


def _start(destination: Destination, path: Path, record: Record) -> None:
    """Write the record of a new run; what an earlier run has left no longer counts."""
    with _writing(path, can_resume=False):  # --resume would continue the earlier run
        write_record(path, record)
    if destination.out is not None and destination.out != destination.rows:
        destination.out.unlink(missing_ok=True)


def _cut(file: BinaryIO, length: int) -> None:
    file.truncate(length)
    file.seek(length)


def _remove_leftovers(destination: Destination, record: Record) -> None:
    """Remove an empty file of errors, and the JSON lines that have become Parquet."""
    if destination.errors is not None and record.errors_bytes == 0:
        destination.errors.unlink(missing_ok=True)
    if record.finished and destination.rows is not None and destination.rows != destination.out:
        destination.rows.unlink(missing_ok=True)
