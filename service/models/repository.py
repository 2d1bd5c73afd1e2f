"""The versions that are served, in line with what is on disk and with what requests ask for.

The folders of CAPSNET_MODELS are looked through at the start and then every CAPSNET_RESCAN_S seconds. The
default model is loaded at once, any other when the first request for it comes; from then on its newest
versions are kept loaded. A new version is loaded aside and only then takes the traffic; an old one finishes
what it has begun. What is on disk decides: removing a bad version brings back the one before. A name or a
version in a request is looked up among what was found and never becomes a path. A version that requests name
stays loaded while they do, however many newer ones there are: a long run keeps to the one that it began with.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal, NamedTuple

from service.errors import (
    InferenceStoppedError,
    ModelRequiredError,
    NotReadyError,
    RefusedModelError,
    UnknownModelError,
    shown,
)
from service.inference.engine import load_engine
from service.inference.memory import give_back
from service.inference.providers import DeviceError, Placement
from service.models.loaded_model import Served, start
from service.models.scanner import Bundles, Found
from service.observability.metrics import Metrics
from service.settings import Settings

__all__ = ["IndexEntry", "Repository", "Served", "StartError"]

State = Literal["loaded", "available", "loading", "superseded", "refused", "unloaded"]
NAMED_S = 600.0  # so long after the last request that named it a version stays loaded
SERVABLE = frozenset({"loaded", "loading", "available"})  # states of versions that answer, or will when asked

log = logging.getLogger(__name__)


class StartError(RuntimeError):
    """Nothing can be served: the message says what was looked for, where, and what was wrong with it."""


class IndexEntry(NamedTuple):
    """A version and what has become of it.

    Attributes:
        state: `superseded` by as many newer versions as are served.
        reason: why it is not served; of a loaded one, why its files, which have changed, would not be.
    """

    name: str
    version: int
    state: State
    reason: str = ""

    @property
    def is_refused(self) -> bool:
        """Its files cannot be served as they are now; a loaded one serves on as they were."""
        return self.state == "refused" or (self.state == "loaded" and bool(self.reason))


class Repository:
    """What is served. All methods belong to the event loop; loading happens in threads.

    Attributes:
        failure: why nothing can be served, as was last found out.
        work_done: requests that have used a model, and versions dropped, so far.
        stopped: why nobody looks for new bundles any more, though somebody should; "" while all is well.
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._placement = Placement(
            settings.device,
            settings.max_batch,
            settings.cache,
            settings.threads,
            settings.precision,
            optimize=settings.optimize,
        )
        self._bundles = Bundles(settings, metrics)
        self._served: dict[str, dict[int, Served]] = {}
        self._used: set[str] = set()  # models that were asked for: they are kept loaded
        self._unloaded: set[str] = set()  # models that an operator has taken down
        self._updating: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._retiring: dict[asyncio.Task[None], Served] = {}
        self._is_looked_through = False
        self._used_at = time.monotonic()
        self.failure: StartError | None = None
        self.work_done = 0
        self.stopped = ""

    @asynccontextmanager
    async def use(self, model: str | None, version: int | None) -> AsyncIterator[Served]:
        """The model of a request, kept loaded while the request needs it; loaded first if it has to be.

        Raises:
            NotReadyError: nothing is loaded yet.
            ModelRequiredError: several models are served and none is named.
            UnknownModelError: no such model or version is served.
            RefusedModelError: what is on disk under that name cannot be served.
        """
        served = self._find(model, version) or await self._load_to_use(model, version)
        served.users += 1
        if version is not None:
            served.named_s = time.monotonic()
        try:
            yield served
        finally:
            served.users -= 1
            self._used_at = time.monotonic()
            self.work_done += 1
            if served.users == 0:
                served.idle.set()

    async def first_scan(self) -> None:
        """Load what is on disk; where that leaves nothing to serve, `failure` says why."""
        try:
            await self.scan()
        except (OSError, DeviceError) as error:
            self.failure = StartError(str(error))
        except Exception as error:  # a mistake of ours, which the next look may not meet again
            log.exception("looking for bundles failed")
            self.failure = StartError(f"looking for bundles failed: {type(error).__name__}: {error}")
        self._is_looked_through = True

    async def watch(self) -> None:
        """Look for new bundles for ever; where a look fails, what is loaded serves on."""
        while self._settings.rescan_s:
            await asyncio.sleep(self._settings.rescan_s)
            try:
                await self.scan()
            except (OSError, DeviceError) as error:  # a volume may be away for a while
                log.warning("looking for new bundles failed: %s", error)
            except Exception:  # a mistake of ours; but then no bundle would ever be noticed again
                log.exception("looking for new bundles failed")

    async def scan(self) -> None:
        """Bring what is served in line with what is on disk.

        Raises:
            OSError: a folder of CAPSNET_MODELS that was there is not; nothing has been changed.
            DeviceError: an explicit device cannot be had.
        """
        await self._bundles.look()
        self._is_looked_through = True
        for model in sorted(self._bundles.found.keys() | self._served.keys()):
            if model in self._used or model in self._served or model == self._default():
                await self._update(model)
        self._note_failure()

    def index(self) -> list[IndexEntry]:
        """Every version that is loaded or on disk, by name, newest first.

        Raises:
            NotReadyError: the first scan is not over.
        """
        return [entry for name in self.names() for entry in self._entries(name)]

    async def load(self, model: str) -> None:
        """Load the newest versions of a model as they are on disk now, whoever took it down.

        Raises:
            NotReadyError: the first scan is not over.
            UnknownModelError: there is no such model, or it was taken down again meanwhile.
            RefusedModelError: none of its versions can be served; says why.
            DeviceError: an explicit device cannot be had.
        """
        paths = await self._bundles.paths(model)
        if not paths:
            self._check_known(model)
        await self._bundles.look_at(model, paths, again=True)
        self._unloaded.discard(model)
        self._used.add(model)
        await self._update(model)
        self._check_loaded(model)

    async def unload(self, model: str) -> None:
        """Take a model down until `load`: it finishes what it has begun.

        Raises:
            NotReadyError: the first scan is not over.
            UnknownModelError: there is no such model.
        """
        self._check_known(model)
        self._unloaded.add(model)
        self._used.discard(model)
        async with self._updating[model]:  # what is being loaded ends first
            for served in self._served.pop(model, {}).values():
                self._retire(served)
        self._note_failure()

    def idle_s(self) -> float:
        """For how many seconds no request has used a model."""
        is_used = any(served.users for served in self.loaded())
        return 0.0 if is_used else time.monotonic() - self._used_at

    async def reload(self, served: Served) -> None:
        """Load a version once more, from the same files, and let it take the traffic."""
        async with self._updating[served.model]:
            versions = self._served.get(served.model, {})
            if versions.get(served.version) is not served:
                return
            fresh = await self._load(served.model, served.version, served.found, served, again=True)
            if fresh is not None and fresh is not served:
                self._served[served.model] = {**versions, served.version: fresh}
                self._retire(served)

    def describe(self, model: str, *, manifests: bool) -> dict[str, Any]:
        """What is on disk of a model and what has become of it, newest first.

        Raises:
            NotReadyError: the first scan is not over.
            UnknownModelError: there is no such model.
        """
        self._check_known(model)
        versions = [self._describe_version(entry, manifests) for entry in self._entries(model)]
        return {"name": model, "default": model == self._default(), "versions": versions}

    def names(self) -> list[str]:
        """Every model that is loaded or on disk.

        Raises:
            NotReadyError: the first scan is not over.
        """
        if not self._is_looked_through:
            raise self._not_ready()
        return sorted(self._bundles.found)

    def loaded(self) -> list[Served]:
        """Every loaded version."""
        return [served for versions in self._served.values() for served in versions.values()]

    def ready(self) -> list[Served]:
        """Everything that is loaded.

        Raises:
            NotReadyError: nothing can be served, new bundles are not noticed any more, or an inference
                thread does not answer; says which.
        """
        loaded = self.loaded()
        if self.stopped:
            raise NotReadyError(self.stopped)
        if not loaded and not self._answers_without_any_loaded():
            raise self._not_ready()
        for served in loaded:
            if not served.batcher.answering:
                raise NotReadyError(f"an inference thread of {served.model}/{served.version} does not answer")
        return loaded

    def check_alive(self) -> None:
        """Whatever does not answer now may yet do so, in this process.

        Raises:
            InferenceStoppedError: the inference threads of a version were left dead; says which.
        """
        for served in self.loaded():
            if served.batcher.given_up:
                raise InferenceStoppedError(
                    f"the inference threads of {served.model}/{served.version} keep dying and are left dead; "
                    "restart the service"
                )

    async def close(self) -> None:
        """End every inference thread; no request is left waiting."""
        open_ones = [*self.loaded(), *self._retiring.values()]
        self._served = {}
        for task in (*self._retiring, *self._loading.values()):
            task.cancel()
        await asyncio.gather(*(served.close() for served in open_ones))

    # -- from disk to what is served --------------------------------------------------------------------

    async def _update(self, model: str) -> None:
        """Serve as many of a model's newest versions as are kept, if they can be loaded, and those in use.

        None of a model that an operator has taken down, be it while this waits or loads.
        """
        async with self._updating[model]:
            found, loaded = self._bundles.found.get(model, {}), self._served.get(model, {})
            wanted: dict[int, Served] = {}
            for version in sorted(found, reverse=True):
                if model in self._unloaded:
                    break
                if len(wanted) >= self._settings.versions_kept and not _is_named(loaded.get(version)):
                    continue
                served = await self._load(model, version, found[version], loaded.get(version))
                if served:
                    wanted[version] = served
                    # At once, not after the older ones: a version that is loaded serves.
                    self._served[model] = {**self._served.get(model, {}), version: served}
            serving = {} if model in self._unloaded else wanted
            if serving:
                self._served[model] = serving
            else:
                self._served.pop(model, None)
            for served in {*loaded.values(), *wanted.values()} - {*serving.values()}:
                self._retire(served)
        self._note_failure()

    async def _load(
        self, model: str, version: int, found: Found, loaded: Served | None, *, again: bool = False
    ) -> Served | None:
        """Load a version unless it is loaded with the same files; one that is refused replaces nothing.

        Loaded `again` it is from the same files, too. What takes the place of a loaded version was named when
        that one was.
        """
        if found.reason or (loaded and loaded.found == found and not again):
            return loaded
        try:
            engine = await asyncio.to_thread(load_engine, found.path, model, self._placement)
        except DeviceError:
            raise
        except Exception as error:  # what is odd about one bundle must not keep us from the others
            self._bundles.refuse(model, version, found, error)
            return loaded
        await asyncio.to_thread(give_back, [engine])
        log.info("loaded %s/%d from %s on %s", model, version, found.path, engine.device)
        self._metrics.reloaded(model, version)
        fresh = start(model, version, found, engine, self._settings, self._metrics)
        if loaded:
            fresh.named_s = loaded.named_s
        return fresh

    def _retire(self, served: Served) -> None:
        task = asyncio.create_task(self._drain(served))
        self._retiring[task] = served
        task.add_done_callback(self._retiring.pop)

    async def _drain(self, served: Served) -> None:
        await served.drain()
        self._metrics.dropped(served.model, served.version)
        self.work_done += 1
        log.info("dropped %s/%d", served.model, served.version)

    # -- from a request to a version --------------------------------------------------------------------

    def _find(self, model: str | None, version: int | None) -> Served | None:
        """The loaded version that a request means, None where there is none."""
        name = self._default() if model is None else model
        versions = self._served.get(name) if name is not None else None
        if not versions:
            return None
        return versions[max(versions)] if version is None else versions.get(version)

    async def _load_to_use(self, model: str | None, version: int | None) -> Served:
        """The version that a request means, after its model was loaded, or the reason why there is none."""
        name = self._name_of(model)
        if name not in self._served or self._state(name, version) in SERVABLE:
            await self._load_once(name)
        served = self._find(name, version)
        if served:
            return served
        self._check_loaded(name)
        raise UnknownModelError(self._why_not(name, version))

    async def _load_once(self, model: str) -> None:
        """Load a model for this request and for those that come meanwhile."""
        self._used.add(model)
        if model not in self._loading:
            self._loading[model] = task = asyncio.create_task(self._update(model))
            task.add_done_callback(lambda _: self._loading.pop(model))
        try:
            await asyncio.shield(self._loading[model])  # others may wait for it too
        except DeviceError as error:
            raise NotReadyError(str(error)) from None

    def _name_of(self, model: str | None) -> str:
        if not self._is_any_usable() and not self._unloaded:
            raise self._not_ready()
        name = self._default() if model is None else model
        if not self._is_looked_through and name not in self._bundles.found:  # it may still be
            raise self._not_ready()
        if name is None:
            default = shown(self._settings.default_model)
            raise ModelRequiredError(
                f"several models are served: name one of {self._names()} as model; CAPSNET_DEFAULT_MODEL is "
                f"{default}, which is not among them"
            )
        self._check_not_taken_down(name)
        if name not in self._bundles.found and name not in self._served:
            raise UnknownModelError(f"no model {shown(name)} is served; there are {self._names()}")
        return name

    def _default(self) -> str | None:
        """The model of requests that name none: the one in the settings, else the only one of all."""
        name = self._settings.default_model
        if name in self._bundles.found:
            return name
        is_only_one = self._is_looked_through and len(self._bundles.found) == 1
        return next(iter(self._bundles.found)) if is_only_one else None

    # -- what is there ----------------------------------------------------------------------------------

    def _entries(self, name: str) -> list[IndexEntry]:
        """The versions of a model, newest first."""
        entries: list[IndexEntry] = []
        versions = self._served.get(name, {}).keys() | self._bundles.found.get(name, {}).keys()
        servable = 0
        for version in sorted(versions, reverse=True):
            entry = self._entry(name, version, is_kept=servable < self._settings.versions_kept)
            servable += entry.state in SERVABLE
            entries.append(entry)
        return entries

    def _entry(self, name: str, version: int, *, is_kept: bool) -> IndexEntry:
        found = self._bundles.found.get(name, {}).get(version)
        reason = found.reason if found else ""
        if version in self._served.get(name, {}):
            return IndexEntry(name, version, "loaded", reason)
        if reason:
            return IndexEntry(name, version, "refused", reason)
        if name in self._unloaded:
            return IndexEntry(name, version, "unloaded", "taken down by an operator")
        if not is_kept:
            kept = f"CAPSNET_VERSIONS_KEPT={self._settings.versions_kept}"
            return IndexEntry(name, version, "superseded", f"newer versions are served: {kept}")
        return IndexEntry(name, version, "loading" if self._updating[name].locked() else "available")

    def _state(self, name: str, version: int | None) -> State | None:
        """What has become of a version; None of one that there is not."""
        return next((entry.state for entry in self._entries(name) if entry.version == version), None)

    def _why_not(self, name: str, version: int | None) -> str:
        """Why a version of a model that is loaded does not answer."""
        why = "".join(
            f" ({one.state}: {one.reason})" for one in self._entries(name) if one.version == version
        )
        loaded = ", ".join(str(loaded) for loaded in sorted(self._served[name]))
        return f"{name} has no loaded version {shown(version)}{why}; there are {loaded}"

    def _describe_version(self, entry: IndexEntry, manifests: bool) -> dict[str, Any]:
        described: dict[str, Any] = {"version": entry.version, "state": entry.state}
        if entry.reason:  # of one that is loaded too: its files have changed into what cannot be served
            described["reason"] = entry.reason
        if served := self._served.get(entry.name, {}).get(entry.version):
            described |= served.describe()
            if manifests:
                described["manifest"] = served.engine.manifest.model_dump(mode="json")
        return described

    def _check_known(self, model: str) -> None:
        if model not in self.names():
            raise UnknownModelError(f"no model {shown(model)}; there are {self._names()}")

    def _check_not_taken_down(self, model: str) -> None:
        if model in self._unloaded:
            raise UnknownModelError(f"{model} was taken down by an operator; there are {self._names()}")

    def _check_loaded(self, model: str) -> None:
        """After it was loaded, or should have been."""
        self._check_not_taken_down(model)
        if model not in self._served:
            raise RefusedModelError(self._bundles.refusal(model))

    def _not_ready(self) -> NotReadyError:
        return NotReadyError(str(self.failure or "models are still loading"))

    def _is_any_usable(self) -> bool:
        return bool(self._served) or self._bundles.is_any_usable(self._unloaded)

    def _answers_without_any_loaded(self) -> bool:
        """Models load as requests name them, once there is no default model to be loaded before."""
        is_awaited = self._bundles.is_usable(self._default()) and self._default() not in self._unloaded
        return self._is_looked_through and self._is_any_usable() and not is_awaited

    def _note_failure(self) -> None:
        self.failure = None if self._is_any_usable() else StartError(self._nothing_to_serve())

    def _names(self) -> str:
        return ", ".join(sorted(self._bundles.found.keys() - self._unloaded)) or "none"

    def _nothing_to_serve(self) -> str:
        taken_down = sorted(self._unloaded & self._bundles.found.keys())
        if taken_down:
            return f"taken down by an operator: {', '.join(taken_down)}; no other model can be served"
        return self._bundles.nothing_to_serve()


def _is_named(loaded: Served | None) -> bool:
    """Whether requests have named a loaded version of late."""
    return loaded is not None and time.monotonic() - loaded.named_s < NAMED_S
