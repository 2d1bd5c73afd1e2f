"""Errors that clients see: exceptions that know their HTTP status, answered as problem+json (RFC 9457)."""

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, ClassVar

import orjson
from fastapi import Response

PROBLEM_JSON = "application/problem+json"
RETRY = {"Retry-After": "1"}  # seconds
OUR_FAULT = "something went wrong on our side; the log has the details"
SHOWN = 80  # characters of a client's value that a message repeats


class ServiceError(Exception):
    """An error that a client sees; the message says what was expected and what came."""

    status: ClassVar[int]
    slug: ClassVar[str]
    title: ClassVar[str]
    headers: ClassVar[Mapping[str, str]] = {}


class MalformedBodyError(ServiceError):
    """No body, or broken JSON, multipart or base64."""

    status, slug, title = 400, "malformed-body", "The body cannot be read"


class MalformedRequestError(ServiceError):
    """The bytes are not an HTTP/1.1 request; the connection is closed."""

    status, slug, title = 400, "malformed-request", "The request cannot be read"


class ModelRequiredError(ServiceError):
    """Several models are served and the request names none."""

    status, slug, title = 400, "model-required", "Name a model"


class UnauthorizedError(ServiceError):
    """The request has no key, or one that is not valid."""

    status, slug, title = 401, "key-required", "API key required"
    headers: ClassVar[Mapping[str, str]] = {"WWW-Authenticate": 'Bearer realm="capsnet"'}


class AdminKeyError(ServiceError):
    """A request for administration without the admin key."""

    status, slug, title = 403, "admin-key-required", "Admin key required"


class AdministrationOffError(ServiceError):
    """A request for administration of a service that has no admin key."""

    status, slug, title = 404, "administration-off", "Administration is off"


class UnknownModelError(ServiceError):
    """No such model or version is served."""

    status, slug, title = 404, "unknown-model", "No such model or version is served"


class SlowBodyError(ServiceError):
    """The body did not arrive within CAPSNET_RECEIVE_MS."""

    status, slug, title = 408, "slow-body", "The body arrived too slowly"
    # The rest of it would be read as a request.
    headers: ClassVar[Mapping[str, str]] = {"Connection": "close"}


class NoExplainGraphError(ServiceError):
    """/explain of a model whose bundle has no explain graph, or one that no longer loads."""

    status, slug, title = 409, "no-explain-graph", "The bundle has no explain graph"


class NotWritableError(ServiceError):
    """A change that would have to be written into a folder of CAPSNET_MODELS, which cannot be written."""

    status, slug, title = 409, "not-writable", "The models folder cannot be written"


class BodyTooLargeError(ServiceError):
    """The body has more than CAPSNET_MAX_BODY_BYTES."""

    status, slug, title = 413, "body-too-large", "The body is too large"


class PictureTooLargeError(ServiceError):
    """A picture has more than CAPSNET_MAX_PIXELS, or a side of more than 65,535."""

    status, slug, title = 413, "picture-too-large", "The picture has too many pixels"


class TooManyPicturesError(ServiceError):
    """More images or reconstructions than one request may ask for."""

    status, slug, title = 413, "too-many-pictures", "Too many pictures for one request"


class TooManyPixelsError(ServiceError):
    """The pictures of a request have more than CAPSNET_MAX_REQUEST_PIXELS together."""

    status, slug, title = 413, "too-many-pixels", "The pictures of one request have too many pixels"


class UnsupportedBodyError(ServiceError):
    """A Content-Type that the route does not accept."""

    status, slug, title = 415, "unsupported-body", "Unsupported Content-Type"


class UnsupportedCodingError(ServiceError):
    """A Content-Encoding that the route does not accept; only `infer` accepts gzip and deflate."""

    status, slug, title = 415, "unsupported-coding", "Unsupported Content-Encoding"
    headers: ClassVar[Mapping[str, str]] = {"Accept-Encoding": "gzip, deflate"}


class CompressedBodyError(UnsupportedCodingError):
    """A Content-Encoding on a route that accepts none."""

    headers: ClassVar[Mapping[str, str]] = {"Accept-Encoding": "identity"}


class UnsupportedPictureError(ServiceError):
    """A file in a format that is not supported, or no picture at all."""

    status, slug, title = 415, "unsupported-picture", "The picture's format is not supported"


class UnreadablePictureError(ServiceError):
    """A damaged picture, or one too small to show anything."""

    status, slug, title = 422, "unreadable-picture", "The picture cannot be read"


class NoPairError(ServiceError):
    """Two pictures of different sizes as the views of one pair."""

    status, slug, title = 422, "no-pair", "The pictures are not a pair"


