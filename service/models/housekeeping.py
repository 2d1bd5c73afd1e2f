"""What a service does for itself while it serves: it stays small, and ends when it cannot serve any more."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

from service.errors import InferenceStoppedError
from service.inference.memory import give_back
from service.models.repository import Repository

GIVE_BACK_S = 20.0
LOOK_S = 1.0
Parameters = ParamSpec("Parameters")

log = logging.getLogger(__name__)


def going_on(
    work: Callable[Parameters, Awaitable[None]],
) -> Callable[Parameters, Coroutine[Any, Any, None]]:
    """Work of a task that nobody awaits: what it raises is logged, and it begins again.

    Args:
        work: begins with a pause, so that a lasting fault does not fill the log.
    """

    @wraps(work)
    async def until_done(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        while True:
            try:
                return await work(*args, **kwargs)
            except Exception:  # whatever it is, without this work the service would get worse unseen
                log.exception("%s failed and begins again", work.__name__)

    return until_done


@going_on
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


@going_on
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
