"""Which requests are repeated, when, and for how long."""

from dataclasses import dataclass
from typing import Any

from tenacity import (
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
    stop_before_delay,
    wait_random_exponential,
)

from capsnet.errors import INTERNAL_ERROR, CapsnetError, ConnectError, UnreachableError

TEMPORARY = frozenset({429, 502, 503, 504})  # overloaded, unavailable or too slow for now


@dataclass(frozen=True)
class Retry:
    """How long to repeat a request. Any request may be repeated: none of them changes anything.

    Repeated are answers of 429, 502, 503 and 504, those of 500 that do not name a bug of the service itself,
    and requests whose connection broke. If no connection can be made and the service has never answered, the
    error is raised at once: a wrong address is more likely than a service that is about to start. A service
    that has answered before is waited for.

    The wait before attempt n + 1 is what the response's Retry-After asks for, plus a random time of up to
    `first_wait_s` * 2 ** (n - 1), so that many clients do not return at the same moment.

    Attributes:
        attempts: how often a request is sent, at least 1.
        first_wait_s: maximum random wait before the second attempt, in seconds.
        max_wait_s: maximum of Retry-After and of the random wait each, in seconds.
        timeout_s: no attempt begins later than this after the first one, in seconds.
        until_started: also wait for a service that has never answered, such as one that is about to start.

    Raises:
        ValueError: attempts below 1, or a negative time.
    """

    attempts: int = 10
    first_wait_s: float = 0.5
    max_wait_s: float = 30.0
    timeout_s: float = 120.0
    until_started: bool = False

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts must be at least 1, got {self.attempts}")
        if min(self.first_wait_s, self.max_wait_s, self.timeout_s) < 0:
            raise ValueError(f"times must not be negative, got {self}")


DEFAULT_RETRY = Retry()
ONCE = Retry(attempts=1)


@dataclass
class Contact:
    """Whether the service has ever answered."""

    made: bool = False


def is_temporary(error: CapsnetError) -> bool:
    """Whether it is not about the request: the service is overloaded, or a proxy has lost it."""
    # A 500 that the service does not name as its own bug is a proxy's.
    return error.status in TEMPORARY or (error.status == 500 and error.type != INTERNAL_ERROR)


def tenacity_options(retry: Retry, contact: Contact) -> dict[str, Any]:
    """The arguments of tenacity's Retrying and AsyncRetrying, for calls that raise CapsnetError."""
    backoff = wait_random_exponential(multiplier=retry.first_wait_s, max=retry.max_wait_s)

    def is_to_be_repeated(error: BaseException) -> bool:
        if isinstance(error, ConnectError):
            return contact.made or retry.until_started
        if isinstance(error, UnreachableError):
            return True
        return isinstance(error, CapsnetError) and is_temporary(error)

    def wait_s(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked_s = error.retry_after_s if isinstance(error, CapsnetError) else 0.0
        return min(asked_s, retry.max_wait_s) + backoff(state)

    return {
        "retry": retry_if_exception(is_to_be_repeated),
        "wait": wait_s,
        "stop": stop_after_attempt(retry.attempts) | stop_before_delay(retry.timeout_s),
        "reraise": True,
    }
