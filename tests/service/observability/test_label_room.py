"""Which labels of a model have a series of their own."""

import errno
from contextlib import contextmanager

import pytest

from service.observability import label_room
from service.observability.label_room import MAX_LABELS, LabelRoom


@pytest.mark.parametrize("fault", ["no file", "no room"])
def test_what_cannot_be_noted_in_the_file_is_kept_all_the_same(tmp_path, monkeypatch, fault):
    file = tmp_path / "gone" / "labels" if fault == "no file" else tmp_path / "labels"
    if fault == "no room":

        @contextmanager
        def full(path):
            with path.open("a+b") as opened:
                yield opened
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(label_room, "locked", full)
    room = LabelRoom(file)
    taken = [room.takes("tiny", str(label)) for label in range(MAX_LABELS + 2)]
    assert taken == [True] * MAX_LABELS + [False] * 2
    assert room.takes("tiny", "7")
