"""What holds while a service runs, even if the process that has its models is replaced meanwhile."""

import json
import logging

import pytest

from service.models import remembered
from service.models.remembered import NAMED_S, NOTED_EVERY_S, Remembered


class Clock:
    """A monotonic clock that only a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(remembered.time, "monotonic", lambda: self.now_s)


@pytest.fixture
def clock(monkeypatch) -> Clock:
    return Clock(monkeypatch)


def test_a_model_that_is_taken_down_has_no_named_versions_any_more(clock):
    known = Remembered()
    known.name("tiny", 1)
    known.name("other", 1)
    known.take_down("tiny")
    known.bring_back("tiny")
    assert not known.is_named("tiny", 1)
    assert known.is_named("other", 1)


@pytest.mark.parametrize("shared", [False, True])
def test_it_knows_what_was_taken_down_until_it_is_brought_back(tmp_path, shared):
    known = Remembered(tmp_path / "known.json" if shared else None)
    known.take_down("tiny")
    known.take_down("other")
    known.bring_back("tiny")
    known.bring_back("never taken down")
    assert known.unloaded == {"other"}
    assert [path.name for path in tmp_path.iterdir()] == (["known.json"] if shared else [])


def test_a_version_is_named_for_a_while_after_the_last_request(clock):
    known = Remembered()
    known.name("tiny", 1)
    clock.now_s += NAMED_S - 1
    known.name("tiny", 2)
    assert [known.is_named("tiny", version) for version in (1, 2, 3)] == [True, True, False]
    clock.now_s += 1
    assert [known.is_named("tiny", version) for version in (1, 2, 3)] == [False, True, False]
    assert not known.is_named("other", 2)


def test_the_next_process_knows_the_same(tmp_path, clock):
    known = Remembered(tmp_path / "known.json")
    known.take_down("other")
    known.name("tiny", 1)
    clock.now_s += 30
    following = Remembered(tmp_path / "known.json")
    assert following.unloaded == {"other"}
    assert following.is_named("tiny", 1)
    clock.now_s += NAMED_S - 30
    assert not following.is_named("tiny", 1)


def test_requests_that_name_a_version_write_the_file_once_a_minute_and_it_does_not_grow(tmp_path, clock):
    file = tmp_path / "known.json"
    known = Remembered(file)
    for version in range(1, 100):
        known.name("tiny", version)
        written = file.read_bytes()
        clock.now_s += NOTED_EVERY_S / 2
        known.name("tiny", version)
        assert file.read_bytes() == written
        clock.now_s += NOTED_EVERY_S / 2
        known.name("tiny", version)
        assert file.read_bytes() != written
    named = json.loads(file.read_text())["named"]
    assert len(named) == NAMED_S / NOTED_EVERY_S


def test_a_file_that_cannot_be_written_costs_nothing_but_a_warning(tmp_path, caplog):
    known = Remembered(tmp_path / "gone" / "known.json")
    with caplog.at_level(logging.WARNING):
        known.name("tiny", 1)
        known.take_down("other")
    assert known.is_named("tiny", 1)
    assert known.unloaded == {"other"}
    assert all("the next engine process will not know" in record.message for record in caplog.records)
    assert len(caplog.records) == 2
