"""Find the pen strokes of one digit in a photograph, and place them as MNIST places its digits.

The ground is what a closing leaves of the picture: every dark thing narrower than a third of the frame is
painted over, so that shadows and falling light stay in the ground and strokes do not. What stands out
from the ground by enough is ink, unless it is a speck or runs along the edge of the picture. Strokes may be
darker or lighter than the paper: thin ones are the rare extremes of a picture, thick ones the larger part of
its dark and light things.

Written in NumPy and Pillow, for the service installs no SciPy; `browser/engine/ink.js` is the same in
JavaScript.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

# H, W rows and columns of the picture; h, w of the model's frame; E pairs of neighbors; K components

Plane = NDArray[np.float32]  # [H, W]
Mask = NDArray[np.bool_]  # [H, W]

GROUND_WINDOW = 1 / 3  # of the shorter side; strokes are thinner, shadows are wider
CLEAR_SKEWNESS = 1.0  # from here on it tells which is ink and which is paper; below, the next three do
PEN = 0.12  # of the digit's longer side; what lies between thick strokes is not as narrow as a pen's strokes
SHEET = 0.85  # of a rectangle; a sheet of paper on a table fills it, together with what is written on it
MORE_INK = 2.0  # a digit of thick strokes is this times as much as what lies between them
INKED = 0.3  # from here on a pixel counts as ink
NOISE_DEVIATIONS = 6.0  # ink stands out from the paper by this many standard deviations of its noise
LEAST_CONTRAST = 0.15  # and by this share of the paper's brightness
INK_LEVEL = 0.4  # a pixel is ink from this share of the darkest ink's contrast
LEAST_SIZE = 0.06  # of the shorter side; smaller things are specks
CUT_OFF = 0.3  # a thing this share of whose length is on the picture's edge is a table, not a digit
ROUNDS = 4  # how often what is no digit is taken away and the rest looked at again

BOX = 20 / 28  # MNIST fits the ink's box into 20 of 28 pixels
CENTER = 14.5 / 28  # and puts its center of mass on the middle of pixel 14
STROKE = 2.4 / 28  # thinner strokes are thickened to this, a little less than MNIST's average of 2.6
OVERSAMPLING = 8  # strokes are placed on a grid this much finer than the frame


@dataclass(frozen=True)
class Components:
    """Connected regions, one entry of each array for each: [K], boxes [K, 4] top, left, bottom, right."""

    labels: NDArray[np.intp]  # [H, W], 0 to K - 1, or -1
    boxes: NDArray[np.intp]
    mass: NDArray[np.float64]
    contact: NDArray[np.intp]  # pixels on the picture's edge

    @property
    def sides(self) -> NDArray[np.intp]:
        """Longer side of each box, [K]."""
        return (self.boxes[:, 2:] - self.boxes[:, :2]).max(axis=1)


def find_ink(gray: Plane) -> tuple[Plane, bool]:
    """Ink of the one digit in a picture, paper exactly 0 and strokes near 1.

    Args:
        gray: the picture, [H, W], 0-1.

    Returns:
        the ink, [H, W], 0-1, all zero when nothing stands out enough to be a digit; and whether it is darker
        than the paper.
    """
    skewness = _skewness(gray)
    is_dark = skewness < 0
    ink = _ink_of(gray, is_dark)
    if abs(skewness) >= CLEAR_SKEWNESS or _has_strokes_of_a_pen(ink):
        return ink, is_dark
    other = _ink_of(gray, not is_dark)
    less, more = sorted((ink, other), key=np.sum)
    is_other = less is other if _is_written_on(more, less) else other.sum() > MORE_INK * ink.sum()
    return (other, not is_dark) if is_other else (ink, is_dark)


def place_ink(ink: Plane, height: int, width: int) -> Plane:
    """Fit the ink's box into 20/28 of a frame, centered by mass, thin strokes thickened.

    Args:
        ink: [H, W], 0-1, paper exactly 0.
        height: h of the frame, pixels.
        width: w of the frame, pixels.

    Returns:
        [h, w], 0-1.
    """
    rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
    if not len(rows):
        return np.zeros((height, width), np.float32)
    crop = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    box, stroke = (OVERSAMPLING * min(height, width) * share for share in (BOX, STROKE))
    large = _scaled(crop, box / max(crop.shape))
    thickness = _thickness(large > 0.5)
    missing = max(0.0, stroke - thickness)
    if missing:  # thickened strokes must still fit the box
        large = _scaled(crop, (box - stroke) / max(1.0, box - thickness) * box / max(crop.shape))
        large = _dilate_round(large, round(missing / 2))
    return _centered(large, height, width)


def _skewness(gray: Plane) -> float:
    """Skewness of what stands out from its surroundings: below 0 for dark ink, near 0 for thick strokes."""
    height, width = gray.shape
    cell = GROUND_WINDOW / 2 * min(height, width)
    coarse = Image.fromarray(gray).resize((round(width / cell), round(height / cell)), Image.Resampling.BOX)
    apart = gray - np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC))
    deviation = max(1e-6, float((apart**2).mean()) ** 0.5)
    return float((apart**3).mean()) / deviation**3  # of an even edge, such as a shadow's, 0


def _has_strokes_of_a_pen(ink: Plane) -> bool:
    """Whether there is ink, and its strokes are thin beside its box."""
    inked = ink > INKED
    rows, columns = np.nonzero(inked)
    if not len(rows):
        return False
    return _thickness(inked) < PEN * (1 + int(max(np.ptp(rows), np.ptp(columns))))


def _is_written_on(sheet: Plane, ink: Plane) -> bool:
    """Whether the one is a sheet, in a picture of the table around it, and the other lies within it."""
    outer, inner = (np.nonzero(plane > INKED) for plane in (sheet, ink))
    if not len(outer[0]) or not len(inner[0]):
        return False
    is_within = all(o.min() <= i.min() and i.max() <= o.max() for o, i in zip(outer, inner, strict=True))
    covered = int(np.count_nonzero(np.maximum(sheet, ink) > INKED))
    return is_within and covered > SHEET * _rectangle_around(sheet > INKED)


def _rectangle_around(mask: Mask) -> float:
    """Area of the smallest rectangle around what is in a mask, turned by multiples of five degrees."""
    rows = np.flatnonzero(mask.any(axis=1))
    left, right = mask[rows].argmax(axis=1), mask.shape[1] - 1 - mask[rows, ::-1].argmax(axis=1)
    x, y = np.concatenate([left, right]), np.concatenate([rows, rows])  # the outline's ends are enough
    angles = np.deg2rad(np.arange(0, 90, 5))[:, None]
    across, down = x * np.cos(angles) + y * np.sin(angles), y * np.cos(angles) - x * np.sin(angles)
    return float(((np.ptp(across, axis=1) + 1) * (np.ptp(down, axis=1) + 1)).min())


def _ink_of(gray: Plane, is_dark: bool) -> Plane:
    """Ink that is darker, or lighter, than the paper; [H, W], 0-1."""
    contrast = _contrast(gray, is_dark)
    smooth = _box_mean(contrast)
    paper = float(np.median(smooth))
    noise = 1.4826 * float(np.median(np.abs(smooth - paper)))
    floor = max(LEAST_CONTRAST, paper + NOISE_DEVIATIONS * noise)
    strokes = _strokes(smooth, floor)
    if not strokes.any():
        return np.zeros_like(gray)
    full = max(floor, float(np.percentile(contrast[strokes], 70)))  # of dotted strokes most is paper
    ink = np.clip((contrast - 0.25 * full) / (0.6 * full), 0, 1)
    return np.asarray(ink * _dilate(strokes.astype(np.float32), 2), np.float32)


def _contrast(gray: Plane, is_dark: bool) -> Plane:
    """How much a pixel stands out from its ground, 0-1; on paper as a share of the paper's brightness."""
    light = gray if is_dark else 1 - gray
    reach = max(2, round(GROUND_WINDOW * min(gray.shape) / 2))
    ground = np.minimum(*(_close(light, reach, padding) for padding in ("linear", "edge")))
    ink = ground - light
    return np.asarray(ink / np.maximum(ground, 0.1) if is_dark else ink, np.float32)


