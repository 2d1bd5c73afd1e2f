"""What every picture is scored for, and with which outcome: the types that scorers and tables share."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import orjson

from service.models.traffic import Traffic, order_for_many


class ScoreError(Exception):
    """Scoring cannot start or go on; the message says what was expected, what came and what to do."""


@dataclass(frozen=True)
class Query:
    """How every picture is scored.

    Attributes:
        model: None for the default model.
        version: None for the one that answers requests to a service that name none.
        top_k: the k most probable classes; None for all.
        poses: whether rows hold poses.
        min_probability: from which on an answer is confident; None for the model's own threshold.
    """

    model: str | None
    version: int | None
    top_k: int | None
    preprocess: Literal["auto", "off"]
    poses: bool
    min_probability: float | None = None


@dataclass(frozen=True)
class ChosenModel:
    """The version of a model that scores all pictures, even if a newer one is published meanwhile.

    Attributes:
        digest: of its bundle, which must not change either.
        views: pictures per row.
    """

    name: str
    version: int
    class_names: Sequence[str]
    digest: str
    views: int


class ScoredClass(NamedTuple):
    """One class of a picture: its probability and, if the query wants it, its flat pose."""

    label: str
    probability: float
    pose: Sequence[float] | None


VIEWS = ("left view", "right view")  # of a pair, as reasons name them


@dataclass(frozen=True)
class LoadedPicture:
    """A picture in memory: its name and the bytes of its file, and of the right view's file for a pair."""

    name: str
    content: bytes
    right: bytes | None = None

    @property
    def size_bytes(self) -> int:
        """Its size in memory."""
        return len(self.content) + len(self.right or b"")


@dataclass(frozen=True)
class Row:
    """The result for one picture.

    Attributes:
        name: of the picture.
        classes: by falling probability, all of them or the top k.
        confident: the answer reaches the threshold; None if there is no threshold.
        blank: the picture shows nothing.
    """

    name: str
    classes: Sequence[ScoredClass]
    confident: bool | None
    blank: bool


@dataclass(frozen=True)
class Skipped:
    """A picture without a row, and the reason.

    Attributes:
        name: of the picture.
        reason: for people.
        is_bug: the service answered with an internal error.
    """

    name: str
    reason: str
    is_bug: bool = False


Outcome = Row | Skipped
Batch = Sequence[LoadedPicture | Skipped]


def only_model(names: Sequence[str]) -> str:
    """The only model; for a query without a model where there is no default.

    Raises:
        ScoreError: there are several, or none.
    """
    if not names:
        raise ScoreError("there are no models")
    if len(names) != 1:
        raise ScoreError(f"there are several models: choose one with --model from {', '.join(names)}")
    return names[0]


def usable_versions(
    model: str, requested: int | None, versions: Iterable[int], rule: Traffic | None = None
) -> list[int]:
    """The requested version, or those that may be used in place of one, in this order.

    Args:
        model: its name.
        requested: None for the one that answers requests to a service that name none.
        versions: of the model.
        rule: which one that is; None for the newest.

    Raises:
        ScoreError: there is no such version.
    """
    known = sorted(versions)
    if requested is None:
        order = order_for_many(rule, known)
        if rule and not order:
            there = ", ".join(map(str, known))
            raise ScoreError(
                f"{model} is pinned to version {rule.pinned}, which is not there; available: {there}"
            )
        return order
    if requested not in known:
        raise ScoreError(f"{model} has no version {requested}; available: {', '.join(map(str, known))}")
    return [requested]


def check_top_k(query: Query, model: ChosenModel) -> None:
    """Check that the model has as many classes as the query wants.

    Raises:
        ScoreError: it has fewer.
    """
    classes = len(model.class_names)
    if query.top_k is not None and query.top_k > classes:
        raise ScoreError(f"--top-k must be 1 to {classes}, the classes of {model.name}; got {query.top_k}")


def as_written(values: object) -> Any:
    """The values as the service's JSON has them: float32 numbers in as few digits as identify them."""
    return orjson.loads(orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY))
