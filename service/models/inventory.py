"""What is on disk, what is loaded of it, and what has become of every version."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from service.errors import ModelRequiredError, NotReadyError, RefusedModelError, UnknownModelError, shown
from service.models.index_entry import SERVABLE, IndexEntry, State
from service.models.loaded_model import LoadedModel
from service.models.remembered import Remembered
from service.models.scanner import Bundles
from service.models.traffic import Rule, UnreadableTraffic, choose_for_many, find, is_named, pinned_by
from service.settings import Settings

log = logging.getLogger(__name__)


class StartError(RuntimeError):
    """Nothing can be served; the message says what was looked for, where, and what was wrong with it."""


class Inventory:
    """State that `Repository` changes, and queries on it.

    The queries are which versions there are, which one a request means, and why one is not served.

    Attributes:
        bundles: what is on disk.
        loaded: the versions that serve, by model and number.
        active_traffic: the rules that hold, of models that have one. One that pins a version not loaded yet
            is on disk, in `bundles.traffic`, before it holds.
        changing: held while the versions of a model change.
        is_scanned: the disk has been scanned at least once.
        failure: why nothing can be served, as of the last scan; None while something can.
    """

    def __init__(self, bundles: Bundles, settings: Settings, remembered: Remembered) -> None:
        self.bundles = bundles
        self._remembered = remembered
        self.loaded: dict[str, dict[int, LoadedModel]] = {}
        self.active_traffic: dict[str, Rule] = {}
        self._held_back: dict[str, str] = {}  # why the rule on disk does not hold, as last logged
        self.changing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.is_scanned = False
        self.failure: StartError | None = None
        self._default_model = settings.default_model
        self._default_is_set = "default_model" in settings.model_fields_set
        self._versions_kept = settings.versions_kept

    def find(self, model: str | None, version: int | None) -> LoadedModel | None:
        """The loaded version that a request means, None where there is none."""
        name = self.default() if model is None else model
        return (
            None if name is None else find(self.active_traffic.get(name), self.loaded.get(name, {}), version)
        )

    def name_of(self, model: str | None) -> str:
        """The name of the model that a request means, loaded or not.

        Raises:
            NotReadyError: nothing is loaded yet.
            ModelRequiredError: several models are served and none is named.
            UnknownModelError: no such model is served.
        """
        if not self.is_any_usable() and not (self._remembered.unloaded & self.bundles.versions.keys()):
            raise self.not_ready()
        name = self.default() if model is None else model
        if not self.is_scanned and name not in self.bundles.versions:  # it may still be found
            raise self.not_ready()
        if name is None:
            default = shown(self._default_model)
            raise ModelRequiredError(
                f"several models are served: name one of {self._listed()} as model; CAPSNET_DEFAULT_MODEL is "
                f"{default}, which is not among them"
            )
        self._check_not_unloaded(name)
        if name not in self.bundles.versions and name not in self.loaded:
            raise UnknownModelError(f"no model {shown(name)} is served; there are {self._listed()}")
        return name

    def default(self) -> str | None:
        """The model of requests that name none: the one in the settings, else the only one of all."""
        if self._default_model in self.bundles.versions:
            return self._default_model
        is_only_one = self.is_scanned and len(self.bundles.versions) == 1
        return next(iter(self.bundles.versions)) if is_only_one else None

    def names(self) -> list[str]:
        """Every model that is on disk.

        Raises:
            NotReadyError: the first scan has not finished.
        """
        if not self.is_scanned:
            raise self.not_ready()
        return sorted(self.bundles.versions)

    def entries(self, name: str) -> list[IndexEntry]:
        """The versions of a model, newest first."""
        rule = self.bundles.traffic.get(name)
        entries: list[IndexEntry] = []
        versions = self.loaded.get(name, {}).keys() | self.bundles.versions.get(name, {}).keys()
        servable = 0
        for version in sorted(versions, reverse=True):
            is_ruled = is_named(rule, version)
            is_kept = is_ruled or servable < self._versions_kept or self._remembered.is_named(name, version)
            entry = self._entry(name, version, is_kept=is_kept)
            servable += entry.state in SERVABLE and not is_ruled
            entries.append(entry)
        return entries

    def state(self, name: str, version: int | None) -> State | None:
        """What has become of a version; None if there is no such version."""
        return next((entry.state for entry in self.entries(name) if entry.version == version), None)

    def why_not(self, name: str, version: int | None) -> str:
        """Why a version of a model does not answer, or the one that it is pinned to."""
        why = "".join(f" ({one.state}: {one.reason})" for one in self.entries(name) if one.version == version)
        loaded = ", ".join(str(loaded) for loaded in sorted(self.loaded.get(name, {}))) or "none"
        return f"{name} has no loaded version {shown(version)}{why}; available: {loaded}"

    def meant(self, name: str, version: int | None) -> int | None:
        """The version of a model that a request means, if it means one whatever is loaded."""
        return pinned_by(self.bundles.traffic.get(name)) if version is None else version

    def none_answers(self, name: str) -> NotReadyError:
        """What a request gets that names no version of a loaded model, where none may answer it."""
        rule = self.bundles.traffic.get(name)
        if isinstance(rule, UnreadableTraffic):
            return NotReadyError(
                f"which version of {name} answers cannot be read; requests that name a version are answered: "
                f"{rule.reason}"
            )
        pinned = pinned_by(rule)
        return NotReadyError(f"{name} is pinned to version {pinned}: {self.why_not(name, pinned)}")

    def adopt_traffic(self, model: str, rule: Rule | None) -> None:
        """From now on a model's rule is this one."""
        self._held_back.pop(model, None)
        if rule == self.active_traffic.get(model):
            return
        log.info("requests to %s that name no version go to %s", model, rule or "the newest")
        if rule:
            self.active_traffic[model] = rule
        else:
            self.active_traffic.pop(model, None)

    def hold_traffic_back(self, model: str) -> None:
        """The rule before serves on: the version that the one on disk pins is not loaded. Logged once."""
        reason = self._why_held_back(model)
        if reason and self._held_back.get(model) != reason:
            self._held_back[model] = reason
            log.warning("%s", reason)

    def _why_held_back(self, model: str) -> str:
        """Why the rule on disk does not hold; "" if it does, or if nothing of the model is loaded."""
        rule, active = self.bundles.traffic.get(model), self.active_traffic.get(model)
        loaded, pinned = self.loaded.get(model, {}), pinned_by(rule)
        if not loaded or rule == active or pinned is None or pinned in loaded:
            return ""
        why = self.why_not(model, pinned)
        return f"requests to {model} that name no version still go to {active or 'the newest'}: {why}"

    def describe(self, model: str, *, manifests: bool) -> dict[str, Any]:
        """What is on disk of a model and what has become of it, newest first.

        Raises:
            NotReadyError: the first scan has not finished.
            UnknownModelError: there is no such model.
        """
        self.check_known(model)
        entries = self.entries(model)
        default = self._default_version(model, entries)
        versions = [
            {**self._describe_version(entry, manifests), "default": entry.version == default}
            for entry in entries
        ]
        described: dict[str, Any] = {"name": model, "default": model == self.default(), "versions": versions}
        rule = self.bundles.traffic.get(model)
        if rule and not isinstance(rule, UnreadableTraffic):
            described["traffic"] = rule.model_dump(exclude_none=True)
        if fault := self.bundles.traffic_faults.get(model):
            is_unknown = isinstance(rule, UnreadableTraffic)
            after = "" if is_unknown else "; until a restart, requests go as they did before"
            described["traffic_error"] = fault + after
        elif reason := self._why_held_back(model):
            described["traffic_error"] = reason
        return described

    def check_known(self, model: str) -> None:
        """There is such a model.

        Raises:
            NotReadyError: the first scan has not finished.
            UnknownModelError: there is not.
        """
        if model not in self.names():
            raise UnknownModelError(f"no model {shown(model)}; there are {self._listed()}")

    def check_loaded(self, model: str) -> None:
        """A model that should be loaded is.

        Raises:
            UnknownModelError: an operator has taken it down.
            RefusedModelError: none of its versions can be served; says why.
        """
        self._check_not_unloaded(model)
        if model not in self.loaded:
            raise RefusedModelError(self.bundles.refusal(model))

    def check_servable(self, model: str, versions: Iterable[int]) -> None:
        """These versions of a model are on disk and not refused.

        Raises:
            NotReadyError: the first scan has not finished.
            UnknownModelError: there is no such model, or no such version.
            RefusedModelError: one cannot be served; says why.
        """
        self.check_known(model)
        on_disk = self.bundles.versions[model]
        for version in versions:
            if version not in on_disk:
                there = [str(each) for each, bundle in sorted(on_disk.items()) if not bundle.reason]
                available = ", ".join(there) or "none"
                raise UnknownModelError(f"{model} has no version {version}; available: {available}")
            if reason := on_disk[version].reason:
                raise RefusedModelError(f"{model}/{version}: {reason}")

    def not_ready(self) -> NotReadyError:
        """What a client is told while nothing can be served."""
        return NotReadyError(str(self.failure or "models are still loading"))

    def is_any_usable(self) -> bool:
        """A version is loaded, or could be."""
        return bool(self.loaded) or self.bundles.is_any_usable(self._remembered.unloaded)

    def answers_without_any_loaded(self) -> bool:
        """Models load as requests name them, and there is no default model that is loaded before that."""
        is_awaited = (
            self.bundles.is_usable(self.default()) and self.default() not in self._remembered.unloaded
        )
        return self.is_scanned and self.is_any_usable() and not is_awaited

    def note_unknown_default(self) -> None:
        """Log that there is no model of the name in CAPSNET_DEFAULT_MODEL, though there are others."""
        versions = self.bundles.versions
        if self._default_is_set and versions and self._default_model not in versions:
            log.warning(
                "CAPSNET_DEFAULT_MODEL is %s, and there is no such model; there are %s",
                self._default_model,
                self._listed(),
            )

    def note_failure(self) -> None:
        """Note whether anything can be served, and if not, why."""
        self.failure = None if self.is_any_usable() else StartError(self._nothing_to_serve())

    def _entry(self, name: str, version: int, *, is_kept: bool) -> IndexEntry:
        bundle = self.bundles.versions.get(name, {}).get(version)
        reason = bundle.reason if bundle else ""
        if version in self.loaded.get(name, {}):
            return IndexEntry(name, version, "loaded", reason)
        if reason:
            return IndexEntry(name, version, "refused", reason)
        if name in self._remembered.unloaded:
            return IndexEntry(name, version, "unloaded", "taken down by an operator")
        if not is_kept:
            kept = f"CAPSNET_VERSIONS_KEPT={self._versions_kept}"
            return IndexEntry(name, version, "superseded", f"newer versions are served: {kept}")
        return IndexEntry(name, version, "loading" if self.changing[name].locked() else "available")

    def _default_version(self, model: str, entries: list[IndexEntry]) -> int | None:
        """What answers requests that name no version; of a model that loads with the first one, what will."""
        if loaded := self.loaded.get(model):
            return choose_for_many(self.active_traffic.get(model), loaded)
        servable = [entry.version for entry in entries if entry.state in SERVABLE]
        return choose_for_many(self.bundles.traffic.get(model), servable)

    def _describe_version(self, entry: IndexEntry, manifests: bool) -> dict[str, Any]:
        described: dict[str, Any] = {"version": entry.version, "state": entry.state}
        if entry.reason:  # also of a loaded version whose files cannot be served any more
            described["reason"] = entry.reason
        bundle = self.bundles.versions.get(entry.name, {}).get(entry.version)
        manifest = bundle.manifest if bundle else None
        if model := self.loaded.get(entry.name, {}).get(entry.version):
            described |= model.describe()
            manifest = model.manifest
        if manifests and manifest:
            described["manifest"] = manifest.model_dump(mode="json")
        return described

    def _check_not_unloaded(self, model: str) -> None:
        if model in self._remembered.unloaded:
            raise UnknownModelError(f"{model} was taken down by an operator; there are {self._listed()}")

    def _listed(self) -> str:
        return ", ".join(sorted(self.bundles.versions.keys() - self._remembered.unloaded)) or "none"

    def _nothing_to_serve(self) -> str:
        taken_down = sorted(self._remembered.unloaded & self.bundles.versions.keys())
        if taken_down:
            return f"taken down by an operator: {', '.join(taken_down)}; no other model can be served"
        return self.bundles.nothing_to_serve()
