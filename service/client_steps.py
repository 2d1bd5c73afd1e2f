"""How the decisions of a client are kept apart from its sending and waiting.

What is to be done is decided by generators, which yield a step and are sent what came of it, the way httpx
writes its authentication: the blocking and the asynchronous client drive the same ones.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import httpx

T = TypeVar("T")
Params = Mapping[str, str | int]


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


def params(**given: str | int | None) -> Params:
    """Query parameters: those that are given."""
    return {name: value for name, value in given.items() if value is not None}
