"""Lines on standard error: one a record, whatever it holds and however it is read."""

import json
import logging
import os
import pty
import re
import select
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image, TiffImagePlugin

from export.contract.pictures import PictureError, read_picture
from service.observability import logs
from service.observability.logs import LINES_WAITING, JsonLine, LineHandler, TextLine, logging_to_stderr
from tests.support.live_service import wait_until
from tests.support.small_pictures import saved

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
NASTY = 'two\nlines, a "quote", \x1b[31mred\x1b[0m, \u2028 and \x85'


def record(message: str, *arguments: object, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("a.logger", level, __file__, 1, message, arguments, None)


@contextmanager
def logger_to(descriptor: int) -> Iterator[logging.Logger]:
    handler = LineHandler(descriptor)
    handler.setFormatter(JsonLine())
    logger = logging.Logger("a.logger")  # of no tree: nobody else's handlers see it
    logger.addHandler(handler)
    try:
        yield logger
    finally:
        handler.close()


def test_a_record_is_one_json_object():
    line = json.loads(JsonLine().format(record("loaded %s in %d ms", "tiny/1", 7)))
    assert line["message"] == "loaded tiny/1 in 7 ms"
    assert (line["level"], line["logger"]) == ("info", "a.logger")
    assert line["time"].endswith("Z")


def test_fields_stand_by_name():
    fields = {"status": 200, "path": "/classify"}
    line = json.loads(JsonLine().format(record("request", fields)))
    assert (line["message"], line["status"], line["path"]) == ("request", 200, "/classify")
    text = TextLine().format(record("request", fields))
    assert re.fullmatch(TIME + r' INFO: request status=200 path="/classify"', text)


@pytest.mark.parametrize("formatter", [JsonLine(), TextLine()])
@pytest.mark.parametrize("text", [NASTY, NASTY + "\ud800"])
@pytest.mark.parametrize("in_a_field", [True, False])
def test_no_text_breaks_out_of_its_line(formatter, text, in_a_field):
    line = formatter.format(record("request", {"path": text}) if in_a_field else record(text))
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line


def test_what_no_json_can_carry_is_written_all_the_same():
    fields = {"surrogate": "\ud800", "object": object()}
    assert json.loads(JsonLine().format(record("odd", fields)))["message"] == "odd"


def test_a_traceback_is_part_of_the_object():
    try:
        {}["missing"]
    except KeyError:
        failed = logging.LogRecord("a.logger", logging.ERROR, __file__, 1, "failed", (), sys.exc_info())
    assert "KeyError: 'missing'" in json.loads(JsonLine().format(failed))["exception"]


def test_a_format_that_does_not_fit_its_arguments_is_still_logged():
    assert "%d apples" in json.loads(JsonLine().format(record("%d apples", "three")))["message"]


class Speechless:
    """What has no words for itself."""

    def __str__(self) -> str:
        raise RuntimeError("not a word")

    __repr__ = __str__


@pytest.mark.parametrize(
    "arguments",
    [("%s", Speechless()), (Speechless(),), ("request", {"field": Speechless()}), ("%d", Speechless())],
    ids=["argument", "message", "field", "wrong argument"],
)
def test_a_record_that_cannot_be_written_says_so_and_costs_no_other_line(tmp_path, arguments):
    with (tmp_path / "log").open("w") as file, logger_to(file.fileno()) as logger:
        logger.info("before")
        logger.info(*arguments)
        logger.info("after")
        wait_until(lambda: "after" in (tmp_path / "log").read_text())  # by a thread that is still at work
        logger.info("much later")
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["message"] for line in lines[:1] + lines[2:]] == ["before", "after", "much later"]
    assert lines[1]["level"] == "error"
    for said in ("a.logger", Path(__file__).name, "RuntimeError: not a word"):
        assert said in lines[1]["message"]


def test_every_line_is_written_in_order_by_the_end(tmp_path):
    with (tmp_path / "log").open("w") as file, logger_to(file.fileno()) as logger:
        for number in range(1000):
            logger.info("%d", number)
    lines = (tmp_path / "log").read_text().splitlines()
    assert [json.loads(line)["message"] for line in lines] == [str(number) for number in range(1000)]


def python(code: str) -> subprocess.CompletedProcess[str]:
    """A process that logs, in which nobody would see the end of a wait for the time limit."""
    begin = (
        "import logging, os, signal, service.observability.logs\n"
        "from service.stopping import leave, leave_at_signals\n"
    )
    code = f"{begin}service.observability.logs.LAST_LINES_S = 3600.0\n{code}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize(
    "end", ["leave()", "leave_at_signals(is_logging=True); os.kill(os.getpid(), signal.SIGTERM)"]
)
def test_an_end_of_the_process_loses_no_line_and_waits_for_no_time_limit(end):
    ended = python(
        "with service.observability.logs.logging_to_stderr('json', 'info'):\n"
        "    for number in range(1000): logging.info('%d', number)\n"
        f"    {end}\n"
        "    signal.pause()\n"
    )
    assert ended.returncode == 0
    said = [json.loads(line)["message"] for line in ended.stderr.splitlines()]
    assert said == [str(number) for number in range(1000)]


def test_lines_do_not_wait_for_more(tmp_path):
    with (tmp_path / "log").open("w") as file, logger_to(file.fileno()) as logger:
        logger.info("alone")
        wait_until(lambda: "alone" in (tmp_path / "log").read_text())


