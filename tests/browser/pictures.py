"""Pictures of every kind that people show the page: 200 of them, as files."""

import gzip
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from docs.photographs import USUAL, Conditions, photograph
from export.contract.manifest import Preprocessing
from tests.support.paths import ROOT
from tests.support.small_pictures import saved
from training.data.synthetic.drawn_digits import draw_digits

DIGIT = Preprocessing(height=28, width=28, polarity="light-on-dark", placement="digit")
FIT = Preprocessing(height=36, width=36, polarity="light-on-dark", placement="fit")
CROP = Preprocessing(height=32, width=32, placement="centre-crop", crop_share=2 / 3)
COLOR = Preprocessing(height=24, width=32, channels=3, placement="fit")
THICK = Conditions(pen="marker", thickness=(0.2, 0.4))
NOTE = Conditions(note=True)
MNIST = Path("mnist/t10k-images-idx3-ubyte.gz")


@dataclass(frozen=True)
class Case:
    """A file, and the rule that it goes through.

    Attributes:
        name: what is to be seen.
        content: of the file.
        facts: of a model.
    """

    name: str
    content: bytes
    facts: Preprocessing


def cases() -> list[Case]:
    """200 pictures, the same ones each time."""
    rng = np.random.default_rng(11)
    made = [*_photographs(rng), *_digits(rng), *_drawings(rng), *_files_of_docs(), *_others(rng)]
    return made[:200]


def _photographs(rng: np.random.Generator) -> Iterator[Case]:
    sizes = [(640, 480), (333, 507), (1600, 1200), (801, 799), (120, 90), (2400, 2100)]
    for index in range(60):
        size = sizes[index % 5] if index else sizes[5]
        conditions = (USUAL, NOTE, THICK)[index % 3]
        yield Case(f"photograph {index}", photograph(index % 10, size, rng, conditions), DIGIT)


def _digits(rng: np.random.Generator) -> Iterator[Case]:
    """Of a data set: as they are, inverted, enlarged, with colors."""
    digits = data_set_digits(50)
    for index, digit in enumerate(digits):
        shown = Image.fromarray(digit)
        yield Case(f"digit {index}", to_file(shown), DIGIT if index % 2 else FIT)
        side = int(rng.integers(40, 700))
        large = shown.resize((side, side + index % 7), Image.Resampling.BICUBIC)
        kind = index % 4
        if kind == 1:
            large = ImageOps.invert(large)
        if kind == 2:
            large = ImageOps.colorize(large, "#fff3d0", "#203060")
        if kind == 3:
            large = ImageOps.expand(ImageOps.invert(large), border=side // 3, fill="white")
        yield Case(
            f"enlarged {index}",
            to_file(large, ("PNG", "JPEG", "WebP", "BMP")[index % 4]),
            (DIGIT, FIT)[index // 4 % 2],
        )


def _drawings(rng: np.random.Generator) -> Iterator[Case]:
    """Ink on a transparent sheet, and pictures that are partly transparent."""
    for index, digit in enumerate(draw_digits(np.arange(12) % 10, rng)):
        side = int(rng.integers(90, 400))
        alpha = Image.fromarray(digit).resize((side, side))
        color = ("black", "white", "#2040c0")[index % 3]
        ink = Image.new("RGBA", alpha.size, color)
        ink.putalpha(alpha)
        yield Case(f"drawing {index}", to_file(ink), DIGIT)


def _files_of_docs() -> Iterator[Case]:
    for path in sorted((ROOT / "docs").glob("*.jpg")) + sorted((ROOT / "docs").glob("*.png")):
        for facts in (DIGIT, CROP):
            yield Case(path.name, path.read_bytes(), facts)


def _others(rng: np.random.Generator) -> Iterator[Case]:
    """Odd sizes, colors, flat pictures and noise."""
    for index in range(30):
        height, width = (int(side) for side in rng.integers(8, 200, 2))
        coarse = rng.integers(0, 256, (3, 4, 3), dtype=np.uint8)
        scene = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        yield Case(f"colors {index}", to_file(scene), (COLOR, CROP, FIT)[index % 3])
    yield Case("flat", to_file(Image.new("L", (50, 60), 200)), DIGIT)
    yield Case("black", to_file(Image.new("L", (50, 60))), FIT)


def data_set_digits(count: int) -> NDArray[np.uint8]:
    """Digits of MNIST's test set where that is, else drawn ones, [count, 28, 28]."""
    folder = os.environ.get("CAPSNET_DATA")
    if folder and (Path(folder) / MNIST).exists():
        pixels = gzip.decompress((Path(folder) / MNIST).read_bytes())[16:]
        return np.frombuffer(pixels, np.uint8).reshape(-1, 28, 28)[:count]
    return draw_digits(np.arange(count) % 10, np.random.default_rng(3))


def to_file(picture: Image.Image, kind: str = "PNG") -> bytes:
    """A file of that format; lossy ones of high quality."""
    return saved(picture, kind, **({"quality": 92} if kind in {"JPEG", "WebP"} else {}))
