"""The service's answers as frozen dataclasses, with poses and pictures as arrays."""

from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Generic, NamedTuple, TypeVar

import httpx
import numpy as np
import orjson
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from capsnet.errors import invalid_response
from capsnet.short_repr import ShortRepr, named
from capsnet.uploads import Picture

# N images, J classes, D numbers of a pose, H rows, W columns, C channels

Floats = NDArray[np.float32]
Levels = NDArray[np.uint8]
R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, eq=False, repr=False)
class ClassScore(ShortRepr):
    """One class of an image.

    Attributes:
        label: the name of the class.
        probability: length or activation of its capsule, 0-1; they need not sum to 1 over the classes.
        pose: [D], or in the model's pose shape, such as [4, 4].
    """

    label: str
    probability: float
    pose: Floats


@dataclass(frozen=True, eq=False, repr=False)
class Classification(ShortRepr):
    """The result for one image.

    Attributes:
        filename: of the picture, or both names of a pair; None if it has none.
        label: the most probable class.
        labels: the most probable classes, as many as the model expects objects per image.
        confident: every class of `labels` reaches `min_probability`, or else the model's threshold, and the
            image is not blank; None if there is no threshold.
        blank: the image shows nothing: no ink was found, or all pixels are nearly equal.
        classes: by descending probability, all of them or the top k.
        reconstruction: the most probable class decoded, uint8 [H, W, C], the views of a pair side by side;
            None unless requested.
        model_input: the picture after preprocessing, as the network sees it, uint8 [H, W, C], the views of a
            pair side by side; None unless requested.
    """

    filename: str | None
    label: str
    labels: tuple[str, ...]
    confident: bool | None
    blank: bool
    classes: tuple[ClassScore, ...]
    reconstruction: Levels | None
    model_input: Levels | None = None


@dataclass(frozen=True, eq=False, repr=False)
class SegmentedObject(ShortRepr):
    """One object of an image, decoded from its capsule alone.

    Attributes:
        label: its class.
        confident: its probability reaches the threshold, see `Classification`.
        probability: length or activation of its capsule, 0-1.
        pose: [D], or in the model's pose shape, such as [4, 4].
        colour: in the overlay, such as "#ff0000".
        reconstruction: the object alone, uint8 [H, W, C], the views of a pair side by side.
        mask: the pixels of the object, bool [H, W]; a pixel may belong to several objects.
    """

    label: str
    confident: bool | None
    probability: float
    pose: Floats
    colour: str
    reconstruction: Levels
    mask: NDArray[np.bool_]


@dataclass(frozen=True, eq=False, repr=False)
class Segmentation(ShortRepr):
    """The objects in one image.

    Attributes:
        filename: of the picture, or both names of a pair; None if it has none.
        blank: the image shows nothing.
        objects: by descending probability.
        overlay: the sum of the reconstructions in their colors, uint8 [H, W, 3].
    """

    filename: str | None
    blank: bool
    objects: tuple[SegmentedObject, ...]
    overlay: Levels


