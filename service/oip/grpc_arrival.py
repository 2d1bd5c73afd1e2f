"""The message of a call on its way in: how many arrive at once, and how long each may take.

gRPC hands a message over once it is whole, and nobody knows its size before. So at most as many are read
at the same time as the memory for bodies holds of the largest. Slow senders give way to others that wait.
"""

import asyncio
from collections.abc import AsyncIterator

from service.errors import MalformedBodyError, OverloadedError, SlowBodyError
from service.settings import Settings

GIVES_WAY_S = 2.0  # a message that takes longer is given up where others wait
ENDS_S = 1.0  # so long after a call that has failed in gRPC it is cancelled, at the latest


class Arrivals:
    """The messages that arrive now. All methods belong to the event loop.

    Attributes:
        waiting: calls that wait for their turn to be read.
    """

    def __init__(self, settings: Settings) -> None:
        self._receive_s = settings.receive_ms / 1000
        self._turns = asyncio.Semaphore(settings.uploads_bytes // settings.max_body_bytes)
        self.waiting = 0

    async def read(self, messages: AsyncIterator[bytes]) -> bytes:
        """The first message of a call.

        Raises:
            OverloadedError: others take too long to arrive, or this one does, and others wait.
            SlowBodyError: it took longer than CAPSNET_RECEIVE_MS.
            MalformedBodyError: the call ended without a message.
        """
        await self._take_turn()
        try:
            return await self._arrive(messages)
        except StopAsyncIteration:
            pass
        finally:
            self._turns.release()
        # Where the message is too large, or the client is gone, gRPC cancels the call now.
        await asyncio.sleep(ENDS_S)
        raise MalformedBodyError("the call ended without a message")

    async def _take_turn(self) -> None:
        self.waiting += 1
        try:
            async with asyncio.timeout(self._receive_s):
                await self._turns.acquire()
        except TimeoutError:
            raise OverloadedError("too many messages are arriving, and slowly; try again") from None
        finally:
            self.waiting -= 1

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
                if self.waiting:
                    raise OverloadedError(
                        f"the message did not arrive within {GIVES_WAY_S:g} s, and others wait; try again"
                    )
        finally:
            reading.cancel()
