"""How fast the playground is in a browser: pictures a second as a slider moves, answers after a stroke.

    python -m benchmarks.serving.playground           half a minute; needs Chromium and `make dev`
    python -m benchmarks.serving.playground --url http://localhost:8000/playground/index.html
                                                      of a page that is served, such as that of `make site`

Service and browser share the machine's processors. The slider goes from one end to the other and back, one
step for each frame of the browser; a picture counts if it differs from the one before. An answer's time is
from lifting the pen to the answer on the screen.
"""

import shutil
import statistics
import sys
import tempfile
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from benchmarks.paths import ROOT
from tests.support.live_process import live_process
from tests.support.pen import draw

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
DIGITS = range(10)
SLIDE = """async ([dimension, seconds]) => {
    const slider = document.querySelectorAll("#sliders input")[dimension];
    const canvas = document.querySelector("#decoded");
    const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
    let [shown, before, step] = [0, "", 1];
    const until = performance.now() + 1000 * seconds;
    while (performance.now() < until) {
        const next = Number(slider.value) + step;
        if (next > Number(slider.max) || next < Number(slider.min)) step = -step;
        slider.value = Number(slider.value) + step;
        slider.dispatchEvent(new Event("input", { bubbles: true }));
        await frame();
        const picture = canvas.toDataURL();
        shown += picture !== before;
        before = picture;
    }
    return shown / seconds;
}"""

# Sets window.took to the milliseconds from lifting the pen to the answer; null until it is there.
WATCH = """() => {
    const spoken = document.querySelector("#spoken");
    let lifted = 0;
    const lift = () => ([lifted, window.took] = [performance.now(), null]);
    document.addEventListener("pointerup", lift, true); // before the page, which may answer at once
    new MutationObserver(() => spoken.textContent && (window.took = performance.now() - lifted))
        .observe(spoken, { childList: true });
}"""


def main() -> int:
    """Print the numbers; returns the exit status."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5, help="how long each slider moves (default: 5)")
    parser.add_argument("--url", help="of a page that is served; without it, a service is started")
    options = parser.parse_args()
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        print("playground: Chromium is not installed (Debian: apt install chromium)", file=sys.stderr)
        return 2
    with page_address(options.url) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        page = browser.new_page()
        page.goto(url)
        page.wait_for_selector(".sample")
        page.evaluate(WATCH)
        answers = sorted(time_to_answer(page, digit) for digit in DIGITS)
        print(f"answer after the last stroke: median {1000 * statistics.median(answers):.0f} ms, ", end="")
        print(f"slowest of {len(answers)} {1000 * answers[-1]:.0f} ms")
        for model in ("capsnet-mnist", "capsnet-multimnist", "matrix-capsnet-toys"):
            print(f"slider of {model}: {pictures_a_second(page, model, options.seconds):.0f} pictures/s")
        browser.close()
    return 0


@contextmanager
def page_address(url: str | None) -> Iterator[str]:
    """The given address, or that of a service that runs meanwhile."""
    if url:
        yield url
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        live_process(ROOT / "models", Path(folder) / "log") as service,
    ):
        yield str(service.client.base_url)


def time_to_answer(page: Page, digit: int) -> float:
    """Seconds from lifting the pen after the last stroke to the answer, on a page that runs WATCH."""
    draw(page, digit)
    page.wait_for_function("() => window.took !== null")
    took = page.evaluate("window.took")
    time.sleep(0.3)  # the routing is shown next, and must not slow down the next digit
    page.click("#clear")
    return float(took) / 1000


def pictures_a_second(page: Page, model: str, seconds: float) -> float:
    """Pictures that a moving slider shows, per second."""
    page.check(f'#models input[value="{model}"]')
    if model != "matrix-capsnet-toys":
        page.wait_for_timeout(500)
        page.locator(".sample").nth(3).click()
    page.wait_for_selector("#capsule:not([hidden])", timeout=120_000)
    page.wait_for_timeout(1000)
    return float(page.evaluate(SLIDE, [1, seconds]))


if __name__ == "__main__":
    sys.exit(main())
