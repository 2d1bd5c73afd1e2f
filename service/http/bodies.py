"""Request bodies: read whole, then parsed as JSON or as a form, with errors that say what was expected."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from service import errors
from service.errors import CompressedBodyError, InvalidFieldError, MalformedBodyError, shown
from service.http.multipart import Part, parse_form
from service.http.picture_pool import PicturePool
from service.observability.timings import end_part

Fields = TypeVar("Fields", bound=BaseModel)
Headers = Iterable[tuple[bytes, bytes]]

# More than twice what a request needs: a pose of 4,096 values and as many perturbations of two each. In
# memory a value takes dozens of times the bytes it has in a body.
JSON_VALUES = 32_768
INLINE_FORM_BYTES = 16_384  # parsed on the event loop; a hostile form of this size takes 3 ms


class Body(NamedTuple):
    """A request's body as it arrived.

    Attributes:
        content_type: the header's value.
        kind: the same without its parameters, in lower case; "" where there is none.
        path: of the request, for messages.
    """

    content: bytes
    content_type: str
    kind: str
    path: str


async def read_body(request: Request, check_kind: Callable[[str, str], None]) -> Body:
    """The whole body.

    Args:
        request: whose body nobody has begun to read.
        check_kind: is called with the kind and the path, see `Body`, before anything is read; may raise.

    Raises:
        CompressedBodyError: it is compressed.
        ServiceError: it is too large, or too slow; see `service.http.limits`.
        ClientDisconnect: the client has hung up before its end.
    """
    path = request.scope["path"]
    content_type, coding = _content_headers(request.scope["headers"])
    kind = content_type.partition(";")[0].strip().lower()
    check_kind(kind, path)
    if coding != "identity":
        raise CompressedBodyError(
            f"{path} takes bodies without compression; got Content-Encoding: {shown(coding)}",
        )
    content = await _read(request.receive)
    end_part("receive")
    return Body(content, content_type, kind, path)


def require_content(body: Body) -> None:
    """The body is not empty.

    Raises:
        MalformedBodyError: it is.
    """
    if not body.content:
        raise MalformedBodyError("the body is empty")


async def parse_parts(body: Body, max_files: int, pool: PicturePool) -> list[Part]:
    """The parts of a form; a large one is parsed on a thread of the pool.

    Raises:
        MalformedBodyError: it is not a form.
        UnsupportedBodyError: a charset other than UTF-8.
        TooManyPicturesError: more than `max_files`.
    """
    form = (body.content, body.content_type, max_files)
    if len(body.content) <= INLINE_FORM_BYTES:
        return parse_form(*form)
    return await pool.run(parse_form, *form)


def parse_json(text: str | bytes, place: str) -> Any:
    """Strict JSON: no NaN, and no name twice in an object.

    Raises:
        MalformedBodyError: it is not.
        InvalidFieldError: it lists more values than any request needs.
    """
    raw = text.encode() if isinstance(text, str) else text
    values = max(raw.count(b",") + 1, raw.count(b"["), raw.count(b"{"))  # at most
    if values > JSON_VALUES:
        raise InvalidFieldError(f"{place} may list {JSON_VALUES} values, got {values}")
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_each_name_once)
    except (ValueError, RecursionError) as error:  # deep nesting is a RecursionError
        raise MalformedBodyError(f"{place} is not valid JSON: {error}") from None


def check_fields(model: type[Fields], given: Mapping[str, Any], place: str) -> Fields:
    """The fields as the model has them.

    Raises:
        InvalidFieldError: a field is unknown, missing or wrong; names `place` where it names no field.
    """
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise errors.invalid_field(error.errors(), place) from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _each_name_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for name, value in pairs:
        if name in names:
            raise ValueError(f"{shown(name)} is given twice")
        names[name] = value
    return names


def _content_headers(headers: Headers) -> tuple[str, str]:
    """Content-Type, "" where there is none, and Content-Encoding, in lower case."""
    content_type: str | None = None
    codings = []
    for name, value in headers:
        if name == b"content-type" and content_type is None:
            content_type = value.decode("latin-1")
        elif name == b"content-encoding":
            codings.append(value.decode("latin-1"))
    return content_type or "", ", ".join(codings or ["identity"]).strip().lower()


async def _read(receive: Receive) -> bytes:
    """The whole body; as Starlette's `Request.body`, which takes longer for a small one."""
    pieces = []
    is_over = False
    while not is_over:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        pieces.append(message.get("body", b""))
        is_over = not message.get("more_body", False)
    return b"".join(pieces)
