"""A training whose output nobody reads any more goes on, and ends with a checkpoint."""

import errno
import fcntl
import io
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from contextlib import redirect_stdout

import pytest

from tests.support.json_lines import written_lines
from tests.support.paths import ROOT
from training.runs import checkpoint
from training.unread_output import unread_output_ignored

PRESET = """
[model]
conv_channels = 2
primary_types = 1
class_dim = 2
decoder_hidden = []

[data]
name = "drawn"
validation_images = 20

[optimizer]
batch_size = 500
epochs = {epochs}
"""


def started(folder, epochs, **options) -> subprocess.Popen:
    """`capsnet-train fit` in its own session."""
    (folder / "tiny.toml").write_text(PRESET.format(epochs=epochs))
    fit = ["fit", "--preset", folder / "tiny.toml", "--device", "cpu", "--out", folder / "run"]
    return subprocess.Popen(
        [sys.executable, "-m", "training.cli", *map(str, fit)], cwd=ROOT, start_new_session=True, **options
    )


def wait_until(happened, process) -> None:
    deadline = time.monotonic() + 120
    while not happened():
        assert process.poll() is None, "the training has ended"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def log(folder) -> list[dict]:
    file = folder / "run" / "log.jsonl"
    return written_lines(file) if file.exists() else []


def step(folder) -> int:
    return checkpoint.read_progress(checkpoint.newest_checkpoint(folder / "run")).step


@pytest.mark.long
def test_a_run_that_loses_its_reader_together_with_ctrl_c_keeps_its_steps(tmp_path):
    """`capsnet-train fit … 2>&1 | tee log.txt`: Ctrl-C ends both."""
    process = started(tmp_path, 1000, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    wait_until(lambda: log(tmp_path), process)
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert log(tmp_path)[-1]["step"] == step(tmp_path)


def test_a_run_whose_reader_has_gone_is_trained_to_its_end(tmp_path):
    """`capsnet-train fit … | head`: an error of printing would end it at the first validation."""
    process = started(tmp_path, 2, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    _, told = process.communicate(timeout=120)
    assert process.returncode == 0, told
    assert [row["epoch"] for row in log(tmp_path) if row["kind"] == "validation"] == [1, 2]


def close_both():
    os.close(1)
    os.close(2)


@pytest.mark.long
def test_a_run_without_any_output_is_trained_to_its_end(tmp_path):
    """`capsnet-train fit … >&- 2>&-`, as some daemons start programs."""
    process = started(tmp_path, 1, preexec_fn=close_both)
    assert process.wait(timeout=120) == 0
    assert step(tmp_path) > 0


def in_a_terminal_of_its_own():
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup's children ignore it


def test_a_terminal_that_is_gone_takes_no_trained_step_with_it(tmp_path):
    ours, terminal = pty.openpty()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
    process = started(tmp_path, 1000, preexec_fn=in_a_terminal_of_its_own, **streams)
    os.close(terminal)
    wait_until(lambda: log(tmp_path), process)
    os.close(ours)
    assert process.wait(timeout=60) == 130
    assert log(tmp_path)[-1]["step"] == step(tmp_path)


def test_another_error_of_printing_is_raised():
    """A full disk, for example."""

    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    with redirect_stdout(Full()), pytest.raises(OSError, match="No space left"), unread_output_ignored():
        sys.stdout.write("something")
