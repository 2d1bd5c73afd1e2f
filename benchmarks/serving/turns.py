"""How long one photograph takes beside clients that send many at once.

    python -m benchmarks.serving.turns     20 photographs alone, 20 beside two clients: half a minute

The service is a process of its own with the shipped capsnet-mnist and its default settings. A photograph is a
digit of docs/seven.jpg, enlarged to 12 megapixels: a JPEG in color, a PNG in 16 levels of gray. It is sent
alone, one after the other; then beside two clients that keep sending 20 of them in one request. What may be
expected of the second is twice the first and one picture's share of a large request: the bound printed.
tests/service/http/test_picture_pool.py asserts that requests take turns.
"""

import tempfile
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from io import BytesIO
from pathlib import Path
from statistics import median

import httpx
from PIL import Image

from benchmarks.paths import ROOT
from tests.support.http_load import under_load
from tests.support.live_process import LiveProcess, live_process
from tests.support.live_service import wait_until

SIDES = (4000, 3000)
BULK_CLIENTS = 2
BULK_PHOTOGRAPHS = 20
REQUESTS = 20


def main() -> None:
    """Measure both formats and print the table."""
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    print(f"p50 of {REQUESTS} requests in ms; beside {BULK_CLIENTS} clients with {BULK_PHOTOGRAPHS} each")
    print(f"{'format':8}{'alone':>8}{'one of 20':>11}{'beside':>8}{'bound':>8}{'longest':>9}")
    for image_format in ("JPEG", "PNG"):
        with (
            tempfile.TemporaryDirectory() as folder,
            live_process(ROOT / "models", Path(folder) / "log", default_model="capsnet-mnist") as service,
        ):
            measure(service, image_format)


def measure(service: LiveProcess, image_format: str) -> None:
    """Print one line of the table."""
    content = photograph(image_format)
    request = httpx.Request("POST", "http://test", files=[("images", content)] * BULK_PHOTOGRAPHS)
    bulk, kind = request.read(), request.headers["content-type"]
    times_ms(service, content, 3)  # warm
    alone = median(times_ms(service, content, REQUESTS))
    with under_load(service.address, BULK_CLIENTS, bulk, kind=kind) as load:
        wait_until(lambda: len(load.of_status(200)) >= BULK_CLIENTS)
        beside = times_ms(service, content, REQUESTS)
    assert not load.lost
    assert len(load.of_status(200)) == len(load.outcomes), "a large request was refused"
    one = picture_ms(service, bulk, kind)
    bound = 2 * alone + one
    print(f"{image_format:8}{alone:8.0f}{one:11.0f}{median(beside):8.0f}{bound:8.0f}{max(beside):9.0f}")


def times_ms(service: LiveProcess, content: bytes, count: int) -> list[float]:
    """How long requests of one photograph take, one after the other."""
    return [post_ms(service, content, "application/octet-stream") for _ in range(count)]


def picture_ms(service: LiveProcess, bulk: bytes, kind: str) -> float:
    """A photograph's share of a large request that is alone."""
    return min(post_ms(service, bulk, kind) for _ in range(2)) / BULK_PHOTOGRAPHS


def post_ms(service: LiveProcess, content: bytes, kind: str) -> float:
    """How long one request takes."""
    began = time.perf_counter()
    service.client.post("/classify", content=content, headers={"Content-Type": kind}).raise_for_status()
    return (time.perf_counter() - began) * 1000


def photograph(image_format: str) -> bytes:
    """A digit in 12 megapixels, as a file."""
    with Image.open(ROOT / "docs" / "seven.jpg") as picture:
        large = picture.convert("RGB").resize(SIDES, Image.Resampling.BICUBIC)
    if image_format == "PNG":
        large = large.convert("L").point(lambda level: level & 0xF0)  # so that 20 fit into one request
    file = BytesIO()
    large.save(file, image_format)
    return file.getvalue()


if __name__ == "__main__":
    main()
