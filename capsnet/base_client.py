"""What the blocking and the asynchronous client share: the connection and the limits."""

import re
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import httpx

from capsnet.errors import refusal
from capsnet.retries import DEFAULT_RETRY, Contact, Retry, tenacity_options
from capsnet.uploads import REQUEST_BYTES, is_single

KEY = re.compile(r"[!-~]+")
DEFAULT_URL = "http://localhost:8000"
TIMEOUT_S = 60.0  # longer than the service's own deadline of 30 s, whose error says more
CONNECT_TIMEOUT_S = 5.0
BATCH = 32
CONCURRENCY = 4

Http = TypeVar("Http", httpx.Client, httpx.AsyncClient)


class BaseClient(ABC, Generic[Http]):
    """A client without its methods; for the arguments see `Client`."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout_s: float = TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        retry: Retry = DEFAULT_RETRY,
        request_bytes: int = REQUEST_BYTES,
    ) -> None:
        self._http: Http = self._connect(**_http_options(url, api_key, timeout_s, connect_timeout_s))
        self._retry = retry
        self._contact = Contact()
        self._request_bytes = request_bytes

    @staticmethod
    @abstractmethod
    def _connect(**options: Any) -> Http:
        """An httpx client with these options."""

    def _tenacity_options(self, retry: Retry | None) -> dict[str, Any]:
        return tenacity_options(retry or self._retry, self._contact)

    def _check(self, response: httpx.Response) -> httpx.Response:
        """The response, if its status is 200.

        Raises:
            CapsnetError: it is another.
        """
        self._contact.made = True
        if response.status_code != httpx.codes.OK:
            raise refusal(response)
        return response


def check_stream(pictures: object, batch: int, concurrency: int) -> None:
    """Check the arguments of `classify_many`.

    Raises:
        TypeError: the pictures are a single one, which would be read by letters, lines or rows.
        ValueError: a limit is below 1.
    """
    if is_single(pictures):
        raise TypeError(
            f"classify_many takes several pictures, such as a list; for one {type(pictures).__name__} there "
            "is classify"
        )
    if min(batch, concurrency) < 1:
        raise ValueError(f"batch and concurrency must be at least 1, got {batch} and {concurrency}")


def _http_options(
    url: str, api_key: str | None, timeout_s: float, connect_timeout_s: float
) -> dict[str, Any]:
    """The options of both clients for httpx.

    Raises:
        ValueError: no http or https URL, a time of 0 or less, a key with other than printable ASCII, or
            one beside a name or password in the URL: both would take the same header.
    """
    try:
        checked = httpx.URL(url)
    except (httpx.InvalidURL, TypeError) as error:
        raise ValueError(f"url must look like {DEFAULT_URL}: {error}") from None
    if checked.scheme not in {"http", "https"} or not checked.host:
        raise ValueError(f"url must look like {DEFAULT_URL}, got {url!r}")
    if min(timeout_s, connect_timeout_s) <= 0:
        raise ValueError(f"timeouts must be above 0 s, got {timeout_s} and {connect_timeout_s}")
    if api_key is not None and not KEY.fullmatch(api_key):  # the error does not show it
        raise ValueError("api_key must be printable ASCII without blanks or line breaks")
    if api_key is not None and checked.userinfo:
        raise ValueError("url has a name or password, which would be sent in place of api_key: give one")
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    # However many calls wait for a connection of the pool: that says nothing about the service.
    timeout = httpx.Timeout(timeout_s, connect=connect_timeout_s, pool=None)
    return {"base_url": checked, "headers": headers, "timeout": timeout}
