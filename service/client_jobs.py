"""What each method of a client asks for, and what it makes of the answers.

Every job is a generator that yields calls and is sent their answers; whoever drives it sends them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, TypeVar
from urllib.parse import quote

import httpx
import numpy as np
import orjson
from numpy.typing import NDArray

from service.client_answers import (
    Answer,
    Classification,
    Encoded,
    Failed,
    Floats,
    Levels,
    Model,
    Outcome,
    Pinned,
    Reconstructions,
    Scored,
    Segmentation,
    read_json,
    read_png,
    to_classifications,
    to_model,
    to_models,
    to_reconstructions,
    to_segmentations,
)
from service.client_errors import CapsnetError, not_understood
from service.client_pictures import (
    REQUEST_IMAGES,
    Picture,
    Pictures,
    Unread,
    Upload,
    body_of,
    each_picture,
    in_requests,
    load,
    load_or_say,
    picture_file,
)
from service.client_steps import Call, Job
from service.oip_tensors import HEADER_LENGTH, WireError, read_tensors, split, write_request

# N images, H rows, W columns, C channels, J classes, D numbers of a pose

Preprocess = Literal["auto", "off"]
Params = Mapping[str, str | int]
Pose = NDArray[Any] | Sequence[float]
R = TypeVar("R")
T = TypeVar("T")
Parse = Callable[[Any, Sequence[str | None]], Answer[R]]  # of a JSON body and the pictures' names

REQUEST_RECONSTRUCTIONS = 512  # a service makes so many for one request unless told otherwise

# What a single picture can do to its request: too large, another format, unreadable, or it hits a fault of
# the service, which a long stream should outlive.
ABOUT_A_PICTURE = frozenset({413, 415, 422, 500})
# These have such a status, but say that the question is wrong, whatever the picture.
ABOUT_THE_QUESTION = frozenset({"/problems/invalid-field", "/problems/no-decoder", "/problems/refused-model"})


@dataclass(frozen=True)
class Sweep:
    """Deltas from `start` to `stop`, included, by `step`, added to each of the dimensions in turn.

    Attributes:
        dimensions: indices into the flat pose; None for all of them.
    """

    dimensions: Sequence[int] | None = None
    start: float = -0.25
    stop: float = 0.25
    step: float = 0.05

    def as_json(self) -> dict[str, Any]:
        """The field `sweep` of /reconstruct."""
        deltas = {"start": float(self.start), "stop": float(self.stop), "step": float(self.step)}
        if self.dimensions is None:
            return deltas
        return {"dimensions": [int(dimension) for dimension in self.dimensions], **deltas}


def params(**given: str | int | None) -> Params:
    """Query parameters: those that are given."""
    return {name: value for name, value in given.items() if value is not None}


def classify(pictures: Pictures, query: Params, most_bytes: int) -> Job[Answer[Classification]]:
    """Classify pictures, in as many requests as it takes."""
    return _each_image("/classify", to_classifications, pictures, query, REQUEST_IMAGES, most_bytes)


def segment(pictures: Pictures, k: int | None, query: Params, most_bytes: int) -> Job[Answer[Segmentation]]:
    """Take the objects of pictures apart, in as many requests as it takes."""
    most_images = min(REQUEST_IMAGES, max(1, REQUEST_RECONSTRUCTIONS // (k or 1)))
    query = {**query, **params(k=k)}
    return _each_image("/segment", to_segmentations, pictures, query, most_images, most_bytes)


def _each_image(
    path: str,
    parse: Parse[R],
    pictures: Pictures,
    query: Params,
    most_images: int,
    most_bytes: int,
) -> Job[Answer[R]]:
    results: list[R] = []
    answer: Answer[R] | None = None
    for uploads in in_requests(map(load, each_picture(pictures)), most_images, most_bytes):
        came = yield Call("POST", path, query, body_of(uploads))
        answer = _one_each(came, parse, uploads)
        results += answer.results
        # The version that has begun answers for all, even if a newer one is published meanwhile.
        query = {**query, "model": answer.model, "version": answer.version}
    if answer is None:
        raise ValueError("expected at least one picture, got none")
    return Answer(answer.model, answer.version, tuple(results))


def score(pictures: Sequence[Picture], query: Params, most_bytes: int) -> Job[list[Outcome]]:
    """One outcome per picture of a stream; a bad one fails alone."""
    outcomes: list[Outcome] = []
    for group in in_requests(map(load_or_say, pictures), len(pictures), most_bytes):
        outcomes += [Failed(one.picture, one.error) for one in group if isinstance(one, Unread)]
        uploads = [one for one in group if isinstance(one, Upload)]  # a group is all of one kind
        if uploads:
            outcomes += yield from _halve(uploads, query)
    return outcomes


def _halve(uploads: Sequence[Upload], query: Params) -> Job[list[Outcome]]:
    """One bad picture fails its request: halves are asked for until that one is alone."""
    try:
        came = yield Call("POST", "/classify", query, body_of(uploads))
    except CapsnetError as error:
        if error.status not in ABOUT_A_PICTURE or error.type in ABOUT_THE_QUESTION:
            raise
        if len(uploads) == 1:
            return [Failed(uploads[0].picture, error)]
        half = len(uploads) // 2
        first = yield from _halve(uploads[:half], query)
        return first + (yield from _halve(uploads[half:], query))
    answer = _one_each(came, to_classifications, uploads)
    return [Scored(one.picture, seen) for one, seen in zip(uploads, answer.results, strict=True)]


def _one_each(came: httpx.Response, parse: Parse[R], uploads: Sequence[Upload]) -> Answer[R]:
    names = [upload.filename for upload in uploads]
    return read_json(came, lambda body: parse(body, names))


def batches_of(pictures: Iterable[T], size: int) -> Iterator[list[T]]:
    """The pictures in lists of `size`, the last one shorter."""
    pictures = iter(pictures)
    while batch := list(islice(pictures, size)):
        yield batch


def reconstruct(
    image: Picture | None,
    pose: Pose | None,
    label: str | None,
    perturbations: Mapping[int, float] | None,
    sweep: Sweep | None,
    query: Params,
) -> Job[Reconstructions]:
    """The decoded pictures one by one."""
    body = _reconstruction(image, pose, label, perturbations, sweep)
    return read_json((yield Call("POST", "/reconstruct", query, body)), to_reconstructions)


def reconstruct_grid(
    image: Picture | None,
    pose: Pose | None,
    label: str | None,
    perturbations: Mapping[int, float] | None,
    sweep: Sweep | None,
    query: Params,
) -> Job[Levels]:
    """The decoded pictures in one, uint8 [H, W, C]: a row per dimension, a column per delta."""
    body = _reconstruction(image, pose, label, perturbations, sweep)
    came = yield Call("POST", "/reconstruct", query, {**body, "headers": {"Accept": "image/png"}})
    try:
        return read_png(came.content)
    except ValueError as error:
        raise not_understood(came, str(error)) from error


def _reconstruction(
    image: Picture | None,
    pose: Pose | None,
    label: str | None,
    perturbations: Mapping[int, float] | None,
    sweep: Sweep | None,
) -> dict[str, Any]:
    """The body: a form with a picture's file, or JSON with a pose."""
    fields: dict[str, Any] = {} if label is None else {"label": label}
    changes: dict[str, Any] = {}
    if perturbations is not None:
        changes["perturbations"] = [
            {"dimension": int(dimension), "delta": float(delta)} for dimension, delta in perturbations.items()
        ]
    if sweep is not None:
        changes["sweep"] = sweep.as_json()
    if image is not None and pose is None:
        form = {name: orjson.dumps(value).decode() for name, value in changes.items()}
        return {"data": {**fields, **form}, "files": {"image": picture_file(load(image))}}
    if pose is None or image is not None:
        given = "neither" if pose is None else "both"
        raise ValueError(f"give either image, or pose and label; got {given}")
    fields["pose"] = np.asarray(pose, np.float32).ravel()
    return {"content": orjson.dumps({**fields, **changes}, option=orjson.OPT_SERIALIZE_NUMPY)}


