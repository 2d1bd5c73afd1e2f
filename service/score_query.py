"""What is asked of every picture and what comes of it: the words that the scorers and the table share."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


class ScoreError(Exception):
    """Scoring cannot begin or go on; the message says what was expected, what came and what to do."""


@dataclass(frozen=True)
class Query:
    """What is asked of every picture; None leaves the choice to the service, or asks for all classes."""

    model: str | None
    version: int | None
    top_k: int | None
    preprocess: Literal["auto", "off"]


@dataclass(frozen=True)
class Row:
    """A picture's classes and their probabilities, by falling probability, all of them or the top k."""

    path: Path
    classes: list[tuple[str, float]]


@dataclass(frozen=True)
class Skipped:
    """A picture that has no row, and why."""

    path: Path
    reason: str


Outcome = Row | Skipped


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


def check_top_k(query: Query, model: str, class_names: Sequence[str]) -> None:
    """There are as many classes as are asked for.

    Raises:
        ScoreError: there are fewer.
    """
    if query.top_k is not None and query.top_k > len(class_names):
        raise ScoreError(
            f"--top-k must be 1 to {len(class_names)}, the classes of {model}; got {query.top_k}"
        )
