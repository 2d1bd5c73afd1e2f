"""The bundles on disk: which there are, whether their files have changed, and which are refused and why."""

import asyncio
import logging
import stat
from collections import defaultdict
from collections.abc import Collection, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from export.contract.manifest import MODEL_NAME, VERSION, BundleError, Manifest
from service.errors import NotWritableError
from service.inference.loading import check_bundle
from service.models.traffic import (
    FILE,
    Rule,
    UnreadableTraffic,
    is_named,
    loading_order,
    read_traffic,
    write_traffic,
)
from service.observability.metrics import Metrics
from service.settings import Settings

Fingerprint = tuple[tuple[str, int, int, int, int], ...]  # of every file, see `_fingerprint`

RESCAN_MISSING_S = 0.5  # a folder that is replaced by another one is missing for a moment

NOT_THERE = FileNotFoundError | NotADirectoryError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BundleVersion:
    """A version on disk.

    Attributes:
        fingerprint: of its files; () if they could not be read or changed while they were, so that the next
            scan tries them again.
        reason: why it is refused, until its files change; "" if it is not.
        manifest: as of the check of its files; None if they have not been checked, or are refused.
    """

    path: Path
    fingerprint: Fingerprint
    reason: str = ""
    manifest: Manifest | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Found:
    """The folders of bundles.

    Attributes:
        bundles: by model and version; where two folders hold the same, the first wins.
        faults: of folders that cannot be listed or are not there, and of entries that cannot be looked at.
        unlisted: why folders cannot be listed, of those that are there.
    """

    bundles: dict[str, dict[int, Path]] = field(default_factory=dict)
    faults: dict[Path, OSError] = field(default_factory=dict)
    unlisted: dict[Path, str] = field(default_factory=dict)

    def is_uncertain(self, bundle: Path) -> bool:
        """Whether a bundle may be there, though it or a folder above it cannot be looked at just now."""
        places = (bundle, bundle.parent, bundle.parent.parent)
        return any(not isinstance(self.faults.get(place), NOT_THERE | None) for place in places)


