"""When the supervisor takes the engine process for frozen."""

import asyncio
import time
from pathlib import Path

import pytest

from service.workers.heartbeat import LOOK_EVERY_S, Pulse, beat
from service.workers.shared_number import SharedNumber

LIMIT_S = 10


@pytest.fixture
def count(tmp_path: Path) -> SharedNumber:
    SharedNumber.make(tmp_path / "heartbeat")
    return SharedNumber(tmp_path / "heartbeat")


def looks(pulse: Pulse, first_s: float, number: int) -> list[bool]:
    """What as many looks say, the first at this time and one each second."""
    return [pulse.is_lost(first_s + LOOK_EVERY_S * look) for look in range(number)]


def test_a_count_that_goes_on_is_never_lost(count):
    pulse = Pulse(count, LIMIT_S)
    for second in range(100):
        if second % LIMIT_S == 0:  # slow, but not too slow
            count.value += 1
        assert not pulse.is_lost(1000.0 + second)


def test_a_count_that_stands_still_is_lost_once_after_the_limit(count):
    assert looks(Pulse(count, LIMIT_S), 1000.0, 2 * LIMIT_S) == [False] * 11 + [True] + [False] * 8


def test_a_pause_of_the_whole_machine_is_no_loss(count):
    pulse = Pulse(count, LIMIT_S)
    assert not any(looks(pulse, 1000.0, LIMIT_S - 1))
    assert not pulse.is_lost(9000.0)
    count.value += 1
    assert not any(looks(pulse, 9001.0, LIMIT_S))


def test_an_event_loop_counts_until_it_is_stuck(count, monkeypatch):
    monkeypatch.setattr("service.workers.heartbeat.BEAT_S", 0.001)

    async def scenario() -> None:
        beating = asyncio.create_task(beat(count))
        while count.value < 3:
            await asyncio.sleep(0.001)
        stuck_at = count.value
        time.sleep(0.01)  # as a stuck event loop does
        assert count.value == stuck_at
        beating.cancel()

    asyncio.run(scenario())
