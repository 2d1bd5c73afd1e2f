"""The requests to decode poses, and their responses."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from capsnet.answers import Levels, Reconstructions, read_json, read_png, to_reconstructions
from capsnet.errors import invalid_response
from capsnet.exchange import Exchange, Params, Request
from capsnet.uploads import Picture, load, picture_files

# H rows, W columns, C channels

Pose = NDArray[Any] | Sequence[float]


@dataclass(frozen=True)
class Sweep:
    """Deltas from `start` by `step` to `stop`, included if reached, added to each of the dimensions in turn.

    Attributes:
        dimensions: indices into the flat pose; None for all.
    """

    dimensions: Sequence[int] | None = None
    start: float = -0.25
    stop: float = 0.25
    step: float = 0.05

    def as_json(self) -> dict[str, Any]:
        """The field `sweep` of /reconstruct.

        Raises:
            TypeError: a dimension is no integer.
            ValueError: one of the numbers is NaN or infinite.
        """
        deltas = {name: _finite(name, getattr(self, name)) for name in ("start", "stop", "step")}
        if self.dimensions is None:
            return deltas
        return {"dimensions": [index(dimension) for dimension in self.dimensions], **deltas}


class Decoding(NamedTuple):
    """What to decode: a pose, or the pose of an image; and what to add to it."""

    image: Picture | None
    pose: Pose | None
    label: str | None
    perturbations: Mapping[int, float] | None
    sweep: Sweep | None


def reconstruct(decoding: Decoding, query: Params) -> Exchange[Reconstructions]:
    """The decoded pictures one by one."""
    body = _reconstruction(decoding)
    return read_json((yield Request("POST", "/reconstruct", query, body)), to_reconstructions)


def reconstruct_grid(decoding: Decoding, query: Params) -> Exchange[Levels]:
    """The decoded pictures in a grid, uint8 [H, W, C]: a row per dimension, a column per delta."""
    body = _reconstruction(decoding)
    response = yield Request("POST", "/reconstruct", query, {**body, "headers": {"Accept": "image/png"}})
    try:
        return read_png(response.content)
    except ValueError as error:
        raise invalid_response(response, str(error)) from error


def _reconstruction(decoding: Decoding) -> dict[str, Any]:
    """The body: a form with the file of a picture, or JSON with a pose.

    Raises:
        TypeError: a dimension is no integer.
        ValueError: neither an image nor a pose, or both; or a number is NaN or infinite.
    """
    image, pose, label, perturbations, sweep = decoding
    fields: dict[str, Any] = {} if label is None else {"label": label}
    changes: dict[str, Any] = {}
    if perturbations is not None:
        changes["perturbations"] = [
            {"dimension": index(dimension), "delta": _finite(f"delta of dimension {dimension}", delta)}
            for dimension, delta in perturbations.items()
        ]
    if sweep is not None:
        changes["sweep"] = sweep.as_json()
    if image is not None and pose is None:
        form = {name: orjson.dumps(value).decode() for name, value in changes.items()}
        return {"data": {**fields, **form}, "files": [("image", file) for file in picture_files(load(image))]}
    if pose is None or image is not None:
        given = "neither" if pose is None else "both"
        raise ValueError(f"give either image, or pose and label; got {given}")
    fields["pose"] = [
        _finite(f"pose[{i}]", value) for i, value in enumerate(np.asarray(pose, np.float64).ravel().tolist())
    ]
    return {"content": orjson.dumps({**fields, **changes})}


def _finite(name: str, given: float) -> float:
    """The number, unless it is NaN or infinite: JSON has neither."""
    if not math.isfinite(given):
        raise ValueError(f"{name} must be a finite number, got {given}")
    return float(given)
