"""/classify: what goes in, and that what comes out is what the encoder gives."""

from base64 import b64decode
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from export.contract.manifest import read_manifest
from tests.support.live_service import live_service, settings_for
from tests.support.small_pictures import random_levels, random_png, to_npy, to_png
from tests.support.tiny_bundle import CLASSES, SIDE, run_model, write_bundle


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_bundle(root / "tiny" / "1", seed=1)
    write_bundle(root / "tiny" / "2", seed=2)
    write_bundle(root / "square" / "1", pose_shape=(2, 2), objects_per_image=2, decoder=False)
    write_bundle(root / "sure" / "1", min_probability=0.5)
    return root


@pytest.fixture(scope="module")
def client(models: Path) -> Iterator[httpx.Client]:
    with live_service(settings_for(models, default_model="tiny", max_batch=4)) as client:
        yield client


def encoder_output(models: Path, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    pixels = (levels / np.float32(255)).astype(np.float32).reshape(1, SIDE, SIDE, 1)
    content = (models / "tiny" / "2" / "encoder.onnx").read_bytes()
    probabilities, poses = run_model(content, pixels=pixels)
    return probabilities[0], poses[0]


def test_a_png_of_the_models_size_gets_what_the_encoder_gives_to_the_last_digit(models, client):
    levels = random_levels(0)
    probabilities, poses = encoder_output(models, levels)
    (result,) = client.post("/classify", files={"images": to_png(levels)}).json()["results"]
    for answered in result["classes"]:
        index = CLASSES.index(answered["label"])
        assert np.float32(answered["probability"]) == probabilities[index]
        np.testing.assert_array_equal(np.array(answered["pose"], np.float32), poses[index])


def test_classes_come_by_falling_probability_and_the_label_is_the_first(client):
    (result,) = client.post("/classify", content=random_png(1)).json()["results"]
    probabilities = [answered["probability"] for answered in result["classes"]]
    assert probabilities == sorted(probabilities, reverse=True)
    assert len(probabilities) == len(CLASSES)
    assert result["label"] == result["classes"][0]["label"]
    assert result["labels"] == [result["label"]]


def test_a_model_of_two_objects_per_image_gives_two_labels(client):
    (result,) = client.post("/classify?model=square", content=random_png(1)).json()["results"]
    assert result["labels"] == [answered["label"] for answered in result["classes"][:2]]


def test_several_files_are_answered_in_order_with_their_names(client):
    pictures = {f"{seed}.png": random_png(seed) for seed in range(10)}  # more than one batch
    answer = client.post("/classify", files=[("images", item) for item in pictures.items()]).json()
    assert [result["filename"] for result in answer["results"]] == list(pictures)
    for name, result in zip(pictures, answer["results"], strict=True):
        alone = client.post("/classify", files={"images": (name, pictures[name])}).json()["results"][0]
        assert alone["label"] == result["label"]
        assert alone["classes"][0]["probability"] == pytest.approx(result["classes"][0]["probability"])


@pytest.mark.parametrize(
    "kind", ["image/png", "application/octet-stream", "application/x-www-form-urlencoded"]
)
def test_a_raw_image_is_taken_whatever_it_is_called(client, kind):
    answer = client.post("/classify", content=random_png(), headers={"Content-Type": kind})
    assert answer.status_code == 200
    assert answer.json()["results"][0]["filename"] is None


def test_an_array_gets_the_same_answer_as_the_pictures_it_holds(client):
    levels = np.stack([random_levels(seed) for seed in range(3)])
    files = [("images", (f"{index}", to_png(one))) for index, one in enumerate(levels)]
    pictures = client.post("/classify", files=files).json()["results"]
    headers = {"Content-Type": "application/x-npy"}
    arrays = client.post("/classify", content=to_npy(levels), headers=headers).json()["results"]
    assert [one["classes"] for one in arrays] == [one["classes"] for one in pictures]


def test_top_k_keeps_the_best(client):
    everything = client.post("/classify", content=random_png()).json()["results"][0]["classes"]
    best = client.post("/classify?top_k=2", content=random_png()).json()["results"][0]["classes"]
    assert best == everything[:2]


def test_a_reconstruction_is_the_decoded_pose_of_the_best_class(client):
    (result,) = client.post("/classify?reconstruction=true", content=random_png()).json()["results"]
    body = {"pose": result["classes"][0]["pose"], "label": result["label"]}
    (expected,) = client.post("/reconstruct", json=body).json()["reconstructions"]
    assert result["reconstruction"] == expected["image"]
    assert Image.open(BytesIO(b64decode(result["reconstruction"]))).size == (SIDE, SIDE)


def test_the_models_input_is_the_picture_that_the_network_sees(client):
    dark_on_light = np.full((SIDE, SIDE), 255, np.uint8)
    dark_on_light[8:20, 10:14] = 0
    query = {"model_input": True, "top_k": 1}
    (first,) = client.post("/classify", params=query, content=to_png(dark_on_light)).json()["results"]
    seen = np.asarray(Image.open(BytesIO(b64decode(first["model_input"]))))
    np.testing.assert_array_equal(seen, 255 - dark_on_light)
    photo = np.pad(dark_on_light, 20, constant_values=255)  # of another size: its ink is fitted and centered
    (result,) = client.post("/classify", params=query, content=to_png(photo)).json()["results"]
    fitted = b64decode(result["model_input"])
    (again,) = client.post("/classify", params=query, content=fitted).json()["results"]
    (best,), (expected,) = again["classes"], result["classes"]
    assert best["label"] == expected["label"]
    assert best["probability"] == pytest.approx(expected["probability"], abs=0.01)


def test_pictures_are_given_only_if_requested(client):
    (result,) = client.post("/classify", content=random_png()).json()["results"]
    assert not {"reconstruction", "model_input"} & result.keys()


def test_the_newest_version_answers_unless_another_is_asked_for(client):
    picture = random_png()
    newest, older = (client.post(f"/classify{query}", content=picture).json() for query in ("", "?version=1"))
    assert (newest["version"], older["version"]) == (2, 1)
    assert newest["results"] != older["results"]


def test_pose_shape_is_given_only_where_poses_are_matrices(client):
    picture = random_png()
    assert "pose_shape" not in client.post("/classify", content=picture).json()
    square = client.post("/classify?model=square", content=picture).json()
    assert square["pose_shape"] == [2, 2]
    assert len(square["results"][0]["classes"][0]["pose"]) == 4


def test_preprocess_off_resizes_what_auto_would_center(client):
    levels = np.zeros((3 * SIDE, 2 * SIDE), np.uint8)
    levels[:20, :10] = 255  # a stroke in the corner
    auto, off = (
        client.post(f"/classify?preprocess={rule}", content=to_png(levels)).json() for rule in ("auto", "off")
    )
    assert auto["results"] != off["results"]


@pytest.mark.parametrize("given", ["page", "flat", "array"])
def test_of_a_picture_that_shows_nothing_the_answer_says_so_and_no_answer_is_confident(client, given):
    bodies = {
        "page": {"content": to_png(np.full((200, 160), 250, np.uint8))},  # no ink is found
        "flat": {"content": to_png(np.full((SIDE, SIDE), 250, np.uint8))},
        "array": {
            "content": to_npy(np.full((1, SIDE, SIDE), 3, np.uint8)),
            "headers": {"Content-Type": "application/x-npy"},
        },
    }
    for query in ("?model=sure", "?model=sure&min_probability=0"):
        (result,) = client.post(f"/classify{query}", **bodies[given]).json()["results"]
        assert (result["blank"], result["confident"]) == (True, False)


def test_an_answer_is_confident_from_the_models_threshold_on(client):
    files = [("images", random_png(seed)) for seed in range(20)]
    results = client.post("/classify?model=sure", files=files).json()["results"]
    assert {result["confident"] for result in results} == {True, False}
    for result in results:
        assert result["blank"] is False
        assert result["confident"] == (result["classes"][0]["probability"] >= 0.5)


def test_min_probability_goes_before_the_models_threshold(client):
    best = client.post("/classify?model=sure", content=random_png()).json()["results"][0]["classes"][0]
    for least, expected in ((best["probability"] - 0.01, True), (best["probability"] + 0.01, False)):
        for model in ("sure", "tiny"):
            query = {"model": model, "min_probability": least}
            (result,) = client.post("/classify", params=query, content=random_png()).json()["results"]
            reached = result["classes"][0]["probability"] >= least
            assert result["confident"] is (expected if model == "sure" else reached)


def test_without_a_threshold_nobody_says_whether_an_answer_is_confident(client):
    (result,) = client.post("/classify", content=random_png()).json()["results"]
    assert (result["confident"], result["blank"]) == (None, False)


def test_of_two_objects_both_have_to_reach_the_probability(client):
    query = "?model=square"
    (result,) = client.post("/classify" + query, content=random_png(1)).json()["results"]
    first, second, _ = (answered["probability"] for answered in result["classes"])
    for least, expected in (((first + second) / 2, False), (second - 0.001, True)):
        asked = f"{query}&min_probability={least}"
        (result,) = client.post("/classify" + asked, content=random_png(1)).json()["results"]
        assert result["confident"] is expected


@pytest.mark.parametrize("route", ["/classify", "/segment"])
@pytest.mark.parametrize("wrong", ["1.5", "-0.1", "nan", "sure"])
def test_a_min_probability_that_is_none_is_refused(client, route, wrong):
    answer = client.post(f"{route}?min_probability={wrong}", content=random_png())
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-field")


def test_answers_carry_the_digest_of_the_bundle_that_gave_them(models, client):
    body = {"content": random_png()}
    for version in (1, 2):
        expected = read_manifest(models / "tiny" / str(version)).digest
        for route in ("/classify", "/segment"):
            answer = client.post(f"{route}?version={version}", **body).json()
            assert (answer["version"], answer["digest"]) == (version, expected)
        pose = {"pose": [0.1, 0.2, 0.3, 0.4], "label": "1", "version": version}
        assert client.post("/reconstruct", json=pose).json()["digest"] == expected
        pixels = np.zeros((1, SIDE, SIDE, 1), np.float32)
        values = {"shape": pixels.shape, "datatype": "FP32", "data": pixels.ravel().tolist()}
        inferred = client.post(
            f"/v2/models/tiny/versions/{version}/infer", json={"inputs": [{"name": "pixels", **values}]}
        )
        assert inferred.json()["parameters"] == {"digest": expected}
    versions = client.get("/models/tiny").json()["versions"]
    assert len({version["digest"] for version in versions}) == 2
