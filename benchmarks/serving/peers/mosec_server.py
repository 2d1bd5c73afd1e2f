"""mosec: a Rust front, a process that decodes and one that runs batches of what waits."""

from typing import Any

import numpy as np
from encoder import MAX_BATCH, Floats, answer, decode, load_session, run, to_json
from mosec import Server, Worker


class Decode(Worker):
    """A PNG to pixels [H, W, 1]."""

    def deserialize(self, data: bytes) -> bytes:
        """The body as it came."""
        return data

    def forward(self, data: bytes) -> Floats:
        """Decode one."""
        return decode(data)


class Encode(Worker):
    """Pixels to answers."""

    def __init__(self) -> None:
        super().__init__()
        self.session = load_session()

    def forward(self, data: list[Floats]) -> list[dict[str, Any]]:
        """One batch."""
        return [answer(p, v) for p, v in zip(*run(self.session, np.stack(data)), strict=True)]

    def serialize(self, data: dict[str, Any]) -> bytes:
        """The answer as JSON."""
        return to_json(data)


if __name__ == "__main__":
    server = Server()
    server.append_worker(Decode)
    server.append_worker(Encode, max_batch_size=MAX_BATCH, max_wait_time=1)
    server.run()
