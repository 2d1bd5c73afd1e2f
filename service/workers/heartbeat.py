"""Whether the engine process still runs: its event loop counts, and the supervisor sees whether that goes on.

Models load and run on threads, beside which the event loop counts on: ONNX Runtime gives up Python's lock for
both. So a slow network, a full queue and a load of minutes do not stop the count; a process that the system
does not run does, and an event loop that is stuck. Nobody gets an answer of such a process.
"""

import asyncio

from service.workers.shared_number import SharedNumber

BEAT_S = 1.0  # between two counts
LOOK_EVERY_S = 1.0


async def beat(count: SharedNumber) -> None:
    """Count. Never ends."""
    while True:
        count.value += 1
        await asyncio.sleep(BEAT_S)


class Pulse:
    """Notices that a count stands still.

    Args:
        count: of the watched process.
        limit_s: for so many seconds it may stand still.
    """

    def __init__(self, count: SharedNumber, limit_s: float) -> None:
        self._count = count
        self._limit_s = limit_s
        self._seen = -1
        self._still_s = 0.0
        self._looked_s = 0.0

    def is_lost(self, now_s: float) -> bool:
        """Whether the count has stood still for too long; if so, the time begins anew.

        Args:
            now_s: by the monotonic clock. Between two looks no more than LOOK_EVERY_S counts: where the whole
                machine or container has been paused, the watched process gets its time once it runs again.
        """
        passed_s = min(now_s - self._looked_s, LOOK_EVERY_S)
        self._looked_s = now_s
        if self._count.value != self._seen:
            self._seen, self._still_s = self._count.value, 0.0
        else:
            self._still_s += passed_s
        if self._still_s <= self._limit_s:
            return False
        self._still_s = 0.0
        return True
