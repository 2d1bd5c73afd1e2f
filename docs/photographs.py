"""Photographs, as a telephone takes them, of one digit written with a pen on paper.

Everything happens in the order in which it does in a camera: paper, ink, illumination and shadows on a
coarser grid, then optics, sensor noise at full resolution, and JPEG.
"""

import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from training.data.synthetic.drawn_digits import draw_hand, draw_strokes

# H, W rows and columns of the scene, P points; light is 0-1 as a file stores it

SCENE_SIDE_PIXELS = 800
PENS = {
    "black ballpoint": (0.10, 0.10, 0.13),
    "blue ballpoint": (0.13, 0.20, 0.58),
    "pencil": (0.38, 0.38, 0.40),
    "marker": (0.07, 0.06, 0.08),
}
THICKNESS = (0.025, 0.07)  # of a pen, in heights of the digit
MARKER_THICKNESS = (0.09, 0.14)
PAPERS = ((0.97, 0.97, 0.96), (0.95, 0.93, 0.86), (0.90, 0.91, 0.93), (0.96, 0.90, 0.72))


@dataclass(frozen=True)
class Conditions:
    """Under which a photograph is taken, and what is written with.

    Attributes:
        turn_degrees: standard deviation of the page's rotation.
        tilt: standard deviation of how much smaller things become across a digit, per axis.
        squares: whether the paper has squares.
        pen: one of `PENS`; None for any.
        thickness: smallest and largest of the pen, in heights of the digit; None for the pen's own.
        shadow_share: of the photographs have a shadow.
        shadow: how much of the light it takes, at least and at most.
        note: whether the paper is a note on a table, not much larger than the digit.
    """

    turn_degrees: float = 5.0
    tilt: float = 0.08
    squares: bool = False
    pen: str | None = None
    thickness: tuple[float, float] | None = None
    shadow_share: float = 0.5
    shadow: tuple[float, float] = (0.1, 0.4)
    note: bool = False


USUAL = Conditions()


def photograph(
    digit: int | None, size: tuple[int, int], rng: np.random.Generator, conditions: Conditions = USUAL
) -> bytes:
    """A JPEG file of `size` (width, height) pixels; with no digit, of a blank page."""
    scale = max(1.0, max(size) / SCENE_SIDE_PIXELS)
    width, height = round(size[0] / scale), round(size[1] / scale)
    scene = paper(height, width, rng)
    if conditions.squares:
        scene *= squares(height, width, rng)[..., None]
    if digit is not None:
        pen = str(rng.choice(list(PENS)))
        pen = conditions.pen or pen
        coverage = written(digit, pen, height, width, rng, conditions)[..., None]
        scene = scene * (1 - coverage) + np.array(PENS[pen], np.float32) * coverage
        if conditions.note:
            scene = cut_out(scene, coverage[..., 0], rng)
    if rng.random() < 0.2:
        scene = on_a_table(scene, rng)
    scene *= lighting(height, width, rng, conditions)[..., None]
    return developed(scene, size, rng)


