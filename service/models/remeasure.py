"""Graphs that were chosen while the machine was busy are chosen again in an idle minute."""

import asyncio
import logging
from subprocess import DEVNULL, PIPE

from export.contract.manifest import BundleError, read_checked
from export.optimize.plan import read_plan
from service.inference.graph_cache import DERIVE_S, derive_command
from service.models.housekeeping import going_on
from service.models.loaded_model import Served
from service.models.repository import Repository

IDLE_S = 60.0  # for so long nobody has asked for anything
LONGEST_PAUSE_S = 3600.0

log = logging.getLogger(__name__)


@going_on
async def choose_graphs_again(repository: Repository, idle_s: float = IDLE_S) -> None:
    """Measure plans that were measured under load again, for ever, one at a time.

    A plan that is measured with less load is kept and taken into use. While that cannot be done the pauses
    become longer, so that a machine that is never idle is not kept busy by this.

    Args:
        repository: what is loaded.
        idle_s: for how many seconds nobody has asked for anything.
    """
    pause_s = idle_s
    while True:
        await asyncio.sleep(pause_s)
        was_in_vain = False
        for served in filter(_is_under_load, repository.loaded()):
            if repository.idle_s() < idle_s:
                break
            if await _measure_again(served):
                await repository.reload(served)
            else:
                was_in_vain = True
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S) if was_in_vain else idle_s


def _is_under_load(served: Served) -> bool:
    encoders = served.engine.encoders
    return encoders.plan.is_under_load and encoders.folder is not None and encoders.folder.is_dir()


async def _measure_again(served: Served) -> bool:
    """Whether the plan in the cache is a better one now."""
    name, encoders = f"{served.model}/{served.version}", served.engine.encoders
    try:
        await _derive_again(served)
    except TimeoutError:
        log.warning("the graphs of %s could not be measured again within %.0f s", name, DERIVE_S)
    except (OSError, BundleError) as error:  # such as files that are not those that were loaded any more
        log.warning("the graphs of %s cannot be measured again: %s", name, error)
    plan = await asyncio.to_thread(read_plan, encoders.folder) if encoders.folder else None
    if plan is None or plan.waited >= encoders.plan.waited:
        return False
    log.info("measured the graphs of %s again: %s", name, plan.alone)
    return True


async def _derive_again(served: Served) -> None:
    """Make a plan anew in a process of its own; the process ends when this is cancelled.

    Raises:
        BundleError: the bundle's files are not what they were.
        OSError: they cannot be read, or there is no process to be had.
        TimeoutError: it took longer than DERIVE_S.
    """
    encoders, graphs = served.engine.encoders, served.engine.manifest.graphs
    assert encoders.folder
    encoder, *decoder = [
        await asyncio.to_thread(read_checked, served.found.path, graphs[role])
        for role in ("encoder", "decoder")
        if role in graphs
    ]
    command = derive_command(encoders.folder, encoders.plan.threads, encoder, again=True)
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL)
    try:
        await asyncio.wait_for(process.communicate(b"".join((encoder, *decoder))), DERIVE_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
