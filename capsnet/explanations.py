"""The answer of /explain as frozen dataclasses of arrays."""

from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from capsnet.answers import Floats, Levels, read_png
from capsnet.short_repr import ShortRepr

# T iterations, D numbers of a pose, R rows and C columns of places, B bins


@dataclass(frozen=True, eq=False, repr=False)
class Places(ShortRepr):
    """Where in the input the capsules of a layer look.

    Attributes:
        row_centers: of the receptive fields, in pixels from the input's upper edge, [R].
        column_centers: the same from its left edge, [C].
        field: side of a receptive field, pixels.
    """

    row_centers: Floats
    column_centers: Floats
    field: int


@dataclass(frozen=True, eq=False, repr=False)
class ExplainedClass(ShortRepr):
    """A class in every iteration of routing.

    Attributes:
        label: the name of the class.
        probabilities: length or activation of its capsule, [T].
        poses: [T, D], or in the model's pose shape, such as [T, 4, 4].
        heat: where its votes come from, [T, R, C]. Routing by agreement: the part of the capsule's length |s|
            that comes from there, negative for votes against. EM routing: assignment times activation.
        logit_change: agreement only: what an iteration adds to the logits, mean over voting capsules,
            weighted by their lengths, [T].
        largest_logit_change: agreement only: the same of the capsule that agrees most, [T].
        distances: EM only: share of the votes in each bin of distance from the class's mean, [T, B].
    """

    label: str
    probabilities: Floats
    poses: Floats
    heat: Floats
    logit_change: Floats | None
    largest_logit_change: Floats | None
    distances: Floats | None


@dataclass(frozen=True, eq=False, repr=False)
class ExplainedLayer(ShortRepr):
    """A convolutional layer of matrix capsules in every iteration of routing.

    Attributes:
        name: such as "conv_caps.0".
        grid: where its capsules look.
        entropy: of the assignments to them, see `Explanation`, [T].
        activations: of its capsules, [T, types, R, C].
        distances: mean distance of the votes for each capsule from its mean, [T, types, R, C].
    """

    name: str
    grid: Places
    entropy: Floats
    activations: Floats
    distances: Floats


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(ShortRepr):
    """How routing came to its answer for one picture.

    Attributes:
        model: name of the model.
        version: its version number.
        digest: of the bundle.
        filename: of the picture, or both names of a pair; None if it has none.
        routing: "agreement" for vector capsules, "em" for matrix capsules.
        label: the most probable class in the last iteration.
        model_input: what the network sees, uint8 [H, W, C], the views of a pair side by side.
        grid: where the capsules look that vote for the classes.
        entropy: of the couplings or assignments, as a share of the largest, [T]: at 1 each capsule votes for
            all classes alike.
        classes: by descending probability in the last iteration, all of them or the requested one.
        distance_edges: EM only: edges of the bins of `distances`, [B + 1].
        layers: EM only: the convolutional capsule layers, in order.
    """

    model: str
    version: int
    digest: str
    filename: str | None
    routing: Literal["agreement", "em"]
    label: str
    model_input: Levels
    grid: Places
    entropy: Floats
    classes: tuple[ExplainedClass, ...]
    distance_edges: Floats | None
    layers: tuple[ExplainedLayer, ...]


def to_explanation(body: Any, filename: str | None) -> Explanation:
    """The answer of /explain for a picture of this name."""
    shape = body.get("pose_shape")
    return Explanation(
        body["model"],
        body["version"],
        body["digest"],
        filename,
        body["routing"],
        body["label"],
        read_png(b64decode(body["model_input"])),
        _places(body["grid"]),
        _array(body["entropy"]),
        tuple(_class(one, shape) for one in body["classes"]),
        _maybe_array(body.get("distance_edges")),
        tuple(_layer(one) for one in body.get("layers", ())),
    )


def _class(body: Any, shape: Sequence[int] | None) -> ExplainedClass:
    poses = _array(body["poses"])
    return ExplainedClass(
        body["label"],
        _array(body["probabilities"]),
        poses if shape is None else poses.reshape(len(poses), *shape),
        _array(body["heat"]),
        *(_maybe_array(body.get(name)) for name in ("logit_change", "largest_logit_change", "distances")),
    )


def _layer(body: Any) -> ExplainedLayer:
    numbers = (_array(body[name]) for name in ("entropy", "activations", "distances"))
    return ExplainedLayer(body["name"], _places(body["grid"]), *numbers)


def _places(body: Any) -> Places:
    return Places(_array(body["row_centers"]), _array(body["column_centers"]), body["field"])


def _array(numbers: Any) -> Floats:
    return np.array(numbers, np.float32)


def _maybe_array(numbers: Any) -> Floats | None:
    return None if numbers is None else _array(numbers)
