"""The engine of the site beside the service: the page's module asks either, and gets the same answers."""

import base64
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page

from tests.service.playground.conftest import PATIENCE_MS
from tests.support.paths import ROOT

CALL = """async ([name, files, query]) => {
    const api = await import(new URL("playground/scripts/api.js", location.href));
    const bytes = files.map((file) => Uint8Array.from(atob(file), (letter) => letter.charCodeAt(0)));
    const answer = await api[name](...(files.length ? [bytes.map((one) => new Blob([one]))] : []), query);
    if (!(answer instanceof Blob)) return JSON.parse(JSON.stringify(answer));
    const own = new Uint8Array(await answer.arrayBuffer());
    return btoa(own.reduce((text, one) => text + String.fromCharCode(one), ""));
}"""
PICTURES = {"model_input", "reconstruction"}
# What the page does not show, the site leaves out; a digest would be that of weights that are not rounded.
ABSENT = {"digest", "overlay", "poses", "mask", "colour"}
ABSENT |= {"samples", "metrics", "source_commit", "training", "parity"}  # of manifests
FREE = {"filename"}  # files without a name are called otherwise
TOLERANCE = 5e-3  # of numbers: weights are rounded to float16
HISTOGRAM_TOLERANCE = 0.02  # a vote near an edge falls into the next bin
LEVELS = 2
CASES = {
    "capsnet-mnist": ["seven.jpg"],
    "capsnet-multimnist": ["overlap.png"],
    "matrix-capsnet-toys": ["left.png", "right.png"],
}


@pytest.fixture(scope="module")
def pages(browser, site, service) -> Iterator[list[Page]]:
    """The page of the site, and that of the service."""
    opened = [browser.new_page() for _ in range(2)]
    for page, address in zip(opened, (site, service), strict=True):
        page.goto(f"{address}/")
        page.wait_for_selector(".sample", timeout=PATIENCE_MS)
    yield opened
    for page in opened:
        page.close()


def ask(page: Page, name: str, files: list[str], query: Any) -> Any:
    contents = [base64.b64encode((ROOT / "docs" / file).read_bytes()).decode() for file in files]
    return page.evaluate(CALL, [name, contents, query])


def check(found: Any, expected: Any, path: str = "") -> None:
    """All that was found is what was expected; numbers and pictures nearly."""
    name = path.rsplit(".", 1)[-1].split("[")[0]
    if isinstance(found, dict):
        assert set(found) == set(expected) - ABSENT, path
        for key in set(found) - FREE:
            check(found[key], expected[key], f"{path}.{key}")
    elif isinstance(found, list):
        assert len(found) == len(expected), path
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            check(one, other, f"{path}[{index}]")
    elif name in PICTURES:
        check_pictures(found, expected, path)
    elif isinstance(found, float) or isinstance(expected, float):  # 1.0 comes as 1
        tolerance = HISTOGRAM_TOLERANCE if name == "distances" else TOLERANCE
        assert found == pytest.approx(expected, abs=tolerance, rel=tolerance), path
    else:
        assert found == expected, path


def check_pictures(found: str, expected: str, path: str) -> None:
    """Two files, base64, show the same picture."""
    shown, wanted = (
        np.asarray(Image.open(io.BytesIO(base64.b64decode(file))).convert("RGB"), int)
        for file in (found, expected)
    )
    assert shown.shape == wanted.shape, path
    assert np.abs(shown - wanted).max() <= LEVELS, path


@pytest.mark.parametrize("model", CASES)
def test_classes_poses_pictures_and_routing_are_those_of_the_service(pages, model):
    query = {"model": model, "model_input": True, "reconstruction": True}
    found, expected = (ask(page, "classify", CASES[model], query) for page in pages)
    check(found, expected, "classify")
    found, expected = (ask(page, "explain", CASES[model], {"model": model}) for page in pages)
    check(found, expected, "explain")
    assert {"heat", "probabilities"} <= set(found["classes"][0])
    assert ("layers" in found) == ("layers" in expected)


def test_objects_that_lie_over_one_another_are_taken_apart_as_by_the_service(pages):
    model = "capsnet-multimnist"
    found, expected = (ask(page, "segment", CASES[model], {"model": model}) for page in pages)
    check(found, expected, "segment")
    assert len(found["results"][0]["objects"]) == 2


SWEEPS = [
    None,
    {"start": -0.25, "stop": 0.25, "step": 0.05},
    {"dimensions": [3, 1], "start": -0.3, "stop": 0.3, "step": 0.01},
]


@pytest.mark.parametrize("model", CASES)
def test_swept_poses_give_the_pictures_of_the_service(pages, model):
    classified = ask(pages[0], "classify", CASES[model], {"model": model, "top_k": 1})
    [best] = classified["results"][0]["classes"]
    for sweep in SWEEPS:
        body = {"model": model, "pose": best["pose"], "label": best["label"]} | (
            {"sweep": sweep} if sweep else {}
        )
        check_pictures(*(ask(page, "sweep", [], body) for page in pages), str(sweep))


def test_the_models_and_their_versions_are_those_of_the_service(pages):
    found, expected = (page.evaluate(LISTED) for page in pages)
    check(found, expected, "models")


LISTED = """async () => {
    const api = await import(new URL("playground/scripts/api.js", location.href));
    const models = await api.models();
    const versions = await Promise.all(models.map(({ name }) => api.versions(name)));
    return versions.map((all, index) => ({
        name: models[index].name,
        default: models[index].default,
        versions: all.map(({ version, manifest }) => ({ version, manifest })),
    }));
}"""


def test_what_is_cancelled_before_its_turn_is_not_answered(pages):
    script = """async () => {
        const api = await import(new URL("playground/scripts/api.js", location.href));
        const answers = [0, 1].map(() => new AbortController()).map((controller, index) => {
            const query = { model: "capsnet-mnist" };
            const asked = api.classify([new Blob(["no picture"])], query, controller.signal);
            if (index) controller.abort();
            return asked.then(() => "answered", (error) => error.name);
        });
        return Promise.all(answers);
    }"""
    assert pages[0].evaluate(script) == ["ServiceError", "AbortError"]
    assert ask(pages[0], "classify", CASES["capsnet-mnist"], {"model": "capsnet-mnist"})["results"]


def test_capsules_of_which_none_is_active_change_no_logit(pages):
    script = """async () => {
        const { explanation } = await import(new URL("engine/explanation.js", location.href));
        const zeros = (...dims) => ({ dims, data: new Float32Array(dims.reduce((a, b) => a * b)) });
        const outputs = {
            couplings: zeros(1, 3, 2, 4, 2, 2),
            agreements: zeros(1, 3, 2, 4, 2, 2),
            activations: zeros(1, 3, 2),
            activities: zeros(1, 4, 2, 2),
        };
        const manifest = { architecture: "capsnet", parameters: {} };
        return explanation(outputs, { manifest, grids: [{ name: "primary" }] }).logit_change;
    }"""
    assert pages[0].evaluate(script) == [[0, 0]] * 3