def _close(light: Plane, reach: int, padding: Literal["linear", "edge"]) -> Plane:
    """Closing: paint over what is dark and narrower than 2 x reach.

    Beyond the edge the picture goes on, or else what is dark at the edge would be painted over too: falling
    light straight on, and a shadow or a table at the level it has.
    """
    if padding == "linear":
        padded = np.pad(light, reach, mode="reflect", reflect_type="odd")
    else:
        padded = np.pad(light, reach, mode="edge")
    return -_dilate(-_dilate(padded, reach), reach)[reach:-reach, reach:-reach]


def _dilate(plane: Plane, reach: int) -> Plane:
    """Dilation by a square: the largest value within `reach` pixels in each direction."""
    for axis in (0, 1):
        lines = np.moveaxis(plane, axis, 0)
        lines = np.concatenate([np.repeat(lines[:1], reach, 0), lines, np.repeat(lines[-1:], reach, 0)])
        covered, window = 1, 2 * reach + 1
        while covered < window:  # doubling: a window of n from two of n / 2
            step = min(covered, window - covered)
            lines = np.maximum(lines[:-step], lines[step:])
            covered += step
        plane = np.moveaxis(lines, 0, axis)
    return plane


def _box_mean(plane: Plane) -> Plane:
    """Mean of 3 x 3 pixels."""
    p = np.pad(plane, 1, mode="edge")
    p = p[:-2] + p[1:-1] + p[2:]
    return (p[:, :-2] + p[:, 1:-1] + p[:, 2:]) / np.float32(9)


