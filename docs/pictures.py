"""Make the pictures of this folder, with `python docs/pictures.py`.

seven.jpg     a photograph of a pen digit, drawn; three.png: a digit drawn dark on light
overlap.png   a three and an eight, one over the other
capsnet.png   the README's picture: what the shipped bundle makes of seven.jpg
"""

from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from export.contract.manifest import read_manifest
from export.contract.pictures import read_picture
from export.contract.preprocess import to_input
from training.data.drawn import draw_digits
from training.data.photographs import photograph

DOCS = Path(__file__).parent
PHOTOGRAPH_SEED = 7
MODEL = DOCS.parent / "models" / "capsnet-mnist"
DIMENSIONS = 5  # rows of the sweep: those that change the picture most
DELTAS = np.arange(-5, 6) * 0.05  # Fig. 4 of Sabour et al. 2017
SHIFT = 14  # pixels of 200, up and left, down and right: two of the model's 28
CELL, GAP, LABEL = 56, 24, 26  # pixels
LARGE = DIMENSIONS * CELL


def main() -> None:
    """Write the four files."""
    photo = photograph(7, (1600, 1200), np.random.default_rng(PHOTOGRAPH_SEED))
    (DOCS / "seven.jpg").write_bytes(photo)
    three = 255 - draw_digits(np.array([3]), np.random.default_rng(3), size=200)[0]
    Image.fromarray(three).save(DOCS / "three.png")
    Image.fromarray(overlapping(3, 8)).save(DOCS / "overlap.png")
    figure(photo).save(DOCS / "capsnet.png")


def overlapping(first: int, second: int) -> NDArray[np.uint8]:
    """Two digits dark on light, drawn a few pixels apart as MultiMNIST does, [200, 200]."""
    upper, lower = draw_digits(np.array([first, second]), np.random.default_rng(3), size=200)
    return 255 - np.maximum(np.roll(upper, (-SHIFT, -SHIFT), (0, 1)), np.roll(lower, (SHIFT, SHIFT), (0, 1)))


def figure(photo: bytes) -> Image.Image:
    """Photograph, model input, reconstruction and the dimensions of the winning capsule that matter most."""
    bundle = max(MODEL.iterdir(), key=lambda version: int(version.name))
    facts = read_manifest(bundle).preprocessing
    encoder, decoder = (
        ort.InferenceSession(bundle / f"{role}.onnx", providers=["CPUExecutionProvider"])
        for role in ("encoder", "decoder")
    )
    picture = read_picture(photo, 50_000_000)
    pixels = to_input(picture, facts, "auto")[None]  # [1, H, W, 1]
    probabilities, poses = encoder.run(None, {"pixels": pixels})
    mask = np.eye(probabilities.shape[1], dtype=np.float32)[probabilities.argmax(axis=1)]
    [plain] = decoder.run(None, {"poses": poses, "mask": mask})
    rows = sweep(decoder, poses, mask)
    label = f"{probabilities.argmax()}, probability {probabilities.max():.2f}"
    columns = [
        ("photograph", picture.convert("RGB").resize((LARGE * 4 // 3, LARGE))),
        ("model input", enlarged(pixels[0], LARGE)),
        (f"reconstruction: {label}", enlarged(plain[0], LARGE)),
        ("5 of 16 dimensions, each moved from -0.25 to 0.25", side_by_side(rows)),
    ]
    return captioned(columns)


def sweep(decoder: ort.InferenceSession, poses: NDArray, mask: NDArray) -> NDArray[np.float32]:
    """Pictures [rows, deltas, H, W, 1]: the dimensions whose ends differ most."""
    dimensions = poses.shape[2]
    moved = np.repeat(poses, dimensions * len(DELTAS), axis=0)
    moved = moved.reshape(dimensions, len(DELTAS), *poses.shape[1:])
    for dimension in range(dimensions):
        moved[dimension, :, :, dimension] += DELTAS[:, None]
    flat = moved.reshape(-1, *poses.shape[1:]).astype(np.float32)
    [pictures] = decoder.run(None, {"poses": flat, "mask": np.repeat(mask, len(flat), axis=0)})
    pictures = pictures.reshape(dimensions, len(DELTAS), *pictures.shape[1:])
    change = np.abs(pictures[:, 0] - pictures[:, -1]).sum(axis=(1, 2, 3))
    return pictures[np.sort(np.argsort(-change)[:DIMENSIONS])]


def enlarged(pixels: NDArray[np.float32], side: int) -> Image.Image:
    """Pixels [H, W, 1] as a square picture with visible pixels."""
    grey = np.rint(pixels[..., 0] * 255).astype(np.uint8)
    return Image.fromarray(grey).resize((side, side), Image.Resampling.NEAREST)


def side_by_side(rows: NDArray[np.float32]) -> Image.Image:
    """Pictures [rows, columns, H, W, 1] as a grid."""
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
