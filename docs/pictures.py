"""Make the pictures of this folder, with `python -m docs.pictures`.

seven.jpg     a photograph of a pen digit, drawn; three.png: a digit drawn dark on light
overlap.png   a three and an eight, one over the other
left.png, right.png   both views of a truck that no network was trained on, from where no data set shows it
sweep.png     animated: seven.jpg decoded while one dimension of its capsule after the other moves
capsnet.png   what the shipped bundle makes of seven.jpg, and five dimensions of its capsule moved
matrix-capsnet.png    what the bundle of matrix capsules answers to five toys, each from nine viewpoints
multimnist.png    overlap.png taken apart by the bundle for two digits
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from docs.photographs import photograph as photographed_digit
from export.contract.manifest import Manifest, newest_version, read_manifest
from export.contract.pictures import read_picture
from export.contract.preprocess import views_to_input
from training.data.synthetic.drawn_digits import draw_digits
from training.data.synthetic.toys import studio

DOCS = Path(__file__).parent
MODELS = DOCS.parent / "models"
PHOTOGRAPH_SEED = 7
SHIFT = 14  # pixels of 200, up and left, down and right: 2.5 of the model's 36
TRUCK = (3, 5)  # category and toy, one of those that are tested with
AZIMUTH, ELEVATION = 50, 38  # degrees; the data set goes in steps of 20 and 5
LIGHTING = 2  # both front lamps
TEST_TOY = 5  # of each category in matrix-capsnet.png; no network was trained on it
VIEWPOINTS = tuple(zip(range(0, 360, 40), range(30, 75, 5), strict=True))  # azimuth and elevation, degrees
DELTAS = np.arange(-5, 6) * 0.05  # Fig. 4 of Sabour et al. 2017
ROWS = 5  # of capsnet.png: the dimensions that change the picture most
CELL, GAP, LABEL = 56, 24, 26  # pixels
LARGE = ROWS * CELL
SWING = np.sin(np.arange(16) / 16 * 2 * np.pi) * 0.25  # there and back
FRAME_MS = 80
GRAYS = 0xF8  # bits of a gray level that sweep.png keeps: a file of half the size


@dataclass(frozen=True)
class Answer:
    """What a bundle makes of one picture or pair.

    Attributes:
        label: the most probable class.
        probability: of that class.
        pixels: what the network sees, [H, W, C].
        pose: the capsule of the class, flat.
        mask: what the decoder is told of the class, [1, J].
    """

    label: str
    probability: float
    pixels: NDArray[np.float32]
    pose: NDArray[np.float32]
    mask: NDArray[np.float32]


class Model:
    """The newest version of a shipped bundle."""

    def __init__(self, name: str) -> None:
        bundle = newest_version(MODELS / name)
        self.manifest: Manifest = read_manifest(bundle)
        self.encoder, self.decoder = (
            ort.InferenceSession(bundle / f"{role}.onnx", providers=["CPUExecutionProvider"])
            for role in ("encoder", "decoder")
        )

    def classify(self, views: Sequence[Image.Image]) -> Answer:
        """The answer to one picture, or to the views of a pair."""
        pixels = views_to_input(views, self.manifest.preprocessing)
        probabilities, poses = self.encoder.run(None, {"pixels": pixels[None]})
        winner = int(probabilities[0].argmax())
        mask = np.eye(probabilities.shape[1], dtype=np.float32)[[winner]]
        label, probability = self.manifest.class_names[winner], float(probabilities[0, winner])
        return Answer(label, probability, pixels, poses[0, winner].reshape(-1), mask)

    def decode(self, answer: Answer, changes: NDArray[np.float32]) -> NDArray[np.float32]:
        """The answer's capsule with these changes added, [N, D], as pictures [N, H, W, C]."""
        classes = answer.mask.shape[1]
        poses = np.zeros((len(changes), classes, answer.pose.size), np.float32)
        poses[:, answer.mask[0] > 0] = (answer.pose + changes)[:, None]
        poses = poses.reshape(len(changes), classes, *self.manifest.pose_shape)
        mask = np.repeat(answer.mask, len(changes), axis=0)
        [pictures] = self.decoder.run(None, {"poses": poses, "mask": mask})
        return pictures


