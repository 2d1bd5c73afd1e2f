"""The batcher: greedy, bounded, and nobody is left waiting."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing

import numpy as np
import pytest

from service.errors import DeadlineExceededError, OverloadedError
from service.inference import batcher as batching
from service.inference.batcher import Batcher
from service.inference.graph_queue import GraphQueue
from service.inference.jobs import Job, Slice, deliver
from service.observability.timings import Part, begin_timings

WAIT_S = 10
SHORT_MS = 3000  # a deadline to wait for; a thread on a busy machine takes its first job within it
DEADLY = -13.0  # an image that ends the thread it runs on


class Doubling:
    """A graph that doubles; it notes its batches, and may be held, fail on negative images, or die."""

    def __init__(self, large_batch_above: int | None = None) -> None:
        self.batches: list[int] = []
        self.exclusive: list[bool] = []
        self.large_batch_above = large_batch_above
        self.queue: GraphQueue | None = None
        self.started = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    async def submit(self, batcher: Batcher, images: np.ndarray) -> tuple[np.ndarray]:
        if self.queue is None:
            self.queue = batcher.add_graph(self.run, self.large_batch_above)
        return await batcher.submit(self.queue, images)

    def run(self, images: np.ndarray, *, exclusive: bool) -> tuple[np.ndarray]:
        self.exclusive.append(exclusive)
        self.started.set()
        assert self.gate.wait(WAIT_S)
        self.batches.append(len(images))
        if (images == DEADLY).any():
            sys.exit("as if killed")
        if (images < 0).any():
            raise ValueError("negative")
        return (images * 2,)


class Noted:
    """Metrics that keep what they are told."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.batches: list[int] = []

    def queued_for(self, seconds: float) -> None:
        self.waits.append(seconds)

    def ran(self, images: int, seconds: float) -> None:
        assert seconds >= 0
        self.batches.append(images)


def make_batcher(observer: Noted | None = None, **changes: int) -> Batcher:
    facts = {
        "parallel_batches": 1,
        "max_batch": 8,
        "queue_images": 100,
        "deadline_ms": WAIT_S * 1000,
        **changes,
    }
    return Batcher("test", metrics=observer or Noted(), **facts)


def images(*values: float) -> np.ndarray:
    return np.array(values, np.float32)[:, None]


async def started(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.001)


def is_collected_for(batcher: Batcher) -> bool:
    """Whether a thread waits for a large batch."""
    return any(runner.is_collecting for runner in batcher._runners)


async def while_held(graph: Doubling, batcher: Batcher, *waiting: np.ndarray) -> list[asyncio.Task]:
    """Hold the thread in a first run, and queue the others behind it."""
    graph.gate.clear()
    graph.started.clear()
    tasks = []
    for feed in (images(0), *waiting):
        tasks.append(asyncio.create_task(graph.submit(batcher, feed)))
        await started(graph.started.is_set)
        await asyncio.sleep(0)
    return tasks


def test_each_request_gets_its_own_results():
    async def scenario() -> None:
        with closing(make_batcher()) as batcher:
            graph = Doubling()
            feeds = [images(*range(start, start + n)) for start, n in ((0, 1), (10, 3), (20, 7), (30, 2))]
            results = await asyncio.gather(*(graph.submit(batcher, feed) for feed in feeds))
            for feed, (result,) in zip(feeds, results, strict=True):
                np.testing.assert_array_equal(result, feed * 2)

    asyncio.run(scenario())


def test_what_waits_runs_together_up_to_the_largest_batch():
    async def scenario() -> None:
        with closing(make_batcher(max_batch=4)) as batcher:
            graph = Doubling()
            tasks = await while_held(graph, batcher, *[images(n) for n in range(6)])
            graph.gate.set()
            await asyncio.gather(*tasks)
            assert graph.batches == [1, 4, 2]

    asyncio.run(scenario())


def test_a_request_larger_than_a_batch_is_split_and_put_together_again():
    async def scenario() -> None:
        with closing(make_batcher(max_batch=4)) as batcher:
            graph = Doubling()
            (result,) = await graph.submit(batcher, images(*range(10)))
            np.testing.assert_array_equal(result, images(*range(10)) * 2)
            assert max(graph.batches) <= 4

    asyncio.run(scenario())


