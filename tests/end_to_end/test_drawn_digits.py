"""The whole road: train on drawn digits, export, serve over a socket, post a picture, read the answer."""

import base64
import io

import httpx
import numpy as np
import onnxruntime as ort
import pytest
from PIL import Image

from tests.support.live_service import live_service, settings_for
from tests.support.small_pictures import to_png
from training.data.synthetic.drawn_digits import draw_digits


@pytest.fixture(scope="module")
def client(trained_bundle):
    models = trained_bundle.parents[1]
    with live_service(settings_for(models, default_model="capsnet-drawn")) as client:
        yield client


@pytest.fixture(scope="module")
def digits():
    """Digits that the model has not seen: uint8 [50, 28, 28] and their labels."""
    labels = np.arange(50) % 10
    return draw_digits(labels, np.random.default_rng(99)), labels


def post(client: httpx.Client, pictures, **query):
    files = [("images", (f"{i}.png", to_png(picture))) for i, picture in enumerate(pictures)]
    answer = client.post("/classify", files=files, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_digits_posted_as_png_are_recognized(client, digits):
    pictures, labels = digits
    answer = post(client, pictures)
    assert (answer["model"], answer["version"]) == ("capsnet-drawn", 1)
    found = [int(result["label"]) for result in answer["results"]]
    assert (np.array(found) == labels).mean() >= 0.9


def test_the_answer_is_the_encoders_to_the_last_digit(client, digits, trained_bundle):
    [picture], _ = digits[0][:1], digits[1][:1]
    [result] = post(client, [picture])["results"]
    encoder = ort.InferenceSession(trained_bundle / "encoder.onnx", providers=["CPUExecutionProvider"])
    pixels = (picture[None, :, :, None].astype(np.float32)) / np.float32(255)
    probabilities, poses = encoder.run(None, {"pixels": pixels})
    for entry in result["classes"]:
        j = int(entry["label"])
        assert np.float32(entry["probability"]) == probabilities[0, j]
        assert np.array_equal(np.array(entry["pose"], np.float32), poses[0, j])


def test_the_reconstruction_resembles_the_digit(client, digits):
    pictures, _ = digits
    for picture, result in zip(pictures, post(client, pictures, reconstruction=True)["results"], strict=True):
        drawn = np.asarray(Image.open(io.BytesIO(base64.b64decode(result["reconstruction"]))), np.float32)
        blank = np.square(picture / 255.0).sum()
        assert np.square((picture - drawn) / 255.0).sum() < 0.8 * blank


def test_a_sweep_of_all_dimensions_has_the_plain_reconstruction_in_its_center_column(client, digits):
    files = {"image": ("digit.png", to_png(digits[0][3]))}
    plain = client.post("/reconstruct", files=files, headers={"Accept": "image/png"})
    sweep = '{"start": -0.25, "stop": 0.25, "step": 0.05}'
    swept = client.post("/reconstruct", files=files, data={"sweep": sweep}, headers={"Accept": "image/png"})
    grid = np.asarray(Image.open(io.BytesIO(swept.content)))
    assert grid.shape == (8 * 28, 11 * 28), "one row per dimension, one column per delta"
    center = grid[:, 5 * 28 : 6 * 28].reshape(8, 28, 28)
    expected = np.asarray(Image.open(io.BytesIO(plain.content)))
    assert all(np.array_equal(picture, expected) for picture in center)
    assert not np.array_equal(grid[:28, :28], expected), "moving a dimension changes the picture"
