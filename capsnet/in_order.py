"""Several pieces of work in flight at a time, whose results come in order."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

Batch = TypeVar("Batch")
Result = TypeVar("Result")


async def in_order(
    work: Callable[[Batch], Coroutine[Any, Any, Result]], batches: Iterator[Batch], concurrency: int
) -> AsyncGenerator[Result, None]:
    """The result of each batch, in the order of the batches; up to `concurrency` batches are in flight.

    The next batch is taken in a thread, as it may read files. To stop early, use `contextlib.aclosing`: it
    cancels what is in flight.
    """
    running: deque[asyncio.Task[Result]] = deque()
    try:
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            running.append(asyncio.create_task(work(batch)))
            if len(running) == concurrency:
                yield await running.popleft()
        while running:
            yield await running.popleft()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
