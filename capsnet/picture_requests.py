"""The requests that classify and segment pictures, and their responses."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Literal, TypeVar

import httpx

from capsnet.answers import (
    Answer,
    Classification,
    Failed,
    Outcome,
    Scored,
    Segmentation,
    read_json,
    to_classifications,
    to_segmentations,
)
from capsnet.errors import CapsnetError, changed_bundle, wrong_views
from capsnet.exchange import Exchange, Params, Request, params
from capsnet.retries import is_temporary
from capsnet.uploads import (
    REQUEST_IMAGES,
    Picture,
    Pictures,
    UnreadPicture,
    Upload,
    body_of,
    each_picture,
    in_requests,
    is_picture,
    load,
    picture_files,
    try_load,
)

# N images, H rows, W columns, C channels, J classes, D numbers of a pose

Preprocess = Literal["auto", "off"]
R = TypeVar("R")
T = TypeVar("T")
Parse = Callable[[Any, Sequence[str | None]], Answer[R]]  # of a JSON body and the pictures' names

REQUEST_RECONSTRUCTIONS = 512  # a service's default limit per request

# Statuses that a single picture can cause: it is too large, of another format or unreadable, or it triggers a
# bug in the service, which must not end a long stream.
ABOUT_A_PICTURE = frozenset({413, 415, 422, 500})
TOO_SLOW = 408  # the body took longer than the service waits; half of it may be fast enough
TOO_LARGE = 413  # half of the request may be small enough, unless a single picture is too large
PICTURE_TOO_LARGE = "/problems/picture-too-large"
# These problems have such a status, but are wrong queries, whatever the picture.
ABOUT_THE_QUERY = frozenset({"/problems/invalid-field", "/problems/no-decoder", "/problems/refused-model"})


class SameBundle:
    """Checks that all responses come from one bundle: the first one's, unless it is known before.

    Threads may share it.
    """

    def __init__(self, digest: str | None = None) -> None:
        self._seen = {} if digest is None else {"digest": digest}

    def check(self, model: str, version: int, digest: str) -> None:
        """Check the bundle of a response.

        Raises:
            ChangedBundleError: earlier responses came from another bundle; names both digests.
        """
        before = self._seen.setdefault("digest", digest)  # atomic
        if digest != before:
            raise changed_bundle(model, version, before, digest)


def classify(
    pictures: Pictures,
    top_k: int | None,
    query: Params,
    max_bytes: int,
    *,
    reconstruction: bool,
    model_input: bool,
) -> Exchange[Answer[Classification]]:
    """Classify pictures, in as many requests as necessary."""
    wanted = {"reconstruction": reconstruction, "model_input": model_input}
    asked = {name: "true" for name, is_wanted in wanted.items() if is_wanted}
    query = {**query, **params(top_k=top_k, **asked)}
    return _each_image("/classify", to_classifications, pictures, query, REQUEST_IMAGES, max_bytes)


def segment(
    pictures: Pictures, k: int | None, query: Params, max_bytes: int
) -> Exchange[Answer[Segmentation]]:
    """Separate the objects of pictures, in as many requests as necessary."""
    max_images = min(REQUEST_IMAGES, max(1, REQUEST_RECONSTRUCTIONS // (k or 1)))
    query = {**query, **params(k=k)}
    return _each_image("/segment", to_segmentations, pictures, query, max_images, max_bytes)


def _each_image(
    path: str,
    parse: Parse[R],
    pictures: Pictures,
    query: Params,
    max_images: int,
    max_bytes: int,
) -> Exchange[Answer[R]]:
    results: list[R] = []
    answer: Answer[R] | None = None
    bundle = SameBundle()
    for group in in_requests(map(load, each_picture(pictures)), max_images, max_bytes):
        waiting = [group]
        while waiting:
            uploads = waiting.pop()
            response = yield from _post_if_small_enough(path, query, uploads, len(results))
            if response is None:
                half = len(uploads) // 2
                waiting += [uploads[half:], uploads[:half]]
                continue
            answer = _one_each(response, parse, uploads)
            bundle.check(answer.model, answer.version, answer.digest)
            results += answer.results
            # The version of the first response answers the rest, even if a newer one is published meanwhile.
            query = {**query, "model": answer.model, "version": answer.version}
    if answer is None:
        raise ValueError("expected at least one picture, got none")
    return Answer(answer.model, answer.version, answer.digest, tuple(results))


def _post_if_small_enough(
    path: str, query: Params, uploads: Sequence[Upload], done: int
) -> Exchange[httpx.Response | None]:
    """The response for pictures, `done` others before; None if they are too large for one request."""
    try:
        return (yield from post_pictures(path, query, uploads))
    except CapsnetError as error:
        if len(uploads) > 1 and error.status == TOO_LARGE and error.type != PICTURE_TOO_LARGE:
            return None
        if done and _is_about_a_picture(error):  # the service counts within its request
            error.detail = f"of pictures {done + 1} to {done + len(uploads)}: {error.detail}"
        raise


def post_pictures(path: str, query: Params, uploads: Sequence[Upload]) -> Exchange[httpx.Response]:
    """The response for pictures. uint8 arrays that do not have the model's size are sent again, as files."""
    try:
        return (yield Request("POST", path, query, body_of(uploads)))
    except CapsnetError as error:
        if error.type != "/problems/wrong-array" or not all(is_picture(upload) for upload in uploads):
            raise
    files = [("images", file) for upload in uploads for file in picture_files(upload)]
    return (yield Request("POST", path, query, {"files": files}))


