"""What one PNG costs the event loop's thread, from the bytes of a request to the bytes of its answer.

    python -m benchmarks.serving.request_cost      ten seconds

The service runs in this process, with connections in memory and a network that answers at once, so that what
remains is the work on requests. Eight come at a time, as from eight clients. The microseconds are processor
time of the thread, the median of five rounds. Parts are measured alone, with warm caches. Within a request
each takes longer, since it finds what the others left in the caches. The difference is in the line
`the rest`, which is the whole request less the parts. Beside a network
that fills the caches, a request takes up to twice as long.
"""

import asyncio
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

import numpy as np
import uvicorn
from numpy.typing import NDArray
from uvicorn.server import ServerState

from benchmarks.paths import ROOT
from export.contract.manifest import Manifest
from export.contract.pictures import read_picture
from export.contract.preprocess import views_to_input
from service.app import create_app
from service.http.answers import json_response
from service.http.connections import BoundedHttp
from service.http.multipart import MULTIPART
from service.http.png import to_png
from service.inference.predictions import predictions
from service.models.loaded_model import LoadedModel
from service.models.repository import Repository
from service.settings import Settings

# N images, J classes, D numbers of a pose, H rows, W columns, C channels

Floats = NDArray[np.float32]

CLIENTS = 8
REQUESTS = 100  # of each client in a round
ROUNDS = 5
BOUNDARY = "a-boundary"
FORM = f"{MULTIPART}; boundary={BOUNDARY}"
MAX_PIXELS = 10_000


class Wire(asyncio.Transport):
    """A connection in memory, whose client reads everything."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 50_000), "sockname": ("127.0.0.1", 8000)})
        self.written: list[bytes] = []

    def write(self, data: Any) -> None:
        """Keep the bytes."""
        self.written.append(data)

    def is_closing(self) -> bool:
        """Never."""
        return False

    def get_write_buffer_size(self) -> int:
        """Nothing waits."""
        return 0

    def resume_reading(self) -> None:
        """Nothing is read from it."""


class AnnouncingHttp(BoundedHttp):
    """The service's protocol, which also says when an answer is complete."""

    announce: Callable[[], None]

    def on_response_complete(self) -> None:
        """The answer is written."""
        super().on_response_complete()
        self.announce()


class Clients:
    """Connections to the service in this process, each of which sends the same request.

    They wait without polling, which would count as processor time of the service.
    """

    def __init__(self, config: uvicorn.Config, state: dict[str, Any]) -> None:
        server = ServerState()
        self._connections = [AnnouncingHttp(config, server, state) for _ in range(CLIENTS)]
        self._wires = [Wire() for _ in range(CLIENTS)]
        for connection, wire in zip(self._connections, self._wires, strict=True):
            connection.announce = self._count
            connection.connection_made(wire)

    async def ask(self, request: bytes) -> None:
        """Send the request on every connection and wait for all answers."""
        self._awaited = CLIENTS
        self._all_answered = asyncio.get_running_loop().create_future()
        for connection in self._connections:
            connection.data_received(request)
        await self._all_answered
        for wire in self._wires:
            assert wire.written[0].startswith(b"HTTP/1.1 200"), b"".join(wire.written)
            wire.written.clear()

    def _count(self) -> None:
        self._awaited -= 1
        if self._awaited == 0:
            self._all_answered.set_result(None)


def main() -> None:
    """Measure and print the table."""
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    settings = Settings(models=str(ROOT / "models"), device="cpu", optimize=False, api_keys=None, rescan_s=0)
    loaded: asyncio.Queue[Repository] = asyncio.Queue()
    app = create_app(settings, on_loaded=loaded.put_nowait)
    config = uvicorn.Config(app, http=BoundedHttp, ws="none", log_config=None, access_log=False)
    config.load()
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(measure(config, loaded))


