"""Bundles on disk and the versions of them that are served.

The folders of CAPSNET_MODELS are looked through at the start and then every CAPSNET_RESCAN_S seconds. The
default model is loaded at once, any other when the first request for it comes; from then on its newest
versions are kept loaded. A new version is loaded aside and only then takes the traffic; an old one finishes
what it has begun. What is on disk decides: removing a bad version brings back the one before. A name or a
version in a request is looked up among what was found and never becomes a path.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from export.contract.manifest import MODEL_NAME, VERSION, BundleError
from service.batcher import Batcher
from service.engine import DeviceError, Engine, Placement, check_bundle, load_engine
from service.errors import ModelRequiredError, NotReadyError, RefusedModelError, UnknownModelError, shown
from service.metrics import Metrics
from service.settings import Settings

Floats = NDArray[np.float32]
Fingerprint = tuple[tuple[str, int, int], ...]  # name, bytes and time of change of every file

log = logging.getLogger(__name__)


class StartError(RuntimeError):
    """Nothing can be served: the message says what was looked for, where, and what was wrong with it."""


@dataclass(eq=False)
class Served:
    """A loaded version, its inference thread and the requests that use it."""

    model: str
    version: int
    path: Path
    fingerprint: Fingerprint
    engine: Engine
    batcher: Batcher
    users: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    async def encode(self, pixels: Floats) -> tuple[Floats, Floats]:
        """Pixels [N, H, W, C] in 0-1 to probabilities [N, J] and poses [N, J, D]."""
        probabilities, poses = await self.batcher.submit(self.engine.encode, pixels)
        return probabilities, poses

    async def decode(self, poses: Floats, mask: Floats) -> Floats:
        """Poses [N, J, D] and one-hot mask [N, J] to pictures [N, H, W, C] in 0-1."""
        (pictures,) = await self.batcher.submit(self.engine.decode, poses, mask)
        return pictures

    def describe(self) -> dict[str, Any]:
        """This version as /models shows it, without its manifest."""
        graphs = {role: graph.file for role, graph in self.engine.manifest.graphs.items()}
        state = {"version": self.version, "state": "loaded", "device": self.engine.device}
        return {**state, "provider": self.engine.provider, "graphs": graphs}


@dataclass(frozen=True)
class Found:
    """A version on disk that is not loaded.

    Attributes:
        reason: why it is refused, until its files change; "" while nothing speaks against it.
    """

    path: Path
    fingerprint: Fingerprint
    reason: str = ""


class IndexEntry(NamedTuple):
    """A version and what has become of it; `reason` says why one is refused."""

    name: str
    version: int
    state: Literal["loaded", "available", "loading", "refused", "unloaded"]
    reason: str


class Repository:
    """What is served. All methods belong to the event loop; loading happens in threads.

    Attributes:
        failure: why nothing can be served, as the last scan has found out.
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._placement = Placement(settings.device, settings.max_batch, settings.cache, settings.threads)
        self._served: dict[str, dict[int, Served]] = {}
        self._found: dict[str, dict[int, Found]] = {}
        self._used: set[str] = set()  # models that were asked for: they are kept loaded
        self._unloaded: set[str] = set()  # models that an operator has taken down
        self._updating: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._retiring: dict[asyncio.Task[None], Served] = {}
        self._roots_seen: set[Path] = set()
        self._is_looked_through = False
        self.failure: StartError | None = None

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
        try:
            yield served
        finally:
            served.users -= 1
            if served.users == 0:
                served.idle.set()

    async def first_scan(self) -> None:
        """Load what is on disk; where that leaves nothing to serve, `failure` says why."""
        try:
            await self.scan()
        except (OSError, DeviceError) as error:
            self.failure = StartError(str(error))
        self._is_looked_through = True

    async def watch(self) -> None:
        """Look for new bundles for ever."""
        while self._settings.rescan_s:
            await asyncio.sleep(self._settings.rescan_s)
            try:
                await self.scan()
            except (OSError, DeviceError) as error:  # a volume may be away; what is loaded serves on
                log.warning("looking for new bundles failed: %s", error)

    async def scan(self) -> None:
        """Bring what is served in line with what is on disk.

        Raises:
            OSError: a folder of CAPSNET_MODELS that was there is not; nothing has been changed.
            DeviceError: an explicit device cannot be had.
        """
        found = await asyncio.to_thread(find_bundles, self._settings.roots)
        await asyncio.to_thread(self._check_roots)
        for model in sorted(found.keys() | self._found.keys()):
            await self._look_at(model, found.get(model, {}))
        self._is_looked_through = True
        kept_loaded = (self._used | {self._default()}) - self._unloaded
        for model in sorted(self._found.keys() | self._served.keys()):
            if model in kept_loaded or model in self._served:
                await self._update(model)
        self.failure = None if self._is_any_usable() else StartError(self._nothing_to_serve())

    def index(self) -> list[IndexEntry]:
        """Every version that is loaded or on disk, by name, newest first.

        Raises:
            NotReadyError: the first scan is not over.
        """
        return [
            self._entry(name, version)
            for name in self.names()
            for version in sorted(self._served.get(name, {}).keys() | self._found[name].keys(), reverse=True)
        ]

    async def load(self, model: str) -> None:
        """Load the newest versions of a model as they are on disk now, whoever took it down.

        Raises:
            NotReadyError: the first scan is not over.
            UnknownModelError: there is no such model.
            RefusedModelError: none of its versions can be served; says why.
            DeviceError: an explicit device cannot be had.
        """
        found = await asyncio.to_thread(find_bundles, self._settings.roots)
        if model not in found:
            self._check_known(model)
        await self._look_at(model, found.get(model, {}))
        self._unloaded.discard(model)
        self._used.add(model)
        await self._update(model)
        if model not in self._served:
            raise RefusedModelError(self._refusal(model))

    async def unload(self, model: str) -> None:
        """Take a model down until `load`: it finishes what it has begun.

        Raises:
            NotReadyError: the first scan is not over.
            UnknownModelError: there is no such model.
        """
        self._check_known(model)
        self._unloaded.add(model)
        self._used.discard(model)
        async with self._updating[model]:  # what is being loaded is loaded first
            for served in self._served.pop(model, {}).values():
                self._retire(served)

    def describe(self, model: str, *, manifests: bool) -> dict[str, Any]:
        """What is on disk of a model and what has become of it, newest first.

        Raises:
            NotReadyError: the first scan is not over.
            UnknownModelError: there is no such model.
        """
        self._check_known(model)
        versions = [self._describe_version(entry, manifests) for entry in self.index() if entry.name == model]
        return {"name": model, "default": model == self._default(), "versions": versions}

    def names(self) -> list[str]:
        """Every model that is loaded or on disk.

        Raises:
            NotReadyError: the first scan is not over.
        """
        if not self._is_looked_through:
            raise NotReadyError(str(self.failure or "models are still loading"))
        return sorted(self._found)

    def loaded(self) -> list[Served]:
        """Every loaded version."""
        return [served for versions in self._served.values() for served in versions.values()]

    def ready(self) -> list[Served]:
        """Everything that is loaded.

        Raises:
            NotReadyError: nothing can be served, or an inference thread does not answer; says which.
        """
        loaded = self.loaded()
        # Where no model is the default none is loaded at the start, and a request names what it wants.
        if not loaded and (self._default() or not self._is_any_usable()):
            raise NotReadyError(str(self.failure or "models are still loading"))
        for served in loaded:
            if not served.batcher.answering:
                raise NotReadyError(
                    f"the inference thread of {served.model}/{served.version} does not answer"
                )
        return loaded

    async def close(self) -> None:
        """End every inference thread; no request is left waiting."""
        open_ones = [*self.loaded(), *self._retiring.values()]
        self._served = {}
        for task in (*self._retiring, *self._loading.values()):
            task.cancel()
        await asyncio.gather(*(asyncio.to_thread(served.batcher.close) for served in open_ones))

    # -- from disk to what is served --------------------------------------------------------------------

    async def _look_at(self, model: str, paths: Mapping[int, Path]) -> None:
        """Note a model's bundles; those of the newest versions that have changed are checked and hashed."""
        known, now = self._found.get(model, {}), dict[int, Found]()
        for rank, version in enumerate(sorted(paths, reverse=True)):
            path = paths[version]
            found = Found(path, await asyncio.to_thread(_fingerprint, path))
            before = known.get(version)
            if before and (before.path, before.fingerprint) == (path, found.fingerprint):
                found = before
            elif rank < self._settings.versions_kept:
                found = await self._checked(model, version, found)
            now[version] = found
        if now:
            self._found[model] = now
        else:
            self._found.pop(model, None)

    async def _checked(self, model: str, version: int, found: Found) -> Found:
        try:
            await asyncio.to_thread(check_bundle, found.path, model)
        except (BundleError, OSError) as error:
            return self._refuse(model, version, found, error)
        return found

    def _refuse(self, model: str, version: int, found: Found, error: Exception) -> Found:
        reason = str(error).replace(f"{found.path}/", "")
        log.error("refused %s/%d in %s: %s", model, version, found.path, reason)
        self._metrics.refused(model, version)
        return Found(found.path, found.fingerprint, reason)

    async def _update(self, model: str) -> None:
        """Serve the newest versions of a model that can be loaded, as many as are kept."""
        async with self._updating[model]:
            found, loaded = self._found.get(model, {}), self._served.get(model, {})
            wanted: dict[int, Served] = {}
            for version in sorted(found, reverse=True):
                if len(wanted) == self._settings.versions_kept:
                    break
                served = await self._load(model, version, found[version], loaded.get(version))
                if served:
                    wanted[version] = served
                    # At once, not after the older ones: a version that is loaded serves.
                    self._served[model] = {**self._served.get(model, {}), version: served}
            if wanted:
                self._served[model] = wanted
            else:
                self._served.pop(model, None)
            for version, served in loaded.items():
                if wanted.get(version) is not served:
                    self._retire(served)

    async def _load(self, model: str, version: int, found: Found, loaded: Served | None) -> Served | None:
        """Load a version unless it is loaded with the same files; one that is refused replaces nothing."""
        if found.reason or (loaded and (loaded.path, loaded.fingerprint) == (found.path, found.fingerprint)):
            return loaded
        try:
            engine = await asyncio.to_thread(load_engine, found.path, model, self._placement)
        except (BundleError, OSError) as error:
            self._found.setdefault(model, {})[version] = self._refuse(model, version, found, error)
            return loaded
        log.info("loaded %s/%d from %s on %s", model, version, found.path, engine.device)
        self._metrics.reloaded(model, version)
        return Served(
            model, version, found.path, found.fingerprint, engine, self._batcher(model, version, engine)
        )

    def _batcher(self, model: str, version: int, engine: Engine) -> Batcher:
        settings = self._settings
        return Batcher(
            f"{model}/{version}",
            lanes=engine.lanes,
            max_batch=engine.max_batch,
            queue_images=settings.queue_images,
            deadline_ms=settings.deadline_ms,
            observer=self._metrics.model(model, version),
        )

    def _retire(self, served: Served) -> None:
        task = asyncio.create_task(self._drain(served))
        self._retiring[task] = served
        task.add_done_callback(self._retiring.pop)

    async def _drain(self, served: Served) -> None:
        """Close a version that takes no new requests once those it has are answered."""
        while served.users:
            served.idle.clear()
            await served.idle.wait()
        await asyncio.to_thread(served.batcher.close)
        self._metrics.dropped(served.model, served.version)
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
        if name not in self._served:
            self._used.add(name)
            if name not in self._loading:
                self._loading[name] = task = asyncio.create_task(self._update(name))
                task.add_done_callback(lambda _: self._loading.pop(name))
            try:
                await asyncio.shield(self._loading[name])  # others may wait for it too
            except DeviceError as error:
                raise NotReadyError(str(error)) from None
        served = self._find(name, version)
        if served:
            return served
        if name not in self._served:
            raise RefusedModelError(self._refusal(name))
        loaded = ", ".join(str(v) for v in sorted(self._served[name]))
        raise UnknownModelError(f"{name} has no loaded version {shown(version)}; there are {loaded}")

    def _name_of(self, model: str | None) -> str:
        if not self._is_any_usable() and not self._unloaded:
            raise NotReadyError(str(self.failure or "models are still loading"))
        name = self._default() if model is None else model
        if name is None:
            raise ModelRequiredError(f"several models are served: name one of {self._names()} as model")
        if name in self._unloaded:
            raise UnknownModelError(f"{name} was taken down by an operator; there are {self._names()}")
        if name not in self._found and name not in self._served:
            raise UnknownModelError(f"no model {shown(name)} is served; there are {self._names()}")
        return name

    def _default(self) -> str | None:
        """The model of requests that name none: the one in the settings, else the only one."""
        name = self._settings.default_model
        if name in self._found:
            return name
        return next(iter(self._found)) if len(self._found) == 1 else None

    # -- what is there ----------------------------------------------------------------------------------

    def _entry(self, name: str, version: int) -> IndexEntry:
        found = self._found[name].get(version)
        reason = found.reason if found else ""
        if version in self._served.get(name, {}):
            return IndexEntry(name, version, "loaded", reason)
        if reason:
            return IndexEntry(name, version, "refused", reason)
        if name in self._unloaded:
            return IndexEntry(name, version, "unloaded", "taken down by an operator")
        return IndexEntry(name, version, "loading" if self._updating[name].locked() else "available", "")

    def _describe_version(self, entry: IndexEntry, manifests: bool) -> dict[str, Any]:
        served = self._served.get(entry.name, {}).get(entry.version)
        if served is None:
            described: dict[str, Any] = {"version": entry.version, "state": entry.state}
            return {**described, "reason": entry.reason} if entry.reason else described
        described = served.describe()
        if entry.reason:  # its files have changed into something that cannot be served
            described["reason"] = entry.reason
        if manifests:
            described["manifest"] = served.engine.manifest.model_dump(mode="json")
        return described

    def _check_known(self, model: str) -> None:
        if model not in self.names():
            raise UnknownModelError(f"no model {shown(model)}; there are {self._names()}")

    def _is_any_usable(self) -> bool:
        return bool(self._served) or any(
            not found.reason
            for model, versions in self._found.items()
            if model not in self._unloaded
            for found in versions.values()
        )

    def _check_roots(self) -> None:
        """A folder that has never been there may still come; one that was is a volume that is away."""
        for root in self._settings.roots:
            try:
                next(root.iterdir(), None)
            except OSError:
                if root in self._roots_seen:
                    raise
            else:
                self._roots_seen.add(root)

    def _names(self) -> str:
        return ", ".join(sorted(self._found.keys() - self._unloaded)) or "none"

    def _refusal(self, model: str) -> str:
        reasons = [f"{model}/{v}: {found.reason}" for v, found in self._found.get(model, {}).items()]
        return f"no version of {model} can be served: {'; '.join(reasons) or 'it has been removed'}"

    def _nothing_to_serve(self) -> str:
        folders = ", ".join(str(root) for root in self._settings.roots)
        if self._unloaded:
            return f"every model was taken down by an operator: {', '.join(sorted(self._unloaded))}"
        reasons = [
            f"{model}/{version}: {found.reason}"
            for model, versions in self._found.items()
            for version, found in versions.items()
        ]
        if reasons:
            return f"every bundle in {folders} was refused: {'; '.join(reasons)}"
        return (
            f"no bundle <model>/<version>/ in {folders}; set CAPSNET_MODELS or export one with capsnet-export"
        )


