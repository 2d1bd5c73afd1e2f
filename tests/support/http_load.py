"""Clients that keep a service busy, each on one connection, and remember what became of every request."""

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

PATIENCE_S = 60


class Outcome(NamedTuple):
    """What became of a request.

    Attributes:
        began: time.monotonic() before it was sent.
        ended: when its answer was whole, or was given up.
        status: of the answer; None when no whole answer came.
        answer: its body, or what went wrong.
        retry_after: that header of the answer.
    """

    began: float
    ended: float
    status: int | None
    answer: bytes
    retry_after: str | None = None


@dataclass
class Load:
    """What the clients have seen so far, in the order in which it ended."""

    outcomes: list[Outcome] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def lost(self) -> list[Outcome]:
        """Requests that were sent and got no whole answer."""
        return [outcome for outcome in self.outcomes if outcome.status is None]

    def of_status(self, *statuses: int) -> list[Outcome]:
        """Requests that were answered with one of these."""
        return [outcome for outcome in self.outcomes if outcome.status in statuses]


@contextmanager
def under_load(
    address: tuple[str, int], clients: int, body: bytes, *, kind: str = "image/png"
) -> Iterator[Load]:
    """Clients that post the body without a pause until the context ends, or the service closes on them."""
    load = Load()
    threads = [threading.Thread(target=_post_on, args=[load, address, body, kind]) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield load
    finally:
        load.stopping.set()
        for thread in threads:
            thread.join()


def _post_on(load: Load, address: tuple[str, int], body: bytes, kind: str) -> None:
    """Post on one connection until told to stop, or until an answer says that the connection closes."""
    connection = http.client.HTTPConnection(*address, timeout=PATIENCE_S)
    try:
        connection.connect()
    except ConnectionRefusedError:  # this client begins after the service has ended
        return
    goes_on = True
    while goes_on and not load.stopping.is_set():
        began = time.monotonic()
        try:
            connection.request("POST", "/classify", body, {"Content-Type": kind})
            response = connection.getresponse()
            status, answer = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            load.outcomes.append(Outcome(began, time.monotonic(), None, repr(error).encode()))
            break
        after = response.getheader("Retry-After")
        load.outcomes.append(Outcome(began, time.monotonic(), status, answer, after))
        goes_on = not response.will_close
    connection.close()
