"""The samples of the playground, in service/playground/samples, with `python -m docs.playground_samples`.

Digits are pen strokes; toys are strips of the left and the right view from all sides, none of which a network
was trained on.
"""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from training.data.synthetic.drawn_digits import Hand, Stroke, draw_strokes
from training.data.synthetic.toys import studio

SAMPLES = Path(__file__).resolve().parents[1] / "service" / "playground" / "samples"

FORMS = (0, 1, 0, 0, 0, 1, 0, 0, 1, 0)  # of each digit
GRID = 255  # strokes are numbers from 0 to this, across and down the drawing area
INK_SHARE = 0.7  # of the area's side
EVERY = 2  # points of a stroke; it is drawn through them smoothly

TOYS = ("animal", "human", "airplane", "truck", "car")
INSTANCE = 5  # one of those that are tested with
AZIMUTHS = range(0, 360, 20)
ELEVATIONS = (35, 50, 65)
LIGHTING = 2  # both front lamps
QUALITY = 55


def main() -> None:
    """Write the files."""
    SAMPLES.mkdir(exist_ok=True)
    digits = [packed_digit(digit) for digit in range(10)]
    (SAMPLES / "digits.json").write_text(json.dumps(digits, separators=(",", ":")) + "\n")
    for category, name in enumerate(TOYS):
        Image.fromarray(strip(category)).save(SAMPLES / f"{name}.webp", quality=QUALITY, method=6)


def packed_digit(digit: int) -> list[list[int]]:
    """The strokes of a digit, each as x, y, x, y, ... on the grid."""
    hand = Hand(FORMS, slant=0.12, width=0.78, wobble=0.012)
    strokes = draw_strokes(digit, hand, np.random.default_rng(digit))
    points = np.concatenate(strokes)
    low, high = points.min(axis=0), points.max(axis=0)
    scale = INK_SHARE / float((high - low).max())
    return [_packed(0.5 + (stroke - (low + high) / 2) * scale) for stroke in strokes]


def strip(category: int) -> NDArray[np.uint8]:
    """Views of a toy, [rows * 96, azimuths * 96]: for each elevation a row of left and one of right views."""
    toy = studio.toy(category, INSTANCE)
    turned = [studio.photograph(toy, azimuth, ELEVATIONS, [LIGHTING])[:, 0] for azimuth in AZIMUTHS]
    views = np.clip(np.rint(np.stack(turned)), 0, 255).astype(np.uint8)  # [A, E, 2, 96, 96]
    side = views.shape[-1]
    return views.transpose(1, 2, 3, 0, 4).reshape(-1, len(AZIMUTHS) * side)


def _packed(stroke: Stroke) -> list[int]:
    kept = np.concatenate([stroke[:-1:EVERY], stroke[-1:]])
    return [int(at) for at in np.rint(kept * GRID).ravel()]


if __name__ == "__main__":
    main()
