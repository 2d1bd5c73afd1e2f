"""The log on standard error: every record of every logger as one line, JSON or text."""

import json
import logging
import os
import select
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue
from typing import Any, Literal

import orjson

from service.observability.libtiff import silent_libtiff

LINES_WAITING = 10_000  # for a slow reader; further lines are lost, and counted
BATCH_S = 0.05  # lines that come within this time are written together
BATCH_BYTES = 2**20  # that are written at once, about
LAST_LINES_S = 2.0  # for what still waits at the end

LogFormat = Literal["auto", "json", "text"]


class JsonLine(logging.Formatter):
    """One JSON object, in which the fields of `log.info("what happened", {"field": value})` stand by name."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON, in which no text can break the line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _json(line)


class TextLine(logging.Formatter):
    """`2026-11-23 08:05:12 WARNING: what happened field="value"`, for people; a traceback keeps its lines."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as text, in which only a traceback has more than one line."""
        time = self.formatTime(record, "%Y-%m-%d %H:%M:%S")
        fields = "".join(f" {name}={_json(value)}" for name, value in _fields(record).items())
        line = f"{time} {record.levelname}: {_message(record).translate(ESCAPES)}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class LineHandler(QueueHandler):
    """Queues records for a thread that writes them, because a slow reader must delay nobody else.

    Args:
        descriptor: of an open file, written without a Python file: at the end of the process Python waits for
            that file's lock, and a thread that is stuck in a write never releases it.
    """

    def __init__(self, descriptor: int) -> None:
        self._records: SimpleQueue[Any] = SimpleQueue()
        super().__init__(self._records)
        self.lost = 0  # records, in all
        self._writer = _Writer(self._records, self, descriptor)
        self._is_closed = False
        self._writer.start()

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """The record itself; the thread formats it. Nobody may change its arguments any more."""
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queue the record, or lose it if too many wait."""
        if self._records.qsize() >= LINES_WAITING:
            self.lost += 1
        else:
            self._records.put(record)

    def close(self) -> None:
        """Write what waits, unless nobody reads it.

        `logging.shutdown` holds the handler's lock meanwhile, so the thread must never take it. A signal
        handler may call this during any other call of this class: a simple queue allows for that.
        """
        if not self._is_closed:
            self._is_closed = True
            self._writer.enqueue_sentinel()
            self._writer.closing.set()
        self._writer.join(LAST_LINES_S)
        super().close()


class _Writer(QueueListener):
    """Formats and writes records. Those that come close together share a write, and one change of threads.

    A reader that is gone loses lines, and disturbs no request.
    """

    def __init__(self, records: SimpleQueue[Any], handler: LineHandler, descriptor: int) -> None:
        super().__init__(records)
        self._records = records
        self.closing = threading.Event()
        self._handler = handler
        self._descriptor = descriptor
        self._lines = bytearray()  # that are not written yet
        self._lost_told = 0

    def join(self, seconds: float) -> None:
        """Wait for the end of the thread."""
        if self._thread:
            self._thread.join(seconds)

    def dequeue(self, block: bool) -> Any:
        """The next record; before it waits for one, it writes those it had."""
        if self._records.empty() or len(self._lines) >= BATCH_BYTES:
            self._write()
            self.closing.wait(BATCH_S)
        record = super().dequeue(block)
        if record is None:  # the sentinel, after which nothing is dequeued
            self._write()
        return record

    def handle(self, record: logging.LogRecord) -> None:
        """Format the record."""
        with suppress(MemoryError):
            self._lines += f"{self._format(record)}\n".encode(errors="backslashreplace")

    def _format(self, record: logging.LogRecord) -> str:
        try:
            return self._handler.format(record)
        except Exception as error:  # anything: arguments may run any code to become text
            return self._handler.format(_record_of_a_fault(record, error))

    def _write(self) -> None:
        if lost := self._handler.lost - self._lost_told:
            self._lost_told += lost
            self.handle(_record_of_loss(lost))
        left, self._lines = self._lines, bytearray()
        with suppress(OSError, MemoryError):  # there is nobody to report it to, or no memory to do it with
            while left:
                _write_some(self._descriptor, left)


def _write_some(descriptor: int, left: bytearray) -> None:
    """Write the first lines: as many as no other process of the service can write into, or one long one."""
    end = left.rfind(b"\n", 0, select.PIPE_BUF) + 1 or left.find(b"\n") + 1
    try:
        del left[: os.write(descriptor, left[:end])]
    except BlockingIOError:  # whoever shares the open file may have made it so
        select.select([], [descriptor], [])


@contextmanager
def logging_to_stderr(log_format: LogFormat, level: str) -> Iterator[None]:
    """Write every record of this process to standard error, warnings of Python included, in one format.

    Except warnings of Pillow: strangers' files determine their texts, and Python keeps each text it has seen.

    Args:
        log_format: "auto" is text on a terminal and JSON elsewhere.
        level: minimum level, in lower case.
    """
    # A process may be started without standard error; its number then belongs to another file.
    descriptor = sys.__stderr__.fileno() if sys.__stderr__ else os.open(os.devnull, os.O_WRONLY)
    handler = LineHandler(descriptor)
    handler.setFormatter(_formatter(log_format, descriptor))
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(level.upper())
    try:
        with warnings.catch_warnings():
            logging.captureWarnings(True)
            # No line shows these, and finding them out takes longer than the rest of a record.
            logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
            warnings.filterwarnings("ignore", module=r"PIL\.")
            with silent_libtiff():
                yield
    finally:
        logging.captureWarnings(False)
        root.setLevel(before)
        root.removeHandler(handler)
        handler.close()


def _formatter(log_format: LogFormat, descriptor: int) -> logging.Formatter:
    is_text = os.isatty(descriptor) if log_format == "auto" else log_format == "text"
    return TextLine() if is_text else JsonLine()


# Characters that end a line for some reader, or command a terminal; written as in JSON.
ESCAPES = {code: f"\\u{code:04x}" for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)}


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError):  # the format does not fit its arguments
        return f"{record.msg} {record.args!r}"


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    return record.args if isinstance(record.args, Mapping) else {}


def _json(value: object) -> str:
    try:
        text = orjson.dumps(value, default=repr, option=orjson.OPT_UTC_Z).decode()
    except TypeError:  # text with lone surrogates
        return json.dumps(value, default=repr)
    return text if text.isascii() else text.translate(ESCAPES)


def _record_of_loss(lines: int) -> logging.LogRecord:
    words = "%d lines were lost: standard error is read too slowly"
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, words, (lines,), None)


def _record_of_a_fault(unwritten: logging.LogRecord, error: Exception) -> logging.LogRecord:
    words = "a record of %s (%s:%d) cannot be written: %s"
    why = "".join(traceback.format_exception_only(error)).strip()
    where = (unwritten.name, unwritten.pathname, unwritten.lineno, why)
    return logging.LogRecord(__name__, logging.ERROR, __file__, 0, words, where, None)
