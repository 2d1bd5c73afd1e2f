"""Which requests need a key, what a key may send, and which key opens administration."""

from starlette.types import ASGIApp, Receive, Scope, Send

from service import errors
from service.errors import (
    AdministrationOffError,
    AdminKeyError,
    TooManyRequestsError,
    UnauthorizedError,
)
from service.http.key_use import KeyUse
from service.http.keys import Headers, Key, Keys, sent
from service.http.request_log import PROBES

# Open without a key besides the probes: the pages on which a person can enter one.
PAGES = frozenset({"/", "/docs", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css", "/openapi.json"})
OPEN = PROBES | PAGES
PLAYGROUND = "/playground/"  # the files of the page at /


class KeyCheck:
    """ASGI middleware that answers before a body is read: 401 without a valid key, 429 over its limits.

    Args:
        app: the application inside.
        keys: that open it.
        use: of each key.
    """

    def __init__(self, app: ASGIApp, keys: Keys, use: KeyUse) -> None:
        self._app = app
        self._keys = keys
        self._use = use

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on requests for open paths and those with a key."""
        if scope["type"] != "http" or _is_open(scope["path"]):
            await self._app(scope, receive, send)
            return
        try:
            key = check_key(scope["headers"], self._keys)
            scope["state"]["noted"]["key"] = key.name
            with self._use.counted(key):
                await self._app(scope, receive, send)
        except (UnauthorizedError, TooManyRequestsError) as error:
            await errors.problem_of(error)(scope, receive, send)


def check_key(headers: Headers, keys: Keys) -> Key:
    """The key that the headers of a request, or the metadata of a call, have.

    Raises:
        UnauthorizedError: 401; they have none, or another one.
    """
    key = keys.find(headers)
    if key is None:
        came = "the one that came is not valid" if sent(headers) else "none came"
        raise UnauthorizedError(f"API key required, as Authorization: Bearer KEY or X-API-Key: KEY; {came}")
    return key


def check_admin_key(headers: Headers, keys: Keys) -> None:
    """The headers of a request, or the metadata of a call, have the admin key.

    Raises:
        AdministrationOffError: 404; without an admin key there is no administration.
        AdminKeyError: 403; the request has no key, or another one.
    """
    if keys.admin is None:
        raise AdministrationOffError(
            "administration is off; start the service with CAPSNET_ADMIN_KEY or CAPSNET_ADMIN_KEY_FILE"
        )
    if not keys.has_admin(headers):
        raise AdminKeyError(
            "this route requires the admin key (CAPSNET_ADMIN_KEY), as Authorization: Bearer KEY or "
            "X-API-Key: KEY"
        )


def _is_open(path: str) -> bool:
    return path in OPEN or path.startswith(PLAYGROUND)