def test_nothing_waits_after_requests_larger_than_a_batch():
    async def scenario() -> None:
        with closing(make_batcher(parallel_batches=2)) as batcher:
            graph = Doubling()
            for _ in range(4):  # as many images in all as the queue holds thrice
                await asyncio.gather(*(graph.submit(batcher, images(*range(n))) for n in (45, 3, 30)))
            assert batcher.waiting_images == 0

    asyncio.run(scenario())


def test_the_rest_of_a_large_request_counts_once_as_waiting():
    async def scenario() -> None:
        with closing(make_batcher()) as batcher:
            graph = Doubling()
            graph.gate.clear()
            task = asyncio.create_task(graph.submit(batcher, images(*range(20))))
            await started(graph.started.is_set)
            assert batcher.waiting_images == 12
            graph.gate.set()
            await task

    asyncio.run(scenario())


def test_different_graphs_do_not_share_a_batch():
    async def scenario() -> None:
        with closing(make_batcher()) as batcher:
            first, second = Doubling(), Doubling()
            tasks = await while_held(first, batcher, images(1))
            tasks.append(asyncio.create_task(second.submit(batcher, images(2))))
            await asyncio.sleep(0)
            first.gate.set()
            await asyncio.gather(*tasks)
            assert (first.batches, second.batches) == ([1, 1], [1])

    asyncio.run(scenario())


def test_graphs_take_turns_in_the_order_of_their_requests():
    async def scenario() -> None:
        with closing(make_batcher(max_batch=2)) as batcher:
            first, second, finished = Doubling(), Doubling(), []
            tasks = await while_held(first, batcher, images(1, 2), images(3, 4))
            tasks.insert(2, asyncio.create_task(second.submit(batcher, images(5))))
            await asyncio.sleep(0)
            tasks.append(asyncio.create_task(first.submit(batcher, images(6, 7))))
            await asyncio.sleep(0)
            for task, name in zip(tasks, ["held", "1", "second", "2", "3"], strict=True):
                task.add_done_callback(lambda _, name=name: finished.append(name))
            first.gate.set()
            await asyncio.gather(*tasks)
            assert finished == ["held", "1", "2", "second", "3"]

    asyncio.run(scenario())


def test_while_one_thread_collects_a_batch_another_runs_the_other_graph(monkeypatch):
    monkeypatch.setattr(batching, "RECENT_S", WAIT_S)

    async def scenario() -> None:
        with closing(make_batcher(parallel_batches=2)) as batcher:
            graph, other = Doubling(large_batch_above=2), Doubling()
            many = await while_held(graph, batcher, *(images(n) for n in range(8)))
            graph.gate.set()
            await asyncio.gather(*many)
            monkeypatch.setattr(batching, "BATCH_WINDOW_S", WAIT_S)  # not before: the last of many may wait
            waits = asyncio.create_task(graph.submit(batcher, images(1)))
            await started(lambda: is_collected_for(batcher))
            await other.submit(batcher, images(2))
            assert not waits.done()
            waits.cancel()

    asyncio.run(scenario())


def test_requests_that_nobody_waits_for_any_more_take_nobodys_place():
    async def scenario() -> None:
        with closing(make_batcher(queue_images=10)) as batcher:
            graph = Doubling()
            held, *given_up, live = await while_held(graph, batcher, *[images(1)] * 8, images(2, 3))
            assert batcher.waiting_images == 10
            for task in given_up:
                task.cancel()
            await asyncio.wait(given_up)
            assert batcher.waiting_images == 2
            more = asyncio.create_task(graph.submit(batcher, np.ones((8, 1), np.float32)))
            await asyncio.sleep(0)
            graph.gate.set()
            await asyncio.gather(held, live, more)

    asyncio.run(scenario())


def test_a_bad_request_fails_alone():
    async def scenario() -> None:
        with closing(make_batcher()) as batcher:
            graph = Doubling()
            tasks = await while_held(graph, batcher, images(1), images(-1), images(3))
            graph.gate.set()
            _, good, bad, also_good = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(bad, ValueError)
            assert (good[0], also_good[0]) == (2, 6)

    asyncio.run(scenario())