class WrongArrayError(ServiceError):
    """A .npy array or a tensor of another shape, type or range, or with objects."""

    status, slug, title = 422, "wrong-array", "The array does not fit the model"


class InvalidFieldError(ServiceError):
    """An unknown, repeated, missing or wrong field or query parameter."""

    status, slug, title = 422, "invalid-field", "A field or parameter is wrong"


class NoDecoderError(ServiceError):
    """A request for a reconstruction by a model without a decoder."""

    status, slug, title = 422, "no-decoder", "The model has no decoder"


class RefusedModelError(ServiceError):
    """No version of a model can be served, or not the one that a traffic rule names; the message says why."""

    status, slug, title = 422, "refused-model", "The model's bundles were refused"


class HeadTooLargeError(ServiceError):
    """The request line and headers are larger than a connection accepts; it is closed."""

    status, slug, title = 431, "head-too-large", "The head of the request is too large"


class NotReadyError(ServiceError):
    """Models are still loading, none could be loaded, or the version that is pinned is not served."""

    status, slug, title = 503, "not-ready", "Not ready"
    headers = RETRY


class InferenceStoppedError(ServiceError):
    """An inference thread has died; only a new process helps."""

    status, slug, title = 503, "inference-stopped", "Inference has stopped for good"
    headers = RETRY


class TooManyRequestsError(ServiceError):
    """The key has exceeded its request rate or its number of concurrent requests.

    Args:
        detail: which limit.
        after_s: when to try again, in seconds.
    """

    status, slug, title = 429, "too-many-requests", "Too many requests"

    def __init__(self, detail: str, after_s: int) -> None:
        super().__init__(detail)
        self.headers = {"Retry-After": str(after_s)}  # type: ignore[misc]  # of this error, not of all


class OverloadedError(ServiceError):
    """The queue or the memory for bodies is full, or the model is being taken down."""

    status, slug, title = 503, "overloaded", "Overloaded"
    headers = RETRY


class DeadlineExceededError(ServiceError):
    """No result within CAPSNET_DEADLINE_MS."""

    status, slug, title = 504, "deadline-exceeded", "No result in time"
    headers = RETRY


class Unfinished(str):
    """What a request was waiting for when it was cancelled, in words: the argument of a CancelledError."""


# Statuses that the framework itself answers with.
FRAMEWORK = {
    404: ("not-found", "No such route"),
    405: ("method-not-allowed", "This route answers other methods"),
    500: ("internal-error", "Internal error"),
}


def problem(
    status: int, slug: str, title: str, detail: str, headers: Mapping[str, str] | None = None
) -> Response:
    """The answer of an error: one problem+json object."""
    body = {"type": f"/problems/{slug}", "title": title, "status": status, "detail": detail}
    # A client's text may hold lone surrogates, which JSON cannot carry.
    body["detail"] = body["error"] = detail.encode("utf-8", "replace").decode()
    return Response(orjson.dumps(body), status, dict(headers or {}), PROBLEM_JSON)


def problem_of(error: ServiceError) -> Response:
    """The answer of one of our errors."""
    return problem(error.status, error.slug, error.title, str(error), error.headers)


def framework_problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """The answer of an error that the framework raised."""
    slug, title = FRAMEWORK.get(status, ("http-error", HTTPStatus(status).phrase))
    return problem(status, slug, title, detail, headers)


def internal_error() -> Response:
    """The answer where the service itself is at fault."""
    return framework_problem(500, OUR_FAULT)


def invalid_field(faults: Iterable[Any], place: str) -> InvalidFieldError:
    """One InvalidFieldError for what pydantic found wrong in `place`, such as "the body"."""
    return InvalidFieldError("; ".join(_describe(fault, place) for fault in list(faults)[:5]))


def _describe(fault: Mapping[str, Any], place: str) -> str:
    where = _path(fault["loc"]) or place
    message = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] in {"value_error", "missing"}:  # messages of ours say what came
        return f"{where}: {message}"
    return f"{where}: {message[:1].lower()}{message[1:]}, got {shown(fault['input'])}"


def _path(location: Iterable[int | str]) -> str:
    """("sweep", "dimensions", 3) as sweep.dimensions[3]; cut, since a client's names have any length."""
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}"
    return path.removeprefix(".")[: 2 * SHOWN]


def shown(value: object) -> str:
    """The value as a message repeats it: quoted, and cut if it is long."""
    if isinstance(value, list | dict):
        return f"{type(value).__name__} of {len(value)}"
    text = repr(value[: SHOWN + 1]) if isinstance(value, str | bytes) else repr(value)
    return text if len(text) <= SHOWN + 2 else f"{text[:SHOWN]}..."