def _strokes(contrast: Plane, floor: float) -> Mask:
    """Pixels of the digit: the heaviest thing that may be one, and its other strokes."""
    left = contrast.copy()
    blur = max(2, min(contrast.shape) // 50)  # how far a thing's unsharp edge may reach
    for _ in range(ROUNDS):
        if left.max() < floor:
            break
        components = _label_components(left > max(floor, INK_LEVEL * float(left.max())), left)
        is_large = components.sides >= max(3.0, LEAST_SIZE * min(contrast.shape))
        digits = is_large & (components.contact < CUT_OFF * components.sides)
        if digits.any():
            return np.isin(components.labels, _group_strokes(components, digits))
        left[_dilate((components.labels >= 0).astype(np.float32), blur) > 0] = 0
    return np.zeros(contrast.shape, bool)


def _group_strokes(components: Components, digits: NDArray[np.bool_]) -> NDArray[np.intp]:
    """The heaviest digit, rather one that is not cut off, and the components that are near."""
    weight = components.mass * np.where(components.contact > 0, CUT_OFF, 1)
    main = int(np.argmax(np.where(digits, weight, -1)))
    top_left, bottom_right = components.boxes[:, :2], components.boxes[:, 2:]
    gaps = np.maximum(top_left - bottom_right[main], top_left[main] - bottom_right).max(axis=1)
    is_near = (gaps < 0.3 * components.sides[main]) & (components.mass > 0.02 * components.mass[main])
    return np.flatnonzero(is_near & ((components.contact == 0) | digits))


def _label_components(mask: Mask, weight: Plane) -> Components:
    """Tell connected regions apart; gaps of two pixels do not part them."""
    labels = _connected_components(_dilate(mask.astype(np.float32), 1) > 0)
    count = int(labels.max()) + 1
    labels[~mask] = -1
    rows, columns = np.nonzero(mask)
    of = labels[rows, columns]
    boxes = np.empty((count, 4), np.intp)
    boxes[:, :2], boxes[:, 2:] = max(mask.shape), 0
    for side, place in enumerate((rows, columns)):
        np.minimum.at(boxes[:, side], of, place)
        np.maximum.at(boxes[:, 2 + side], of, place + 1)
    on_edge = (rows % (mask.shape[0] - 1) == 0) | (columns % (mask.shape[1] - 1) == 0)
    return Components(
        labels,
        boxes,
        mass=np.bincount(of, weight[rows, columns], count).astype(np.float64),
        contact=np.bincount(of, on_edge, count).astype(np.intp),
    )


def _connected_components(mask: Mask) -> NDArray[np.intp]:
    """Number the regions of 8-connected pixels from 0; [H, W], -1 outside. Union-find, all pairs at once."""
    rows, columns = np.nonzero(mask)
    index = np.full((mask.shape[0] + 1, mask.shape[1] + 2), -1, np.intp)  # a margin: neighbors exist
    index[rows, columns + 1] = np.arange(len(rows))
    neighbors = ((0, 1), (1, -1), (1, 0), (1, 1))
    right = np.concatenate([index[rows + down, columns + 1 + across] for down, across in neighbors])
    left = np.tile(np.arange(len(rows)), len(neighbors))
    a, b = left[right >= 0], right[right >= 0]  # [E]
    root = np.arange(len(rows))
    while (root[a] != root[b]).any():
        low, high = np.minimum(root[a], root[b]), np.maximum(root[a], root[b])
        np.minimum.at(root, high, low)
        while (root[root] != root).any():
            root = root[root]
    labels = np.full(mask.shape, -1, np.intp)
    labels[rows, columns] = (np.cumsum(root == np.arange(len(rows))) - 1)[root]
    return labels


def _scaled(ink: Plane, scale: float) -> Plane:
    """Resize ink; strokes that pale because they become thinner than a pixel are brought back to full."""
    size = (max(1, round(ink.shape[1] * scale)), max(1, round(ink.shape[0] * scale)))
    resized = np.asarray(Image.fromarray(ink).resize(size, Image.Resampling.BILINEAR), np.float32)
    full = float(np.percentile(resized[resized >= resized.max() / 2], 50))
    return np.clip(resized / np.float32(full), 0, 1)


def _thickness(mask: Mask) -> float:
    """Mean width of strokes, pixels: a stroke's area is half its outline times its width."""
    framed = np.pad(mask, 1)
    down = np.count_nonzero(framed[1:] != framed[:-1])
    across = np.count_nonzero(framed[:, 1:] != framed[:, :-1])
    return 2 * float(mask.sum()) / max(1.0, float(np.hypot(down, across)))  # right for a straight stroke


def _dilate_round(plane: Plane, radius: int) -> Plane:
    """Dilation by a disc, as a round pen draws over strokes; the plane grows by `radius` on each side."""
    framed = np.pad(plane, 2 * radius)
    height, width = (side + 2 * radius for side in plane.shape)
    thick = np.zeros((height, width), np.float32)
    for y in range(-radius, radius + 1):
        reach = int(np.sqrt(radius * radius - y * y))
        for x in range(-reach, reach + 1):
            shifted = framed[radius + y : radius + y + height, radius + x : radius + x + width]
            np.maximum(thick, shifted, out=thick)
    return thick


def _centered(large: Plane, height: int, width: int) -> Plane:
    """Put oversampled ink into the frame, its center of mass where MNIST's is. To [h, w]."""
    frame = np.zeros((OVERSAMPLING * height, OVERSAMPLING * width), np.float32)
    places = []
    for axis, side in enumerate(frame.shape):
        profile = large.sum(axis=1 - axis, dtype=np.float64)
        mass_center = float((profile * (np.arange(len(profile)) + 0.5)).sum() / profile.sum())
        # Of a symmetric digit this is a half: without the first rounding, noise would say which way it goes.
        start = round(round(CENTER * side - mass_center, 3))
        source = slice(max(0, -start), min(len(profile), side - start))
        places.append((slice(source.start + start, source.stop + start), source))
    (rows, source_rows), (columns, source_columns) = places
    frame[rows, columns] = large[source_rows, source_columns]
    return frame.reshape(height, OVERSAMPLING, width, OVERSAMPLING).mean(axis=(1, 3))
