"""Threads for pictures: requests take turns, and a lone one has all of them."""

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.errors import Unfinished
from service.http.picture_pool import TURN_S, PicturePool


def in_pool(threads: int, use: Callable[[PicturePool], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        pool = PicturePool(threads, 1000)
        try:
            return await use(pool)
        finally:
            pool.shutdown()

    return asyncio.run(run())


def fail(number: int) -> None:
    raise ValueError(f"picture {number}")


def test_all_threads_are_there_from_the_beginning():
    others = set(threading.enumerate())  # of services that other tests keep

    def own() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("pictures")} - others

    async def use(pool: PicturePool) -> int:
        before = own()
        await pool.run_all([partial(time.sleep, 0.01)] * 9)
        assert own() == before
        return len(before)

    assert in_pool(3, use) == 3


def test_a_thread_that_cannot_be_started_is_told_at_once_and_leaves_none_waiting(monkeypatch):
    start, started = threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        start(thread)
        started.append(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        PicturePool(3, 1000)
    gc.collect()  # of the pool that did not come about: then its threads end
    for thread in started:
        thread.join(10)
        assert not thread.is_alive()


class Order:
    """Notes in which order the pictures of requests come, each of which takes a turn."""

    def __init__(self) -> None:
        self.came: list[str] = []

    def pictures(self, request: str, count: int) -> list[Callable[[], None]]:
        return [partial(self._picture, request)] * count

    def _picture(self, request: str) -> None:
        self.came.append(request)
        time.sleep(TURN_S)


def test_results_come_in_the_order_of_the_calls():
    results = in_pool(3, lambda pool: pool.run_all([partial(pow, n, 2) for n in range(1000)]))
    assert results == [n * n for n in range(1000)]


def test_nothing_asked_is_nothing_given():
    assert in_pool(1, lambda pool: pool.run_all([])) == []


def test_requests_take_turns():
    order = Order()

    async def use(pool: PicturePool) -> None:
        requests = {"a": 5, "b": 5, "c": 2}
        await asyncio.gather(*(pool.run_all(order.pictures(name, n)) for name, n in requests.items()))

    in_pool(1, use)
    assert "".join(order.came) == "abcabcababab"


@pytest.mark.parametrize("threads", [1, 2])
def test_a_picture_waits_for_no_more_than_the_turns_under_way(threads):
    order = Order()

    async def use(pool: PicturePool) -> None:
        bulk = [asyncio.create_task(pool.run_all(order.pictures("bulk", 20))) for _ in range(threads)]
        while len(order.came) < 5 * threads:
            await asyncio.sleep(0)
        before = len(order.came)
        await pool.run_all(order.pictures("one", 1))
        assert order.came.index("one") <= before + 2 * threads  # some began while the test looked
        await asyncio.gather(*bulk)

    in_pool(threads, use)


def test_a_lone_request_has_all_threads():
    together = threading.Barrier(3, timeout=60)
    assert sorted(in_pool(3, lambda pool: pool.run_all([together.wait] * 3))) == [0, 1, 2]


def test_the_first_failure_is_raised_and_what_comes_behind_it_is_not_begun():
    made: list[int] = []
    calls = [*(partial(made.append, n) for n in range(3)), partial(fail, 3), *[partial(made.append, 4)] * 9]
    with pytest.raises(ValueError, match="picture 3"):
        in_pool(1, lambda pool: pool.run_all(calls))
    assert made == [0, 1, 2]


def test_of_two_failures_at_once_that_of_the_earlier_picture_is_raised():
    together = threading.Barrier(2, timeout=60)

    def fail_late(number: int) -> None:
        together.wait()
        time.sleep(0.02 if number == 0 else 0)
        fail(number)

    with pytest.raises(ValueError, match="picture 0"):
        in_pool(2, lambda pool: pool.run_all([partial(fail_late, number) for number in range(2)]))


def test_a_request_that_nobody_waits_for_ends_between_two_pictures():
    order = Order()

    async def use(pool: PicturePool) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3 * TURN_S):
                await pool.run_all(order.pictures("gone", 100))
        await pool.run_all(order.pictures("next", 1))

    in_pool(1, use)
    assert order.came.count("gone") < 50
    assert order.came[-1] == "next"


@given(
    threads=st.integers(1, 3),
    requests=st.lists(
        st.tuples(st.integers(0, 6), st.sampled_from(["answered", "fails", "leaves"])), max_size=12
    ),
)
@settings(max_examples=60)
def test_however_requests_end_each_gets_its_own_and_no_thread_is_lost(threads, requests):
    async def ask(pool: PicturePool, number: int, count: int, end: str) -> Any:
        calls = [partial(int, number * 100 + n) for n in range(count)]
        if end == "fails":
            calls.append(partial(fail, number))
        asked = asyncio.create_task(pool.run_all(calls))
        if end == "leaves":
            await asyncio.sleep(0)
            asked.cancel()
        return await asked

    async def use(pool: PicturePool) -> list[Any]:
        asked = (ask(pool, number, *each) for number, each in enumerate(requests))
        given_back = await asyncio.gather(*asked, return_exceptions=True)
        together = threading.Barrier(threads, timeout=60)
        await pool.run_all([together.wait] * threads)
        return given_back

    for number, ((count, end), came) in enumerate(zip(requests, in_pool(threads, use), strict=True)):
        if end == "answered":
            assert came == [number * 100 + n for n in range(count)]
        elif end == "fails":
            assert str(came) == f"picture {number}"


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (3, "3 images are being decoded or wait for it"),
        (0, "the request was being read, or its answer written"),
    ],
)
def test_who_is_cancelled_is_told_what_it_was_at(images, said):
    async def use(pool: PicturePool) -> tuple[object, ...]:
        may_end = threading.Event()
        with pool.room_for(images):
            waiting = asyncio.create_task(pool.run(may_end.wait))
            await asyncio.sleep(0)
            waiting.cancel()
            try:
                await waiting
            except asyncio.CancelledError as cancelled:
                return cancelled.args
            finally:
                may_end.set()
        return ()

    [told] = in_pool(1, use)
    assert isinstance(told, Unfinished)
    assert told == said