@dataclass(frozen=True, eq=False, repr=False)
class Answer(ShortRepr, Generic[R]):
    """One result per picture, all from the same bundle.

    Attributes:
        model: name of the model.
        version: its version number.
        digest: of the bundle; changes if the files of a version are replaced.
        results: in the order of the pictures.
    """

    model: str
    version: int
    digest: str
    results: tuple[R, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Reconstruction(ShortRepr):
    """One decoded pose.

    Attributes:
        perturbations: numbers added to the pose, by dimension; empty if unchanged.
        pose: as decoded, [D], or in the model's pose shape, such as [4, 4].
        picture: uint8 [H, W, C], the views of a pair side by side.
    """

    perturbations: Mapping[int, float]
    pose: Floats
    picture: Levels


@dataclass(frozen=True, eq=False, repr=False)
class Reconstructions(ShortRepr):
    """Decoded poses of one class: of a sweep, dimension by dimension; otherwise exactly one."""

    model: str
    version: int
    digest: str
    label: str
    reconstructions: tuple[Reconstruction, ...]


class Encoded(NamedTuple):
    """The encoder's outputs for N images: probabilities [N, J] and poses [N, J, D], float32."""

    probabilities: Floats
    poses: Floats

    def __repr__(self) -> str:
        return named("Encoded", self._asdict().items())


@dataclass(frozen=True, repr=False)
class ModelVersion(ShortRepr):
    """A version of a model.

    Attributes:
        version: its number.
        state: "loaded", "available" (loads with the first request), "refused" and others; `reason` says why.
        default: whether it answers requests that name no version, or with a canary most of them.
        device: cpu, cuda or tensorrt; None if it is not loaded.
        provider: ONNX Runtime's execution provider; None if it is not loaded.
        digest: of its bundle; None if it is not loaded.
        reason: why it is not served, or why the changed files of a loaded one would not be; None otherwise.
        manifest: of its bundle, with `class_names` and more; only from `Client.model`.
    """

    version: int
    state: str
    default: bool
    device: str | None
    provider: str | None
    digest: str | None
    reason: str | None
    manifest: Mapping[str, Any] | None


@dataclass(frozen=True, repr=False)
class Model(ShortRepr):
    """A model and its versions, newest first; `default` answers requests that name no model."""

    name: str
    default: bool
    versions: tuple[ModelVersion, ...]


class Pinned(NamedTuple):
    """The version of a model that `Client.pin` has found, and its bundle's manifest and digest."""

    model: str
    version: int
    manifest: Mapping[str, Any]
    digest: str

    def __repr__(self) -> str:
        return named("Pinned", self._asdict().items())


@dataclass(frozen=True, eq=False, repr=False)
class Scored(ShortRepr):
    """A picture of a stream, and its result."""

    picture: Picture
    classification: Classification


@dataclass(frozen=True, eq=False, repr=False)
class Failed(ShortRepr):
    """A picture of a stream without a result, and the reason."""

    picture: Picture
    error: Exception

    @property
    def reason(self) -> str:
        """The error in one line, without its status and title."""
        detail = getattr(self.error, "detail", None) or getattr(self.error, "strerror", None)
        return str(detail or self.error)


Outcome = Scored | Failed


def read_json(response: httpx.Response, parse: Callable[[Any], T]) -> T:
    """Parse the JSON of a response.

    Raises:
        CapsnetError: it is no JSON that `parse` understands.
    """
    try:
        return parse(orjson.loads(response.content))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise invalid_response(response, f"{type(error).__name__}: {error}") from error


def to_classifications(body: Any, filenames: Sequence[str | None]) -> Answer[Classification]:
    """The answer of /classify for pictures with these names."""
    shape = body.get("pose_shape")
    results = zip(filenames, body["results"], strict=True)
    return _answer(body, [_classification(name, one, shape) for name, one in results])


def to_segmentations(body: Any, filenames: Sequence[str | None]) -> Answer[Segmentation]:
    """The answer of /segment for pictures with these names."""
    shape = body.get("pose_shape")
    results = [
        Segmentation(
            name,
            result["blank"],
            tuple(_segmented_object(one, shape) for one in result["objects"]),
            read_png(b64decode(result["overlay"])),
        )
        for name, result in zip(filenames, body["results"], strict=True)
    ]
    return _answer(body, results)


def to_reconstructions(body: Any) -> Reconstructions:
    """The answer of /reconstruct."""
    shape = body.get("pose_shape")
    made = [
        Reconstruction(
            {p["dimension"]: p["delta"] for p in one["perturbations"]},
            _poses([one["pose"]], shape)[0],
            read_png(b64decode(one["image"])),
        )
        for one in body["reconstructions"]
    ]
    return Reconstructions(body["model"], body["version"], body["digest"], body["label"], tuple(made))


def to_models(body: Any) -> tuple[Model, ...]:
    """The answer of /models."""
    return tuple(to_model(model) for model in body["models"])


def to_model(body: Any) -> Model:
    """The answer of /models/{name}."""
    return Model(body["name"], body["default"], tuple(_model_version(one) for one in body["versions"]))


def read_png(file: bytes) -> Levels:
    """A PNG file's pixels, uint8 [H, W, C] with C 1 or 3.

    Raises:
        ValueError: it is no PNG file.
    """
    try:
        levels = np.array(Image.open(BytesIO(file), formats=["PNG"]))
    except (UnidentifiedImageError, OSError, SyntaxError) as error:  # a broken chunk is a SyntaxError
        raise ValueError(f"the picture is no PNG file: {error}") from error
    return levels[:, :, None] if levels.ndim == 2 else levels


def _answer(body: Any, results: Sequence[R]) -> Answer[R]:
    return Answer(body["model"], body["version"], body["digest"], tuple(results))


def _classification(filename: str | None, result: Any, shape: Sequence[int] | None) -> Classification:
    classes = result["classes"]
    # At once: one array per class takes ten times as long.
    poses = _poses([one["pose"] for one in classes], shape)
    scores = (
        ClassScore(one["label"], one["probability"], pose) for one, pose in zip(classes, poses, strict=True)
    )
    picture, seen = result.get("reconstruction"), result.get("model_input")
    return Classification(
        filename,
        result["label"],
        tuple(result["labels"]),
        result["confident"],
        result["blank"],
        tuple(scores),
        None if picture is None else read_png(b64decode(picture)),
        None if seen is None else read_png(b64decode(seen)),
    )


def _segmented_object(body: Any, shape: Sequence[int] | None) -> SegmentedObject:
    mask = read_png(b64decode(body["mask"]))
    return SegmentedObject(
        body["label"],
        body["confident"],
        body["probability"],
        _poses([body["pose"]], shape)[0],
        body["colour"],
        read_png(b64decode(body["reconstruction"])),
        mask[:, :, 0] > 0,
    )


def _model_version(body: Any) -> ModelVersion:
    rest = {name: body.get(name) for name in ("device", "provider", "digest", "reason", "manifest")}
    return ModelVersion(version=body["version"], state=body["state"], default=body["default"], **rest)


def _poses(flat: list[list[float]], shape: Sequence[int] | None) -> Floats:
    """Flat poses as one array [N, D], or [N, ...] in the model's shape."""
    poses = np.array(flat, np.float32)
    return poses if shape is None else poses.reshape(len(flat), *shape)