def find_bundles(roots: tuple[Path, ...]) -> dict[str, dict[int, Path]]:
    """Folders `<model>/<version>/` by model and version; where two roots hold the same, the first wins.

    Folders whose names are no model name or no positive integer are passed over: exporters write aside and
    rename, and volumes hold `lost+found`.
    """
    found: dict[str, dict[int, Path]] = {}
    for root in roots:
        for folder in _folders(root):
            if not MODEL_NAME.fullmatch(folder.name):
                continue
            for bundle in _folders(folder):
                if VERSION.fullmatch(bundle.name):
                    found.setdefault(folder.name, {}).setdefault(int(bundle.name), bundle)
    return found


def _folders(parent: Path) -> list[Path]:
    try:
        return sorted(path for path in parent.iterdir() if path.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        log.warning("passed over %s: %s", parent, error)
        return []


def _fingerprint(bundle: Path) -> Fingerprint:
    """Changes when a file of the bundle does, so that one copied while we looked is tried again.

    Where the folder cannot be looked through it is cut short; loading says why.
    """
    files = []
    with suppress(OSError):
        for path in sorted(bundle.iterdir()):
            status = path.stat() if path.exists() else path.lstat()  # a link may lead nowhere
            files.append((path.name, status.st_size, status.st_mtime_ns))
    return tuple(files)
