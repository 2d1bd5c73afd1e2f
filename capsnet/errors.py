"""What a client raises, read from a problem+json (RFC 9457), or from whatever came instead."""

import httpx
import orjson

NO_TYPE = "about:blank"  # RFC 9457: the problem is what its status says
SHOWN = 200  # characters of an answer that is no problem+json


class CapsnetError(Exception):
    """The service refused, or what answered is no capsnet service.

    Attributes:
        status: of HTTP; None where there was no answer.
        type: stable, such as `/problems/unknown-model`; `about:blank` where the answer had none.
        title: the type in words.
        detail: what was expected, what came and what to do.
        request_id: the answer's X-Request-ID, to find it in the service's log; None where it had none.
    """

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
    """Nobody answered: no connection, a broken one, or none in time."""


class NobodyThereError(UnreachableError):
    """No connection could be made: nothing listens at the address, or there is no such address."""


class ChangedBundleError(CapsnetError):
    """Another bundle answers under the same version than before: what came before is of other weights."""


def changed_bundle(model: str, version: int, before: str, now: str) -> ChangedBundleError:
    """The error of an answer from another bundle than the one before it."""
    return ChangedBundleError(
        None,
        NO_TYPE,
        "Another bundle answers",
        f"{model}/{version} had the digest {before} and now has {now}: its files were replaced meanwhile; "
        "begin again for answers of one bundle",
    )


def refusal(answer: httpx.Response) -> CapsnetError:
    """The error that an answer other than 200 tells."""
    try:
        body = orjson.loads(answer.content)
    except orjson.JSONDecodeError:
        body = None
    told = body if isinstance(body, dict) else {}  # a proxy answers with a page
    detail = told.get("detail") or told.get("error") or answer.text[:SHOWN] or "the answer has no body"
    return CapsnetError(
        answer.status_code,
        str(told.get("type") or NO_TYPE),
        str(told.get("title") or answer.reason_phrase or "Refused"),
        str(detail),
        request_id(answer),
    )


def unreachable(error: httpx.RequestError) -> UnreachableError:
    """The error of a request that got no answer."""
    where = error.request.url.copy_with(query=None)
    reason = str(error) or type(error).__name__
    kind = NobodyThereError if isinstance(error, httpx.ConnectError) else UnreachableError
    return kind(None, NO_TYPE, "The service cannot be reached", f"{where}: {reason}")


def not_understood(answer: httpx.Response, reason: str) -> CapsnetError:
    """The error of a 200 that does not hold what was asked for."""
    where = answer.url.copy_with(query=None)
    return CapsnetError(
        answer.status_code,
        NO_TYPE,
        "The answer is not understood",
        f"{where}: {reason}; is it a capsnet service?",
        request_id(answer),
    )


def other_views(answer: httpx.Response, detail: str) -> CapsnetError:
    """The error of a 200 to files that the service has not taken for the views that they are.

    It cannot know: an even number of pictures for a model of two views are pairs to it. Of an odd number it
    says the same.
    """
    return CapsnetError(
        httpx.codes.UNPROCESSABLE_ENTITY,
        "/problems/invalid-field",
        "A field or parameter is wrong",
        detail,
        request_id(answer),
    )


def request_id(answer: httpx.Response) -> str | None:
    """What the service calls this request in its log."""
    header: str | None = answer.headers.get("x-request-id")
    return header
