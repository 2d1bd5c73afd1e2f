"""Bundles on disk and the versions of them that are served.

The folders of CAPSNET_MODELS are looked through at the start and then every CAPSNET_RESCAN_S seconds. A new
version is loaded aside and only then takes the traffic; an old one finishes what it has begun. What is on
disk decides: removing a bad version brings back the one before. A name or a version in a request is looked
up among what was found and never becomes a path.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.contract.manifest import MODEL_NAME, VERSION, BundleError
from service.batcher import Batcher
from service.engine import DeviceError, Engine, Placement, load_engine
from service.errors import ModelRequiredError, NotReadyError, UnknownModelError, shown
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
        provider = self.engine.encoder.get_providers()[0]
        state = {"version": self.version, "state": "loaded", "device": self.engine.device}
        return {**state, "provider": provider, "graphs": graphs}


@dataclass(frozen=True)
class Refused:
    """A version that could not be loaded, tried again when its files change."""

    path: Path
    fingerprint: Fingerprint
    reason: str


class Repository:
    """What is served. All methods belong to the event loop; loading happens in threads.

    Attributes:
        failure: why nothing can be served, as the last scan has found out.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._placement = Placement(settings.device, settings.max_batch, settings.cache)
        self._served: dict[str, dict[int, Served]] = {}
        self._refused: dict[str, dict[int, Refused]] = {}
        self._retiring: dict[asyncio.Task[None], Served] = {}
        self._roots_seen: set[Path] = set()
        self._is_looked_through = False
        self.failure: StartError | None = None

    @contextmanager
    def use(self, model: str | None, version: int | None) -> Iterator[Served]:
        """The model of a request, kept loaded while the request needs it.

        Raises:
            NotReadyError: nothing is loaded yet.
            ModelRequiredError: several models are served and none is named.
            UnknownModelError: no such model or version is served.
        """
        served = self._choose(model, version)
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
        self._refused = {
            model: {v: refused for v, refused in versions.items() if v in found.get(model, {})}
            for model, versions in self._refused.items()
        }
        for model in sorted(found.keys() | self._served.keys()):
            await self._update(model, found.get(model, {}))
        self.failure = None if self._served else StartError(self._nothing_to_serve())

    def describe(self, model: str, *, manifests: bool) -> dict[str, Any]:
        """What is loaded of a model, or refused and why, newest first.

        Raises:
            NotReadyError: the first scan is not over.
            UnknownModelError: there is no such model.
        """
        self._check_looked_through()
        loaded, refused = self._served.get(model, {}), self._refused.get(model, {})
        if not loaded and not refused:
            raise UnknownModelError(f"no model {shown(model)}; there are {self._names()}")
        versions = {v: served.describe() for v, served in loaded.items()}
        if manifests:
            for v, served in loaded.items():
                versions[v]["manifest"] = served.engine.manifest.model_dump(mode="json")
        for v, broken in refused.items():
            versions.setdefault(v, {"version": v, "state": "refused", "reason": broken.reason})
        newest_first = [versions[v] for v in sorted(versions, reverse=True)]
        return {"name": model, "default": model == self._default(), "versions": newest_first}

    def names(self) -> list[str]:
        """Every model that has a loaded or a refused version.

        Raises:
            NotReadyError: the first scan is not over.
        """
        self._check_looked_through()
        return sorted(self._served.keys() | {model for model, versions in self._refused.items() if versions})

    def ready(self) -> list[Served]:
        """Everything that is loaded.

        Raises:
            NotReadyError: nothing is loaded, or an inference thread does not answer; says which.
        """
        loaded = [served for versions in self._served.values() for served in versions.values()]
        if not loaded:
            raise NotReadyError(str(self.failure or "models are still loading"))
        for served in loaded:
            if not served.batcher.answering:
                raise NotReadyError(
                    f"the inference thread of {served.model}/{served.version} does not answer"
                )
        return loaded

    async def close(self) -> None:
        """End every inference thread; no request is left waiting."""
        open_ones = [served for versions in self._served.values() for served in versions.values()]
        open_ones += self._retiring.values()
        self._served = {}
        for task in self._retiring:
            task.cancel()
        await asyncio.gather(*(asyncio.to_thread(served.batcher.close) for served in open_ones))

    async def _update(self, model: str, found: Mapping[int, Path]) -> None:
        """Serve the newest versions of a model that can be loaded, as many as are kept."""
        loaded = self._served.get(model, {})
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

    async def _load(self, model: str, version: int, path: Path, loaded: Served | None) -> Served | None:
        """Load a version unless it is loaded with the same files; one that is refused replaces nothing."""
        fingerprint = await asyncio.to_thread(_fingerprint, path)
        for known in (loaded, self._refused.get(model, {}).get(version)):
            if known and (known.path, known.fingerprint) == (path, fingerprint):
                return loaded
        try:
            engine = await asyncio.to_thread(load_engine, path, model, self._placement)
        except (BundleError, OSError) as error:
            reason = str(error).replace(f"{path}/", "")
            log.error("refused %s/%d in %s: %s", model, version, path, reason)  # noqa: TRY400 the reason is all
            self._refused.setdefault(model, {})[version] = Refused(path, fingerprint, reason)
            return loaded
        self._refused.get(model, {}).pop(version, None)
        log.info("loaded %s/%d from %s on %s", model, version, path, engine.device)
        return Served(model, version, path, fingerprint, engine, self._batcher(f"{model}/{version}"))

    def _batcher(self, name: str) -> Batcher:
        settings = self._settings
        return Batcher(
            name,
            max_batch=settings.max_batch,
            queue_images=settings.queue_images,
            deadline_ms=settings.deadline_ms,
        )

    def _retire(self, served: Served) -> None:
        task = asyncio.create_task(_drain(served))
        self._retiring[task] = served
        task.add_done_callback(self._retiring.pop)

    def _choose(self, model: str | None, version: int | None) -> Served:
        if not self._served:
            raise NotReadyError(str(self.failure or "models are still loading"))
        name = model if model is not None else self._default()
        if name is None:
            raise ModelRequiredError(f"several models are served: name one of {self._names()} as model")
        versions = self._served.get(name)
        if versions is None:
            raise UnknownModelError(f"no model {shown(name)} is loaded; there are {self._names()}")
        if version is None:
            return versions[max(versions)]
        if version not in versions:
            listed = ", ".join(str(v) for v in sorted(versions))
            raise UnknownModelError(f"{name} has no loaded version {shown(version)}; there are {listed}")
        return versions[version]

    def _default(self) -> str | None:
        if self._settings.default_model in self._served:
            return self._settings.default_model
        return next(iter(self._served)) if len(self._served) == 1 else None

    def _check_looked_through(self) -> None:
        if not self._is_looked_through:
            raise NotReadyError(str(self.failure or "models are still loading"))

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
        return ", ".join(sorted(self._served)) or "none"

    def _nothing_to_serve(self) -> str:
        folders = ", ".join(str(root) for root in self._settings.roots)
        reasons = [
            f"{model}/{version}: {refused.reason}"
            for model, versions in self._refused.items()
            for version, refused in versions.items()
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


async def _drain(served: Served) -> None:
    """Close a version that takes no new requests once those it has are answered."""
    while served.users:
        served.idle.clear()
        await served.idle.wait()
    await asyncio.to_thread(served.batcher.close)
    log.info("dropped %s/%d", served.model, served.version)