def test_a_full_queue_refuses_at_once_and_in_images():
    async def scenario() -> None:
        with closing(make_batcher(queue_images=5)) as batcher:
            graph = Doubling()
            tasks = await while_held(graph, batcher, images(1, 2, 3))
            with pytest.raises(OverloadedError, match="3 images wait"):
                await graph.submit(batcher, images(1, 2, 3))
            tasks.append(asyncio.create_task(graph.submit(batcher, images(4, 5))))
            await asyncio.sleep(0)
            graph.gate.set()
            assert len(await asyncio.gather(*tasks)) == 3

    asyncio.run(scenario())


def test_a_request_that_waited_too_long_is_told_so_and_never_run():
    async def scenario() -> None:
        with closing(make_batcher(deadline_ms=SHORT_MS)) as batcher:
            graph = Doubling()
            tasks = await while_held(graph, batcher, images(1, 2))
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(outcome, DeadlineExceededError) for outcome in outcomes)
            graph.gate.set()
            await started(lambda: batcher.answering)
        assert graph.batches == [1]

    asyncio.run(scenario())


def test_requests_know_how_long_they_waited_and_in_what_batch_they_were():
    async def timed(graph: Doubling, batcher: Batcher, given: np.ndarray) -> list[Part]:
        timings = begin_timings()
        await graph.submit(batcher, given)
        return timings.parts

    async def scenario() -> None:
        with closing(make_batcher()) as batcher:
            graph = Doubling()
            tasks = await while_held(graph, batcher)
            both = asyncio.gather(timed(graph, batcher, images(1, 2)), timed(graph, batcher, images(3)))
            await started(lambda: batcher.waiting_images == 3)
            graph.gate.set()
            parts = await both
            await asyncio.gather(*tasks)
        assert graph.batches == [1, 3]
        for queued, computed in parts:
            assert (queued.name, computed.name, computed.batch_images) == ("queue", "compute", 3)
            assert queued.begin <= queued.end == computed.begin <= computed.end
        assert parts[0][1].begin == parts[1][1].begin

    asyncio.run(scenario())


def test_a_request_that_was_too_late_says_how_long_it_waited():
    async def late(graph: Doubling, batcher: Batcher) -> list[Part]:
        timings = begin_timings()
        with pytest.raises(DeadlineExceededError):
            await graph.submit(batcher, images(1))
        return timings.parts

    async def scenario() -> None:
        with closing(make_batcher(deadline_ms=SHORT_MS)) as batcher:
            graph = Doubling()
            tasks = await while_held(graph, batcher)
            [waited] = await late(graph, batcher)
            graph.gate.set()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert waited.name == "queue"
        assert waited.begin < waited.end

    asyncio.run(scenario())


def test_a_client_that_went_away_is_skipped():
    async def scenario() -> None:
        with closing(make_batcher()) as batcher:
            graph = Doubling()
            tasks = await while_held(graph, batcher, images(1, 2, 3), images(4))
            tasks[1].cancel()
            await asyncio.gather(tasks[1], return_exceptions=True)
            graph.gate.set()
            await asyncio.gather(tasks[0], tasks[2])
            assert graph.batches == [1, 1]

    asyncio.run(scenario())


def test_a_thread_stuck_in_a_run_does_not_count_as_answering():
    async def scenario() -> None:
        with closing(make_batcher(deadline_ms=SHORT_MS)) as batcher:
            graph = Doubling()
            assert batcher.answering
            tasks = await while_held(graph, batcher)
            await started(lambda: not batcher.answering)
            graph.gate.set()
            await asyncio.gather(*tasks, return_exceptions=True)
            await started(lambda: batcher.answering)

    asyncio.run(scenario())


def test_closing_leaves_a_thread_behind_that_is_stuck_in_its_run():
    async def scenario() -> None:
        batcher, graph = make_batcher(deadline_ms=SHORT_MS), Doubling()
        (task,) = await while_held(graph, batcher)
        await asyncio.to_thread(batcher.close)  # returns, although the gate is still shut
        with pytest.raises(DeadlineExceededError):
            await task
        graph.gate.set()

    asyncio.run(scenario())