def main() -> None:
    """Write the files."""
    photo = photographed_digit(7, (1600, 1200), np.random.default_rng(PHOTOGRAPH_SEED))
    (DOCS / "seven.jpg").write_bytes(photo)
    three = 255 - draw_digits(np.array([3]), np.random.default_rng(3), size=200)[0]
    Image.fromarray(three).save(DOCS / "three.png")
    overlap = Image.fromarray(overlapping(3, 8))
    overlap.save(DOCS / "overlap.png")
    taken_apart(overlap).save(DOCS / "multimnist.png")
    left, right = (Image.fromarray(view) for view in photographed_toy(*TRUCK, AZIMUTH, ELEVATION))
    left.save(DOCS / "left.png")
    right.save(DOCS / "right.png")
    picture = read_picture(photo, 50_000_000)
    explained(picture).save(DOCS / "capsnet.png")
    first, *others = sweeping(picture)
    first.save(DOCS / "sweep.png", save_all=True, append_images=others, duration=FRAME_MS, loop=0)
    viewpoints().save(DOCS / "matrix-capsnet.png", optimize=True)


def overlapping(first: int, second: int) -> NDArray[np.uint8]:
    """Two digits dark on light, drawn a few pixels apart as MultiMNIST does, [200, 200]."""
    upper, lower = draw_digits(np.array([first, second]), np.random.default_rng(3), size=200)
    return 255 - np.maximum(np.roll(upper, (-SHIFT, -SHIFT), (0, 1)), np.roll(lower, (SHIFT, SHIFT), (0, 1)))


def photographed_toy(category: int, instance: int, azimuth: int, elevation: int) -> NDArray[np.uint8]:
    """Left and right view of a toy from there, in degrees, [2, 96, 96]."""
    seen = studio.photograph(studio.toy(category, instance), azimuth, [elevation], [LIGHTING])
    return studio.taken(seen, np.random.default_rng(0))[0, 0]


def taken_apart(picture: Image.Image) -> Image.Image:
    """What came, the model's input, and its two longest capsules decoded: alone, and one red, one green."""
    model = Model("capsnet-multimnist")
    pixels = views_to_input([picture], model.manifest.preprocessing)
    [probabilities], poses = model.encoder.run(None, {"pixels": pixels[None]})
    longest = np.argsort(-probabilities)[:2]
    masks = np.eye(len(probabilities), dtype=np.float32)[longest]
    [drawn] = model.decoder.run(None, {"poses": np.repeat(poses, 2, axis=0), "mask": masks})  # [2, H, W, 1]
    columns = [("image", fitted(picture)), ("model input", enlarged(pixels[..., 0], LARGE))]
    for label, pixels in zip(longest, drawn, strict=True):
        caption = f"{model.manifest.class_names[label]}, probability {probabilities[label]:.2f}"
        columns.append((caption, enlarged(pixels[..., 0], LARGE)))
    both = np.concatenate([*drawn, np.zeros_like(drawn[0])], axis=2)  # red and green, no blue
    columns.append(("both", enlarged(both, LARGE)))
    return captioned(columns)


def explained(photo: Image.Image) -> Image.Image:
    """The photograph, the model's input, the reconstruction, and the dimensions that matter most, moved."""
    model = Model("capsnet-digits")
    answer = model.classify([photo])
    [plain] = model.decode(answer, np.zeros((1, answer.pose.size), np.float32))
    swept = np.stack([model.decode(answer, moved(answer, one, DELTAS)) for one in range(answer.pose.size)])
    change = np.abs(swept[:, 0] - swept[:, -1]).sum(axis=(1, 2, 3))
    most = np.sort(np.argsort(-change)[:ROWS])
    caption = f"5 of 16 dimensions, each moved from {DELTAS[0]:g} to {DELTAS[-1]:g}"
    return captioned(
        [
            ("photograph", fitted(photo)),
            ("model input", enlarged(answer.pixels[..., 0], LARGE)),
            (
                f"reconstruction: {answer.label}, probability {answer.probability:.2f}",
                enlarged(plain[..., 0], LARGE),
            ),
            (caption, labeled_rows([f"dimension {one}" for one in most], swept[most, ..., 0])),
        ]
    )


def moved(answer: Answer, dimension: int, deltas: NDArray[np.floating]) -> NDArray[np.float32]:
    """Changes of a pose, [N, D], in which one dimension takes the deltas and all others stay."""
    changes = np.zeros((len(deltas), answer.pose.size), np.float32)
    changes[:, dimension] = deltas
    return changes


