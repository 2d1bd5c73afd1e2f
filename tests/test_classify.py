"""/classify: what goes in, and that what comes out is what the encoder gives."""

from base64 import b64decode
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import httpx
import numpy as np
import pytest
from live_service import live_service, settings_for
from PIL import Image
from tiny_bundle import CLASSES, SIDE, run_model, write_bundle


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_bundle(root / "tiny" / "1", seed=1)
    write_bundle(root / "tiny" / "2", seed=2)
    write_bundle(root / "square" / "1", pose_shape=(2, 2), objects_per_image=2, decoder=False)
    return root


@pytest.fixture(scope="module")
def client(models: Path) -> Iterator[httpx.Client]:
    with live_service(settings_for(models, default_model="tiny", max_batch=4)) as client:
        yield client


def grey_levels(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE), dtype=np.uint8)


def png(levels: np.ndarray) -> bytes:
    file = BytesIO()
    Image.fromarray(levels).save(file, "PNG")
    return file.getvalue()


def npy(array: np.ndarray) -> bytes:
    file = BytesIO()
    np.save(file, array)
    return file.getvalue()


def encoder_output(models: Path, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    pixels = (levels / np.float32(255)).astype(np.float32).reshape(1, SIDE, SIDE, 1)
    content = (models / "tiny" / "2" / "encoder.onnx").read_bytes()
    probabilities, poses = run_model(content, pixels=pixels)
    return probabilities[0], poses[0]


def test_a_png_of_the_models_size_gets_what_the_encoder_gives_to_the_last_digit(models, client):
    levels = grey_levels(0)
    probabilities, poses = encoder_output(models, levels)
    (result,) = client.post("/classify", files={"images": png(levels)}).json()["results"]
    for answered in result["classes"]:
        index = CLASSES.index(answered["label"])
        assert np.float32(answered["probability"]) == probabilities[index]
        np.testing.assert_array_equal(np.array(answered["pose"], np.float32), poses[index])


def test_classes_come_by_falling_probability_and_the_label_is_the_first(client):
    (result,) = client.post("/classify", content=png(grey_levels(1))).json()["results"]
    probabilities = [answered["probability"] for answered in result["classes"]]
    assert probabilities == sorted(probabilities, reverse=True)
    assert len(probabilities) == len(CLASSES)
    assert result["label"] == result["classes"][0]["label"]
    assert result["labels"] == [result["label"]]


def test_a_model_of_two_objects_per_image_gives_two_labels(client):
    (result,) = client.post("/classify?model=square", content=png(grey_levels(1))).json()["results"]
    assert result["labels"] == [answered["label"] for answered in result["classes"][:2]]


def test_several_files_are_answered_in_order_with_their_names(client):
    pictures = {f"{seed}.png": png(grey_levels(seed)) for seed in range(10)}  # more than one batch
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
    answer = client.post("/classify", content=png(grey_levels(0)), headers={"Content-Type": kind})
    assert answer.status_code == 200
    assert answer.json()["results"][0]["filename"] is None


def test_an_array_gets_the_same_answer_as_the_pictures_it_holds(client):
    levels = np.stack([grey_levels(seed) for seed in range(3)])
    files = [("images", (f"{index}", png(one))) for index, one in enumerate(levels)]
    pictures = client.post("/classify", files=files).json()["results"]
    headers = {"Content-Type": "application/x-npy"}
    arrays = client.post("/classify", content=npy(levels), headers=headers).json()["results"]
    assert [one["classes"] for one in arrays] == [one["classes"] for one in pictures]


def test_top_k_keeps_the_best(client):
    everything = client.post("/classify", content=png(grey_levels(0))).json()["results"][0]["classes"]
    best = client.post("/classify?top_k=2", content=png(grey_levels(0))).json()["results"][0]["classes"]
    assert best == everything[:2]


def test_a_reconstruction_is_the_decoded_pose_of_the_best_class(client):
    (result,) = client.post("/classify?reconstruction=true", content=png(grey_levels(0))).json()["results"]
    body = {"pose": result["classes"][0]["pose"], "label": result["label"]}
    (expected,) = client.post("/reconstruct", json=body).json()["reconstructions"]
    assert result["reconstruction"] == expected["image"]
    assert Image.open(BytesIO(b64decode(result["reconstruction"]))).size == (SIDE, SIDE)


def test_no_reconstruction_is_given_unasked(client):
    (result,) = client.post("/classify", content=png(grey_levels(0))).json()["results"]
    assert "reconstruction" not in result


def test_the_newest_version_answers_unless_another_is_asked_for(client):
    picture = png(grey_levels(0))
    newest, older = (client.post(f"/classify{query}", content=picture).json() for query in ("", "?version=1"))
    assert (newest["version"], older["version"]) == (2, 1)
    assert newest["results"] != older["results"]


def test_pose_shape_is_given_only_where_poses_are_matrices(client):
    picture = png(grey_levels(0))
    assert "pose_shape" not in client.post("/classify", content=picture).json()
    square = client.post("/classify?model=square", content=picture).json()
    assert square["pose_shape"] == [2, 2]
    assert len(square["results"][0]["classes"][0]["pose"]) == 4


def test_preprocess_off_resizes_what_auto_would_centre(client):
    levels = np.zeros((3 * SIDE, 2 * SIDE), np.uint8)
    levels[:20, :10] = 255  # a stroke in the corner
    auto, off = (
        client.post(f"/classify?preprocess={rule}", content=png(levels)).json() for rule in ("auto", "off")
    )
    assert auto["results"] != off["results"]
