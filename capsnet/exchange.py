"""What a method of a client sends and receives, without I/O: a generator that yields requests.

The blocking and the asynchronous client drive the same generators, as httpx does with authentication flows:
they send each request, repeat it where that helps, and send the response back into the generator.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import httpx

from capsnet.errors import CapsnetError

T = TypeVar("T")
Params = Mapping[str, str | float]


@dataclass(frozen=True)
class Request:
    """A request to send; `body` holds httpx's arguments content, data, files and headers."""

    method: str
    path: str
    params: Params = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Done(Generic[T]):
    """The exchange is over; it has this result."""

    result: T


Exchange = Generator[Request, httpx.Response, T]
"""Yields requests, is sent responses of status 200, or is thrown a CapsnetError, and returns the result."""


def advance(exchange: Exchange[T], outcome: httpx.Response | CapsnetError | None) -> Request | Done[T]:
    """The next request, given the outcome of the last one; None starts. Blocks while it reads files."""
    try:
        if isinstance(outcome, CapsnetError):
            return exchange.throw(outcome)
        return next(exchange) if outcome is None else exchange.send(outcome)
    except StopIteration as end:
        return Done(end.value)


def params(**given: str | float | None) -> Params:
    """Query parameters: those that are not None."""
    return {name: value for name, value in given.items() if value is not None}
