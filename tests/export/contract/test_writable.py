"""Whether a file or a folder can be written, asked before hours of work for it."""

import errno
import os
from types import SimpleNamespace

import pytest

from export.contract.writable import check_writable


def test_what_is_there_or_can_be_made_is_writable(tmp_path):
    check_writable(tmp_path)
    check_writable(tmp_path / "new" / "file")


@pytest.mark.parametrize(
    ("place", "error"),
    [("file/new", NotADirectoryError), ("nowhere", FileNotFoundError), ("nowhere/new", FileNotFoundError)],
)
def test_a_file_or_a_dead_link_is_in_the_way(tmp_path, place, error):
    (tmp_path / "file").touch()
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    with pytest.raises(error, match=place.split("/")[0]):
        check_writable(tmp_path / place)


def test_a_file_system_for_reading_alone_is_not_called_a_lack_of_permission(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(OSError, match="Read-only file system") as refused:
        check_writable(tmp_path / "new")
    assert (refused.value.errno, refused.value.filename) == (errno.EROFS, str(tmp_path))


def test_a_folder_of_somebody_else_is(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(PermissionError, match=str(tmp_path)):
        check_writable(tmp_path / "new")
