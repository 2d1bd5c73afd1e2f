"""Digits drawn with the mouse, stroke by stroke, as a hand of our own writes them."""

import numpy as np
from playwright.sync_api import Page

from training.data.synthetic.drawn_digits import Hand, draw_strokes

HAND = Hand(forms=(0, 0, 0, 1, 0, 0, 1, 0, 0, 1), slant=0.05, width=0.72, wobble=0.015)
INK_SHARE = 0.66  # of the drawing area's side
EVERY = 5  # points of a stroke: the mouse need not stop at each


def draw(page: Page, digit: int, *, middle: tuple[float, float] = (0.5, 0.5)) -> None:
    """Draw a digit on the pad.

    Args:
        page: the playground's.
        digit: 0 to 9.
        middle: where, in 0-1 of the drawing area.
    """
    box = page.locator("#pad").bounding_box()
    assert box
    strokes = draw_strokes(digit, HAND, np.random.default_rng(100 + digit))
    points = np.concatenate(strokes)
    low, high = points.min(axis=0), points.max(axis=0)
    scale = INK_SHARE / float((high - low).max())
    for stroke in strokes:
        kept = np.concatenate([stroke[:-1:EVERY], stroke[-1:]])
        places = (np.array(middle) + (kept - (low + high) / 2) * scale) * box["width"]
        first, *rest = (places + (box["x"], box["y"])).tolist()
        page.mouse.move(*first)
        page.mouse.down()
        for place in rest:
            page.mouse.move(*place)
        page.mouse.up()
