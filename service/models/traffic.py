"""Which version answers a request that names none: the newest, a pinned one, or a canary for a share of them.

The rule of a model is `traffic.json` in its folder, beside its versions: whoever publishes bundles may write
it, and the administrator's route does. So it outlives the service, and all services on a volume follow it.
"""

import random
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from export.contract.atomic_file import atomic_file

V = TypeVar("V")
FILE = "traffic.json"
LARGEST_VERSION = 999_999_999  # see `export.contract.manifest.VERSION`


class Traffic(BaseModel):
    """Which version of a model answers requests that name none. By default the newest.

    Attributes:
        pinned: answers in place of the newest.
        canary: answers `share` of the requests, drawn anew for each.
        share: from 0 to 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    pinned: int | None = Field(
        default=None, ge=1, le=LARGEST_VERSION, description="answers in place of the newest version"
    )
    canary: int | None = Field(
        default=None, ge=1, le=LARGEST_VERSION, description="answers `share` of the requests"
    )
    share: float | None = Field(
        default=None, ge=0, le=1, description="of the requests, drawn anew for each; with a canary"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.pinned is None and self.canary is None:
            raise ValueError("name a pinned version, a canary with its share, or both")
        if (self.canary is None) != (self.share is None):
            raise ValueError("canary and share come together")
        if self.pinned == self.canary:
            raise ValueError(f"version {self.pinned} cannot be both pinned and the canary")
        return self

    @property
    def named(self) -> tuple[int, ...]:
        """The versions that the rule names."""
        return tuple(version for version in (self.pinned, self.canary) if version is not None)

    def __str__(self) -> str:
        """The rule, for people."""
        rest = "the newest" if self.pinned is None else f"version {self.pinned}"
        if self.share is None:
            return rest
        return f"version {self.canary} with a share of {self.share:g}, else to {rest}"


@dataclass(frozen=True)
class UnreadableTraffic:
    """The rule of a model whose file has been broken since its first scan.

    It may pin a version. So none answers requests that name none, until the file is repaired or replaced.

    Attributes:
        reason: what is wrong with the file.
    """

    reason: str

    def __str__(self) -> str:
        """The rule, for people."""
        return "no version"


Rule = Traffic | UnreadableTraffic


def choose(
    rule: Rule | None, loaded: Collection[int], draw: Callable[[], float] = random.random
) -> int | None:
    """The version that answers a request which names none.

    Args:
        rule: None sends all traffic to the newest.
        loaded: the versions that serve.
        draw: gives a number from 0 up to 1, for this request.

    Returns:
        None if nothing is loaded, or not the pinned version: another one never answers in its place. Also
        None where the rule cannot be read.
    """
    if rule is None:
        return max(loaded, default=None)
    if isinstance(rule, UnreadableTraffic):
        return None
    if rule.share is not None and rule.canary in loaded and draw() < rule.share:
        return rule.canary
    if rule.pinned is not None:
        return rule.pinned if rule.pinned in loaded else None
    others = [version for version in loaded if version != rule.canary]
    return max(others or loaded, default=None)


def find(rule: Rule | None, versions: Mapping[int, V], version: int | None) -> V | None:
    """Of the versions that serve, the one that a request means, by its number or the rule; None if none."""
    chosen = choose(rule, versions) if version is None else version
    return None if chosen is None else versions.get(chosen)


def choose_for_many(rule: Rule | None, loaded: Collection[int]) -> int | None:
    """The version for images that belong together, such as a folder: the one that answers most requests.

    Args:
        rule: as for `choose`, as is the answer.
        loaded: the versions that serve.
    """
    return choose(rule, loaded, lambda: 0.5)


def order_for_many(rule: Rule | None, versions: Iterable[int]) -> list[int]:
    """The version of `choose_for_many`, then those that stand in for it where it cannot be loaded."""
    left, order = set(versions), list[int]()
    while (version := choose_for_many(rule, left)) is not None:
        order.append(version)
        left.remove(version)
    return order


def is_named(rule: Rule | None, version: int) -> bool:
    """Whether a rule names a version, which then is loaded, however many newer ones there are."""
    return isinstance(rule, Traffic) and version in rule.named


def pinned_by(rule: Rule | None) -> int | None:
    """The version that a rule pins, None if it pins none or cannot be read."""
    return rule.pinned if isinstance(rule, Traffic) else None


def loading_order(rule: Rule | None, versions: Iterable[int]) -> list[int]:
    """Newest first, but a pinned version before them, so that it answers first, and a canary after them."""

    def place(version: int) -> tuple[int, int]:
        if isinstance(rule, Traffic) and version == rule.pinned:
            return 0, -version
        if isinstance(rule, Traffic) and version == rule.canary:
            return 2, -version
        return 1, -version

    return sorted(versions, key=place)


def read_traffic(folders: Iterable[Path]) -> Traffic | None:
    """The rule in the first of a model's folders that has one; None if none has.

    Raises:
        OSError: a file cannot be read.
        ValueError: it is no rule; says which file, and why.
    """
    for folder in folders:
        try:
            text = (folder / FILE).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            return Traffic.model_validate_json(text)
        except ValidationError as error:
            faults = "; ".join(fault["msg"].removeprefix("Value error, ") for fault in error.errors())
            raise ValueError(f"{folder / FILE}: {faults}") from None
    return None


def write_traffic(folders: list[Path], rule: Rule | None) -> None:
    """Write a model's rule over the one that holds, else into the first of its folders that can be written.

    Args:
        folders: the model's folder under each of CAPSNET_MODELS.
        rule: None removes every one there is; in place of one that could not be read, an empty file is
            written, which cannot be read either.

    Raises:
        OSError: that cannot be done.
    """
    there = [folder for folder in folders if (folder / FILE).exists()]
    if rule is None:
        for folder in reversed(there):  # the one that holds goes last, if all the others can
            (folder / FILE).unlink(missing_ok=True)
        return
    text = rule.model_dump_json(exclude_none=True) + "\n" if isinstance(rule, Traffic) else ""
    # A folder that holds versions comes before one that would have to be made.
    candidates = there[:1] or sorted(folders, key=lambda folder: not folder.is_dir())
    failure: OSError | None = None
    for folder in candidates:
        try:
            _replace(folder / FILE, text)
        except OSError as error:
            failure = failure or error
        else:
            return
    if failure:
        raise failure


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path, suffix=uuid4().hex) as aside:  # other services on the volume may write, too
        aside.write_text(text)
