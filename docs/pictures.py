"""Make the pictures of this folder, with `python docs/pictures.py`.

seven.jpg     a photograph of a pen digit, drawn; three.png: a digit drawn dark on light
overlap.png   a three and an eight, one over the other
left.png, right.png   both views of a truck that no network was trained on, from where no data set shows it
capsnet.png   the README's picture: what the shipped bundle makes of seven.jpg
matrix-capsnet.png    what the bundle of matrix capsules makes of the truck
multimnist.png    overlap.png taken apart by the bundle for two digits
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from export.contract.manifest import Manifest, newest_version, read_manifest
from export.contract.pictures import read_picture
from export.contract.preprocess import views_to_input
from training.data.synthetic.drawn_digits import draw_digits
from training.data.synthetic.photographs import photograph as photographed_digit
from training.data.synthetic.toys import studio

DOCS = Path(__file__).parent
MODELS = DOCS.parent / "models"
PHOTOGRAPH_SEED = 7
SHIFT = 14  # pixels of 200, up and left, down and right: two of the model's 28
TRUCK = (3, 5)  # category and toy, one of those that are tested with
AZIMUTH, ELEVATION = 50, 38  # degrees; the data set goes in steps of 20 and 5
LIGHTING = 2  # both front lamps
VECTOR_DELTAS = np.arange(-5, 6) * 0.05  # Fig. 4 of Sabour et al. 2017
MATRIX_DELTAS = np.arange(-5, 6) * 0.1
DIMENSIONS = 5  # rows of the sweep: those that change the picture most
CELL, GAP, LABEL = 56, 24, 26  # pixels
LARGE = DIMENSIONS * CELL


@dataclass(frozen=True)
class Seen:
    """What a bundle makes of one picture or pair.

    Attributes:
        label: of the class whose capsule is decoded, the most probable one.
        probability: of that class.
        pixels: what the network sees, [H, W, C].
        plain: the reconstruction, [H, W, C].
        swept: reconstructions [rows, deltas, H, W, C]; in each row one dimension of the capsule is moved.
    """

    label: str
    probability: float
    pixels: NDArray[np.float32]
    plain: NDArray[np.float32]
    swept: NDArray[np.float32]


def main() -> None:
    """Write the files."""
    photo = photographed_digit(7, (1600, 1200), np.random.default_rng(PHOTOGRAPH_SEED))
    (DOCS / "seven.jpg").write_bytes(photo)
    three = 255 - draw_digits(np.array([3]), np.random.default_rng(3), size=200)[0]
    Image.fromarray(three).save(DOCS / "three.png")
    overlap = Image.fromarray(overlapping(3, 8))
    overlap.save(DOCS / "overlap.png")
    taken_apart(overlap).save(DOCS / "multimnist.png")
    left, right = (Image.fromarray(view) for view in truck())
    left.save(DOCS / "left.png")
    right.save(DOCS / "right.png")
    picture = read_picture(photo, 50_000_000)
    of_photo = look_at("capsnet-mnist", [picture], VECTOR_DELTAS)
    figure([("photograph", picture)], of_photo, VECTOR_DELTAS).save(DOCS / "capsnet.png")
    of_truck = look_at("matrix-capsnet-toys", [left, right], MATRIX_DELTAS)
    views = [("left view", left), ("right view", right)]
    figure(views, of_truck, MATRIX_DELTAS).save(DOCS / "matrix-capsnet.png")


def overlapping(first: int, second: int) -> NDArray[np.uint8]:
    """Two digits dark on light, drawn a few pixels apart as MultiMNIST does, [200, 200]."""
    upper, lower = draw_digits(np.array([first, second]), np.random.default_rng(3), size=200)
    return 255 - np.maximum(np.roll(upper, (-SHIFT, -SHIFT), (0, 1)), np.roll(lower, (SHIFT, SHIFT), (0, 1)))


def truck() -> NDArray[np.uint8]:
    """Left and right view, [2, 96, 96]."""
    seen = studio.photograph(studio.toy(*TRUCK), AZIMUTH, [ELEVATION], [LIGHTING])
    return studio.taken(seen, np.random.default_rng(0))[0, 0]


def opened(model: str) -> tuple[Manifest, ort.InferenceSession, ort.InferenceSession]:
    """Manifest, encoder and decoder of the newest version of a bundle."""
    bundle = newest_version(MODELS / model)
    encoder, decoder = (
        ort.InferenceSession(bundle / f"{role}.onnx", providers=["CPUExecutionProvider"])
        for role in ("encoder", "decoder")
    )
    return read_manifest(bundle), encoder, decoder


def taken_apart(picture: Image.Image) -> Image.Image:
    """What came, the model's input, and its two longest capsules decoded: alone, and one red, one green."""
    manifest, encoder, decoder = opened("capsnet-multimnist")
    pixels = views_to_input([picture], manifest.preprocessing)
    [probabilities], poses = encoder.run(None, {"pixels": pixels[None]})
    longest = np.argsort(-probabilities)[:2]
    masks = np.eye(len(probabilities), dtype=np.float32)[longest]
    [drawn] = decoder.run(None, {"poses": np.repeat(poses, 2, axis=0), "mask": masks})  # [2, H, W, 1]
    columns = [("picture", fitted(picture)), ("model input", enlarged(pixels[..., 0], LARGE))]
    for label, pixels in zip(longest, drawn, strict=True):
        caption = f"{manifest.class_names[label]}, probability {probabilities[label]:.2f}"
        columns.append((caption, enlarged(pixels[..., 0], LARGE)))
    both = np.concatenate([*drawn, np.zeros_like(drawn[0])], axis=2)  # red and green, no blue
    columns.append(("both", enlarged(both, LARGE)))
    return captioned(columns)