def infer(pixels: Floats, model: str | None, version: int | None, most_bytes: int) -> Job[Encoded]:
    """The encoder's outputs for pixels [N, H, W, C]."""
    _check_floats("pixels", pixels, "[N, H, W, C]", 4)
    outputs = yield from _run_graph(
        "", {"pixels": pixels}, ("probabilities", "poses"), model, version, most_bytes
    )
    return Encoded(*outputs)


def decode(
    poses: Floats, mask: Floats, model: str | None, version: int | None, most_bytes: int
) -> Job[Floats]:
    """The decoder's output [N, H, W, C] for poses [N, J, D] and a mask [N, J]."""
    _check_floats("poses", poses, "[N, J, D]", 3)
    _check_floats("mask", mask, "[N, J]", 2)
    if poses.shape[:2] != mask.shape:
        raise ValueError(f"poses {list(poses.shape)} and mask {list(mask.shape)} must agree in N and J")
    inputs = {"poses": poses, "mask": mask}
    outputs = yield from _run_graph("-decoder", inputs, ("reconstruction",), model, version, most_bytes)
    return outputs[0]


def _run_graph(
    suffix: str,
    inputs: Mapping[str, Floats],
    names: Sequence[str],
    model: str | None,
    version: int | None,
    most_bytes: int,
) -> Job[list[Floats]]:
    """Outputs of a graph, one array a name; N in as many requests as it takes, all to one version."""
    model = model or (yield from default_model())
    count = len(next(iter(inputs.values())))
    image_bytes = sum(array[0].nbytes for array in inputs.values())
    step = max(1, min(REQUEST_IMAGES, most_bytes // image_bytes))
    pieces: list[list[Floats]] = []
    for start in range(0, count, step):
        message = write_request({name: array[start : start + step] for name, array in inputs.items()}, names)
        body = {"content": message.body, "headers": message.headers}
        came = yield Call("POST", f"{_graph_path(model + suffix, version)}/infer", body=body)
        answered, outputs = _read_outputs(came, names, min(step, count - start))
        version = answered if version is None else version
        pieces.append(outputs)
    return [np.concatenate(arrays) for arrays in zip(*pieces, strict=True)]


def _read_outputs(came: httpx.Response, names: Sequence[str], count: int) -> tuple[int, list[Floats]]:
    """The version that answered, and its outputs for so many images."""
    try:
        header, binary = split(came.content, came.headers.get(HEADER_LENGTH))
        outputs = read_tensors(header, "outputs", binary)
        arrays = [outputs[name] for name in names]
        version = int(header["model_version"])
    except (WireError, KeyError, TypeError, ValueError) as error:
        raise not_understood(came, f"{type(error).__name__}: {error}") from error
    if any(array.shape[:1] != (count,) for array in arrays):
        shapes = {name: array.shape for name, array in outputs.items()}
        raise not_understood(came, f"expected outputs for {count} images, got {shapes}")
    return version, arrays


def models() -> Job[tuple[Model, ...]]:
    """Every model, without manifests."""
    return read_json((yield Call("GET", "/models")), to_models)


def model(name: str) -> Job[Model]:
    """One model, with its manifests."""
    return read_json((yield Call("GET", f"/models/{_in_path(name)}")), to_model)


def ready() -> Job[bool]:
    """Whether requests will be answered now."""
    try:
        yield Call("GET", "/readyz")
    except CapsnetError as error:
        if error.status != httpx.codes.SERVICE_UNAVAILABLE:
            raise
        return False
    return True


def default_model() -> Job[str]:
    """The name of the model that answers requests without one.

    Raises:
        CapsnetError: none does; as the service itself would put it.
    """
    known = yield from models()
    for one in known:
        if one.default or len(known) == 1:
            return one.name
    names = ", ".join(one.name for one in known) or "no models"
    detail = f"none is the default; there are {names}"
    raise CapsnetError(400, "/problems/model-required", "Name a model", detail)


def pin(name: str | None, version: int | None) -> Job[Pinned]:
    """The model and version that a request for these gets now, loaded if it was not.

    Raises:
        CapsnetError: none is served.
    """
    name = name or (yield from default_model())
    yield Call("GET", f"{_graph_path(name, version)}/ready")  # loads what loads with its first request
    known = yield from model(name)
    for one in known.versions:  # newest first
        if one.manifest is not None and version in (None, one.version):
            return Pinned(name, one.version, one.manifest)
    states = ", ".join(f"{one.version} is {one.state}" for one in known.versions)
    title = "No such model or version is served"
    raise CapsnetError(404, "/problems/unknown-model", title, f"{name} was taken down just now: {states}")


def stream_query(model: str | None, version: int | None, **given: str | int | None) -> Job[Params]:
    """Query parameters that name one version for a whole stream."""
    if model is None or version is None:
        model, version, _ = yield from pin(model, version)
    return params(model=model, version=version, **given)


def _graph_path(graph: str, version: int | None) -> str:
    path = f"/v2/models/{_in_path(graph)}"
    return path if version is None else f"{path}/versions/{version}"


def _in_path(name: str) -> str:
    return quote(name, safe="")


def _check_floats(name: str, array: Floats, shape: str, axes: int) -> None:
    if not isinstance(array, np.ndarray) or array.dtype != np.float32 or array.ndim != axes or not array.size:
        came = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
        raise ValueError(f"{name} must be a float32 array {shape} of at least one image, got {came}")
