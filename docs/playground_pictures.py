"""The pictures of the playground in docs, taken from the real page of a running service.

Start one with `capsnet-serve`, then run `python -m docs.playground_pictures`, with its URL if that is another
than http://localhost:8000/. It needs Chromium and Playwright (`make dev`).
"""

import json
import shutil
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from docs.playground_samples import GRID, SAMPLES

DOCS = Path(__file__).parent
URL = "http://localhost:8000/"  # unless the command line has another
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SIZE = (1180, 1160)  # pixels of the page
SHOWN_WIDTH = 720  # of the moving picture
MOVING_KIB = 1000  # at most
DIGIT = 4
POINTS_PER_FRAME = 5
DIMENSIONS = (9, 1)  # that move in the moving picture
SWING = (*range(0, 30, 5), *range(30, -30, -5), *range(-30, 1, 5))  # steps of a slider, there and back
FRAME_MS, REST_MS = 90, 900
QUALITY = 60


def main() -> None:
    """Take the pictures."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        sys.exit("Chromium is not installed (Debian: apt install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        apart(browser).save(DOCS / "playground.png", optimize=True)
        routed(browser).save(DOCS / "playground-routing.png", optimize=True)
        first, *others = moving(open_page(browser))
        browser.close()
    durations = [FRAME_MS] * len(others) + [REST_MS]
    target = DOCS / "playground.webp"
    first.save(
        target, save_all=True, append_images=others, duration=durations, loop=0, quality=QUALITY, method=3
    )
    if target.stat().st_size > MOVING_KIB * 1024:
        sys.exit(f"{target} has {target.stat().st_size} bytes: more than {MOVING_KIB} KiB")


def open_page(browser: Browser) -> Page:
    """The page, with the default model chosen."""
    page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]})
    page.goto(sys.argv[1] if len(sys.argv) > 1 else URL)
    page.wait_for_selector(".sample")
    return page


def apart(browser: Browser) -> Image.Image:
    """Two digits taken apart."""
    page = open_page(browser)
    page.check('#models input[value="capsnet-multimnist"]')
    page.click('[aria-label="Sample: 3 and 8"]')
    page.wait_for_selector("#capsule:not([hidden])")
    page.wait_for_timeout(1500)  # the ends of the sliders
    return taken(page)


def routed(browser: Browser) -> Image.Image:
    """The iterations of routing."""
    page = open_page(browser)
    page.click(f'[aria-label="Sample: {DIGIT}"]')
    page.wait_for_selector("#explain:not([hidden])")
    page.click("#explain summary")
    page.wait_for_selector("#explain-body:not([hidden])")
    page.wait_for_timeout(500)
    return Image.open(BytesIO(page.locator("#explain").screenshot())).convert("RGB")


def moving(page: Page) -> Iterator[Image.Image]:
    """Frames: a digit is drawn and answered, then two numbers of its capsule move."""
    box = page.locator("#pad").bounding_box()
    assert box
    for stroke in json.loads((SAMPLES / "digits.json").read_text())[DIGIT]:
        places = [
            (box["x"] + x / GRID * box["width"], box["y"] + y / GRID * box["height"])
            for x, y in zip(stroke[::2], stroke[1::2], strict=True)
        ]
        page.mouse.move(*places[0])
        page.mouse.down()
        for index, place in enumerate(places):
            page.mouse.move(*place)
            if index % POINTS_PER_FRAME == 0:
                page.wait_for_timeout(40)  # for an answer while it is drawn
                yield shown(page)
        page.mouse.up()
    page.wait_for_timeout(1000)
    for dimension in DIMENSIONS:
        slider = page.locator("#sliders input").nth(dimension)
        slider.focus()
        page.wait_for_timeout(300)  # its pictures come ahead
        for move in SWING:
            slider.evaluate(
                "(slider, move) => { slider.value = move; slider.dispatchEvent(new Event('input')); }", move
            )
            yield shown(page)
    page.mouse.move(0, 0)
    yield shown(page)


def shown(page: Page) -> Image.Image:
    """A frame of the moving picture."""
    whole = taken(page)
    return whole.resize((SHOWN_WIDTH, SHOWN_WIDTH * whole.height // whole.width), Image.Resampling.LANCZOS)


def taken(page: Page) -> Image.Image:
    """The page as it is."""
    return Image.open(BytesIO(page.screenshot())).convert("RGB")


if __name__ == "__main__":
    main()