class Bundles:
    """What the last scan found in the folders of CAPSNET_MODELS.

    All methods belong to the event loop; disks are read in threads.

    Attributes:
        versions: every version by model and number.
        traffic: the rules on disk, of models that have one.
        traffic_faults: what is wrong with the files of models whose rule cannot be read.
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.versions: dict[str, dict[int, BundleVersion]] = {}
        self.traffic: dict[str, Rule] = {}
        self.traffic_faults: dict[str, str] = {}
        self._scanning: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by model
        self._traffic_changing = asyncio.Lock()
        self._traffic_known: set[str] = set()  # models whose rule, or that they have none, has been read
        self._roots = settings.roots
        self._checked_versions = settings.versions_kept
        self._metrics = metrics
        self._roots_seen: set[Path] = set()
        self._roots_awaited: set[Path] = set()  # of which the log has told that they are not there
        self._unlisted: dict[Path, str] = {}  # of which the log has told

    async def scan(self) -> None:
        """Note every model and version that is on disk now.

        Raises:
            OSError: a folder that was there is not; what was known of its models stays.
        """
        found = await asyncio.to_thread(_list_bundles, self._roots)
        _warn_of_unlisted(found.unlisted, self._unlisted)
        self._unlisted = found.unlisted
        self._check_roots(found)
        missing = {model: self._missing(model, found) for model in self.versions}
        if any(missing.values()):
            await asyncio.sleep(RESCAN_MISSING_S)
        for model in sorted(found.bundles.keys() | self.versions.keys()):
            await self.scan_model(model, missed=missing.get(model, ()))

    async def scan_model(
        self, model: str, *, again: bool = False, named: Collection[int] = (), missed: Collection[int] = ()
    ) -> None:
        """Note the rule of a model and its versions as they are on disk now.

        Args:
            model: its name; there may be none of that name.
            again: also check refused versions that have not changed.
            named: also check these, as if the rule named them.
            missed: versions that were not there a while ago.

        Raises:
            OSError: a folder that was there is not; nothing has been changed.
        """
        if not MODEL_NAME.fullmatch(model):  # it must not become a path
            return
        async with self._scanning[model]:  # or a slow scan would bring back what was listed before another
            found = await asyncio.to_thread(_list_model, self._roots, model)
            if self._missing(model, found) - {*missed}:
                await asyncio.sleep(RESCAN_MISSING_S)
                found = await asyncio.to_thread(_list_model, self._roots, model)
            if missing := self._missing_root(found):
                raise missing
            paths = self._paths(model, found)
            if paths or model in self.versions:
                await self._check_versions(model, paths, again=again, named=named)

    def _missing(self, model: str, found: Found) -> set[int]:
        """Versions that are known and have not been found."""
        return self.versions.get(model, {}).keys() - self._paths(model, found).keys()

    def _paths(self, model: str, found: Found) -> dict[int, Path]:
        """The folders of a model's versions, with those known in a folder that just now cannot be listed."""
        known = self.versions.get(model, {}).items()
        kept = {number: one.path for number, one in known if found.is_uncertain(one.path)}
        return found.bundles.get(model, {}) | kept

    async def set_traffic(self, model: str, rule: Rule | None) -> None:
        """Write a model's rule, or remove it.

        Raises:
            NotWritableError: no folder of the model can be written; nothing has been changed.
        """
        async with self._traffic_changing:  # or a scan that has read the old one would bring it back
            try:
                await asyncio.to_thread(write_traffic, self._folders(model), rule)
            except OSError as error:
                raise NotWritableError(
                    f"{FILE} of {model} cannot be written: {error}; who publishes its bundles can write it"
                ) from None
            self._note_traffic(model, rule)

    async def _check_versions(
        self, model: str, paths: Mapping[int, Path], *, again: bool, named: Collection[int]
    ) -> None:
        """Note a model's rule and its bundles; those that are to be served and have changed are hashed."""
        self._metrics.found(model)
        await self._read_traffic(model)
        rule = self.traffic.get(model)
        known, now = self.versions.get(model, {}), dict[int, BundleVersion]()
        unnamed = 0  # that come before this one and may be served
        for version in loading_order(rule, paths):
            path = paths[version]
            bundle = BundleVersion(path, await asyncio.to_thread(_fingerprint, path))
            before = known.get(version)
            is_same = before and (before.path, before.fingerprint) == (path, bundle.fingerprint)
            is_ruled = is_named(rule, version) or version in named
            is_wanted = is_ruled or unnamed < self._checked_versions
            if before and is_same and not _is_due(before, is_wanted=is_wanted, again=again):
                bundle = before
            elif is_wanted:
                bundle = await self._checked(model, version, bundle)
            now[version] = bundle
            unnamed += not is_ruled and not bundle.reason
        if now:
            self.versions[model] = now
        else:
            self.versions.pop(model, None)
            self._traffic_known.discard(model)

    async def _read_traffic(self, model: str) -> None:
        """Note a model's rule, or that its file is broken."""
        async with self._traffic_changing:
            try:
                rule = await asyncio.to_thread(read_traffic, self._folders(model))
            except (OSError, ValueError) as error:
                self._note_unreadable_traffic(model, str(error))
            else:
                self._note_traffic(model, rule)

    def _note_unreadable_traffic(self, model: str, reason: str) -> None:
        """What was read before stays. Where nothing was, the newest version may not be the one to answer."""
        is_known = model in self._traffic_known
        if not is_known:
            self.traffic[model] = UnreadableTraffic(reason)
        if self.traffic_faults.get(model) == reason:
            return
        self.traffic_faults[model] = reason
        if is_known:
            log.warning("the traffic of %s stays as it was: %s", model, reason)
        else:
            log.error("no version of %s answers requests that name none: %s", model, reason)

    def _note_traffic(self, model: str, rule: Rule | None) -> None:
        self.traffic_faults.pop(model, None)
        self._traffic_known.add(model)
        if rule == self.traffic.get(model):
            return
        if rule:
            self.traffic[model] = rule
        else:
            self.traffic.pop(model, None)

    def _folders(self, model: str) -> list[Path]:
        return [root / model for root in self._roots]

    async def _checked(self, model: str, version: int, bundle: BundleVersion) -> BundleVersion:
        try:
            manifest = await asyncio.to_thread(check_bundle, bundle.path, model)
        except Exception as error:  # whatever is wrong with one bundle must not keep us from the others
            return self._refused(model, version, bundle, error)
        return replace(bundle, manifest=manifest)

    async def refuse(self, model: str, version: int, bundle: BundleVersion, error: Exception) -> None:
        """Note that a version could not be loaded; if its files are others by now, the next scan tries again.

        A folder that was away for a moment is the same when it is back, and would stay refused.
        """
        async with self._scanning[model]:  # a scan under way would write over it
            if await asyncio.to_thread(_fingerprint, bundle.path) != bundle.fingerprint:
                bundle = replace(bundle, fingerprint=())
            self.versions.setdefault(model, {})[version] = self._refused(model, version, bundle, error)

    def _refused(self, model: str, version: int, bundle: BundleVersion, error: Exception) -> BundleVersion:
        is_foreseen = isinstance(error, BundleError | OSError)
        text = str(error) if is_foreseen else f"{type(error).__name__}: {error}"
        reason = text.replace(f"{bundle.path}/", "")
        if isinstance(error, OSError):  # of the system, which may pass while the files stay as they are
            unread = BundleVersion(bundle.path, (), reason)
            if unread == self.versions.get(model, {}).get(version):
                return unread
            bundle = unread
        trace = None if is_foreseen else error
        log.error("refused %s/%d in %s: %s", model, version, bundle.path, reason, exc_info=trace)
        self._metrics.refused(model)
        return BundleVersion(bundle.path, bundle.fingerprint, reason)

    def is_any_usable(self, unloaded: Set[str]) -> bool:
        """There is a version that is not refused, of a model that no operator has taken down."""
        return any(self.is_usable(model) for model in self.versions.keys() - unloaded)

    def is_usable(self, model: str | None) -> bool:
        """There is a version of this model that is not refused."""
        versions = self.versions.get(model, {}) if model is not None else {}
        return any(not bundle.reason for bundle in versions.values())

    def refusal(self, model: str) -> str:
        """Why no version of a model can be served."""
        reasons = [f"{model}/{v}: {bundle.reason}" for v, bundle in self.versions.get(model, {}).items()]
        return f"no version of {model} can be served: {'; '.join(reasons) or 'it has been removed'}"

    def nothing_to_serve(self) -> str:
        """Why no model at all can be served."""
        folders = ", ".join(str(root) for root in self._roots)
        reasons = [
            f"{model}/{version}: {bundle.reason}"
            for model, versions in self.versions.items()
            for version, bundle in versions.items()
        ]
        if reasons:
            return f"every bundle in {folders} was refused: {'; '.join(reasons)}"
        return (
            f"no bundle <model>/<version>/ in {folders}; set CAPSNET_MODELS or export one with capsnet-export"
        )

    def _missing_root(self, found: Found) -> OSError | None:
        """Why a folder that was there is not; one that is there and cannot be listed is none."""
        faults = [found.faults.get(root) for root in self._roots_seen]
        return next((fault for fault in faults if isinstance(fault, NOT_THERE)), None)

    def _check_roots(self, found: Found) -> None:
        """Raise if a folder is gone that was there: a volume may be away. A missing one may still appear."""
        for root in self._roots:
            if root not in found.faults:
                self._roots_seen.add(root)
            elif root in self._roots_seen:
                raise found.faults[root]
            elif root not in self._roots_awaited and isinstance(found.faults[root], NOT_THERE):
                self._roots_awaited.add(root)
                log.warning("there is no folder %s (CAPSNET_MODELS); its bundles are served once it is", root)


