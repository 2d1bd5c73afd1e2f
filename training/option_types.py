"""Options of the command line: types of their values, each an argparse type, and their earlier names."""

import argparse
from collections.abc import Callable
from pathlib import Path

EARLIER_NAMES = {"--weight-average": "--ema-decay"}  # which go on working, and --help does not show


def with_current_names(arguments: list[str]) -> list[str]:
    """Arguments of a command line, with each option's earlier name replaced by today's."""
    split = [argument.partition("=") for argument in arguments]
    return [EARLIER_NAMES.get(name, name) + equals + value for name, equals, value in split]


def whole(minimum: int) -> Callable[[str], int]:
    """A type for whole numbers from `minimum` on, of at most 63 bits."""

    def whole_number(text: str) -> int:
        if not text.isdecimal() or not minimum <= int(text) < 2**63:
            raise argparse.ArgumentTypeError(f"must be a whole number from {minimum}, got {text}")
        return int(text)

    return whole_number


def positive(text: str) -> float:
    """A number above 0."""
    if not 0 < _number(text) < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text}")
    return float(text)


def fraction(text: str) -> float:
    """A number from 0 to below 1."""
    if not 0 <= _number(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to below 1, got {text}")
    return float(text)


def any_folder(text: str) -> Path:
    """A folder that is there or can be made."""
    if not text:
        raise argparse.ArgumentTypeError("must be a folder, got an empty text")
    path = Path(text)
    for place in (path, *path.parents):
        if place.exists() and not place.is_dir():
            raise argparse.ArgumentTypeError(f"must be a folder, got {text}: {place} is a file")
    return path


def _number(text: str) -> float:
    """NaN for a text that is none, which lies in no range."""
    try:
        return float(text)
    except ValueError:
        return float("nan")
