"""Pictures a second of capsnet-score --ray beside --local, on this machine.

    python -m benchmarks.inference.scoring --pictures 20000

Both commands score the same Parquet files of drawn digits with the shipped capsnet-mnist, in turns, on all
cores. The rates are those that the commands print, from the loaded model to the last row. A process of Ray
uses two cores, so a node of N cores runs N / 2 of them side by side.
tests/service/score/test_ray.py asserts that both write the same rows.
"""

import os
import re
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.option_types import positive
from benchmarks.paths import ROOT
from tests.support.small_pictures import to_png
from training.data.synthetic.drawn_digits import draw_digits

RATE = re.compile(r"(\d+) in this run, (\d+) a second")
DRAWN = 1000  # different digits; the files repeat them
FILES = 4
OUT = {"--local": "{}.parquet", "--ray": "{}.parts"}


def main() -> None:
    """Measure in turns and print each rate, then the ratio of the medians."""
    options = parse()
    rates: dict[str, list[int]] = {way: [] for way in OUT}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_pictures(folder / "pictures", options.pictures)
        files = sorted(map(str, (folder / "pictures").iterdir()))
        score([str(ROOT / "docs" / "seven.jpg")], "--local", folder / "warm.parquet")  # derives the graphs
        for number in range(options.rounds):
            for way, seen in rates.items():
                seen.append(score(files, way, folder / OUT[way].format(number)))
                print(f"{way:8} {seen[-1]:6} pictures/s", flush=True)
    local, ray = (median(seen) for seen in rates.values())
    print(f"{os.cpu_count()} cores: --ray scores {ray / local:.2f} times the pictures of --local")


def parse() -> Namespace:
    """The options."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=positive, default=20_000, help="in all (20000)")
    parser.add_argument("--rounds", type=positive, default=3, help="of both ways (3)")
    return parser.parse_args()


def write_pictures(folder: Path, count: int) -> None:
    """Parquet files of PNGs, 28x28."""
    rng = np.random.default_rng(0)
    drawn = [to_png(pixels) for pixels in draw_digits(rng.integers(0, 10, DRAWN), rng)]
    folder.mkdir()
    for number in range(FILES):
        images = [drawn[index % DRAWN] for index in range(number, count, FILES)]
        pq.write_table(pa.table({"image": images}), folder / f"{number}.parquet", row_group_size=1024)


def score(sources: list[str], way: str, out: Path) -> int:
    """Pictures a second, as the command says."""
    options = [way, "--out", str(out), "--models", str(ROOT / "models"), "--model", "capsnet-mnist"]
    command = [sys.executable, "-m", "service.score", *sources, *options]
    ran = subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True)
    found = RATE.search(ran.stderr)
    assert found, ran.stderr
    return int(found[2])


if __name__ == "__main__":
    main()
