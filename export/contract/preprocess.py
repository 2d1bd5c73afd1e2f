"""A picture becomes the model's input: the one implementation for training on folders and for serving."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from export.contract.ink import find_ink, place_ink
from export.contract.manifest import Preprocessing
from export.contract.pictures import ViewMismatchError

INK_SIDE_PIXELS = 512  # ink is looked for at this resolution; more only costs time
LEAST_INK_SIDE_PIXELS = 32  # a shorter side is enlarged to it, or strokes would be too thin to be found
# Of a border, where a picture may be a data set's own: a coat that fills the frame has light edges as well.
ALMOST_ALL = 0.75

Rule = Literal["auto", "off"]


def views_to_input(
    pictures: Sequence[Image.Image], facts: Preprocessing, rule: Rule = "auto"
) -> NDArray[np.float32]:
    """Turn the views of one object, `facts.views` pictures, into the model's input.

    Each goes through the same rule, see `to_input`, and the rules for pairs treat pictures of one size alike.

    Args:
        pictures: one, or the left and the right one of a pair, of the same size.
        facts: as for `to_input`; as is the rule.
        rule: `auto` or `off`.

    Returns:
        float32 [H, W, C], 0-1; of a pair the left view is the first channel.

    Raises:
        ViewMismatchError: the views of a pair have different sizes.
    """
    assert len(pictures) == facts.views, f"{len(pictures)} pictures for {facts.views} views"
    first, last = pictures[0], pictures[-1]
    if first.size != last.size:
        raise ViewMismatchError(
            f"the right view is {last.width}x{last.height}, and the left one before it "
            f"{first.width}x{first.height}; both views of a pair have the same size"
        )
    if facts.views == 1:
        return to_input(first, facts, rule)
    return np.concatenate([to_input(picture, facts, rule) for picture in pictures], axis=2)


def to_input(picture: Image.Image, facts: Preprocessing, rule: Rule = "auto") -> NDArray[np.float32]:
    """Turn a picture into the model's input, or into its channel of it, for one view of a pair.

    A picture of the model's size is neither moved nor scaled, so that a data set's images give the data set's
    answers; one that is dark on light, as three quarters of its border tell, is inverted for a model of light
    on dark. A picture of another size goes through the model's polarity and placement.

    Args:
        picture: mode L or RGB, as `read_picture` gives it.
        facts: the model's size, channels, polarity and placement.
        rule: `off` resizes a picture of another size, inverts none and does nothing else.

    Returns:
        float32 [H, W, C], 0-1; of one view of a pair C is 1.
    """
    size, channels = (facts.width, facts.height), facts.channels // facts.views
    if rule == "off":
        return _values(picture if picture.size == size else _resized(picture, size), channels)
    if picture.size == size:
        pixels = _pixels(picture, channels)
        gray = pixels if channels == 1 else _pixels(picture, 1)
        is_inverted = facts.polarity == "light-on-dark" and _has_light_border(gray, ALMOST_ALL)
        return _scaled(255 - pixels if is_inverted else pixels)
    if facts.placement == "digit":
        return _digit(picture, facts)
    is_inverted = facts.polarity == "light-on-dark" and _has_light_border(_pixels(picture, 1))
    upright = ImageOps.invert(picture) if is_inverted else picture
    place = _fit if facts.placement == "fit" else _center_crop
    return _values(place(upright, facts), channels)


def _digit(picture: Image.Image, facts: Preprocessing) -> NDArray[np.float32]:
    """The ink of a digit on its ground; dark ink stays dark for a model of any polarity."""
    largest = INK_SIDE_PIXELS / max(picture.size)
    scale = min(largest, max(1.0, LEAST_INK_SIDE_PIXELS / min(picture.size)))
    width, height = (max(8, round(side * scale)) for side in picture.size)
    gray = _values(_resized(picture.convert("L"), (width, height)), 1)[..., 0]
    found, is_dark = find_ink(gray)
    ink = place_ink(found, facts.height, facts.width)
    values = 1 - ink if is_dark and facts.polarity == "any" else ink
    return np.repeat(values[..., None], facts.channels, axis=2)


def _fit(picture: Image.Image, facts: Preprocessing) -> Image.Image:
    """The whole picture in the middle, around it black or, for any polarity, its border's color."""
    border = np.median(_border(_pixels(picture, len(picture.getbands()))), axis=0).astype(int).tolist()
    ground = 0 if facts.polarity == "light-on-dark" else tuple(border)
    scale = min(facts.width / picture.width, facts.height / picture.height)
    inner = _resized(picture, (max(1, round(picture.width * scale)), max(1, round(picture.height * scale))))
    frame = Image.new(picture.mode, (facts.width, facts.height), ground)
    frame.paste(inner, ((facts.width - inner.width) // 2, (facts.height - inner.height) // 2))
    return frame


def _center_crop(picture: Image.Image, facts: Preprocessing) -> Image.Image:
    """A part from the middle that fills the frame; the largest one, unless the crop's share is below 1."""
    scale = facts.crop_share * min(picture.width / facts.width, picture.height / facts.height)
    across, down = facts.width * scale, facts.height * scale
    left, top = (max(0.0, room / 2) for room in (picture.width - across, picture.height - down))
    right, bottom = min(picture.width, left + across), min(picture.height, top + down)
    return _resized(picture, (facts.width, facts.height), (left, top, right, bottom))


def _resized(
    picture: Image.Image, size: tuple[int, int], box: tuple[float, float, float, float] | None = None
) -> Image.Image:
    return picture.resize(size, Image.Resampling.BILINEAR, box, reducing_gap=3.0)


def _values(picture: Image.Image, channels: int) -> NDArray[np.float32]:
    """Pixels as float32 [H, W, C], 0-1."""
    return _scaled(_pixels(picture, channels))


def _scaled(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    return np.divide(pixels, np.float32(255), dtype=np.float32)


def _pixels(picture: Image.Image, channels: int) -> NDArray[np.uint8]:
    """Pixels as they are, [H, W, C], 0-255."""
    mode = "L" if channels == 1 else "RGB"
    pixels = picture if picture.mode == mode else picture.convert(mode)
    return np.frombuffer(pixels.tobytes(), np.uint8).reshape(picture.height, picture.width, channels)


def _has_light_border(gray: NDArray[np.uint8], share: float = 0.5) -> bool:
    """Whether this share of the border is lighter than the middle of the picture's range.

    The range of a flat picture tells nothing; its border is lighter than gray, or not.

    Args:
        gray: pixels [H, W, 1], 0-255.
        share: 0 to 1.
    """
    [border] = quantiles(_border(gray), 1 - share)
    if border == 0:  # nothing is darker; as of nearly every picture of light on dark
        return False
    low, high = quantiles(gray, 0.02, 0.98)
    return border > ((low + high) / 2 if high - low > 12 else 127)


def quantiles(levels: NDArray[np.uint8], *shares: float) -> list[float]:
    """What `np.quantile` gives, in a tenth of its time: every small picture waits for it.

    Args:
        levels: of pixels, any shape.
        shares: of the pixels that lie below each quantile, 0 to 1.
    """
    ordered = levels.flatten()
    ordered.sort(kind="stable")  # of 8 bits: a radix sort
    found = []
    for share in shares:
        place = share * (len(ordered) - 1)
        below, above = float(ordered[math.floor(place)]), float(ordered[math.ceil(place)])
        found.append(below + (above - below) * (place % 1))
    return found


def _border(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The pixels at the four edges of [H, W, C], [P, C]."""
    return np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