def test_closing_answers_everyone_who_waits():
    async def scenario() -> None:
        batcher, graph = make_batcher(), Doubling()
        tasks = await while_held(graph, batcher, images(1), images(2))
        closed = asyncio.create_task(asyncio.to_thread(batcher.close))
        outcomes = await asyncio.gather(*tasks[1:], return_exceptions=True)
        assert all(isinstance(outcome, OverloadedError) for outcome in outcomes)
        graph.gate.set()
        await closed
        assert (await tasks[0])[0] == 0  # what had begun was finished
        assert not batcher.answering
        with pytest.raises(OverloadedError):
            await graph.submit(batcher, images(1))

    asyncio.run(scenario())


def test_a_large_request_does_not_stand_in_front_of_small_ones():
    async def scenario() -> None:
        with closing(make_batcher(max_batch=4, queue_images=1000)) as batcher:
            graph, finished = Doubling(), []
            tasks = await while_held(graph, batcher, np.zeros((400, 1), np.float32), images(1), images(2))
            for task, name in zip(tasks, ["first", "large", "small", "small"], strict=True):
                task.add_done_callback(lambda _, name=name: finished.append(name))
            graph.gate.set()
            large = (await asyncio.gather(*tasks))[1]
            assert finished == ["first", "small", "small", "large"]
            assert len(large[0]) == 400
            assert graph.batches[1:4] == [4, 4, 4]  # the small ones' batch was filled up from the large one

    asyncio.run(scenario())


def test_a_large_request_does_not_stand_in_front_of_one_for_another_graph():
    async def scenario() -> None:
        with closing(make_batcher(max_batch=4, queue_images=1000)) as batcher:
            first, second, finished = Doubling(), Doubling(), []
            tasks = await while_held(first, batcher, np.zeros((400, 1), np.float32))
            tasks.append(asyncio.create_task(second.submit(batcher, images(1))))
            await asyncio.sleep(0)
            for task, name in zip(tasks, ["first", "large", "other"], strict=True):
                task.add_done_callback(lambda _, name=name: finished.append(name))
            first.gate.set()
            await asyncio.gather(*tasks)
            assert finished == ["first", "other", "large"]

    asyncio.run(scenario())


def test_a_request_that_fits_a_batch_is_not_split():
    async def scenario() -> None:
        with closing(make_batcher(max_batch=4)) as batcher:
            graph = Doubling()
            tasks = await while_held(graph, batcher, images(1, 2, 3), images(4, 5, 6))
            graph.gate.set()
            await asyncio.gather(*tasks)
            assert graph.batches == [1, 3, 3]

    asyncio.run(scenario())


def test_a_request_that_fails_in_a_late_slice_fails_whole_and_once():
    async def scenario() -> None:
        with closing(make_batcher(max_batch=2)) as batcher:
            graph = Doubling()
            with pytest.raises(ValueError, match="negative"):
                await graph.submit(batcher, images(1, 2, 3, 4, -5))
            assert (await graph.submit(batcher, images(6)))[0] == 12

    asyncio.run(scenario())


def test_threads_run_side_by_side_and_know_it():
    async def scenario() -> None:
        with closing(make_batcher(parallel_batches=2)) as batcher:
            graph = Doubling()
            both = await while_held(graph, batcher, images(1))
            await started(lambda: len(graph.exclusive) == 2)
            graph.gate.set()
            assert [float(result[0, 0]) for (result,) in await asyncio.gather(*both)] == [0, 2]
            assert graph.exclusive == [True, False]

    asyncio.run(scenario())


def test_a_thread_that_sleeps_takes_the_rest_of_a_large_request():
    async def scenario() -> None:
        with closing(make_batcher(parallel_batches=2, max_batch=2)) as batcher:
            graph = Doubling()
            graph.gate.clear()
            await started(lambda: len(batcher._asleep) == 2)
            large = asyncio.create_task(graph.submit(batcher, images(1, 2, 3, 4)))
            await started(lambda: len(graph.exclusive) == 2)  # nothing is submitted that could wake the other
            graph.gate.set()
            np.testing.assert_array_equal((await large)[0], images(2, 4, 6, 8))

    asyncio.run(scenario())


