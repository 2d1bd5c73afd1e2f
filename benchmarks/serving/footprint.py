"""What a service takes from its machine: processor time while idle, memory after every kind of request.

    python -m benchmarks.serving.footprint            some minutes; Linux only

The service is a process of its own with the shipped capsnet-mnist, a copy of it under another name, the
shipped model of stereo pairs and its default settings. Every kind of request comes one at a time, from one
client. Memory is resident memory after the last answer, what of it is anonymous, that is, no mapped file, and
the highest meanwhile; and all that a minute after the last request. The percentages are of one core.
"""

import json
import shutil
import sys
import tempfile
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.machine import cpu_seconds, memory_bytes
from benchmarks.paths import ROOT
from capsnet.wire_format import write_request
from export.contract.manifest import newest_version
from service.http.png import to_png
from tests.support.live_process import LiveProcess, live_process
from tests.support.small_pictures import saved, to_npy

# N images, H rows, W columns, C channels

Floats = NDArray[np.float32]

BUNDLE = newest_version(ROOT / "models" / "capsnet-mnist")
PAIRS = newest_version(ROOT / "models" / "matrix-capsnet-toys")
OTHER = "another"
IDLE_S = 20
MINUTE_S = 60
TIMES = 20
MANY = 256  # images in one request, at most
PHOTOGRAPH = (4000, 3000)
LARGEST = (7000, 7000)  # 49 megapixels; 50 are taken
INFER = "/v2/models/capsnet-mnist/infer"
PNG = {"Accept": "image/png"}


class Kind(NamedTuple):
    """A kind of request.

    Attributes:
        name: as the table shows it.
        times: how often it comes.
        asked: as httpx takes it.
    """

    name: str
    times: int
    asked: dict[str, Any]


