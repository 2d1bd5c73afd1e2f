"""The encoder alone, without a server: prints images per second and the median run for each batch size."""

import json
import sys
import time
from statistics import median

import numpy as np
from encoder import load_session, run

BATCHES = (1, 2, 4, 8, 16, 32, 64)


def main(seconds: float) -> None:
    """Run every batch size for that long each, after a few runs that do not count."""
    session = load_session()
    found = {}
    for size in BATCHES:
        pixels = np.random.default_rng(0).random((size, 28, 28, 1), np.float32)
        for _ in range(3):
            run(session, pixels)
        times: list[float] = []
        while sum(times) < seconds:
            began = time.perf_counter()
            run(session, pixels)
            times.append(time.perf_counter() - began)
        found[size] = {"images_s": size * len(times) / sum(times), "p50_ms": median(times) * 1000}
    print(json.dumps(found))


if __name__ == "__main__":
    main(float(sys.argv[1]))