def score(
    pictures: Sequence[Picture], query: Params, max_bytes: int, bundle: SameBundle
) -> Exchange[list[Outcome]]:
    """One outcome per picture of a stream: a bad picture fails alone, a changed bundle ends the stream."""
    outcomes: list[Outcome] = []
    for group in in_requests(map(try_load, pictures), len(pictures), max_bytes):
        outcomes += [_failed(one.picture, one.error) for one in group if isinstance(one, UnreadPicture)]
        uploads = [one for one in group if isinstance(one, Upload)]  # all of a group are of one kind
        if uploads:
            outcomes += yield from _halve(uploads, query, bundle)
    return outcomes


def _halve(uploads: Sequence[Upload], query: Params, bundle: SameBundle) -> Exchange[list[Outcome]]:
    """One bad picture fails its whole request: halve the request until the picture is alone."""
    try:
        response = yield from post_pictures("/classify", query, uploads)
    except CapsnetError as error:
        alone = len(uploads) == 1
        if not _is_about_a_picture(error) and (alone or error.status != TOO_SLOW):
            raise
        if alone:
            return [_failed(uploads[0].picture, error)]
        half = len(uploads) // 2
        first = yield from _halve(uploads[:half], query, bundle)
        return first + (yield from _halve(uploads[half:], query, bundle))
    answer = _one_each(response, to_classifications, uploads)
    bundle.check(answer.model, answer.version, answer.digest)
    return [Scored(one.picture, seen) for one, seen in zip(uploads, answer.results, strict=True)]


def _failed(picture: Picture, error: Exception) -> Failed:
    """The outcome without the error's traceback and causes: their frames would keep the request in memory."""
    error.__cause__ = error.__context__ = None
    return Failed(picture, error.with_traceback(None))


def _is_about_a_picture(error: CapsnetError) -> bool:
    """Whether the service might have answered another picture."""
    return error.status in ABOUT_A_PICTURE and error.type not in ABOUT_THE_QUERY and not is_temporary(error)


def _one_each(response: httpx.Response, parse: Parse[R], uploads: Sequence[Upload]) -> Answer[R]:
    names = [upload.filename for upload in uploads]

    def parse_checked(body: Any) -> Answer[R]:
        results = len(body["results"])
        if results == 2 * len(names):
            raise wrong_views(response, f"{body['model']} takes one view of each image; got pairs")
        if 2 * results == len(names):
            expected = "two views of each image, as Pair(left, right)"
            raise wrong_views(response, f"{body['model']} takes {expected}; got single pictures")
        return parse(body, names)

    return read_json(response, parse_checked)


def batches_of(pictures: Iterable[T], size: int) -> Iterator[list[T]]:
    """The pictures in lists of `size`, the last one shorter."""
    pictures = iter(pictures)
    while batch := list(islice(pictures, size)):
        yield batch
