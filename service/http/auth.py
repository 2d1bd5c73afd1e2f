"""API keys: which requests need one, and which key opens administration."""

import hmac
from collections.abc import Iterable, Sequence

from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from service import errors
from service.errors import AdministrationOffError, AdminKeyError, UnauthorizedError
from service.http.request_log import PROBES
from service.settings import Settings

Headers = Iterable[tuple[bytes, bytes]]

# Open without a key besides the probes: the pages on which a person can enter one.
PAGES = frozenset({"/", "/docs", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css", "/openapi.json"})
OPEN = PROBES | PAGES
PLAYGROUND = "/playground/"  # the files of the page at /


class KeyCheck:
    """ASGI middleware that answers 401 to requests without a valid key, before their body is read."""

    def __init__(self, app: ASGIApp, keys: Sequence[bytes]) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on requests for open paths and those with a key."""
        if scope["type"] == "http" and not _is_open(scope["path"]):
            try:
                check_key(scope["headers"], self._keys)
            except UnauthorizedError as error:
                await errors.problem_of(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def check_key(headers: Headers, keys: Sequence[bytes]) -> None:
    """The headers of a request, or the metadata of a call, have one of the keys.

    Raises:
        UnauthorizedError: 401; they have none, or another one.
    """
    if not _has_one_of(keys, headers):
        came = "the one that came is not valid" if _keys_of(headers) else "none came"
        raise UnauthorizedError(f"API key required, as Authorization: Bearer KEY or X-API-Key: KEY; {came}")


def check_admin(request: Request, settings: Settings) -> None:
    """The request has the admin key; raises what `check_admin_key` raises."""
    check_admin_key(request.scope["headers"], settings)


def check_admin_key(headers: Headers, settings: Settings) -> None:
    """The headers of a request, or the metadata of a call, have the admin key.

    Raises:
        AdministrationOffError: 404; without CAPSNET_ADMIN_KEY there is no administration.
        AdminKeyError: 403; the request has no key, or another one.
    """
    if settings.admin_key is None:
        raise AdministrationOffError(
            "administration is off; start the service with CAPSNET_ADMIN_KEY to switch it on"
        )
    key = settings.admin_key.get_secret_value().encode()
    if not _has_one_of((key,), headers):
        raise AdminKeyError(
            "this route requires the key of CAPSNET_ADMIN_KEY, as Authorization: Bearer KEY or X-API-Key: KEY"
        )


def _is_open(path: str) -> bool:
    return path in OPEN or path.startswith(PLAYGROUND)


def _has_one_of(keys: Sequence[bytes], headers: Headers) -> bool:
    """Whether a header holds one of the keys; the time it takes does not tell which, or how close it was."""
    is_known = False
    for key in _keys_of(headers):
        for known in keys:
            is_known |= hmac.compare_digest(key, known)
    return is_known


def _keys_of(headers: Headers) -> list[bytes]:
    keys = [value for name, value in headers if name == b"x-api-key"]
    given = (value for name, value in headers if name == b"authorization")
    return keys + [value[7:].strip() for value in given if value[:7].lower() == b"bearer "]