def find_bundles(roots: tuple[Path, ...]) -> dict[str, dict[int, Path]]:
    """Folders `<model>/<version>/` by model and version; where two roots hold the same, the first wins.

    Folders whose names are not a model name or not a positive integer are skipped: exporters write to
    temporary folders and rename them, and volumes hold `lost+found`.
    """
    found = _list_bundles(roots)
    _warn_of_unlisted(found.unlisted, told={})
    return found.bundles


def _warn_of_unlisted(unlisted: Mapping[Path, str], told: Mapping[Path, str]) -> None:
    """Log the folders that cannot be listed, except those that the log has told of with the same reason."""
    for folder, reason in sorted(unlisted.items() - told.items()):
        log.warning("skipped %s: %s", folder, reason)


def _list_bundles(roots: tuple[Path, ...]) -> Found:
    found = Found()
    for root in roots:
        for folder in _folders(root, found):
            if MODEL_NAME.fullmatch(folder.name):
                _add_versions(folder, found)
    return found


def _list_model(roots: tuple[Path, ...], model: str) -> Found:
    """The bundles of one model."""
    found = Found()
    for root in roots:
        if _is_folder(root, found.faults) and _is_folder(root / model, found.faults):
            _add_versions(root / model, found)
    return found


def _add_versions(folder: Path, found: Found) -> None:
    """Note the bundles of a model in one folder, unless an earlier folder has them."""
    for bundle in _folders(folder, found):
        if VERSION.fullmatch(bundle.name):
            found.bundles.setdefault(folder.name, {}).setdefault(int(bundle.name), bundle)


def _is_due(bundle: BundleVersion, *, is_wanted: bool, again: bool) -> bool:
    """Whether a version whose files have not changed is to be checked all the same."""
    return again if bundle.reason else is_wanted and bundle.manifest is None


def _folders(parent: Path, found: Found) -> list[Path]:
    """The folders in a folder; notes why it cannot be listed."""
    try:
        return sorted(path for path in parent.iterdir() if _is_folder(path, found.faults))
    except OSError as error:
        found.faults[parent] = error
        if not isinstance(error, NOT_THERE):
            found.unlisted[parent] = str(error)
        return []


def _is_folder(path: Path, faults: dict[Path, OSError]) -> bool:
    """Whether this is a folder; notes why it cannot be looked at, which costs itself alone."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except OSError as error:
        faults[path] = error
        return False


def _fingerprint(bundle: Path) -> Fingerprint:
    """Changes when a file of the bundle does, so that a bundle that was still being copied is tried again.

    It holds every file's name, inode, size and times: rsync and tar can replace a file by another one of the
    same size and modification time, but not of the same inode and change time. If the folder cannot be read,
    it is cut short; loading says why.
    """
    files = []
    with suppress(OSError):
        for path in sorted(bundle.iterdir()):
            status = path.stat() if path.exists() else path.lstat()  # a link may lead nowhere
            times = status.st_mtime_ns, status.st_ctime_ns
            files.append((path.name, status.st_ino, status.st_size, *times))
    return tuple(files)
