"""/explain: what routing does, iteration by iteration, as JSON and as heat maps over the image."""

from base64 import b64decode
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from service.http.png import to_png
from tests.support.live_service import live_service, settings_for
from tests.support.paths import ROOT
from tests.support.small_pictures import to_npy
from tests.support.tiny_bundle import CLASSES, SIDE, write_bundle
from tests.support.tiny_explain import ITERATIONS, write_explained_bundle

SEVEN = ROOT / "docs" / "seven.jpg"
PAIR = [("images", (ROOT / "docs" / name).read_bytes()) for name in ("left.png", "right.png")]
PNG = {"Accept": "image/png"}
NPY = {"Content-Type": "application/x-npy"}
MOST_MAPS = 5


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_explained_bundle(root / "tiny" / "1")
    write_bundle(root / "plain" / "1")
    return root


@pytest.fixture(scope="module")
def client(models: Path) -> Iterator[httpx.Client]:
    settings = settings_for(models, default_model="tiny", max_reconstructions=MOST_MAPS)
    with live_service(settings) as client:
        yield client


@pytest.fixture(scope="module")
def shipped() -> Iterator[httpx.Client]:
    with live_service(settings_for(ROOT / "models", optimize=False)) as client:
        yield client


def picture(seed: int = 0) -> bytes:
    return to_png(np.random.default_rng(seed).random((SIDE, SIDE, 1), np.float32))


def explained(client: httpx.Client, query: str = "", **sent: object) -> dict:
    answer = client.post(f"/explain{query}", **(sent or {"content": picture()}))
    assert answer.status_code == 200, answer.text
    return answer.json()


def array(count: int) -> bytes:
    return to_npy(np.random.default_rng(count).random((count, SIDE, SIDE), np.float32))


def levels(file: str | bytes) -> np.ndarray:
    opened = Image.open(BytesIO(b64decode(file) if isinstance(file, str) else file))
    assert opened.format == "PNG"
    return np.asarray(opened).astype(int)


@pytest.mark.parametrize("model", ["capsnet-mnist", "capsnet-multimnist"])
def test_the_last_iteration_is_what_classify_answers(shipped, model):
    files = {"images": SEVEN.read_bytes()}
    answer = shipped.post(f"/classify?model={model}", files=files)
    assert answer.status_code == 200, answer.text
    [classified] = answer.json()["results"]
    found = explained(shipped, f"?model={model}", files=files)
    assert found["label"] == classified["label"]
    for ours, theirs in zip(found["classes"], classified["classes"], strict=True):
        assert ours["label"] == theirs["label"]
        assert ours["probabilities"][-1] == pytest.approx(theirs["probability"], abs=1e-5)
        assert ours["poses"][-1] == pytest.approx(theirs["pose"], abs=1e-5)


def test_a_stereo_pair_is_explained_as_it_is_classified(shipped):
    [classified] = shipped.post("/classify?model=matrix-capsnet-toys", files=PAIR).json()["results"]
    found = explained(shipped, "?model=matrix-capsnet-toys", files=PAIR)
    assert (found["routing"], found["iterations"], found["pose_shape"]) == ("em", 3, [4, 4])
    for ours, theirs in zip(found["classes"], classified["classes"], strict=True):
        assert ours["label"] == theirs["label"]
        assert ours["probabilities"][-1] == pytest.approx(theirs["probability"], abs=1e-4)
        assert ours["poses"][-1] == pytest.approx(theirs["pose"], abs=1e-4)
    assert levels(found["model_input"]).shape == (32, 64)


def test_heat_adds_up_to_the_length_before_the_squash(shipped):
    """|v| = |s|^2 / (1 + |s|^2), so |s| can be computed from the answer's probability."""
    found = explained(shipped, files={"images": SEVEN.read_bytes()})
    assert (found["routing"], found["iterations"]) == ("agreement", 3)
    for one in found["classes"]:
        lengths = np.array(one["probabilities"])
        np.testing.assert_allclose(
            np.sum(one["heat"], axis=(1, 2)), np.sqrt(lengths / (1 - lengths)), rtol=1e-3, atol=1e-4
        )


def test_the_votes_for_the_answer_agree_more_and_more(shipped):
    found = explained(shipped, files={"images": SEVEN.read_bytes()})
    best = found["classes"][0]
    assert best["label"] == "7"
    for numbers in (best["probabilities"], best["logit_change"], best["largest_logit_change"]):
        assert numbers[0] < numbers[1] < numbers[2]
    first, second, third = found["entropy"]
    assert first == pytest.approx(1)
    assert first > second > third


def test_votes_of_matrix_capsules_come_nearer_to_the_mean_of_their_class(shipped):
    found = explained(shipped, "?model=matrix-capsnet-toys", files=PAIR)
    best, edges = found["classes"][0], np.array(found["distance_edges"])
    middles = (edges[1:] + edges[:-1]) / 2
    distances = np.array(best["distances"])
    np.testing.assert_allclose(distances.sum(axis=1), 1, atol=1e-5)
    first, _, last = distances @ middles
    assert last < first
    entropy = found["entropy"]
    assert entropy[2] < entropy[1] < entropy[0] == pytest.approx(1)
    heat = np.array([one["heat"] for one in found["classes"]])
    assert heat.min() >= 0
    np.testing.assert_allclose(heat[1:, 0], np.broadcast_to(heat[0, 0], heat[1:, 0].shape), rtol=1e-4)


