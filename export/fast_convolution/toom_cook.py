"""Short convolutions with few multiplications: the matrices of Toom and Cook, exactly.

What is wanted are m outputs of a filter g with r taps over n = m + r - 1 inputs x,

    y[i] = sum over j of g[j] x[i + j]        (i < m),

which written out takes m r multiplications. n are enough. The trick is that of multiplying polynomials by
their values: a product of polynomials with m and r coefficients has n of them, so it is known from its
values at n points, and each value takes one multiplication. Let E_k be the n x k matrix that evaluates a
polynomial of k coefficients at the n points, with the rows (1, p, p^2, ..., p^(k-1)), and for the point
"infinity", whose value is the leading coefficient, (0, ..., 0, 1). Then

    product of f and g  =  E_n^-1 ((E_m f) * (E_r g)),        * elementwise.

As a function of f this is a matrix, and our filter is its transpose: x[i + j] meets y[i] where the product
has f[i] at i + j. Transposed, the three factors change their order and give the algorithm that Winograd
made known,

    y = E_m^T ((E_r g) * (E_n^-T x)),

E_r g is a transform of the filter, done once. E_n^-T x is a transform of the input and E_m^T one of the
output; both have small constants and are shared by all channels, whose sum is taken in between. In two
dimensions the same is done along each axis.

The points are small fractions, because their powers are what rounding errors are multiplied with.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import prod

import numpy as np
from numpy.typing import NDArray

# By how many are needed. Up to seven the usual ones; the last two sets are what a search for the smallest
# rounding error of float32 in two dimensions found, among fractions of small numbers: with the usual ones
# that error is two to three times as large. With "infinity" there is always one more.
FAMILIAR = ("0", "1", "-1", "2", "-1/2", "-2", "1/2")
POINTS = {count: FAMILIAR[:count] for count in range(len(FAMILIAR) + 1)} | {
    8: ("0", "1/2", "-3/4", "3/2", "-1/3", "-4/3", "1", "-3"),
    9: ("0", "4/3", "-3/4", "2", "-1/2", "-4/3", "3/4", "-3", "1/3"),
}
LARGEST = max(POINTS) + 1  # inputs of one algorithm

Exact = list[list[Fraction]]


@dataclass(frozen=True)
class ShortConvolution:
    """The three matrices of one algorithm, as float64; correctly rounded from exact fractions.

    Attributes:
        outputs: m.
        taps: r.
        filter: [n, r], what a filter is multiplied with.
        inputs: [n, n], what n inputs are multiplied with.
        result: [m, n], what the products are multiplied with.
    """

    outputs: int
    taps: int
    filter: NDArray[np.float64]
    inputs: NDArray[np.float64]
    result: NDArray[np.float64]

    @property
    def size(self) -> int:
        """n: inputs, and multiplications."""
        return self.outputs + self.taps - 1


def short_convolution(outputs: int, taps: int) -> ShortConvolution:
    """The algorithm for m outputs of a filter with r taps.

    Raises:
        ValueError: it would take more than LARGEST inputs.
    """
    size = outputs + taps - 1
    if outputs < 1 or taps < 1 or size > LARGEST:
        raise ValueError(f"{outputs} outputs of {taps} taps take {size} inputs; 1 to {LARGEST} are possible")
    points = tuple(Fraction(point) for point in POINTS[size - 1])
    filters, inputs = _evaluate(points, taps), _transposed(_interpolate(points))
    # A row of one times s and of the other times 1/s is the same algorithm. Chosen so that both rows are
    # about as large, no product is much larger than what comes of it, and float32 loses least.
    for row in range(size):
        scale = _power_of_two_near(_norm(filters[row]), _norm(inputs[row]))
        filters[row] = [value / scale for value in filters[row]]
        inputs[row] = [value * scale for value in inputs[row]]
    result = _transposed(_evaluate(points, outputs))
    return ShortConvolution(outputs, taps, _floats(filters), _floats(inputs), _floats(result))


def _evaluate(points: tuple[Fraction, ...], coefficients: int) -> Exact:
    """The values of a polynomial at the points and at infinity, as a matrix [n, coefficients]."""
    rows = [[point**power for power in range(coefficients)] for point in points]
    return [*rows, [Fraction(power == coefficients - 1) for power in range(coefficients)]]


def _interpolate(points: tuple[Fraction, ...]) -> Exact:
    """From the values at the points and at infinity to the coefficients: the inverse of `_evaluate`, [n, n].

    A column for a finite point is the polynomial that is 1 there, 0 at the other finite points and without
    a leading coefficient (Lagrange's); the last one is the product of all (x - point), which only infinity
    sees.
    """
    columns = []
    for point in points:
        others = [other for other in points if other != point]
        height = prod((point - other for other in others), start=Fraction(1))
        columns.append([value / height for value in _with_roots(others)] + [Fraction(0)])
    columns.append(_with_roots(list(points)))
    return _transposed(columns)


def _with_roots(roots: list[Fraction]) -> list[Fraction]:
    """The coefficients of the product of all (x - root), lowest power first."""
    coefficients = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *coefficients]
        coefficients = [
            high - root * low for high, low in zip(shifted, [*coefficients, Fraction(0)], strict=True)
        ]
    return coefficients


def _transposed(matrix: Exact) -> Exact:
    return [list(row) for row in zip(*matrix, strict=True)]


def _norm(row: list[Fraction]) -> float:
    return float(np.linalg.norm(np.array([float(value) for value in row])))


def _power_of_two_near(filters: float, inputs: float) -> Fraction:
    """What to divide one norm by and multiply the other with to make them about equal, without rounding."""
    return Fraction(2) ** round(np.log2(filters / inputs) / 2)


def _floats(matrix: Exact) -> NDArray[np.float64]:
    return np.array([[float(value) for value in row] for row in matrix])
