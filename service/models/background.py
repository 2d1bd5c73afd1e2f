"""Background tasks of a running service: load bundles, release memory, stop when inference has died."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

from service.errors import InferenceStoppedError
from service.models.repository import Repository

RELEASE_EVERY_S = 20.0
CHECK_EVERY_S = 1.0
Parameters = ParamSpec("Parameters")

log = logging.getLogger(__name__)


async def load_and_watch(repository: Repository, on_loaded: Callable[[Repository], None] | None) -> None:
    """Load what is on disk, then look for new bundles; ends only with CAPSNET_RESCAN_S=0.

    Args:
        repository: loads them.
        on_loaded: called after the first scan.
    """
    try:
        await repository.first_scan()
        if on_loaded:
            on_loaded(repository)
        elif repository.failure:
            log.error("not ready: %s", repository.failure)
        await repository.watch()
    except Exception as error:  # nobody awaits this task before the end: log it now
        log.exception("looking for bundles has stopped; loaded models continue to serve")
        repository.stopped = f"looking for bundles has stopped: {type(error).__name__}; restart the service"
        raise


def restart_on_error(
    work: Callable[Parameters, Awaitable[None]],
) -> Callable[Parameters, Coroutine[Any, Any, None]]:
    """Log what a background task raises, and start it again: nobody awaits it.

    Args:
        work: begins with a pause, so that a lasting fault does not fill the log.
    """

    @wraps(work)
    async def until_done(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        while True:
            try:
                return await work(*args, **kwargs)
            except Exception:  # whatever it is: without this task the service would degrade unnoticed
                log.exception("%s failed and starts again", work.__name__)

    return until_done


@restart_on_error
async def release_after_work(
    work_done: Callable[[], int], release: Callable[[], None], every_s: float = RELEASE_EVERY_S
) -> None:
    """Return unused memory to the system every few seconds, if there was work meanwhile. Never ends.

    Args:
        work_done: how many pieces of work there have been so far.
        release: returns the memory; blocks.
        every_s: seconds between two times.
    """
    work_seen = 0
    while True:
        await asyncio.sleep(every_s)
        if (done := work_done()) != work_seen:
            work_seen = done
            await asyncio.to_thread(release)


@restart_on_error
async def stop_when_inference_is_dead(repository: Repository, stop: Callable[[str], None]) -> None:
    """Stop the service once an inference thread has died: only a new process helps.

    Args:
        repository: what is loaded.
        stop: called once, with the reason.
    """
    while True:
        await asyncio.sleep(CHECK_EVERY_S)
        try:
            repository.check_alive()
        except InferenceStoppedError as error:
            stop(str(error))
            return
