"""What the service answers on a device to a photograph, and what it says of itself.

    python -m benchmarks.gpu.answers --precision half
    python -m benchmarks.gpu.answers --device cpu

Starts `capsnet-serve` with the bundles in models/, asks every model, and stops it. The status is 0 if all
have answered; in half precision matrix capsules must be refused instead.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import httpx

from benchmarks.paths import ROOT
from tests.support.live_process import live_process

REQUESTS = 50
REFUSED = "/problems/refused-model"
SHOWN = 300  # characters of a reconstruction
PHOTOGRAPH = ROOT / "docs" / "seven.jpg"


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask, print what is answered; returns the exit status."""
    options = _parser().parse_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        settings = {"device": options.device, "precision": options.precision, "optimize": False}
        with live_process(ROOT / "models", Path(folder) / "log", **settings) as service:
            print(f"ready after {time.monotonic() - began:.1f} s", flush=True)
            names = [model["name"] for model in service.client.get("/models").json()["models"]]
            as_expected = [ask(service.client, name, options.precision) for name in names]
            print(service.client.get("/readyz").text, service.client.get("/models").text, sep="\n")
    return 0 if all(as_expected) else 1


def ask(client: httpx.Client, model: str, precision: str) -> bool:
    """Ask a model for the class and a reconstruction, print both; whether it answers as it should."""
    manifest = client.get(f"/models/{model}").json()["versions"][0]["manifest"]
    pictures = [(PHOTOGRAPH.name, PHOTOGRAPH.read_bytes())] * manifest["views"]
    times = []
    for _ in range(REQUESTS):
        began = time.perf_counter()
        sent = [("images", picture) for picture in pictures]
        named = client.post("/classify", params={"model": model, "top_k": 1}, files=sent)
        times.append(time.perf_counter() - began)
    print(f"{model}: median of {REQUESTS} requests {1000 * median(times):.1f} ms")
    print(f"/classify {named.status_code} {named.text}")
    sent = [("image", picture) for picture in pictures]
    drawn = client.post("/reconstruct", params={"model": model}, files=sent)
    print(f"/reconstruct {drawn.status_code} {drawn.text[:SHOWN]}", flush=True)
    if precision == "half" and manifest["architecture"] == "matrix-capsnet":
        return named.json().get("type") == drawn.json().get("type") == REFUSED
    return named.is_success and drawn.is_success


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.answers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=["cuda", "tensorrt", "cpu"], default="cuda", help="(cuda)")
    parser.add_argument("--precision", choices=["float32", "half"], default="float32", help="(float32)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
