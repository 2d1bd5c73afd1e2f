"""What the process says on standard error: every record of every logger as one line, JSON or text."""

import ctypes
import json
import logging
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import Literal

import orjson

LINES_WAITING = 10_000  # for a slow reader; beyond that lines are lost, and counted
GATHERED_S = 0.05  # lines that come within this time are written together
LAST_WORDS_S = 2.0  # for what still waits at the end

LogFormat = Literal["json", "text"]


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
    """`WARNING: what happened field="value"`, for people; a traceback keeps its lines."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as text, in which only a traceback has more than one line."""
        fields = "".join(f" {name}={_json(value)}" for name, value in _fields(record).items())
        line = f"{record.levelname}: {_message(record).translate(ESCAPES)}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class LineWriter(logging.Handler):
    """Writes lines from a thread of its own, because a reader that stalls must stall nobody else.

    Records that come close together are formatted and written at once, which costs a busy service less than
    a system call and a lock for each of them. A reader that is gone loses lines, and disturbs no request.

    Args:
        descriptor: of an open file. No Python file stands between: at the end of the process Python waits for
            the lock of one, and a thread that is stuck in a write never gives it back.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._records: SimpleQueue[logging.LogRecord | None] = SimpleQueue()  # None: the last one
        self._lost = 0  # in all
        self._closing = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the record; its arguments are for nobody to change any more."""
        if self._records.qsize() >= LINES_WAITING:
            self._lost += 1
        else:
            self._records.put(record)

    def close(self) -> None:
        """Write what waits, if somebody reads it.

        `logging.shutdown` holds the handler's lock meanwhile, which the writing thread therefore never takes.
        It may also be called from the handler of a signal that came during a call of this class: a simple
        queue allows for that, and the event is set once.
        """
        if not self._is_closed:
            self._is_closed = True
            self._records.put(None)
            self._closing.set()
        self._thread.join(LAST_WORDS_S)
        super().close()

    def _work(self) -> None:
        told = 0  # of the lines that were lost
        is_last = False
        while not is_last:
            waiting = [self._records.get()]
            with suppress(Empty):
                while True:
                    waiting.append(self._records.get_nowait())
            records = [record for record in waiting if record]
            is_last = len(records) < len(waiting)
            if lost := self._lost - told:
                told += lost
                records.append(_record_of_loss(lost))
            self._write(records)
            self._closing.wait(GATHERED_S)

    def _write(self, records: list[logging.LogRecord]) -> None:
        with suppress(OSError, MemoryError):  # there is nobody to tell, or nothing to tell it with
            left = b"".join(self._line(record) for record in records)
            while left:
                left = left[os.write(self._descriptor, left) :]

    def _line(self, record: logging.LogRecord) -> bytes:
        try:
            line = self.format(record)
        except Exception as error:  # anything, from the text that an argument makes of itself
            line = self.format(_record_of_a_fault(record, error))
        return f"{line}\n".encode(errors="backslashreplace")


@contextmanager
def logging_to_stderr(log_format: LogFormat, level: str) -> Iterator[None]:
    """Every record of this process, warnings of Python's included, goes to standard error in one format.

    But for the warnings of Pillow: strangers' files make it warn of whatever they say, each text is another
    one, and Python keeps them all. What libtiff prints of them, past every logger, is not printed: Pillow
    raises it, too.
    """
    # A process may be started without one; its number is then that of something else.
    descriptor = sys.__stderr__.fileno() if sys.__stderr__ else os.open(os.devnull, os.O_WRONLY)
    handler = LineWriter(descriptor)
    handler.setFormatter(JsonLine() if log_format == "json" else TextLine())
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(level.upper())
    try:
        with warnings.catch_warnings():
            logging.captureWarnings(True)
            # No line tells these, and asking for them takes longer than the rest of a record.
            logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
            warnings.filterwarnings("ignore", module=r"PIL\.")
            with _libtiff_says_nothing():
                yield
    finally:
        logging.captureWarnings(False)
        root.setLevel(before)
        root.removeHandler(handler)
        handler.close()


@contextmanager
def _libtiff_says_nothing() -> Iterator[None]:
    from PIL import _imaging  # late, so that --help answers at once

    try:
        # Of the library that Pillow has loaded; where it is a part of Pillow's own, nothing is found.
        handle_errors_with = ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler
    except (AttributeError, OSError):
        yield
        return
    handle_errors_with.argtypes = [ctypes.c_void_p]
    handle_errors_with.restype = ctypes.c_void_p
    before = handle_errors_with(None)
    try:
        yield
    finally:
        handle_errors_with(before)


# Whatever some reader takes for the end of a line, or a terminal for a command; written as JSON would.
ESCAPES = {code: f"\\u{code:04x}" for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)}


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError):  # a caller's format does not fit its arguments
        return f"{record.msg} {record.args!r}"


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    return record.args if isinstance(record.args, Mapping) else {}


def _json(value: object) -> str:
    try:
        text = orjson.dumps(value, default=repr, option=orjson.OPT_UTC_Z).decode()
    except TypeError:  # text with lone surrogates, which are no Unicode
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