def test_where_many_are_on_their_way_a_thread_waits_for_more_than_the_first(monkeypatch):
    monkeypatch.setattr(batching, "RECENT_S", WAIT_S)  # so that a busy machine is not too slow for it

    async def scenario() -> None:
        with closing(make_batcher()) as batcher:
            graph = Doubling(large_batch_above=2)
            many = await while_held(graph, batcher, *(images(n) for n in range(8)))
            graph.gate.set()
            await asyncio.gather(*many)
            monkeypatch.setattr(batching, "BATCH_WINDOW_S", 10 * WAIT_S)
            first = asyncio.create_task(graph.submit(batcher, images(1)))
            await started(lambda: is_collected_for(batcher))
            await asyncio.gather(first, *(graph.submit(batcher, images(n)) for n in range(7)))
            assert graph.batches[-1] == 8

    asyncio.run(scenario())


def test_where_two_threads_would_have_small_batches_one_collects_for_both(monkeypatch):
    monkeypatch.setattr(batching, "RECENT_S", WAIT_S)  # so that a busy machine is not too slow for it

    async def scenario() -> None:
        with closing(make_batcher(parallel_batches=2)) as batcher:
            graph = Doubling(large_batch_above=2)
            many = await while_held(graph, batcher, images(1), images(2))
            graph.gate.set()
            await asyncio.gather(*many)
            monkeypatch.setattr(batching, "BATCH_WINDOW_S", 10 * WAIT_S)
            first = asyncio.create_task(graph.submit(batcher, images(1)))
            await started(lambda: is_collected_for(batcher))
            await asyncio.gather(first, *(graph.submit(batcher, images(n)) for n in (2, 3)))
            assert graph.batches[-1] == 3

    asyncio.run(scenario())


def test_where_few_are_on_their_way_nobody_waits_for_more(monkeypatch):
    monkeypatch.setattr(batching, "RECENT_S", WAIT_S)
    monkeypatch.setattr(batching, "BATCH_WINDOW_S", 10 * WAIT_S)  # whoever waits for more is too late

    async def scenario() -> None:
        with closing(make_batcher()) as batcher:
            graph = Doubling(large_batch_above=2)
            await graph.submit(batcher, images(*range(8)))  # one request, however large
            await graph.submit(batcher, images(1))
            assert graph.batches == [8, 1]

    asyncio.run(scenario())


def test_a_thread_collects_no_longer_than_it_may_though_another_is_busy(monkeypatch):
    monkeypatch.setattr(batching, "RECENT_S", WAIT_S)  # so that a busy machine is not too slow for it

    async def scenario() -> None:
        with closing(make_batcher(parallel_batches=2)) as batcher:
            graph, other = Doubling(large_batch_above=2), Doubling()
            many = await while_held(graph, batcher, *(images(n) for n in range(4)))
            graph.gate.set()
            await asyncio.gather(*many)
            held = await while_held(other, batcher)
            monkeypatch.setattr(batching, "RECENT_S", 0.1)
            await graph.submit(batcher, images(1))
            assert not held[0].done()
            other.gate.set()
            await asyncio.gather(*held)

    asyncio.run(scenario())


def test_more_than_sixteen_are_shared_between_threads_though_one_batch_could_hold_them(monkeypatch):
    monkeypatch.setattr(batching, "RECENT_S", WAIT_S)  # so that a busy machine is not too slow for it

    async def scenario() -> None:
        with closing(make_batcher(parallel_batches=2, max_batch=32)) as batcher:
            graph = Doubling(large_batch_above=2)
            many = await while_held(graph, batcher, *(images(n) for n in range(20)))
            graph.gate.set()
            await asyncio.gather(*many)  # the last batch of these may be small, and is not waited for
            # From now on a thread that collects for both is too late.
            monkeypatch.setattr(batching, "BATCH_WINDOW_S", 10 * WAIT_S)
            share = asyncio.gather(*(graph.submit(batcher, images(n)) for n in range(10)))
            await asyncio.wait_for(share, WAIT_S)

    asyncio.run(scenario())


