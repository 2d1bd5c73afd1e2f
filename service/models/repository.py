"""The versions that are served, in line with what is on disk and with what requests ask for.

The folders of CAPSNET_MODELS are looked through at the start and then every CAPSNET_RESCAN_S seconds. The
default model is loaded at once, any other when the first request for it comes, or a rule that names
versions; from then on its newest versions are kept loaded. A new version is loaded beside the old one and
only then takes the traffic; the old one finishes what it has begun. What is on disk decides: removing a bad
version brings back the one before. A name or a version in a request is looked up among the bundles on disk
and never becomes a path. A version that requests name stays loaded while they do, however many newer ones
there are: a long run keeps its version. So does one that a model's rule names (see
`service.models.traffic`), and the rule holds once that is loaded.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Any

from service.errors import (
    InferenceStoppedError,
    NotReadyError,
    RefusedModelError,
    UnknownModelError,
    shown,
)
from service.models.index_entry import SERVABLE, IndexEntry
from service.models.inventory import Inventory, StartError
from service.models.loaded_model import LoadedModel
from service.models.remembered import Remembered
from service.models.scanner import Bundles
from service.models.traffic import Rule, Traffic, is_named, loading_order, pinned_by
from service.models.use import Use
from service.models.version_loader import VersionLoader
from service.observability.metrics import Metrics
from service.settings import Settings

log = logging.getLogger(__name__)


class Repository:
    """What is served. All methods belong to the event loop; loading happens in threads.

    Attributes:
        work_done: requests that have used a model, and versions dropped, so far.
        stopped: why new bundles are not noticed any more; "" while they are.
        on_change: called when other versions serve than before, or another model is the default.
    """

    def __init__(self, settings: Settings, metrics: Metrics, remembered: Remembered | None = None) -> None:
        self._settings = settings
        self._metrics = metrics
        self._bundles = Bundles(settings, metrics)
        self._loader = VersionLoader(self._bundles, settings, metrics)
        self._remembered = remembered or Remembered()
        self._inventory = Inventory(self._bundles, settings, self._remembered)
        self._loaded = self._inventory.loaded
        self._requested: set[str] = set()  # models that were asked for: they are kept loaded
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._retiring: dict[asyncio.Task[None], LoadedModel] = {}
        self._updates: set[asyncio.Task[None]] = set()
        self._ruling: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # held by `set_traffic`
        self._last_used_s = time.monotonic()
        self.work_done = 0
        self.stopped = ""
        self.on_change: Callable[[], None] = lambda: None

    @property
    def failure(self) -> StartError | None:
        """Why nothing can be served, as of the last scan; None while something can."""
        return self._inventory.failure

    @property
    def is_taken_down(self) -> bool:
        """Whether something could be served, but for what an operator has taken down."""
        return bool(self._remembered.unloaded) and self._bundles.is_any_usable(frozenset())

    def use(self, model: str | None, version: int | None) -> Use[LoadedModel]:
        """The model of a request, kept loaded while the request needs it; loaded first if it has to be.

        Raises:
            NotReadyError: nothing is loaded yet, or the version that a rule means is not served.
            ModelRequiredError: several models are served and none is named.
            UnknownModelError: no such model or version is served.
            RefusedModelError: what is on disk under that name cannot be served.
        """
        return Use(self, model, version)

    def begin_use(self, model: str | None, version: int | None) -> LoadedModel | None:
        """The model of a request, kept loaded until `end_use`; None if it may have to be loaded first."""
        if found := self._inventory.find(model, version):
            self.note_used(found)
            if version is not None:
                self.note_named(found.name, found.version)
        return found

    def note_used(self, found: LoadedModel) -> None:
        """A request needs the model until `end_use`."""
        found.users += 1

    def note_named(self, model: str, version: int) -> None:
        """A request has named this version: it stays loaded for a while."""
        self._remembered.name(model, version)

    def end_use(self, found: LoadedModel) -> None:
        """A request needs the model no more."""
        found.users -= 1
        self._last_used_s = time.monotonic()
        self.work_done += 1
        if found.users == 0:
            found.unused.set()

    async def first_scan(self) -> None:
        """Load what is on disk; where nothing can be served, `failure` says why."""
        try:
            await self._loader.check_device()
            await self.scan()
        except (OSError, NotReadyError) as error:
            self._inventory.failure = StartError(str(error))
        except Exception as error:  # a mistake of ours, which may not happen at the next scan
            log.exception("looking for bundles failed")
            self._inventory.failure = StartError(
                f"looking for bundles failed: {type(error).__name__}: {error}"
            )
        self._inventory.is_scanned = True
        self._inventory.note_unknown_default()

    async def watch(self) -> None:
        """Scan for new bundles for ever, with CAPSNET_RESCAN_S=0 never.

        Where a scan fails, what is loaded serves on.
        """
        while self._settings.rescan_s:
            await asyncio.sleep(self._settings.rescan_s)
            try:
                await self.scan()
            except (OSError, NotReadyError) as error:  # a volume may be away for a while
                log.warning("looking for new bundles failed: %s", error)
            except Exception:  # a mistake of ours; ending here would mean that no bundle is noticed again
                log.exception("looking for new bundles failed")

    async def scan(self) -> None:
        """Bring what is served in line with what is on disk.

        Raises:
            OSError: a folder of CAPSNET_MODELS that was there is not; what is served has not been changed.
            NotReadyError: an explicit device is not available.
        """
        await self._bundles.scan()
        self._inventory.is_scanned = True
        for model in sorted(self._bundles.versions.keys() | self._loaded.keys()):
            if model in self._requested or model in self._loaded or model == self._inventory.default():
                await self._update(model)
        self._inventory.note_failure()
        self.on_change()

    @property
    def traffic(self) -> dict[str, Rule]:
        """The rules that hold now, of models that have one."""
        return dict(self._inventory.active_traffic)

    def default(self) -> str | None:
        """The model of requests that name none; None where they must."""
        return self._inventory.default()

    def index(self) -> list[IndexEntry]:
        """Every version of every model that is on disk, by name, newest first.

        Raises:
            NotReadyError: the first scan has not finished.
        """
        return [entry for name in self.names() for entry in self._inventory.entries(name)]

    def names(self) -> list[str]:
        """Every model that is on disk.

        Raises:
            NotReadyError: the first scan has not finished.
        """
        return self._inventory.names()

    def describe(self, model: str, *, manifests: bool) -> dict[str, Any]:
        """What is on disk of a model and what has become of it, newest first.

        Raises:
            NotReadyError: the first scan has not finished.
            UnknownModelError: there is no such model.
        """
        return self._inventory.describe(model, manifests=manifests)

    async def load(self, model: str) -> None:
        """Load the newest versions of a model as they are on disk now, even if it was taken down.

        Raises:
            NotReadyError: the first scan has not finished, a folder of models is away, or an explicit device
                is not available.
            UnknownModelError: there is no such model, or it was taken down again meanwhile.
            RefusedModelError: none of its versions can be served; says why.
        """
        await self._scan_model(model, again=True)
        if model not in self._bundles.versions:
            self._inventory.check_known(model)
        self._remembered.bring_back(model)
        self._requested.add(model)
        await self._update(model)
        self._inventory.check_loaded(model)

    async def unload(self, model: str) -> None:
        """Take a model down until `load`: it finishes what it has begun.

        Raises:
            NotReadyError: the first scan has not finished.
            UnknownModelError: there is no such model.
        """
        self._inventory.check_known(model)
        self._remembered.take_down(model)
        self._requested.discard(model)
        # It is down from now on, so all of it happens, even if nobody waits for that any more.
        await self._wait_for(self._begin(self._drop(model)), model)

    async def _drop(self, model: str) -> None:
        async with self._inventory.changing[model]:  # what is being loaded ends first
            dropped = self._loaded.pop(model, {})
            self.on_change()
            for version in dropped.values():
                self._retire(version)
        self._inventory.note_failure()

    async def set_traffic(self, model: str, rule: Traffic | None) -> None:
        """Write which version of a model answers requests that name none; holds for all that come after this.

        What the rule names is loaded first, unless an operator has taken the model down.

        Args:
            model: its name.
            rule: None for the newest.

        Raises:
            NotReadyError: the first scan has not finished, a folder of models is away, or an explicit device
                is not available.
            UnknownModelError: there is no such model, or no version that the rule names.
            RefusedModelError: such a version cannot be served; says why.
            NotWritableError: no folder of the model can be written.
        """
        self._inventory.check_known(model)
        async with self._ruling[model]:  # or one that fails would take back the rule of another
            await self._rule(model, rule)

    async def _rule(self, model: str, rule: Traffic | None) -> None:
        named = rule.named if rule else ()
        await self._scan_model(model, named=named)
        self._inventory.check_servable(model, named)
        before = self._bundles.traffic.get(model)
        await self._bundles.set_traffic(model, rule)
        if named and model not in self._remembered.unloaded:
            self._requested.add(model)  # only loading shows whether the versions can be served
        if model in self._loaded or model in self._requested:
            try:
                await self._update(model)
            except NotReadyError:
                await self._bundles.set_traffic(model, before)
                raise
        if model in self._remembered.unloaded:  # maybe meanwhile; the rule holds once it is loaded again
            return
        if missing := set(named) - self._loaded.get(model, {}).keys():
            # Asked now, as the model may be taken down while this waits.
            reason = self._inventory.why_not(model, missing.pop())
            await self._bundles.set_traffic(model, before)
            await self._update(model)
            raise RefusedModelError(reason)

    async def reload(self, old: LoadedModel) -> None:
        """Load a version once more, from the same files, and let it take the traffic."""
        async with self._inventory.changing[old.name]:
            versions = self._loaded.get(old.name, {})
            if versions.get(old.version) is not old:
                return
            new = await self._loader.load(old.name, old.version, old.bundle, old, again=True)
            if new is not None and new is not old:
                self._loaded[old.name] = {**versions, old.version: new}
                self.on_change()
                self._retire(old)

    def seconds_without_requests(self) -> float:
        """For how many seconds no request has used a model."""
        is_used = any(model.users for model in self.loaded())
        return 0.0 if is_used else time.monotonic() - self._last_used_s

    def loaded(self) -> list[LoadedModel]:
        """Every loaded version."""
        return [one for versions in self._loaded.values() for one in versions.values()]

    def ready(self) -> list[LoadedModel]:
        """Everything that is loaded.

        Raises:
            NotReadyError: nothing can be served, new bundles are not noticed any more, or an inference
                thread does not answer; says which.
        """
        loaded = self.loaded()
        if self.stopped:
            raise NotReadyError(self.stopped)
        if not loaded and not self._inventory.answers_without_any_loaded():
            raise self._inventory.not_ready()
        for one in loaded:
            if not one.batcher.answering:
                raise NotReadyError(f"an inference thread of {one.full_name} does not answer")
        return loaded

    def summary(self) -> str:
        """What is loaded, for people."""
        loaded = [f"{one.full_name} on {one.engine.device}" for one in self.loaded()]
        return ", ".join(loaded) or "every model from the first request for it"

    def check_alive(self) -> None:
        """This process can still recover by itself from whatever is wrong.

        Raises:
            InferenceStoppedError: an inference thread of a version has died; says which.
        """
        for one in self.loaded():
            if one.batcher.given_up:
                raise InferenceStoppedError(
                    f"an inference thread of {one.full_name} died; restart the service"
                )

    async def close(self) -> None:
        """End every inference thread; no request is left waiting."""
        open_ones = [*self.loaded(), *self._retiring.values()]
        self._loaded.clear()
        for task in (*self._retiring, *self._updates):
            task.cancel()
        await asyncio.gather(*(one.close() for one in open_ones))

    # -- from disk to what is served --------------------------------------------------------------------

    async def _update(self, model: str) -> None:
        """Serve as many of a model's newest versions as are kept, if they can be loaded, and those in use.

        None of a model that an operator has taken down, be it while this waits or loads. Where nobody waits
        for it any more it goes on, or what it has replaced would never be taken down.
        """
        await self._wait_for(self._begin(self._serve_newest(model)), model)

    def _begin(self, change: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        update = asyncio.create_task(change)
        self._updates.add(update)
        update.add_done_callback(self._updates.discard)
        return update

    async def _wait_for(self, update: asyncio.Task[None], model: str) -> None:
        try:
            await asyncio.shield(update)  # others may wait for it too
        except asyncio.CancelledError:
            update.add_done_callback(partial(_log_failure, model))
            raise

    async def _serve_newest(self, model: str) -> None:
        async with self._inventory.changing[model]:
            before = self._loaded.get(model, {})
            try:
                wanted = await self._load_wanted(model, before)
            except Exception:
                for replaced in {*before.values()} - {*self._loaded.get(model, {}).values()}:
                    self._retire(replaced)
                raise
            serving = {} if model in self._remembered.unloaded else wanted
            if serving:
                self._loaded[model] = serving
            else:
                self._loaded.pop(model, None)
            self.on_change()
            for version in {*before.values(), *wanted.values()} - {*serving.values()}:
                self._retire(version)
        self._inventory.note_failure()

    async def _load_wanted(self, model: str, before: dict[int, LoadedModel]) -> dict[int, LoadedModel]:
        """The newest versions of a model and those that requests name, each serving once it is loaded.

        Args:
            model: its name.
            before: its loaded versions.
        """
        on_disk = self._bundles.versions.get(model, {})
        rule = self._bundles.traffic.get(model)
        pinned = pinned_by(rule)
        wanted: dict[int, LoadedModel] = {}
        newest = 0
        if not before:  # it holds from the first version on
            self._inventory.adopt_traffic(model, rule)
        active = self._inventory.active_traffic.get(model)
        for version in loading_order(rule, on_disk):
            if model in self._remembered.unloaded:
                break
            is_held_back = pinned is not None and pinned not in wanted  # so the rule before serves on
            is_ruled = is_named(rule, version) or (is_held_back and is_named(active, version))
            is_kept = is_ruled or newest < self._settings.versions_kept
            if not is_kept and not self._remembered.is_named(model, version):
                continue
            loaded = await self._loader.load(model, version, on_disk[version], before.get(version))
            if loaded:
                newest += not is_ruled
                wanted[version] = loaded
                # It serves at once, not after the older ones are loaded.
                self._loaded[model] = {**self._loaded.get(model, {}), version: loaded}
                if version == pinned:
                    self._inventory.adopt_traffic(model, rule)
                self.on_change()
        if pinned is None or pinned in wanted:
            self._inventory.adopt_traffic(model, rule)
        else:
            self._inventory.hold_traffic_back(model)
        return wanted

    async def _scan_model(self, model: str, *, again: bool = False, named: Collection[int] = ()) -> None:
        try:
            await self._bundles.scan_model(model, again=again, named=named)
        except OSError as error:
            raise NotReadyError(f"what is on disk of {shown(model)} cannot be looked at: {error}") from None

    def _retire(self, model: LoadedModel) -> None:
        task = asyncio.create_task(self._drain(model))
        self._retiring[task] = model
        task.add_done_callback(self._retiring.pop)

    async def _drain(self, model: LoadedModel) -> None:
        await model.drain()
        self._metrics.dropped(model.name, model.version)
        self.work_done += 1
        log.info("dropped %s", model.full_name)

    # -- from a request to a version --------------------------------------------------------------------

    async def load_to_use(self, model: str | None, version: int | None) -> LoadedModel:
        """The same as `begin_use`, loaded first if it has to be; raises what `use` raises."""
        inventory = self._inventory
        name = inventory.name_of(model)
        meant = inventory.meant(name, version)
        if name not in self._loaded or inventory.state(name, meant) in SERVABLE:
            await self._load_once(name)
        if found := self.begin_use(name, version):
            return found
        inventory.check_loaded(name)
        if version is None:
            raise inventory.none_answers(name)
        raise UnknownModelError(inventory.why_not(name, version))

    async def _load_once(self, model: str) -> None:
        """Load a model for this request and for those that come meanwhile."""
        self._requested.add(model)
        if model not in self._loading:
            self._loading[model] = update = self._begin(self._serve_newest(model))
            update.add_done_callback(lambda _: self._loading.pop(model))
        await self._wait_for(self._loading[model], model)


def _log_failure(model: str, update: asyncio.Task[None]) -> None:
    """Of an update that nobody waits for any more."""
    if not update.cancelled() and (error := update.exception()):
        log.error("changing %s failed", model, exc_info=error)
