"""Where the processes of one service meet."""

import os
import subprocess
import sys
import tempfile

import pytest

from service.workers import place
from tests.support.live_process import live_process
from tests.support.tiny_bundle import write_bundle

has_shared_memory = pytest.mark.skipif(
    place._shared_memory() is None, reason="there are no files in memory here"
)


@has_shared_memory
def test_the_folder_is_in_memory_for_its_owner_alone_and_goes_at_the_end():
    with place.own_folder() as folder:
        assert folder.parent == place.SHARED_MEMORY
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()


@pytest.mark.parametrize("lacking", ["it", "room"])
def test_without_files_in_memory_the_folder_is_among_the_temporary_ones(tmp_path, monkeypatch, lacking):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if lacking == "it":
        monkeypatch.setattr(place, "SHARED_MEMORY", tmp_path / "gone")
    else:
        monkeypatch.setattr(place, "NEEDED_BYTES", 2**60)
    with place.own_folder() as folder:
        assert folder.parent == tmp_path


def test_what_killed_services_have_left_goes_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(place, "_shared_memory", lambda: None)
    left, new, link = (tmp_path / f"{place.PREFIX}{name}" for name in ("left", "new", "link"))
    other = tmp_path / "other"
    for folder in (left, new, other):
        folder.mkdir()
        (folder / "key_use").touch()
    link.symlink_to(other)
    with place.own_folder() as running:
        for path in (left, other, running):
            os.utime(path, (0, 0))
        os.utime(link, (0, 0), follow_symlinks=False)
        with place.own_folder():
            assert not left.exists()
            assert all(path.exists() for path in (new, link, running))
    assert (other / "key_use").exists()


def test_a_path_that_is_too_long_for_a_socket_is_an_error_that_says_what_helps(tmp_path):
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    with pytest.raises(OSError, match=r"no socket in .*x: .*too long; TMPDIR may name another folder"):
        place.make_place(folder, [])


def test_that_error_is_the_one_line_of_the_command(tmp_path):
    program = (
        "from pathlib import Path; from service.workers import place; from service.cli import main\n"
        "place.SHARED_MEMORY = Path('/nowhere'); raise SystemExit(main())"
    )
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    command = [sys.executable, "-c", program, "--models", str(tmp_path), "--port", "0", "--workers", "2"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env={"TMPDIR": str(folder)}
    )
    assert done.returncode == 1
    assert done.stderr.startswith("capsnet-serve: no socket in ")
    assert done.stderr.count("\n") == 1


@has_shared_memory
def test_a_service_of_several_processes_leaves_nothing_among_temporary_files(tmp_path, monkeypatch):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    with live_process(tmp_path / "models", tmp_path / "log", workers=2) as service:
        assert service.client.get("/metrics").is_success
        assert [path.name for path in temporary.iterdir() if path.name.startswith("capsnet-serve")] == []
