"""What the repository promises about the bundle it ships."""

import io
import json
import re
from pathlib import Path

import httpx
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from live_service import live_service, settings_for
from PIL import Image

from export.contract.manifest import read_checked, read_manifest
from export.optimize.choice import MAX_ERROR
from training.data.load import load_split

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "models" / "capsnet-mnist"
PER_REQUEST = 250


@pytest.fixture(scope="module")
def bundle() -> Path:
    return max(MODEL.iterdir(), key=lambda version: int(version.name))


@pytest.fixture(scope="module")
def client():
    with live_service(settings_for(ROOT / "models")) as client:
        yield client


def as_png(pixels) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def classify(client: httpx.Client, pictures) -> list[dict]:
    files = [("images", (f"{i}.png", as_png(picture))) for i, picture in enumerate(pictures)]
    answer = client.post("/classify", files=files)
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


def test_its_files_are_what_its_manifest_says(bundle):
    manifest = read_manifest(bundle)
    for file in (*manifest.graphs.values(), manifest.samples):
        read_checked(bundle, file)


def test_it_is_the_papers_network(bundle):
    manifest = read_manifest(bundle)
    assert manifest.parameter_count == 8_215_568
    assert manifest.parameters["routing_iterations"] == 3
    assert manifest.pose_shape == (16,)


def test_its_graphs_have_no_control_flow_and_hold_their_weights(bundle):
    for graph in read_manifest(bundle).graphs.values():
        model = onnx.load(bundle / graph.file, load_external_data=False)
        assert not {node.op_type for node in model.graph.node} & {"Loop", "If", "Scan"}
        assert all(t.data_location == onnx.TensorProto.DEFAULT for t in model.graph.initializer)
        onnx.checker.check_model(model, full_check=True)


def test_its_training_started_from_committed_code(bundle):
    manifest = read_manifest(bundle)
    assert re.fullmatch(r"[0-9a-f]{40}", manifest.source_commit)
    assert manifest.training["config"]["model"] == json.loads(json.dumps(manifest.parameters))


def test_the_readme_states_the_manifests_error(bundle):
    [metric] = read_manifest(bundle).metrics
    assert f"gets **{metric.value:.2f} %**" in (ROOT / "README.md").read_text()
    assert metric.value <= 0.7


@pytest.mark.mnist
def test_all_test_images_posted_give_the_error_that_the_manifest_states(bundle, client, mnist_root):
    test = load_split("mnist", "test", mnist_root)
    wrong = 0
    for start in range(0, len(test.labels), PER_REQUEST):
        results = classify(client, test.images[start : start + PER_REQUEST, ..., 0])
        found = np.array([int(result["label"]) for result in results])
        wrong += int((found != test.labels[start : start + PER_REQUEST]).sum())
    [metric] = read_manifest(bundle).metrics
    assert 100 * wrong / len(test.labels) == metric.value


@pytest.mark.mnist
def test_an_mnist_image_posted_as_png_gets_the_encoders_answer_to_the_last_digit(bundle, mnist_root):
    """Of the bundle's own graph; those derived from it round differently."""
    with live_service(settings_for(ROOT / "models", optimize=False)) as client:
        for entry, probability, pose in answers_and_outputs(bundle, client, mnist_root):
            assert np.float32(entry["probability"]) == probability
            assert np.array_equal(np.array(entry["pose"], np.float32), pose)


def test_faster_graphs_change_an_answer_by_less_than_what_is_allowed(bundle, client, mnist_root):
    for entry, probability, pose in answers_and_outputs(bundle, client, mnist_root):
        assert abs(entry["probability"] - probability) <= MAX_ERROR
        assert np.abs(np.array(entry["pose"], np.float32) - pose).max() <= MAX_ERROR


def answers_and_outputs(bundle, client, mnist_root):
    """For ten test images and each class: the service's entry, the encoder's probability and its pose."""
    encoder = ort.InferenceSession(bundle / "encoder.onnx", providers=["CPUExecutionProvider"])
    for picture in load_split("mnist", "test", mnist_root).images[:10, ..., 0]:
        [result] = classify(client, [picture])
        pixels = picture[None, :, :, None].astype(np.float32) / np.float32(255)
        probabilities, poses = encoder.run(None, {"pixels": pixels})
        for entry in result["classes"]:
            j = int(entry["label"])
            yield entry, probabilities[0, j], poses[0, j]


def test_a_sweep_of_all_16_dimensions_is_a_grid_around_the_plain_reconstruction(client):
    files = {"image": ("seven.jpg", (ROOT / "docs" / "seven.jpg").read_bytes())}
    png = {"Accept": "image/png"}
    plain = client.post("/reconstruct", files=files, headers=png)
    sweep = '{"start": -0.25, "stop": 0.25, "step": 0.05}'
    swept = client.post("/reconstruct", files=files, data={"sweep": sweep}, headers=png)
    grid = np.asarray(Image.open(io.BytesIO(swept.content)))
    assert grid.shape == (16 * 28, 11 * 28)
    expected = np.asarray(Image.open(io.BytesIO(plain.content)))
    for row in range(16):
        assert np.array_equal(grid[28 * row : 28 * row + 28, 5 * 28 : 6 * 28], expected)


def test_the_sample_pictures_of_the_readme_are_recognised(client):
    for name, label in (("seven.jpg", "7"), ("three.png", "3")):
        answer = client.post("/classify", files={"images": (name, (ROOT / "docs" / name).read_bytes())})
        [result] = answer.json()["results"]
        assert result["label"] == label
        assert result["classes"][0]["probability"] > 0.5