async def measure(config: uvicorn.Config, loaded: "asyncio.Queue[Repository]") -> None:
    """Start the service, measure whole requests and their parts, print the table."""
    lifespan = config.lifespan_class(config)
    await lifespan.startup()
    [model] = (await loaded.get()).loaded()
    manifest = model.engine.manifest
    probabilities, poses = network_outputs(manifest)
    queue = model.queues["encoder"]
    queue.run = lambda pixels, **_: (probabilities[: len(pixels)], poses[: len(pixels)])
    queue.large_batch_above = None  # nobody waits for a large batch

    clients = Clients(config, lifespan.state)
    png = picture(manifest)
    form = in_form(png)
    costs = await costs_of_parts(model, png)
    raw = await microseconds(lambda: clients.ask(post("image/png", png)), CLIENTS)
    multipart = await microseconds(lambda: clients.ask(post(FORM, form)), CLIENTS)
    costs["the rest: HTTP, checks, log, metrics, cold caches"] = raw - sum(costs.values())
    costs["whole request"] = raw
    costs["whole request, multipart"] = multipart
    print("| part | microseconds |\n| --- | ---: |")
    for part, cost in costs.items():
        print(f"| {part} | {cost:.0f} |")
    await lifespan.shutdown()


async def costs_of_parts(model: LoadedModel, png: bytes) -> dict[str, float]:
    """The microseconds of each part of a request with one PNG."""
    manifest = model.engine.manifest
    decoded = read_picture(png, MAX_PIXELS)
    pixels = views_to_input([decoded], manifest.preprocessing)[None]  # [1, H, W, C]
    outputs = network_outputs(manifest, 1)

    async def decode() -> None:
        read_picture(png, MAX_PIXELS)

    async def preprocess() -> None:
        views_to_input([decoded], manifest.preprocessing)

    async def submit() -> None:
        await asyncio.gather(*[model.encode(pixels) for _ in range(CLIENTS)])

    async def answer() -> None:
        [made] = predictions(pixels, outputs, manifest)
        json_response({**model.heading(), "results": [{"filename": None, **made}]})

    return {
        "decode": await microseconds(decode),
        "preprocess": await microseconds(preprocess),
        "submit and deliver": await microseconds(submit, CLIENTS),
        "answer": await microseconds(answer),
    }


async def microseconds(call: Callable[[], Awaitable[None]], requests: int = 1) -> float:
    """Processor time of this thread for one of the requests of a call, the median of some rounds."""
    rounds = []
    for _ in range(ROUNDS + 1):  # one to warm
        began = time.thread_time()
        for _ in range(REQUESTS):
            await call()
        rounds.append((time.thread_time() - began) / REQUESTS / requests * 1e6)
    return median(rounds[1:])


def network_outputs(manifest: Manifest, images: int = CLIENTS) -> tuple[Floats, Floats]:
    """Probabilities [N, J] and poses [N, J, D] as a network might give them."""
    generator = np.random.default_rng(0)
    classes, pose = len(manifest.class_names), int(np.prod(manifest.pose_shape))
    return generator.random((images, classes), np.float32), generator.random(
        (images, classes, pose), np.float32
    )


def picture(manifest: Manifest) -> bytes:
    """A PNG file of the model's size, a ring on black."""
    facts = manifest.preprocessing
    down, across = np.mgrid[-1 : 1 : facts.height * 1j, -1 : 1 : facts.width * 1j]
    ring = np.exp(-30 * (np.hypot(down, across) - 0.5) ** 2).astype(np.float32)
    return to_png(ring[..., None])


def in_form(png: bytes) -> bytes:
    """The file as the only part of a form."""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="images"; filename="7.png"\r\n\r\n'
    return head.encode() + png + f"\r\n--{BOUNDARY}--\r\n".encode()


def post(kind: str, body: bytes) -> bytes:
    """A request for /classify."""
    head = "POST /classify HTTP/1.1\r\nHost: test\r\nContent-Type: {}\r\nContent-Length: {}\r\n\r\n"
    return head.format(kind, len(body)).encode() + body


if __name__ == "__main__":
    main()
