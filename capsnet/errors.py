"""The errors of a client, read from a problem+json (RFC 9457) or from whatever came instead."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx
import orjson

NO_TYPE = "about:blank"  # RFC 9457: the problem is what its status says
INTERNAL_ERROR = "/problems/internal-error"  # a bug in the service
INVALID = "Invalid response from the server"
SHOWN = 200  # characters of a response that is no problem+json


class CapsnetError(Exception):
    """The service refused a request, could not be reached, or is no capsnet service.

    Attributes:
        status: the HTTP status; None without a response that can be read.
        type: stable, such as `/problems/unknown-model`; `about:blank` if the response has none.
        title: the type in words.
        detail: what was expected, what came and what to do.
        request_id: the response's X-Request-ID, with which the service's log has it; None without one.
        retry_after_s: what the response's Retry-After asks for, in seconds; 0 without one.
    """

    retry_after_s: float = 0.0

    def __init__(
        self, status: int | None, kind: str, title: str, detail: str, request_id: str | None = None
    ) -> None:
        super().__init__(status, kind, title, detail, request_id)  # all of them, so that it can be pickled
        self.status = status
        self.type = kind
        self.title = title
        self.detail = detail
        self.request_id = request_id

    def __str__(self) -> str:
        status = "" if self.status is None else f"{self.status} "
        request = f" (request {self.request_id})" if self.request_id else ""
        return f"{status}{self.title}: {self.detail}{request}"


class UnreachableError(CapsnetError):
    """There was no response: no connection, a broken one, or a timeout."""


class ConnectError(UnreachableError):
    """No connection could be made: nothing listens at the address, it does not exist, or a proxy refuses."""


class ChangedBundleError(CapsnetError):
    """The bundle of a version was replaced between two requests: earlier results are of other weights."""


def changed_bundle(model: str, version: int, before: str, now: str) -> ChangedBundleError:
    """The error of a response from another bundle than the one before it."""
    return ChangedBundleError(
        None,
        NO_TYPE,
        "The bundle has changed",
        f"{model}/{version} had the digest {before} and now has {now}: its files were replaced meanwhile; "
        "start again, so that all results come from one bundle",
    )


def refusal(response: httpx.Response) -> CapsnetError:
    """The error of a response with a status other than 200."""
    try:
        body = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        body = None
    told = body if isinstance(body, dict) else {}  # a proxy answers with a page
    detail = told.get("detail") or told.get("error") or response.text[:SHOWN] or "the response has no body"
    error = CapsnetError(
        response.status_code,
        str(told.get("type") or NO_TYPE),
        str(told.get("title") or response.reason_phrase or "Refused"),
        str(detail),
        request_id(response),
    )
    error.retry_after_s = retry_after_s(response.headers.get("retry-after", ""), datetime.now(UTC))
    return error


def retry_after_s(header: str, now: datetime) -> float:
    """The seconds that a Retry-After asks for, a number or a date (RFC 9110, 10.2.3); 0 for anything else."""
    header = header.strip()
    if header.isascii() and header.isdecimal():
        return float(header)
    try:
        date = parsedate_to_datetime(header)
    except (ValueError, OverflowError):
        return 0
    # Dates in HTTP are in GMT; -0000 makes one without a zone.
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (date - now).total_seconds())


def unreachable(error: httpx.RequestError) -> UnreachableError:
    """The error of a request without a response."""
    reason = str(error) or type(error).__name__
    if isinstance(error, httpx.ProxyError):
        reason = f"the proxy answered: {reason}"
    is_connecting = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError)
    kind = ConnectError if is_connecting else UnreachableError
    return kind(None, NO_TYPE, "The service cannot be reached", f"{_shown(error.request.url)}: {reason}")


def invalid_response(response: httpx.Response, reason: str) -> CapsnetError:
    """The error of a response with status 200 that does not hold what was asked for."""
    return CapsnetError(
        response.status_code,
        NO_TYPE,
        INVALID,
        f"{_shown(response.url)}: {reason}; is it a capsnet service?",
        request_id(response),
    )


def undecodable(error: httpx.DecodingError) -> CapsnetError:
    """The error of a response that is not compressed as its Content-Encoding says."""
    reason = f"it cannot be decompressed: {error}"
    return CapsnetError(None, NO_TYPE, INVALID, f"{_shown(error.request.url)}: {reason}")


def _shown(url: httpx.URL) -> httpx.URL:
    """A URL without its query, and without a name and a password for a proxy."""
    return url.copy_with(query=None, username="", password="")


def wrong_views(response: httpx.Response, detail: str) -> CapsnetError:
    """The error of a response that took single pictures for pairs, or pairs for single pictures.

    The service cannot know: for a model of two views it takes an even number of pictures for pairs. An odd
    number gets the same error from the service itself.
    """
    return CapsnetError(
        httpx.codes.UNPROCESSABLE_ENTITY,
        "/problems/invalid-field",
        "A field or parameter is wrong",
        detail,
        request_id(response),
    )


def request_id(response: httpx.Response) -> str | None:
    """The id of this request in the service's log."""
    header: str | None = response.headers.get("x-request-id")
    return header
