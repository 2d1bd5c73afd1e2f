"""What a service does for itself while it serves: it stays small, and ends when it cannot serve any more."""

import asyncio
from collections.abc import Callable

from service.errors import InferenceStoppedError
from service.memory import give_back
from service.repository import Repository

GIVE_BACK_S = 20.0
LOOK_S = 1.0


async def keep_small(repository: Repository, every_s: float = GIVE_BACK_S) -> None:
    """Return memory, for ever, after times in which there was work.

    Args:
        repository: what is loaded.
        every_s: seconds between two returns.
    """
    work_seen = 0
    while True:
        await asyncio.sleep(every_s)
        if repository.work_done != work_seen:
            work_seen = repository.work_done
            await asyncio.to_thread(give_back, [served.engine for served in repository.loaded()])


async def end_when_stopped(repository: Repository, end: Callable[[str], None]) -> None:
    """End the service once inference threads are left dead: only a new process helps.

    Args:
        repository: what is loaded.
        end: called once, with the reason.
    """
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            repository.check_alive()
        except InferenceStoppedError as error:
            end(str(error))
            return