def look_at(model: str, pictures: Sequence[Image.Image], deltas: NDArray[np.float64]) -> Seen:
    """Through the newest version of a bundle."""
    manifest, encoder, decoder = opened(model)
    pixels = views_to_input(pictures, manifest.preprocessing)
    probabilities, poses = encoder.run(None, {"pixels": pixels[None]})
    winner = int(probabilities[0].argmax())
    mask = np.eye(probabilities.shape[1], dtype=np.float32)[[winner]]
    [plain] = decoder.run(None, {"poses": poses, "mask": mask})
    swept = sweep(decoder, poses, mask, deltas)
    return Seen(manifest.class_names[winner], float(probabilities[0, winner]), pixels, plain[0], swept)


def sweep(
    decoder: ort.InferenceSession, poses: NDArray, mask: NDArray, deltas: NDArray[np.float64]
) -> NDArray[np.float32]:
    """Pictures [rows, deltas, H, W, C]: the dimensions whose ends differ most."""
    flat = poses.reshape(*poses.shape[:2], -1)  # of a matrix, row by row
    dimensions = flat.shape[2]
    moved = np.tile(flat, (dimensions, len(deltas), 1, 1))
    for dimension in range(dimensions):
        moved[dimension, :, :, dimension] += deltas[:, None]
    given = moved.reshape(-1, *poses.shape[1:]).astype(np.float32)
    [pictures] = decoder.run(None, {"poses": given, "mask": np.repeat(mask, len(given), axis=0)})
    pictures = pictures.reshape(dimensions, len(deltas), *pictures.shape[1:])
    change = np.abs(pictures[:, 0] - pictures[:, -1]).sum(axis=(1, 2, 3))
    return pictures[np.sort(np.argsort(-change)[:DIMENSIONS])]


def figure(given: list[tuple[str, Image.Image]], seen: Seen, deltas: NDArray[np.float64]) -> Image.Image:
    """What came, the model's input, the reconstruction and the dimensions of the capsule that matter most."""
    columns = [(caption, fitted(picture)) for caption, picture in given]
    views = range(seen.pixels.shape[2])
    columns += [
        ("model input" if view == 0 else "", enlarged(seen.pixels[..., view], LARGE)) for view in views
    ]
    label = f"{seen.label}, probability {seen.probability:.2f}"
    shown = [f"reconstruction: {label}", ""]
    columns += [(shown[view], enlarged(seen.plain[..., view], LARGE)) for view in views]
    moved = f"5 of 16 dimensions, each moved from {deltas[0]:g} to {deltas[-1]:g}"
    columns.append((moved, side_by_side(seen.swept[..., 0])))
    return captioned(columns)


def fitted(picture: Image.Image) -> Image.Image:
    """As high as the other columns."""
    return picture.convert("RGB").resize((LARGE * picture.width // picture.height, LARGE))


def enlarged(pixels: NDArray[np.float32], side: int) -> Image.Image:
    """Pixels [H, W] or [H, W, 3] as a square picture with visible pixels."""
    grey = np.rint(pixels * 255).astype(np.uint8)
    return Image.fromarray(grey).resize((side, side), Image.Resampling.NEAREST)


def side_by_side(rows: NDArray[np.float32]) -> Image.Image:
    """Pictures [rows, columns, H, W] as a grid."""
    grid = Image.new("L", (rows.shape[1] * CELL, rows.shape[0] * CELL))
    for y, row in enumerate(rows):
        for x, pixels in enumerate(row):
            grid.paste(enlarged(pixels, CELL), (x * CELL, y * CELL))
    return grid


def captioned(columns: list[tuple[str, Image.Image]]) -> Image.Image:
    """Pictures in a row, each with a line of text above it."""
    width = sum(picture.width for _, picture in columns) + GAP * (len(columns) + 1)
    page = Image.new("RGB", (width, LARGE + LABEL + 2 * GAP), "white")
    draw, x = ImageDraw.Draw(page), GAP
    for caption, picture in columns:
        draw.text((x, GAP), caption, fill="black", font=ImageFont.load_default(17))
        page.paste(picture, (x, GAP + LABEL))
        x += picture.width + GAP
    return page


if __name__ == "__main__":
    main()