def test_a_reader_that_stalls_costs_lines_and_nobody_waits_for_it():
    reading, writing = os.pipe()
    more = 5000
    with os.fdopen(reading) as reader, os.fdopen(writing, "w"), logger_to(writing) as logger:
        logger.info("x" * 2**20)  # more than a pipe holds: the writer is stuck from here on
        handler = logger.handlers[0]
        wait_until(handler.queue.empty)
        for _ in range(LINES_WAITING + more):
            logger.info("one of many")
        lost = next(line for line in iter(reader.readline, "") if "were lost" in line)
        assert f"{more} lines were lost" in lost


def test_what_is_written_at_once_is_whole_lines_that_no_other_process_writes_into(tmp_path, monkeypatch):
    written = []

    def write(descriptor: int, lines: bytes, write=os.write) -> int:
        written.append(bytes(lines))
        return write(descriptor, lines)

    monkeypatch.setattr(logs.os, "write", write)
    path = tmp_path / "log"
    with path.open("wb") as file, logger_to(file.fileno()) as logger:
        for number in range(500):
            logger.info("%d %s", number, "x" * (5000 if number == 250 else 100))
    assert len(path.read_bytes().splitlines()) == 500
    assert len(written) > 20
    assert all(lines.endswith(b"\n") for lines in written)
    long = [lines for lines in written if len(lines) > select.PIPE_BUF]
    assert [lines.count(b"\n") for lines in long] == [1]


def test_a_reader_that_made_the_pipe_non_blocking_loses_no_line():
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    found = []
    with os.fdopen(reading) as reader:
        counting = threading.Thread(target=lambda: found.extend(reader))
        with os.fdopen(writing, "w"), logger_to(writing) as logger:
            for number in range(3000):
                logger.info("%d", number)
            wait_until(lambda: not select.select([], [writing], [], 0)[1])  # the pipe is full
            counting.start()
            logger.info("the last")
        counting.join(60)
    assert [json.loads(line)["message"] for line in found] == [*map(str, range(3000)), "the last"]


def test_a_reader_that_went_away_disturbs_nobody():
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w"), logger_to(writing) as logger:
        for _ in range(3):
            logger.info("to nobody")
            wait_until(logger.handlers[0].queue.empty)


def test_a_lack_of_memory_costs_lines_and_not_those_after_it(tmp_path, monkeypatch):
    failures = iter([MemoryError, OSError])

    def write(descriptor: int, lines: bytearray, write=os.write) -> int:
        if b"again" in lines and (failure := next(failures, None)):
            raise failure
        return write(descriptor, lines)

    monkeypatch.setattr(logs.os, "write", write)
    path = tmp_path / "log"
    with path.open("wb") as file, logger_to(file.fileno()) as logger:
        wait_until(lambda: logger.info("again") or path.read_bytes())
    assert b'"message":"again"' in path.read_bytes()


def test_everything_that_logs_comes_out_in_one_format(capfd):
    with logging_to_stderr("json", "info"):
        logging.getLogger("some.library").warning("from a library")
        logging.getLogger("py.warnings").warning("from Python")
        logging.getLogger("anything").debug("too little to say")
    said = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [(line["logger"], line["message"]) for line in said] == [
        ("some.library", "from a library"),
        ("py.warnings", "from Python"),
    ]


def test_what_pillow_says_of_a_clients_file_is_neither_logged_nor_kept(capfd):
    exif = Image.Exif()
    exif[0x010E] = "a description, whose length the file says is larger than it is"
    told = exif.tobytes().replace(struct.pack(">I", len(exif[0x010E]) + 1), struct.pack(">I", 12_345_678))
    with logging_to_stderr("json", "info"):
        picture = saved(Image.new("L", (28, 28)), "PNG", exif=told)
        assert read_picture(picture, max_pixels=1000).size == (28, 28)
    assert capfd.readouterr().err == ""
    assert "12345678" not in repr(vars(TiffImagePlugin).get("__warningregistry__"))


def test_what_libtiff_prints_of_a_clients_file_is_no_line_of_the_log(capfd):
    file = BytesIO()
    Image.new("L", (28, 28)).save(file, "TIFF", compression="tiff_deflate")
    content = bytearray(file.getvalue())
    strip = Image.open(file).tag_v2[TiffImagePlugin.STRIPOFFSETS][0]
    content[strip : strip + 4] = b"oops"
    for said, logging_begun in ((True, nullcontext()), (False, logging_to_stderr("json", "info"))):
        with logging_begun, pytest.raises(PictureError):
            read_picture(bytes(content), max_pixels=1000)
        assert ("ZIPDecode" in capfd.readouterr().err) == said


@pytest.mark.parametrize(
    ("log_format", "terminal", "text"),
    [("auto", True, True), ("auto", False, False), ("json", True, False), ("text", False, True)],
)
def test_a_terminal_gets_text_with_times_unless_the_setting_says_otherwise(log_format, terminal, text):
    reading, writing = pty.openpty() if terminal else os.pipe()
    code = (
        "import logging\n"
        "from service.observability.logs import logging_to_stderr\n"
        f"with logging_to_stderr({log_format!r}, 'info'):\n"
        "    logging.info('hello')\n"
    )
    subprocess.run([sys.executable, "-c", code], stderr=writing, check=True, timeout=60)
    line = os.read(reading, 1000).decode().strip()
    os.close(writing)
    os.close(reading)
    if text:
        assert re.fullmatch(TIME + " INFO: hello", line)
    else:
        assert json.loads(line)["message"] == "hello"