def test_requests_that_are_answered_do_not_count_as_running(monkeypatch):
    """A client may be back before the thread has let go of its batch."""
    let_go = threading.Event()

    def deliver_and_hold(batch, outputs):
        deliver(batch, outputs)
        assert let_go.wait(WAIT_S)

    async def scenario() -> None:
        with closing(make_batcher(parallel_batches=2)) as batcher:
            graph = Doubling()
            monkeypatch.setattr(batching, "RECENT_S", WAIT_S)
            monkeypatch.setattr(batching, "deliver", deliver_and_hold)
            await graph.submit(batcher, images(0))
            monkeypatch.setattr(batching, "deliver", deliver)
            await graph.submit(batcher, images(1))
            try:
                assert graph.queue.concurrent.at(time.monotonic()) == 1
            finally:
                let_go.set()

    asyncio.run(scenario())


def test_closing_does_not_wait_for_the_batch_window(monkeypatch):
    # A thread that is not woken outlives the closing.
    monkeypatch.setattr(batching, "BATCH_WINDOW_S", 10 * WAIT_S)
    monkeypatch.setattr(batching, "RECENT_S", WAIT_S)  # so that a busy machine is not too slow for it

    async def scenario() -> None:
        batcher, graph = make_batcher(), Doubling(large_batch_above=2)
        tasks = await while_held(graph, batcher, *(images(n) for n in range(8)))
        graph.gate.set()
        await asyncio.gather(*tasks)
        last = asyncio.create_task(graph.submit(batcher, images(1)))
        await started(lambda: is_collected_for(batcher))
        batcher.close()
        with pytest.raises(OverloadedError, match="taken down"):
            await last
        assert not [runner for runner in batcher._runners if runner.is_alive]

    asyncio.run(scenario())


def test_slices_that_threads_finish_out_of_order_are_put_together_in_order():
    async def scenario() -> None:
        with closing(make_batcher(parallel_batches=2, max_batch=2, queue_images=1000)) as batcher:
            many = np.arange(301, dtype=np.float32)[:, None]
            (result,) = await Doubling().submit(batcher, many)
            np.testing.assert_array_equal(result, many * 2)

    asyncio.run(scenario())


def test_a_thread_that_dies_answers_its_batch_and_the_queue_and_nothing_more_is_taken():
    async def scenario() -> None:
        with closing(make_batcher(max_batch=1)) as batcher:
            graph = Doubling()
            # The last of them is in the queue when the thread dies.
            tasks = await while_held(graph, batcher, images(DEADLY), images(1))
            graph.gate.set()
            first, *others = await asyncio.gather(*tasks, return_exceptions=True)
            assert first[0] == 0
            assert all(isinstance(outcome, OverloadedError) for outcome in others)
            with pytest.raises(OverloadedError, match="died"):
                await graph.submit(batcher, images(2))
            assert batcher.given_up
            assert not batcher.answering
            assert batcher.waiting_images == 0

    asyncio.run(scenario())


def test_a_thread_that_dies_ends_the_others_once_they_have_finished_their_batches():
    async def scenario() -> None:
        with closing(make_batcher(parallel_batches=3, max_batch=1)) as batcher:  # dying, busy, asleep
            busy, deadly = Doubling(), Doubling()
            [held] = await while_held(busy, batcher)
            with pytest.raises(OverloadedError, match="died"):
                await deadly.submit(batcher, images(DEADLY))
            busy.gate.set()
            assert (await held)[0] == 0
            await started(lambda: not any(runner.is_alive for runner in batcher._runners))

    asyncio.run(scenario())


def test_a_thread_that_dies_while_it_takes_a_batch_answers_that_too(monkeypatch):
    def die(job: Job, count: int) -> Slice:
        sys.exit("as if killed")

    async def scenario() -> None:
        with closing(make_batcher()) as batcher:
            monkeypatch.setattr(Job, "take", die)
            with pytest.raises(OverloadedError, match="died"):
                await Doubling().submit(batcher, images(1))
            assert batcher.waiting_images == 0

    asyncio.run(scenario())


def test_the_metrics_are_told_every_wait_and_every_batch():
    async def scenario() -> None:
        noted = Noted()
        with closing(make_batcher(noted, max_batch=4)) as batcher:
            await asyncio.gather(*(Doubling().submit(batcher, images(*range(n))) for n in (1, 3, 9)))
        assert sum(noted.batches) == 13
        assert len(noted.waits) == 3

    asyncio.run(scenario())