def sweeping(photo: Image.Image) -> Iterator[Image.Image]:
    """Frames: the photograph, the sixteen numbers of the capsule with one in motion, what they decode to."""
    model = Model("capsnet-digits")
    answer = model.classify([photo])
    photograph = fitted(photo.convert("L")).point(lambda level: level & GRAYS)
    for dimension in range(answer.pose.size):
        changes = moved(answer, dimension, SWING)
        for change, pixels in zip(changes, model.decode(answer, changes), strict=True):
            columns = [
                ("photograph", photograph),
                (
                    f"capsule of the {answer.label}: dimension {dimension}",
                    bars(answer.pose + change, dimension),
                ),
                ("decoded", enlarged(pixels[..., 0], LARGE).point(lambda level: level & GRAYS)),
            ]
            yield captioned(columns)


def bars(pose: NDArray[np.float32], marked: int) -> Image.Image:
    """A pose as bars to the left and right of a line, one number a row, the marked one orange."""
    width, row, scale = 300, LARGE / pose.size, 150  # scale: pixels of a pose of 1
    page = Image.new("RGB", (width, LARGE), "white")
    draw, middle = ImageDraw.Draw(page), width // 2 + 14
    font = ImageFont.load_default(13)
    for index, value in enumerate(pose):
        y = round(index * row)
        color = "#e8710a" if index == marked else "#9aa5b1"
        draw.text((4, y), str(index), fill=color if index == marked else "#5f6b77", font=font)
        start, end = sorted((middle, middle + round(float(value) * scale)))
        draw.rectangle((start, y + 3, end, y + round(row) - 4), fill=color)
    draw.line((middle, 0, middle, LARGE), fill="#5f6b77")
    return page


def viewpoints() -> Image.Image:
    """A toy a row, its left view from many sides with the answer to the pair; wrong answers are red."""
    model = Model("matrix-capsnet-toys")
    side, margin, head, foot = 120, 80, 46, 26  # pixels
    categories = model.manifest.class_names
    page = Image.new(
        "RGB", (margin + len(VIEWPOINTS) * (side + 6), head + len(categories) * (side + foot)), "white"
    )
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(15)
    for column, (azimuth, elevation) in enumerate(VIEWPOINTS):
        place = (margin + column * (side + 6), 4)
        draw.text(place, f"azimuth {azimuth}°\nelevation {elevation}°", fill="black", font=font)
    for row, category in enumerate(categories):
        y = head + row * (side + foot)
        draw.text((6, y + side // 2 - 10), category, fill="black", font=font)
        for column, viewpoint in enumerate(VIEWPOINTS):
            x = margin + column * (side + 6)
            views = [Image.fromarray(view) for view in photographed_toy(row, TEST_TOY, *viewpoint)]
            answer = model.classify(views)
            page.paste(views[0].resize((side, side), Image.Resampling.BICUBIC), (x, y))
            color = "#1a7f37" if answer.label == category else "#c62828"
            draw.text((x, y + side + 1), f"{answer.label} {answer.probability:.2f}", fill=color, font=font)
    return page


def fitted(picture: Image.Image) -> Image.Image:
    """As high as the other columns."""
    return picture.convert("RGB").resize((LARGE * picture.width // picture.height, LARGE))


def enlarged(pixels: NDArray[np.float32], side: int) -> Image.Image:
    """Pixels [H, W] or [H, W, 3] as a square picture with visible pixels."""
    gray = np.rint(pixels * 255).astype(np.uint8)
    return Image.fromarray(gray).resize((side, side), Image.Resampling.NEAREST)


def labeled_rows(names: Sequence[str], rows: NDArray[np.float32]) -> Image.Image:
    """Pictures [rows, columns, H, W] as a grid, each row with its name before it."""
    margin = 110
    grid = Image.new("RGB", (margin + rows.shape[1] * CELL, rows.shape[0] * CELL), "white")
    draw, font = ImageDraw.Draw(grid), ImageFont.load_default(15)
    for y, (name, row) in enumerate(zip(names, rows, strict=True)):
        draw.text((0, y * CELL + CELL // 2 - 10), name, fill="black", font=font)
        for x, pixels in enumerate(row):
            grid.paste(enlarged(pixels, CELL), (margin + x * CELL, y * CELL))
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
