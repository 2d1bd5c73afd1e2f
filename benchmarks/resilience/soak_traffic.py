"""What comes to a service besides single small pictures: a few requests a second of every other kind."""

import socket
import struct
import threading
from base64 import b64encode
from collections import Counter
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import numpy as np
from numpy.typing import NDArray

from capsnet.wire_format import write_request
from service.http.png import to_png
from tests.support.small_pictures import to_npy

# N images, H rows, W columns, C channels

Floats = NDArray[np.float32]
Asked = dict[str, Any]  # a request, as httpx takes it

PAUSE_S = 1.0  # after each request of a kind
TIMEOUT_S = 60.0  # longer than the service's own deadline
MANY = 32
PNG = {"Accept": "image/png"}
NPY = {"Content-Type": "application/x-npy"}
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing resets the connection


class Traffic:
    """Threads that ask until the end of the `with`, one for each kind of request and one that hangs up.

    Args:
        url: where the service is.
        pixels: float32 [N, H, W, C], 0-1, of the size that the default model takes.
        pictures: a folder with .jpg and .png files.

    Attributes:
        statuses: how often each came; the error's name where none did.
    """

    def __init__(self, url: str, pixels: Floats, pictures: Path) -> None:
        self.statuses: Counter[str] = Counter()
        self._url = url
        self._stop = threading.Event()
        self._counting = threading.Lock()
        self._kinds = requests_of_each_kind(pixels, pictures)
        whole = _http_post("/classify", to_png(pixels[0]))
        self._threads = [threading.Thread(target=self._ask, args=[kind]) for kind in self._kinds]
        self._threads.append(threading.Thread(target=self._hang_up, args=[whole]))

    def once(self) -> None:
        """Send every request once, one after the other."""
        with httpx.Client(base_url=self._url, timeout=TIMEOUT_S) as client:
            for kind in self._kinds:
                for asked in kind:
                    self._count(_status(client, asked))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, kind: list[Asked]) -> None:
        with httpx.Client(base_url=self._url, timeout=TIMEOUT_S) as client:
            for asked in cycle(kind):
                self._count(_status(client, asked))
                if self._stop.wait(PAUSE_S):
                    return

    def _hang_up(self, whole: bytes) -> None:
        """Clients that go away: at once, in the middle of the body, before the answer, and without a word."""
        for sent, is_reset in cycle([(b"", False), (whole[:-100], False), (whole, False), (whole, True)]):
            self._leave(sent, is_reset)
            if self._stop.wait(PAUSE_S / 4):
                return

    def _leave(self, sent: bytes, is_reset: bool) -> None:
        address = httpx.URL(self._url)
        # A service that is away is noticed by those who wait for answers.
        with (
            suppress(OSError),
            socket.create_connection((address.host, address.port), TIMEOUT_S) as connection,
        ):
            connection.sendall(sent)
            if is_reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    def _count(self, status: str) -> None:
        with self._counting:
            self.statuses[status] += 1


def requests_of_each_kind(pixels: Floats, pictures: Path) -> list[list[Asked]]:
    """Requests that take other ways through the service than single small pictures do, by kind."""
    many = [("images", (f"{n}.png", to_png(pixels[n % len(pixels)]))) for n in range(MANY)]
    photographs = [
        ("images", (path.name, path.read_bytes())) for path in sorted(pictures.glob("*.[jp][pn]g"))
    ]
    sweep = {
        "image": b64encode(to_png(pixels[0])).decode(),
        "sweep": {"start": -0.25, "stop": 0.25, "step": 0.05},
    }
    return [
        [_post("/classify", files=many), _post("/classify?reconstruction=true&top_k=3", files=many)],
        [_post("/classify", files=photographs), _post("/classify?preprocess=off", files=photographs[-1:])],
        [_post("/classify", content=to_npy(np.rint(pixels * 255).astype(np.uint8)), headers=NPY)],
        [_post("/reconstruct", json=sweep), _post("/reconstruct", json=sweep, headers=PNG)],
        [_post("/segment", files=many[:8]), _post("/segment?k=3", files=many[:8], headers=PNG)],
        [_post("/explain", files=many[:1]), _post("/explain?label=3", files=many[:1], headers=PNG)],
        _protocol_requests(pixels),
        _bad_requests(many),
        [{"method": "GET", "url": path} for path in ("/metrics", "/readyz", "/models", "/openapi.json")],
    ]


def _protocol_requests(pixels: Floats) -> list[Asked]:
    message = write_request({"pixels": np.resize(pixels, (MANY, *pixels.shape[1:]))})
    path = "/v2/models/capsnet-mnist"
    values = {"shape": list(pixels.shape), "datatype": "FP32", "data": pixels.ravel().tolist()}
    return [
        _post(f"{path}/infer", content=message.body, headers=message.headers),
        _post(f"{path}/infer", json={"inputs": [{"name": "pixels", **values}]}),
        {"method": "GET", "url": path},
    ]


def _bad_requests(many: list[tuple[str, tuple[str, bytes]]]) -> list[Asked]:
    return [
        _post("/classify", content=b"no picture"),
        _post("/classify", content=many[0][1][1][:-50]),
        _post("/classify?model=unknown", files=many[:1]),
        _post("/classify?top_k=many", files=many[:1]),
        _post("/classify", files=[("pictures", many[0][1])]),
        _post("/classify", files=[*many, ("images", ("broken.png", b"\x89PNG\r\n"))]),
        _post("/classify", content=b"\x93NUMPY\1\0", headers=NPY),
        _post("/reconstruct", content=b'{"pose": [1, 2'),
        _post("/reconstruct", json={"pose": [0.0] * 4096, "label": "1"}),
        _post("/v2/models/capsnet-mnist/infer", json={"inputs": []}),
        _post("/nowhere"),
        {"method": "PUT", "url": "/classify"},
    ]


def _post(url: str, **body: Any) -> Asked:
    return {"method": "POST", "url": url, **body}


def _http_post(path: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: {len(body)}"
    )
    return head.encode() + b"\r\n\r\n" + body


def _status(client: httpx.Client, asked: Asked) -> str:
    try:
        return str(client.request(**asked).status_code)
    except httpx.RequestError as error:
        return type(error).__name__
