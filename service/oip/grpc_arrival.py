"""The message of a call on its way in: how many arrive at once, and how long each may take.

gRPC hands a message over once it is whole, and nobody knows its size before. So at most as many are read
at the same time as the memory for bodies holds of the largest. Slow senders give way to others that wait, and
the next turn goes to a client that holds few.
"""

import asyncio
from collections.abc import AsyncIterator

from service.errors import MalformedBodyError, OverloadedError, SlowBodyError
from service.oip.fair_turns import FairTurns
from service.settings import Settings

GIVES_WAY_S = 2.0  # a message that takes longer is given up where others wait
ENDS_S = 1.0  # so long after a call that has failed in gRPC it is cancelled, at the latest


class Arrivals:
    """The messages that arrive now. All methods belong to the event loop."""

    def __init__(self, settings: Settings) -> None:
        self._receive_s = settings.receive_ms / 1000
        self._turns = FairTurns(settings.uploads_bytes // settings.max_body_bytes)

    async def read(self, messages: AsyncIterator[bytes], client: str) -> bytes:
        """The first message of a call by a client, which is named as in `FairTurns`.

        Raises:
            OverloadedError: others take too long to arrive, or this one does, and others wait.
            SlowBodyError: it took longer than CAPSNET_RECEIVE_MS.
            MalformedBodyError: the call ended without a message.
        """
        try:
            async with self._turns.turn(client, self._receive_s):
                return await self._arrive(messages)
        except TimeoutError:
            raise OverloadedError("too many messages are arriving, and slowly; try again") from None
        except StopAsyncIteration:
            pass
        # Where the message is too large, or the client is gone, gRPC cancels the call now.
        await asyncio.sleep(ENDS_S)
        raise MalformedBodyError("the call ended without a message")

    async def _arrive(self, messages: AsyncIterator[bytes]) -> bytes:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._receive_s
        reading = asyncio.ensure_future(anext(messages))
        try:
            while True:
                left_s = ends_at - loop.time()
                await asyncio.wait([reading], timeout=min(left_s, GIVES_WAY_S))
                if reading.done():
                    return reading.result()
                if loop.time() >= ends_at:
                    raise SlowBodyError(
                        f"the message may take {self._receive_s * 1000:.0f} ms to arrive (CAPSNET_RECEIVE_MS)"
                    )
                if self._turns.waiting:
                    raise OverloadedError(
                        f"the message did not arrive within {GIVES_WAY_S:g} s, and others wait; try again"
                    )
        finally:
            reading.cancel()