def paper(height: int, width: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """A sheet with its tone, its unevenness and sometimes faint ruling, [H, W, 3]."""
    sheet = np.ones((height, width), np.float32)
    for grain, contrast in ((2, 0.012), (8, 0.008), (100, 0.02)):
        sheet += contrast * smooth_noise(height, width, grain, rng)
    if rng.random() < 0.25:
        spacing, phase = rng.uniform(0.05, 0.12) * height, rng.uniform(0, 50)
        rows = np.arange(height)[:, None] + rng.normal(0, 0.03) * np.arange(width)
        sheet -= rng.uniform(0.03, 0.10) * ((rows + phase) % spacing < 2)
    return sheet[..., None] * np.array(PAPERS[rng.integers(len(PAPERS))], np.float32)


def squares(height: int, width: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """What lines of a squared sheet leave of the light, [H, W]."""
    spacing, (top, left) = rng.uniform(0.04, 0.1) * min(height, width), rng.uniform(0, 50, 2)
    rows, columns = np.mgrid[:height, :width]
    slope = rng.normal(0, 0.02)
    on_line = ((rows + slope * columns + top) % spacing < 2) | ((columns - slope * rows + left) % spacing < 2)
    return np.asarray(1 - rng.uniform(0.08, 0.25) * on_line, np.float32)


def written(
    digit: int, pen: str, height: int, width: int, rng: np.random.Generator, conditions: Conditions = USUAL
) -> NDArray[np.float32]:
    """How much of each pixel is ink, 0-1 [H, W]: anywhere on the page, thick or thin, seen at an angle."""
    tall = rng.uniform(0.18, 0.75) * min(height, width)
    usual = MARKER_THICKNESS if pen == "marker" else THICKNESS
    thick = tall * rng.uniform(*(conditions.thickness or usual))
    strokes = draw_strokes(digit, draw_hand(rng), rng)
    points = seen_at_an_angle(np.concatenate(strokes), rng, conditions) * tall
    points -= points.min(axis=0) - 1.2 * thick
    room = np.array([width, height]) - points.max(axis=0) - 1.2 * thick
    points += room * np.clip(rng.normal(0.5, 0.25, 2), 0.02, 0.98)
    mask = Image.new("L", (width, height))
    draw = ImageDraw.Draw(mask)
    for stroke in np.split(points, np.cumsum([len(stroke) for stroke in strokes])[:-1]):
        pressure = 1 + 0.18 * np.sin(rng.uniform(0, 6) + np.linspace(0, rng.uniform(2, 9), len(stroke)))
        fine = np.linspace(0, len(stroke) - 1, 6 * len(stroke))
        x, y, radius = (
            np.interp(fine, np.arange(len(stroke)), v)
            for v in (*stroke.T, np.maximum(pressure * thick / 2, 0.8))
        )
        for box in np.stack([x - radius, y - radius, x + radius, y + radius], axis=1).tolist():
            draw.ellipse(box, fill=255)
    ink = np.asarray(mask.filter(ImageFilter.GaussianBlur(0.6)), np.float32) / 255
    grain = 0.25 if pen == "pencil" else 0.05
    return np.clip(ink * (0.9 - grain * np.abs(smooth_noise(height, width, 2, rng))), 0, 1)


def seen_at_an_angle(
    points: NDArray[np.float64], rng: np.random.Generator, conditions: Conditions = USUAL
) -> NDArray[np.float64]:
    """Turn the page by a few degrees and tilt it away from the camera, [P, 2]."""
    turn = np.deg2rad(rng.normal(0, conditions.turn_degrees))
    rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    turned = (points - 0.5) @ rotation.T
    return turned / (1 + turned @ rng.normal(0, conditions.tilt, 2))[:, None]


def on_a_table(scene: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """Let a dark table show beyond one edge of the page, [H, W, 3]."""
    height, width, _ = scene.shape
    margin = rng.uniform(0.01, 0.03) * np.array([height, width])
    rows, columns = np.mgrid[:height, :width]
    beyond = (rows < margin[0] + 0.02 * columns, columns > width - margin[1] - 0.02 * rows)[rng.integers(2)]
    return np.where(beyond[..., None], np.array([0.34, 0.24, 0.17], np.float32), scene)


def cut_out(
    scene: NDArray[np.float32], coverage: NDArray[np.float32], rng: np.random.Generator
) -> NDArray[np.float32]:
    """Leave a note around the digit, a little turned, and the table beyond it, [H, W, 3]."""
    rows, columns = np.nonzero(coverage > 0.5)
    center = np.array([np.ptp(rows) / 2 + rows.min(), np.ptp(columns) / 2 + columns.min()])
    half = np.array([np.ptp(rows), np.ptp(columns)]) / 2 + rng.uniform(0.2, 0.5) * np.ptp(rows)
    y, x = np.mgrid[: coverage.shape[0], : coverage.shape[1]] - center[:, None, None]
    turn = np.deg2rad(rng.normal(0, 6))
    down, across = y * np.cos(turn) - x * np.sin(turn), x * np.cos(turn) + y * np.sin(turn)
    is_table = (np.abs(down) > half[0]) | (np.abs(across) > half[1])
    table = rng.uniform(0.4, 1.8) * np.array([0.34, 0.24, 0.17], np.float32)
    return np.where(is_table[..., None], table, scene)


def lighting(
    height: int, width: int, rng: np.random.Generator, conditions: Conditions = USUAL
) -> NDArray[np.float32]:
    """Light that falls off to one side and to the corners, and maybe a shadow with a soft edge, [H, W]."""
    y, x = np.mgrid[-1 : 1 : height // 4 * 1j, -1 : 1 : width // 4 * 1j].astype(np.float32)
    angle = rng.uniform(0, 2 * np.pi)
    light = 1 - rng.uniform(0, 0.28) * (1 + x * np.cos(angle) + y * np.sin(angle))
    light -= rng.uniform(0, 0.12) * (x * x + y * y)
    if rng.random() < conditions.shadow_share:
        angle, softness = rng.uniform(0, 2 * np.pi), rng.uniform(0.01, 0.2)
        side = x * np.cos(angle) + y * np.sin(angle) - rng.uniform(-0.7, 0.7)
        light *= 1 - rng.uniform(*conditions.shadow) / (1 + np.exp(-np.clip(side / softness, -50, 50)))
    light = np.asarray(np.clip(light, 0.2, 1) * rng.uniform(0.75, 1), np.float32)
    return np.asarray(Image.fromarray(light).resize((width, height), Image.Resampling.BILINEAR))


def developed(scene: NDArray[np.float32], size: tuple[int, int], rng: np.random.Generator) -> bytes:
    """What the optics, the sensor and the JPEG encoder make of a scene [H, W, 3]."""
    white_balance = np.array([1, 1, 1], np.float32) + rng.normal(0, 0.03, 3).astype(np.float32)
    image = Image.fromarray(np.asarray(np.clip(scene * white_balance, 0, 1) * 255, np.uint8))
    image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 1.2))).resize(
        size, Image.Resampling.BILINEAR
    )
    file = io.BytesIO()
    image = ImageChops.add(image, sensor_noise(size, rng), offset=-128)
    image.save(file, "JPEG", quality=int(rng.integers(60, 93)))
    return file.getvalue()


def sensor_noise(size: tuple[int, int], rng: np.random.Generator) -> Image.Image:
    """Noise around 128; one patch of it repeats over the picture."""
    patch = np.clip(rng.normal(128, rng.uniform(2, 9), (509, 521, 3)), 0, 255).astype(np.uint8)
    noise = Image.new("RGB", size)
    for top in range(0, size[1], 509):
        for left in range(0, size[0], 521):
            noise.paste(Image.fromarray(patch), (left, top))
    return noise


def smooth_noise(height: int, width: int, grain: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Noise of standard deviation near 1 whose spots are `grain` pixels large, [H, W]."""
    coarse = rng.normal(0, 1, (height // grain + 2, width // grain + 2)).astype(np.float32)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
