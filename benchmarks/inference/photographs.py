"""What digit models make of photographs, transformed digits, other signs and nothing at all.

    python -m benchmarks.inference.photographs models/capsnet-mnist models/capsnet-digits

Every picture goes through the model's preprocessing, as in the service. Of digits, the share that is named
rightly is printed; of what shows no digit, the share that gets no confident answer. All pictures are made
here (docs/photographs.py, training/data/): they are like what people send, but nobody sent them. Test
digits are only used without --validation; choose between models with it, by other pictures.
"""

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from benchmarks.option_types import bundle, positive
from docs.photographs import USUAL, Conditions, photograph
from export.contract.confidence import are_blank, reaches, threshold, weakest_named
from export.contract.manifest import Manifest, read_manifest
from export.contract.pictures import read_picture
from export.contract.preprocess import to_input
from training.config import RunConfig
from training.data.download import data_root
from training.data.images import Images, hold_out
from training.data.run_images import load_images
from training.data.synthetic.letters import LETTERS
from training.data.synthetic.scribbles import draw_scribbles
from training.data.transforms.affnist_style import affnist_style_set

# N pictures, H rows, W columns

MAX_PIXELS = 50_000_000
SIZE = (1200, 900)
CONDITIONS = {
    "photographs": USUAL,
    "with a strong shadow": Conditions(shadow_share=1, shadow=(0.4, 0.65)),
    "turned and tilted": Conditions(turn_degrees=12, tilt=0.2),
    "on squared paper": Conditions(squares=True),
    "with a thick marker": Conditions(pen="marker", thickness=(0.15, 0.22)),
}
LATER_CONDITIONS = {
    "with a very thick marker": Conditions(pen="marker", thickness=(0.25, 0.4)),
    "of notes on a table": Conditions(note=True),
}
SIGNS = "?!&@#%+=*<>~"  # no network learns them, and neither the font of these and of the letters
BATCH = 100
TEST_SEED, VALIDATION_SEED = 1_000, 2_000


@dataclass(frozen=True)
class Set:
    """Pictures of one kind.

    Attributes:
        name: for the table.
        pictures: of any size.
        labels: which digit each shows, int [N]; None where none shows any.
    """

    name: str
    pictures: list[Image.Image]
    labels: NDArray[np.int64] | None


def main() -> None:
    """Measure each model on each set and print the table."""
    options = parse()
    models = [(read_manifest(folder), session(folder)) for folder in options.bundles]
    names = [
        f"{manifest.model}/{folder.name}"
        for (manifest, _), folder in zip(models, options.bundles, strict=True)
    ]
    print(f"| pictures | | {' | '.join(names)} |\n| --- | ---: | {' | '.join(['---:'] * len(names))} |")
    for some in sets(options):
        shares = [100 * share(some, manifest, encoder) for manifest, encoder in models]
        asked = "correct" if some.labels is not None else "not confident"
        cells = " | ".join(f"{found:.1f} %" for found in shares)
        print(f"| {len(some.pictures)} {some.name} | {asked} | {cells} |", flush=True)


def parse() -> Namespace:
    """The options."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs="+", type=bundle, metavar="BUNDLE", help="models of digits")
    parser.add_argument(
        "--count",
        type=positive,
        default=50,
        help="photographs of a kind, and blank pages (50); of scribbles 6 times as many, letters 4, noise 2",
    )
    parser.add_argument(
        "--validation", action="store_true", help="other pictures, and digits held out of training"
    )
    parser.add_argument("--data", type=Path, default=data_root(None), help="folder of the data sets")
    return parser.parse_args()


def session(folder: Path) -> ort.InferenceSession:
    """The bundle's encoder."""
    return ort.InferenceSession(folder / "encoder.onnx", providers=["CPUExecutionProvider"])


def sets(options: Namespace) -> Iterator[Set]:
    """All kinds of pictures, made one after the other."""
    rng = np.random.default_rng(VALIDATION_SEED if options.validation else TEST_SEED)
    for name, conditions in CONDITIONS.items():
        yield photographs(name, conditions, options.count, rng)
    digits = digits_of(options)
    yield Set("transformed digits", as_pictures(digits.pixels[:, 0].numpy()), digits.labels.numpy())
    for name, some in (("letters", LETTERS), ("other signs", SIGNS)):
        yield Set(name, [printed(some[n % len(some)], rng) for n in range(4 * options.count)], None)
    blank = [photograph(None, SIZE, rng) for _ in range(options.count)]
    yield Set("blank pages", [read_picture(file, MAX_PIXELS) for file in blank], None)
    scribbles = as_pictures(draw_scribbles(8 * options.count, rng))
    yield Set("scribbles", [picture for n, picture in enumerate(scribbles) if n % 8 < 6], None)
    yield Set("spots and noise", [picture for n, picture in enumerate(scribbles) if n % 8 >= 6], None)
    for name, conditions in LATER_CONDITIONS.items():  # after all others, which stay as they were
        yield photographs(name, conditions, options.count, rng)


def photographs(name: str, conditions: Conditions, count: int, rng: np.random.Generator) -> Set:
    """Digits from 0 to 9, again and again."""
    labels = np.arange(count) % 10
    files = (photograph(int(digit), SIZE, rng, conditions) for digit in labels)
    return Set(name, [read_picture(file, MAX_PIXELS) for file in files], labels)


def digits_of(options: Namespace) -> Images:
    """MNIST's digits, turned, sheared and scaled as those of affNIST: the test set, or what was held out."""
    config = RunConfig()
    images = load_images(config, "train" if options.validation else "test", options.data)
    if options.validation:
        _, images = hold_out(images, config.data.validation_images, config.seed)
    [moved] = affnist_style_set(images, len(images))
    return moved


def as_pictures(pixels: NDArray[np.uint8]) -> list[Image.Image]:
    """Of gray pixels [N, H, W]."""
    return [Image.fromarray(each) for each in pixels]


def printed(sign: str, rng: np.random.Generator) -> Image.Image:
    """A letter or another sign, dark on light, a little turned."""
    picture = Image.new("L", (220, 220), int(rng.integers(200, 256)))
    font = ImageFont.load_default(float(rng.uniform(90, 150)))
    ImageDraw.Draw(picture).text((110, 110), sign, int(rng.integers(0, 90)), font, anchor="mm")
    return picture.rotate(rng.uniform(-10, 10), Image.Resampling.BILINEAR, fillcolor=picture.getpixel((0, 0)))


def share(some: Set, manifest: Manifest, encoder: ort.InferenceSession) -> float:
    """Of digits, how many are classified correctly; of all else, how many get no confident answer; 0 to 1."""
    inputs = np.stack([to_input(picture, manifest.preprocessing) for picture in some.pictures])
    parts = [inputs[start : start + BATCH] for start in range(0, len(inputs), BATCH)]
    found = np.concatenate([encoder.run(["probabilities"], {"pixels": part})[0] for part in parts])
    if some.labels is not None:
        return float((found.argmax(axis=1) == some.labels).mean())
    least = threshold(manifest)
    assert least is not None, f"{manifest.model} has no threshold: export its run again"
    return 1 - float(reaches(weakest_named(found, 1), are_blank(inputs), least).mean())


if __name__ == "__main__":
    main()