def test_the_layers_below_the_classes_have_a_grid_of_their_own(shipped):
    found = explained(shipped, "?model=matrix-capsnet-toys", files=PAIR)
    assert [layer["name"] for layer in found["layers"]] == ["conv_caps.0", "conv_caps.1"]
    for layer, size in zip(found["layers"], (6, 4), strict=True):
        assert len(layer["grid"]["row_centers"]) == size
        for what in ("activations", "distances"):
            assert np.shape(layer[what]) == (3, 16, size, size)
        assert layer["entropy"][0] == pytest.approx(1)
        assert layer["entropy"][2] < layer["entropy"][1] < layer["entropy"][0]
    assert found["layers"][1]["grid"] == found["grid"]


def test_places_are_those_of_the_receptive_fields(client):
    grid = explained(client)["grid"]
    assert grid == {
        "row_centers": [8.5, 10.5, 12.5, 14.5, 16.5, 18.5],
        "column_centers": [8.5, 10.5, 12.5, 14.5, 16.5, 18.5],
        "field": 17,
    }


def test_every_number_has_its_iteration_and_its_place(client):
    found = explained(client)
    assert len(found["entropy"]) == found["iterations"] == ITERATIONS
    assert {one["label"] for one in found["classes"]} == {*CLASSES}
    for one in found["classes"]:
        assert np.shape(one["probabilities"]) == np.shape(one["logit_change"]) == (ITERATIONS,)
        assert np.shape(one["poses"]) == (ITERATIONS, 4)
        assert np.shape(one["heat"]) == (ITERATIONS, 6, 6)
    assert not {"distance_edges", "layers"} & found.keys()


def test_classes_fall_in_probability(client):
    last = [one["probabilities"][-1] for one in explained(client)["classes"]]
    assert last == sorted(last, reverse=True)


def test_one_class_may_be_asked_for(client):
    everything = {one["label"]: one for one in explained(client)["classes"]}
    found = explained(client, "?label=1")
    assert found["classes"] == [everything["1"]]
    assert found["label"] == max(everything, key=lambda label: everything[label]["probabilities"][-1])


def test_a_class_that_the_model_lacks_is_refused(client):
    answer = client.post("/explain?label=9", content=picture())
    assert answer.status_code == 422
    assert "label '9' is not a class of tiny; the classes are 0, 1, 2" in answer.json()["detail"]


@pytest.mark.parametrize(
    "sent",
    [
        {"content": array(1), "headers": NPY},
        {"content": picture()},
        {"files": {"images": ("7.png", picture())}},
    ],
    ids=["array", "raw", "form"],
)
def test_an_image_comes_as_to_classify(client, sent):
    found = explained(client, **sent)
    assert found["filename"] == ("7.png" if "files" in sent else None)
    assert levels(found["model_input"]).shape == (SIDE, SIDE)


@pytest.mark.parametrize(
    ("sent", "came"),
    [
        ({"content": array(2), "headers": NPY}, "2 images"),
        ({"files": [("images", picture())] * 3}, "3 files"),
    ],
    ids=["array", "form"],
)
def test_several_images_are_refused(client, sent, came):
    answer = client.post("/explain", **sent)
    assert (answer.status_code, answer.json()["type"]) == (413, "/problems/too-many-pictures")
    assert f"/explain takes one image, or one pair of views; got {came}" in answer.json()["detail"]


def test_two_pairs_are_refused(shipped):
    answer = shipped.post("/explain?model=matrix-capsnet-toys", files=PAIR * 2)
    assert answer.status_code == 413
    assert "got 4 files" in answer.json()["detail"]


def test_a_picture_has_a_row_for_each_class_and_a_column_for_each_iteration(shipped):
    sent = {"files": {"images": SEVEN.read_bytes()}, "headers": PNG}
    answer = shipped.post("/explain", **sent)
    assert answer.headers["content-type"] == "image/png"
    assert answer.headers["vary"] == "Accept"
    tile = 4 * 28
    assert levels(answer.content).shape == (10 * tile, 3 * tile, 3)
    alone = levels(shipped.post("/explain?label=7", **sent).content)
    assert alone.shape == (tile, 3 * tile, 3)
    red, _, blue = np.moveaxis(alone.reshape(tile, 3, tile, 3), (3, 1), (0, 1)).astype(int)
    warm = (red - blue).sum(axis=(1, 2))  # in each iteration
    assert warm[0] < warm[1] < warm[2]


def test_a_picture_of_too_many_maps_is_refused(client):
    answer = client.post("/explain", content=picture(), headers=PNG)
    assert (answer.status_code, answer.json()["type"]) == (413, "/problems/too-many-pictures")
    assert "3 classes x 2 iterations are 6 maps; at most 5" in answer.json()["detail"]
    assert client.post("/explain?label=0", content=picture(), headers=PNG).status_code == 200


@pytest.mark.parametrize("accept", ["application/json", "image/png"])
def test_a_bundle_without_the_graph_is_told_to_be_exported_again(client, accept):
    answer = client.post("/explain?model=plain", content=picture(), headers={"Accept": accept})
    assert (answer.status_code, answer.json()["type"]) == (409, "/problems/no-explain-graph")
    assert answer.headers["content-type"] == "application/problem+json"
    assert "export its run again with `capsnet-export bundle`" in answer.json()["detail"]


def test_models_lists_the_graph(client):
    [version] = client.get("/models/tiny").json()["versions"]
    assert version["graphs"]["explain"] == "explain.onnx"
