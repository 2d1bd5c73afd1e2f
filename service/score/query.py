"""What is asked of every picture and what comes of it: the words that the scorers and the tables share."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import orjson


class ScoreError(Exception):
    """Scoring cannot begin or go on; the message says what was expected, what came and what to do."""


@dataclass(frozen=True)
class Query:
    """What is asked of every picture; None leaves the choice to the service, or asks for all classes."""

    model: str | None
    version: int | None
    top_k: int | None
    preprocess: Literal["auto", "off"]
    poses: bool
    min_probability: float | None = None


@dataclass(frozen=True)
class Chosen:
    """The version that answers the query: the same for all rows, even if a newer one is published.

    Attributes:
        digest: of its bundle, which is to stay the same as well.
        views: pictures of which one row is made.
    """

    model: str
    version: int
    class_names: Sequence[str]
    digest: str
    views: int


class Capsule(NamedTuple):
    """One class of a picture: its probability and, where asked for, its pose, flat."""

    label: str
    probability: float
    pose: Sequence[float] | None


@dataclass(frozen=True)
class Loaded:
    """A picture on its way: what it is called, and its file's bytes; of a pair also the right view's."""

    name: str
    content: bytes
    right: bytes | None = None

    @property
    def size_bytes(self) -> int:
        """What it takes in memory."""
        return len(self.content) + len(self.right or b"")


@dataclass(frozen=True)
class Row:
    """What is seen in a picture.

    Attributes:
        name: the picture's.
        classes: by falling probability, all of them or the top k.
        confident: the answer reaches the threshold; None where there is none.
        blank: there was nothing to see.
    """

    name: str
    classes: Sequence[Capsule]
    confident: bool | None
    blank: bool


@dataclass(frozen=True)
class Skipped:
    """A picture that has no row, and why."""

    name: str
    reason: str


Outcome = Row | Skipped
Batch = Sequence[Loaded | Skipped]


def only_model(names: Sequence[str]) -> str:
    """The model for a query that names none where there is no default: the only one.

    Raises:
        ScoreError: there are several.
    """
    if len(names) != 1:
        raise ScoreError(f"there are several models: choose one with --model from {', '.join(names)}")
    return names[0]


def usable_versions(model: str, asked: int | None, versions: Iterable[int]) -> list[int]:
    """The version asked for alone, or all there are, newest first.

    Raises:
        ScoreError: there is no such version.
    """
    known = sorted(versions)
    if asked is None:
        return known[::-1]
    if asked not in known:
        raise ScoreError(f"{model} has no version {asked}; there are {', '.join(map(str, known))}")
    return [asked]


def check_top_k(query: Query, chosen: Chosen) -> None:
    """There are as many classes as are asked for.

    Raises:
        ScoreError: there are fewer.
    """
    classes = len(chosen.class_names)
    if query.top_k is not None and query.top_k > classes:
        raise ScoreError(f"--top-k must be 1 to {classes}, the classes of {chosen.model}; got {query.top_k}")


def as_written(values: object) -> Any:
    """The values as the service's JSON has them: float32 numbers in as few digits as identify them."""
    return orjson.loads(orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY))
