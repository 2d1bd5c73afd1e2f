"""Graphs that were chosen while the machine was busy are measured again once the service is idle."""

import asyncio
import logging
from typing import Literal

from export.contract.manifest import BundleError, read_checked
from service.inference.graph_cache import DERIVE_S
from service.models.background import restart_on_error
from service.models.loaded_model import LoadedModel
from service.models.repository import Repository

QUIET_S = 60.0
LONGEST_PAUSE_S = 3600.0
MeasuredRole = Literal["encoder", "decoder"]

log = logging.getLogger(__name__)


@restart_on_error
async def remeasure_graphs(repository: Repository, quiet_s: float = QUIET_S) -> None:
    """Measure plans that were measured under load again, one at a time. Never ends.

    A plan that is measured under less load is kept and taken into use. While that fails, the pauses become
    longer, so that measuring does not itself keep a busy machine busy.

    Args:
        repository: what is loaded.
        quiet_s: seconds without a request before anything is measured.
    """
    pause_s = quiet_s
    while True:
        await asyncio.sleep(pause_s)
        was_in_vain = False
        for model in [one for one in repository.loaded() if one.engine.encoder.needs_measuring]:
            if repository.seconds_without_requests() < quiet_s:
                break
            if await _remeasure(model):
                await repository.reload(model)
            else:
                was_in_vain = True
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S) if was_in_vain else quiet_s


async def _remeasure(model: LoadedModel) -> bool:
    """Whether the cache holds a better plan now."""
    name, encoder = model.full_name, model.engine.encoder
    try:
        await encoder.measure_again(await _read_graph(model, "encoder"), await _read_graph(model, "decoder"))
    except TimeoutError:
        log.warning("the graphs of %s could not be measured again within %.0f s", name, DERIVE_S)
    except (OSError, BundleError) as error:  # such as files that have changed since they were loaded
        log.warning("the graphs of %s cannot be measured again: %s", name, error)
    plan = await asyncio.to_thread(encoder.read_better_plan)
    if plan is None:
        return False
    log.info("measured the graphs of %s again: %s", name, plan.exclusive)
    return True


async def _read_graph(model: LoadedModel, role: MeasuredRole) -> bytes:
    """A graph of the model's bundle; empty if it has none.

    Raises:
        BundleError: the file is not the one that was loaded.
        OSError: it cannot be read.
    """
    graph = model.engine.manifest.graphs.get(role)
    return await asyncio.to_thread(read_checked, model.bundle.path, graph) if graph else b""
