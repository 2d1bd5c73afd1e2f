import errno
import os

import pytest

from export.contract.atomic_file import atomic_file, write_atomically


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    file = tmp_path / "report.md"
    file.write_text("old and longer")
    write_atomically(file, "näw")
    assert file.read_bytes() == "näw".encode()
    write_atomically(file, b"\0\1")
    assert file.read_bytes() == b"\0\1"
    assert list(tmp_path.iterdir()) == [file]


def cut_short(file):
    with atomic_file(file) as aside:
        aside.write_text("half of the n")
        raise InterruptedError


def test_after_an_error_the_old_file_is_as_it_was(tmp_path):
    file = tmp_path / "report.md"
    file.write_text("old")
    with pytest.raises(InterruptedError):
        cut_short(file)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_reader_never_sees_a_part(tmp_path):
    file = tmp_path / "report.md"
    with atomic_file(file) as aside:
        aside.write_text("new")
        assert not file.exists()
    assert file.read_text() == "new"


def test_what_a_killed_process_has_left_is_gone_after_the_next_write(tmp_path):
    with atomic_file(tmp_path / "report.md") as aside:
        aside.write_text("never finished")
        left = aside.rename(tmp_path / "elsewhere")
        aside.write_text("new")
    left.rename(aside)
    write_atomically(tmp_path / "report.md", "newer")
    assert list(tmp_path.iterdir()) == [tmp_path / "report.md"]


def test_an_error_names_the_file_that_was_asked_for(tmp_path):
    with pytest.raises(FileNotFoundError) as missing:
        write_atomically(tmp_path / "none" / "report.md", "")
    assert missing.value.filename == str(tmp_path / "none" / "report.md")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError) as below:
        write_atomically(tmp_path / "file" / "report.md", "")
    assert below.value.filename == str(tmp_path / "file" / "report.md")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError) as folder:
        write_atomically(tmp_path / "folder", "")
    assert folder.value.filename == str(tmp_path / "folder")
    assert not list(tmp_path.glob(".*"))


def test_a_full_disk_is_told_with_the_file(tmp_path):
    with pytest.raises(OSError, match="No space") as full, atomic_file(tmp_path / "report.md"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert full.value.filename == str(tmp_path / "report.md")
