"""What a client does, step by step: requests, and the pauses before they are sent again.

What is to be done is decided by generators, which yield a step and are sent what came of it, the way httpx
writes its authentication: the blocking and the asynchronous client drive the same ones. A job yields requests
and is sent good answers only; `with_retries` makes steps of it, among them the requests that are repeated.
"""

import random
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Generic, TypeVar

import httpx

from capsnet.errors import CapsnetError, NobodyThereError, UnreachableError, refusal, unreachable

T = TypeVar("T")
Params = Mapping[str, str | float]

PASSING = frozenset({429, 502, 503, 504})  # too much to do, away, or not in time: another time it may work


@dataclass(frozen=True)
class Call:
    """A request to be sent; `body` holds what httpx calls content, data, files and headers."""

    method: str
    path: str
    params: Params = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Pause:
    """Seconds to be waited."""

    seconds: float


@dataclass(frozen=True)
class Done(Generic[T]):
    """Nothing more to do, and the result."""

    result: T


Job = Generator[Call, httpx.Response, T]  # is thrown a CapsnetError where there is no good answer
Came = httpx.Response | httpx.RequestError | None  # None: of a pause, or nothing yet
Steps = Generator[Call | Pause, Came, T]


def advance(steps: Steps[T], came: Came) -> Call | Pause | Done[T]:
    """The next step, given what came of the last one. Blocks while files are read and pictures unpacked."""
    try:
        return steps.send(came)
    except StopIteration as end:
        return Done(end.value)


def params(**given: str | float | None) -> Params:
    """Query parameters: those that are given."""
    return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class Retry:
    """How long to insist on an answer. All requests may be repeated: none of them changes anything.

    Where no connection can be made and the service has never answered, the error comes at once: it is more
    often a wrong address than a service about to start. One that has answered before is waited for.

    Before attempt n + 1 passes what the answer's Retry-After asks for, and a random time of up to
    `first_wait_s` * 2 ** (n - 1), so that many clients do not come back all at once.

    Attributes:
        attempts: how often a request is sent, at least 1.
        first_wait_s: seconds, at most, before the second attempt where the service asks for none.
        longest_wait_s: seconds that neither a Retry-After nor the random time may exceed.
        total_s: seconds after the first attempt beyond which no other one begins.
        until_started: also wait for a service that has never answered, such as one that is about to start.

    Raises:
        ValueError: attempts below 1, or a negative time.
    """

    attempts: int = 10
    first_wait_s: float = 0.5
    longest_wait_s: float = 30.0
    total_s: float = 120.0
    until_started: bool = False

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts must be at least 1, got {self.attempts}")
        if min(self.first_wait_s, self.longest_wait_s, self.total_s) < 0:
            raise ValueError(f"times must not be negative, got {self}")

    def wait_s(self, attempt: int, asked_s: float) -> float:
        """Seconds to wait after this attempt, counted from 1, when Retry-After asks for `asked_s`."""
        random_s = min(self.longest_wait_s, self.first_wait_s * 2.0 ** min(attempt - 1, 64))
        return min(asked_s, self.longest_wait_s) + random.uniform(0, random_s)


DEFAULT_RETRY = Retry()
ONCE = Retry(attempts=1)


@dataclass
class Contact:
    """Whether the service has ever answered."""

    made: bool = False


def with_retries(job: Job[T], retry: Retry, contact: Contact) -> Steps[T]:
    """The job, each of its calls repeated until there is a good answer or no hope for one."""
    try:
        call = next(job)
        while True:
            try:
                answer = yield from _insist(call, retry, contact)
            except CapsnetError as error:
                call = job.throw(error)
            else:
                call = job.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def _insist(call: Call, retry: Retry, contact: Contact) -> Steps[httpx.Response]:
    """The good answer to a call.

    Raises:
        CapsnetError: the last one that came of it.
    """
    until = time.monotonic() + retry.total_s
    attempt = 0
    while True:
        attempt += 1
        came = yield call
        contact.made = contact.made or isinstance(came, httpx.Response)
        if isinstance(came, httpx.Response) and came.status_code == httpx.codes.OK:
            return came
        error, asked_s = _fault(came)
        wait_s = retry.wait_s(attempt, asked_s)
        is_awaited = contact.made or retry.until_started or not isinstance(error, NobodyThereError)
        is_passing = error.status in PASSING or (isinstance(error, UnreachableError) and is_awaited)
        if not is_passing or attempt == retry.attempts or time.monotonic() + wait_s > until:
            raise error
        yield Pause(wait_s)


def _fault(came: Came) -> tuple[CapsnetError, float]:
    """What is wrong, and the seconds that Retry-After asks for."""
    assert came is not None, "a call was taken for a pause"
    if isinstance(came, httpx.RequestError):
        return unreachable(came), 0
    return refusal(came), retry_after_s(came.headers.get("retry-after", ""), datetime.now(UTC))


def retry_after_s(header: str, now: datetime) -> float:
    """What a Retry-After asks for, in seconds or as a date (RFC 9110, 10.2.3); 0 where it is neither."""
    header = header.strip()
    if header.isascii() and header.isdecimal():
        return float(header)
    try:
        date = parsedate_to_datetime(header)
    except ValueError:
        return 0
    # Dates of HTTP are in GMT; -0000 makes one without a zone.
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (date - now).total_seconds())