def main() -> int:
    """Start a service, leave it alone, ask it everything, leave it alone again; returns the exit status."""
    if not Path("/proc/self/clear_refs").exists():
        print("footprint: what a process holds is read from /proc, which only Linux has", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        models = publish(Path(folder) / "models")
        with live_process(models, Path(folder) / "log", default_model="capsnet-mnist") as service:
            measure(service)
    return 0


def measure(service: LiveProcess) -> None:
    """Print the table as it grows."""
    print(f"{'':44} {'requests':>8} {'after':>10} {'anonymous':>10} {'at most':>10}")
    print_row("capsnet-mnist loaded", 0, service)
    print(f"idle for {IDLE_S} s: {idle_fraction(service):.2%} of a core", flush=True)
    pixels = np.load(BUNDLE / "samples.npz")["pixels"]
    for asked in (kinds(pixels), kinds_of_other_models(to_png(pixels[0]))):
        for kind in asked:
            forget_the_highest(service)
            for _ in range(kind.times):
                service.client.request("POST", **kind.asked).raise_for_status()
            print_row(kind.name, kind.times, service)
        forget_the_highest(service)
        time.sleep(MINUTE_S)
        print_row("a minute later", 0, service)
    print(f"idle for {IDLE_S} s: {idle_fraction(service):.2%} of a core")


def kinds(pixels: Floats) -> Iterator[Kind]:
    """What can be asked of the default model.

    Args:
        pixels: [N, H, W, C] in 0-1.
    """
    small = to_png(pixels[0])
    many = [("images", (f"{n}.png", to_png(pixels[n % len(pixels)]))) for n in range(MANY)]
    batch = np.resize(pixels, (MANY, *pixels.shape[1:]))
    sweep = {"pose": [0.1] * 16, "label": "7", "sweep": {}}
    message = write_request({"pixels": batch})
    values = {
        "name": "pixels",
        "shape": list(batch.shape),
        "datatype": "FP32",
        "data": batch.ravel().tolist(),
    }
    octets = np.rint(batch * 255).astype(np.uint8)
    yield Kind("/classify, one PNG of 28x28", 200, {"url": "/classify", "content": small})
    yield Kind(f"/classify, {MANY} PNGs", TIMES, {"url": "/classify", "files": many})
    yield Kind(
        f"/classify, {MANY} PNGs, with reconstructions",
        TIMES,
        {"url": "/classify?reconstruction=true", "files": many},
    )
    yield Kind(
        f"/classify, array of {MANY} images",
        TIMES,
        {"url": "/classify", "content": to_npy(octets), "headers": {"Content-Type": "application/x-npy"}},
    )
    for size, times in ((PHOTOGRAPH, TIMES), (LARGEST, 3)):
        for kind in ("JPEG", "PNG"):
            name = f"/classify, one {kind} of {size[0]}x{size[1]}"
            yield Kind(name, times, {"url": "/classify", "content": colors(size, kind)})
    yield Kind("/reconstruct, sweep of 176 pictures", TIMES, {"url": "/reconstruct", "json": sweep})
    yield Kind(
        "/reconstruct, the same as a PNG", TIMES, {"url": "/reconstruct", "json": sweep, "headers": PNG}
    )
    yield Kind("/segment, 64 PNGs", TIMES, {"url": "/segment", "files": many[:64]})
    yield Kind("/segment, the same as a PNG", TIMES, {"url": "/segment", "files": many[:64], "headers": PNG})
    yield Kind("/explain, one PNG", TIMES, {"url": "/explain", "files": many[:1]})
    yield Kind("/explain, the same as a PNG", TIMES, {"url": "/explain", "files": many[:1], "headers": PNG})
    yield Kind(
        f"infer, binary tensor of {MANY} images",
        TIMES,
        {"url": INFER, "content": message.body, "headers": message.headers},
    )
    yield Kind(f"infer, JSON tensor of {MANY} images", TIMES, {"url": INFER, "json": {"inputs": [values]}})


def kinds_of_other_models(small: bytes) -> Iterator[Kind]:
    """What is asked of models that are loaded for it; `small` is a picture."""
    yield Kind(
        "a second model, loaded on first use", 1, {"url": f"/classify?model={OTHER}", "content": small}
    )
    views = [("images", (side, (ROOT / "docs" / f"{side}.png").read_bytes())) for side in ("left", "right")]
    url = f"/classify?model={PAIRS.parent.name}"
    yield Kind("/classify, 64 stereo pairs", 4, {"url": url, "files": views * 64})


def publish(models: Path) -> Path:
    """The shipped bundles, and one of them under another name; returns the folder of all."""
    shutil.copytree(PAIRS, models / PAIRS.parent.name / PAIRS.name)
    shutil.copytree(BUNDLE, models / "capsnet-mnist" / BUNDLE.name)
    manifest = shutil.copytree(BUNDLE, models / OTHER / BUNDLE.name) / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "model": OTHER}))
    return models


def idle_fraction(service: LiveProcess) -> float:
    """Processor time over time, while nobody asks for anything."""
    time.sleep(1)  # the end of what was asked before
    began, before = time.monotonic(), cpu_seconds(service.running.pid)
    time.sleep(IDLE_S)
    return (cpu_seconds(service.running.pid) - before) / (time.monotonic() - began)


def print_row(name: str, times: int, service: LiveProcess) -> None:
    """With the memory of this moment, and the highest since it was last forgotten."""
    held = memory_bytes(service.running.pid)
    sizes = (f"{held[key] / 2**20:.0f} MiB" for key in ("VmRSS", "RssAnon", "VmHWM"))
    print(f"{name:44} {times or '':>8}", *(f"{size:>10}" for size in sizes), flush=True)


def forget_the_highest(service: LiveProcess) -> None:
    """The highest memory counts from now on."""
    proc(service, "clear_refs").write_text("5")


def proc(service: LiveProcess, name: str) -> Path:
    """What the system tells of the process."""
    return Path(f"/proc/{service.running.pid}/{name}")


def colors(size: tuple[int, int], kind: str) -> bytes:
    """A picture file of that width and height, with something in it."""
    return saved(Image.radial_gradient("L").convert("RGB").resize(size), kind)


if __name__ == "__main__":
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    sys.exit(main())
