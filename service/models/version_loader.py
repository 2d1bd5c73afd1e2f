"""From a version on disk to one that serves: loaded, checked, warmed up, its inference threads started."""

import asyncio
import logging

from export.contract.processors import usable_cpus
from service.errors import NotReadyError
from service.inference.loading import load_engine
from service.inference.memory import release_memory
from service.inference.providers import DeviceError, engine_options
from service.inference.sessions import check_device
from service.models.loaded_model import LoadedModel, start_model
from service.models.scanner import Bundles, BundleVersion
from service.observability.metrics import Metrics
from service.settings import Settings

MOST_LOADING = 8  # asyncio has more threads than that and than CPUs

log = logging.getLogger(__name__)


class VersionLoader:
    """Loads versions.

    Args:
        bundles: notes those that are refused.
        settings: where and how graphs run.
        metrics: count what is loaded.
    """

    def __init__(self, bundles: Bundles, settings: Settings, metrics: Metrics) -> None:
        self._bundles = bundles
        self._settings = settings
        self._metrics = metrics
        self._options = engine_options(settings)
        # Of many models that are asked for at once; a thread each would leave none to scans and /metrics.
        self._loading = asyncio.Semaphore(min(max(2, usable_cpus()), MOST_LOADING))

    async def check_device(self) -> None:
        """Check that an explicit device is available, before anything is loaded.

        Raises:
            NotReadyError: it is not.
        """
        try:
            await asyncio.to_thread(check_device, self._options)
        except DeviceError as error:
            raise NotReadyError(str(error)) from None

    async def load(
        self,
        model: str,
        version: int,
        bundle: BundleVersion,
        loaded: LoadedModel | None,
        *,
        again: bool = False,
    ) -> LoadedModel | None:
        """Load a version unless it is loaded with the same files; one that is refused replaces nothing.

        With `again` it is loaded from the same files, too.

        Raises:
            NotReadyError: an explicit device is not available.
        """
        if bundle.reason or (loaded and loaded.bundle == bundle and not again):
            return loaded
        try:
            async with self._loading:
                engine = await asyncio.to_thread(load_engine, bundle.path, model, self._options)
        except DeviceError as error:
            raise NotReadyError(str(error)) from None
        except Exception as error:  # whatever is wrong with one bundle must not keep us from the others
            await self._bundles.refuse(model, version, bundle, error)
            return loaded
        await asyncio.to_thread(release_memory)
        try:
            started = start_model(model, version, bundle, engine, self._settings, self._metrics)
        except RuntimeError as error:  # which may pass, as a fault of the disk may
            await asyncio.to_thread(engine.close)
            await self._bundles.refuse(model, version, bundle, OSError(str(error)))
            return loaded
        log.info("loaded %s/%d from %s on %s", model, version, bundle.path, engine.device)
        self._metrics.reloaded(model)
        return started
