"""What a client asks about pictures, and what it makes of the answers.

Every job is a generator that yields calls and is sent their answers; whoever drives it sends them.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeVar

import httpx
import numpy as np
import orjson
from numpy.typing import NDArray

from capsnet.answers import (
    Answer,
    Classification,
    Failed,
    Levels,
    Outcome,
    Reconstructions,
    Scored,
    Segmentation,
    read_json,
    read_png,
    to_classifications,
    to_reconstructions,
    to_segmentations,
)
from capsnet.errors import CapsnetError, changed_bundle, not_understood, other_views
from capsnet.pictures import (
    REQUEST_IMAGES,
    Picture,
    Pictures,
    Unread,
    Upload,
    body_of,
    each_picture,
    in_requests,
    is_picture,
    load,
    load_or_say,
    picture_files,
)
from capsnet.steps import Call, Job, Params, params

# N images, H rows, W columns, C channels, J classes, D numbers of a pose

Preprocess = Literal["auto", "off"]
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
        """The field `sweep` of /reconstruct.

        Raises:
            ValueError: one of the numbers is NaN or infinite.
        """
        deltas = {name: _finite(name, getattr(self, name)) for name in ("start", "stop", "step")}
        if self.dimensions is None:
            return deltas
        return {"dimensions": [int(dimension) for dimension in self.dimensions], **deltas}


class Decoding(NamedTuple):
    """What is to be decoded: an image's pose or a given one, and what is added to it."""

    image: Picture | None
    pose: Pose | None
    label: str | None
    perturbations: Mapping[int, float] | None
    sweep: Sweep | None


class SameBundle:
    """All answers of a stream are to come from one bundle, the first one's unless it is known before.

    Threads may share it.
    """

    def __init__(self, digest: str | None = None) -> None:
        self._seen = {} if digest is None else {"digest": digest}

    def check(self, model: str, version: int, digest: str) -> None:
        """Note where an answer comes from.

        Raises:
            ChangedBundleError: not from where those before it came; names both digests.
        """
        before = self._seen.setdefault("digest", digest)  # one step, whatever other threads do
        if digest != before:
            raise changed_bundle(model, version, before, digest)


def classify(
    pictures: Pictures, top_k: int | None, reconstruction: bool, query: Params, most_bytes: int
) -> Job[Answer[Classification]]:
    """Classify pictures, in as many requests as it takes."""
    query = {**query, **params(top_k=top_k, reconstruction="true" if reconstruction else None)}
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
    bundle = SameBundle()
    for uploads in in_requests(map(load, each_picture(pictures)), most_images, most_bytes):
        answer = _one_each((yield from _post(path, query, uploads)), parse, uploads)
        bundle.check(answer.model, answer.version, answer.digest)
        results += answer.results
        # The version that has begun answers for all, even if a newer one is published meanwhile.
        query = {**query, "model": answer.model, "version": answer.version}
    if answer is None:
        raise ValueError("expected at least one picture, got none")
    return Answer(answer.model, answer.version, answer.digest, tuple(results))


def _post(path: str, query: Params, uploads: Sequence[Upload]) -> Job[httpx.Response]:
    """The answer to pictures; arrays of levels that have not the model's size are sent as files instead."""
    try:
        return (yield Call("POST", path, query, body_of(uploads)))
    except CapsnetError as error:
        if error.type != "/problems/wrong-array" or not all(is_picture(upload) for upload in uploads):
            raise
    files = [("images", file) for upload in uploads for file in picture_files(upload)]
    return (yield Call("POST", path, query, {"files": files}))


def score(
    pictures: Sequence[Picture], query: Params, most_bytes: int, bundle: SameBundle
) -> Job[list[Outcome]]:
    """One outcome per picture of a stream; a bad one fails alone, and another bundle than before ends it."""
    outcomes: list[Outcome] = []
    for group in in_requests(map(load_or_say, pictures), len(pictures), most_bytes):
        outcomes += [Failed(one.picture, one.error) for one in group if isinstance(one, Unread)]
        uploads = [one for one in group if isinstance(one, Upload)]  # a group is all of one kind
        if uploads:
            outcomes += yield from _halve(uploads, query, bundle)
    return outcomes


def _halve(uploads: Sequence[Upload], query: Params, bundle: SameBundle) -> Job[list[Outcome]]:
    """One bad picture fails its request: halves are asked for until that one is alone."""
    try:
        came = yield from _post("/classify", query, uploads)
    except CapsnetError as error:
        if error.status not in ABOUT_A_PICTURE or error.type in ABOUT_THE_QUESTION:
            raise
        if len(uploads) == 1:
            return [Failed(uploads[0].picture, error)]
        half = len(uploads) // 2
        first = yield from _halve(uploads[:half], query, bundle)
        return first + (yield from _halve(uploads[half:], query, bundle))
    answer = _one_each(came, to_classifications, uploads)
    bundle.check(answer.model, answer.version, answer.digest)
    return [Scored(one.picture, seen) for one, seen in zip(uploads, answer.results, strict=True)]


def _one_each(came: httpx.Response, parse: Parse[R], uploads: Sequence[Upload]) -> Answer[R]:
    names = [upload.filename for upload in uploads]

    def parse_checked(body: Any) -> Answer[R]:
        results = len(body["results"])
        if results == 2 * len(names):
            raise other_views(came, f"{body['model']} takes one view of each image; got pairs")
        if 2 * results == len(names):
            expected = "two views of each image, as Pair(left, right)"
            raise other_views(came, f"{body['model']} takes {expected}; got single pictures")
        return parse(body, names)

    return read_json(came, parse_checked)


def batches_of(pictures: Iterable[T], size: int) -> Iterator[list[T]]:
    """The pictures in lists of `size`, the last one shorter."""
    pictures = iter(pictures)
    while batch := list(islice(pictures, size)):
        yield batch


def reconstruct(decoding: Decoding, query: Params) -> Job[Reconstructions]:
    """The decoded pictures one by one."""
    body = _reconstruction(decoding)
    return read_json((yield Call("POST", "/reconstruct", query, body)), to_reconstructions)


def reconstruct_grid(decoding: Decoding, query: Params) -> Job[Levels]:
    """The decoded pictures in one, uint8 [H, W, C]: a row per dimension, a column per delta."""
    body = _reconstruction(decoding)
    came = yield Call("POST", "/reconstruct", query, {**body, "headers": {"Accept": "image/png"}})
    try:
        return read_png(came.content)
    except ValueError as error:
        raise not_understood(came, str(error)) from error


def _reconstruction(decoding: Decoding) -> dict[str, Any]:
    """The body: a form with a picture's file, or JSON with a pose.

    Raises:
        ValueError: there is neither an image nor a pose, or both; a number is NaN or infinite.
    """
    image, pose, label, perturbations, sweep = decoding
    fields: dict[str, Any] = {} if label is None else {"label": label}
    changes: dict[str, Any] = {}
    if perturbations is not None:
        changes["perturbations"] = [
            {"dimension": int(dimension), "delta": _finite(f"delta of dimension {dimension}", delta)}
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
    """As it is; JSON has no NaN and no infinity, and would say null."""
    if not math.isfinite(given):
        raise ValueError(f"{name} must be a finite number, got {given}")
    return float(given)
