"""Perturbations of a pose: those that are given, or those of a sweep."""

from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from service.errors import InvalidFieldError, TooManyPicturesError, shown
from service.routes.schemas import Perturbation, ReconstructFields, Sweep

# P pictures, D numbers of a pose

Floats = NDArray[np.float32]
Perturbations = list[Perturbation]

# A column is lost to rounding when stop is only this fraction of a step short of it.
STOP_SLACK = Decimal("1e-9")
DELTA_DIGITS = 12


def plan_pictures(fields: ReconstructFields, dimensions: int, limit: int) -> tuple[list[Perturbations], int]:
    """The perturbations of each picture, dimension-major in a sweep, and the pictures per dimension.

    Raises:
        InvalidFieldError: a dimension that the pose does not have, or that is given twice.
        TooManyPicturesError: more than `limit`.
    """
    if fields.sweep is None:
        perturbations = fields.perturbations or []
        _check_dimensions([p.dimension for p in perturbations], dimensions)
        return [perturbations], 1
    rows = list(range(dimensions)) if fields.sweep.dimensions is None else fields.sweep.dimensions
    _check_dimensions(rows, dimensions)
    columns = sweep_columns(fields.sweep)
    if len(rows) * columns > limit:
        raise TooManyPicturesError(
            f"the sweep asks for {len(rows)} dimensions x {columns:.6g} deltas; at most {limit} pictures "
            "(CAPSNET_MAX_RECONSTRUCTIONS): use a larger step, or fewer dimensions"
        )
    deltas = sweep_deltas(fields.sweep)
    return [[Perturbation(dimension=d, delta=delta)] for d in rows for delta in deltas], columns


def sweep_columns(sweep: Sweep) -> int:
    """How many deltas there are from start to stop, stop included."""
    start, stop, step = (Decimal(repr(number)) for number in (sweep.start, sweep.stop, sweep.step))
    return int((stop - start) / step + STOP_SLACK) + 1


def sweep_deltas(sweep: Sweep) -> list[float]:
    """The deltas, counted in decimals so that -0.25 to 0.25 by 0.05 has 0 exactly in the middle."""
    start, stop, step = (Decimal(repr(number)) for number in (sweep.start, sweep.stop, sweep.step))
    exact = (min(start + column * step, stop) for column in range(sweep_columns(sweep)))
    return [float(round(delta, DELTA_DIGITS)) + 0.0 for delta in exact]  # + 0.0: no minus zero


def offsets(variants: list[Perturbations], dimensions: int) -> Floats:
    """What is added to the pose for each picture, [P, D]."""
    added = np.zeros((len(variants), dimensions), np.float32)
    for row, perturbations in zip(added, variants, strict=True):
        for perturbation in perturbations:
            row[perturbation.dimension] = perturbation.delta
    return added


def _check_dimensions(asked: list[int], dimensions: int) -> None:
    seen: set[int] = set()
    for dimension in asked:
        if dimension >= dimensions:
            raise InvalidFieldError(f"dimension must be 0 to {dimensions - 1}, got {shown(dimension)}")
        if dimension in seen:
            raise InvalidFieldError(f"dimension {dimension} is given twice")
        seen.add(dimension)
