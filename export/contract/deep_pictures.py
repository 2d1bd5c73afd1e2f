"""Pictures of more than 8 bits, and of floats, as 0 to 255: the file's type does not tell what is white.

A file of 16 bits may hold 8, 10, 12, 14 or 16 of them, one of 32 bits or of floats anything. So the numbers
decide: whole ones from 0 up are taken for the least of these depths that holds them all, others between 0 and
1 as they are; the rest is spread from its smallest number to its largest. Pixels that stand for no data count
for nothing and get the mean of the others.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float32]

FULL_SCALES = (1, 255, 1023, 4095, 16383, 65535)  # white, in whole numbers
# From which size on a number is no data: the extremes of int32, and what no float picture reaches. Of uint32
# the largest number may be white.
NO_DATA_BEYOND = {"signed": 2.0**31 - 1, "unsigned": math.inf, "float": 1e30}
USUAL_NO_DATA = frozenset({-9999.0, -32768.0})  # where nothing else is negative


class NoRangeError(ValueError):
    """Numbers that are no picture; the message says why."""


@dataclass(frozen=True)
class Levels:
    """How the numbers of a picture become levels.

    Attributes:
        black: the number that becomes 0.
        white: the number that becomes 255.
        fill: what is shown where there is no data.
        no_data: the numbers that stand for that, besides those out of all reason.
        beyond: how large those are.
    """

    black: float
    white: float
    fill: float
    no_data: tuple[float, ...]
    beyond: float

    def apply(self, numbers: Numbers) -> Numbers:
        """Numbers [...] as levels, float32 in 0 to 255."""
        shown = np.where(is_no_data(numbers, self.no_data, self.beyond), self.fill, numbers)
        span = (self.white - self.black) or 1.0  # a flat picture has none
        return np.asarray((shown - self.black) / span * 255, np.float32)


def find_levels(strips: Iterable[Numbers], kind: str, declared_no_data: float | None) -> Levels:
    """Look through a picture for its range.

    Args:
        strips: all of its numbers, in pieces.
        kind: of numbers: `signed` or `unsigned` integers, or `float`.
        declared_no_data: what the file says stands for no data, if it does.

    Raises:
        NoRangeError: there are numbers that are not finite, or no pixel has data.
    """
    beyond = NO_DATA_BEYOND[kind]
    no_data = () if declared_no_data is None else (declared_no_data,)
    found = _Found()
    for strip in strips:
        found.add(strip[~is_no_data(strip, no_data, beyond)].astype(np.float64), kind != "float")
    if found.negative_low == found.negative_high and found.negative_low in USUAL_NO_DATA:
        no_data = (*no_data, found.negative_low)
        found.forget_negatives()
    if not found.count:
        raise NoRangeError("picture has no pixel with data")
    black, white = found.range()
    return Levels(black, white, found.total / found.count, no_data, beyond)


def is_no_data(numbers: Numbers, no_data: tuple[float, ...], beyond: float) -> NDArray[np.bool_]:
    """Where numbers [...] stand for no data.

    Raises:
        NoRangeError: some are not finite, and not declared to be that.
    """
    found: NDArray[np.bool_] = np.abs(numbers) >= beyond
    is_finite = np.isfinite(numbers)
    if not all(map(math.isfinite, no_data)):
        found |= ~is_finite
    elif not is_finite.all():
        raise NoRangeError("picture has pixels that are not finite numbers")
    for number in no_data:
        found |= numbers == np.float32(number)
    return found


@dataclass
class _Found:
    """What a look through a picture has found so far."""

    low: float = math.inf  # from 0 up
    high: float = -math.inf
    negative_low: float = math.inf
    negative_high: float = -math.inf
    negatives: int = 0
    count: int = 0
    total: float = 0.0
    is_whole: bool = True

    def add(self, numbers: NDArray[np.float64], is_whole: bool) -> None:
        """Take more of the picture's numbers, all with data, into account."""
        is_negative = numbers < 0
        below, above = numbers[is_negative], numbers[~is_negative]
        if below.size:
            self.negative_low = min(self.negative_low, float(below.min()))
            self.negative_high = max(self.negative_high, float(below.max()))
        if above.size:
            self.low, self.high = min(self.low, float(above.min())), max(self.high, float(above.max()))
        self.negatives += below.size
        self.count += numbers.size
        self.total += float(numbers.sum())
        self.is_whole = self.is_whole and (is_whole or bool((numbers == np.rint(numbers)).all()))

    def forget_negatives(self) -> None:
        """They are all the same number, which stands for no data."""
        self.count -= self.negatives
        self.total -= self.negatives * self.negative_low
        self.negatives = 0

    def range(self) -> tuple[float, float]:
        """Black and white."""
        if self.negatives:
            return self.negative_low, max(self.high, self.negative_high)
        if self.is_whole and self.high <= FULL_SCALES[-1]:
            return 0.0, float(next(full for full in FULL_SCALES if self.high <= full))
        return (0.0, 1.0) if self.high <= 1 else (self.low, self.high)


def parse_no_data(text: object) -> float | None:
    """What GDAL_NODATA, a tag of TIFF, says, as a float32: GDAL's usual -1.797e308 is minus infinity there.

    None where it says nothing that is a number.
    """
    try:
        with np.errstate(over="ignore"):
            return float(np.float32(str(text).strip("\0 ")))
    except ValueError:
        return None


def in_strips(height: int, rows: int) -> Iterator[tuple[int, int]]:
    """First and last row + 1 of strips of so many rows."""
    for row in range(0, height, rows):
        yield row, min(row + rows, height)
