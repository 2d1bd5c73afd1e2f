"""The gate of half precision: the classes that float32 names, and lengths near its own."""

from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from export.contract.manifest import newest_version, read_manifest
from export.optimize.half_gate import (
    GENERATED,
    MAX_LENGTH_ERROR,
    MIN_CLEAR,
    TIE,
    Agreement,
    check_agreement,
    check_generated,
    check_half,
    compare,
    variations,
)
from export.optimize.half_precision import HalfPrecisionError, half_precision
from tests.support.tiny_bundle import SIDE, encoder_model, make_model, run_model

SHIPPED = newest_version(Path("models/capsnet-mnist"))


def samples_of(bundle: Path) -> np.ndarray:
    with np.load(bundle / "samples.npz") as samples:
        return samples["pixels"]


@pytest.fixture(scope="module")
def plain() -> onnx.ModelProto:
    return onnx.load(f"{SHIPPED}/encoder.onnx")


def test_the_gate_lets_the_shipped_model_pass(plain):
    with np.load(f"{SHIPPED}/samples.npz") as samples:
        assert check_half(plain, half_precision(plain), samples["pixels"], batch=3).images == len(
            samples["pixels"]
        )


def test_the_gate_stops_other_weights():
    rng = np.random.default_rng(0)
    one, other = encoder_model(rng, 3, 4), encoder_model(rng, 3, 4)
    images = rng.random((4, SIDE, SIDE, 1), np.float32)
    with pytest.raises(HalfPrecisionError, match="lengths by up to"):
        check_half(one, half_precision(other), images)


def two_products(first: np.ndarray, second: np.ndarray) -> onnx.ModelProto:
    """Pixels [N, 2, 1, 1] times the first matrix, times the second."""
    nodes = [
        helper.make_node("Flatten", ["pixels"], ["x"]),
        helper.make_node("MatMul", ["x", "first"], ["y"]),
        helper.make_node("MatMul", ["y", "second"], ["probabilities"]),
    ]
    weights = {"first": first.astype(np.float32), "second": second.astype(np.float32)}
    outputs = {"probabilities": (None, second.shape[1])}
    return make_model(nodes, weights, {"pixels": (None, 2, 1, 1)}, outputs)


def test_the_gate_stops_a_value_between_two_operators_that_float16_cannot_hold():
    model = two_products(6e4 * np.ones((2, 2)), 1e-5 * np.eye(2))
    with pytest.raises(HalfPrecisionError, match="reaches 120000; float16 ends at 65504"):
        check_half(model, half_precision(model), np.ones((4, 2, 1, 1), np.float32))


def test_the_gate_stops_answers_that_rounding_between_two_operators_spoils():
    """The difference of two values that float16 does not tell apart."""
    model = two_products(np.array([[1, 1], [0, 2**-5]]), 1000 * np.array([[1, 0], [-1, 0]]))
    pixels = np.array([1, 2**-7], np.float32).reshape(1, 2, 1, 1)
    with pytest.raises(HalfPrecisionError, match=r"lengths by up to 0\.24"):
        check_half(model, half_precision(model), pixels)


@pytest.mark.parametrize(
    ("images", "others", "passes"), [(10_000, 2, True), (10_000, 3, False), (8, 0, True), (8, 1, False)]
)
def test_two_classes_in_ten_thousand_may_change(images, others, passes):
    if passes:
        check_agreement(Agreement(images, others, 0.0))
    else:
        with pytest.raises(HalfPrecisionError, match=f"class of {others} of {images} images"):
            check_agreement(Agreement(images, others, 0.0))


@pytest.mark.parametrize("wrong", [2 * MAX_LENGTH_ERROR, np.nan, np.inf])
def test_a_length_that_is_off_or_no_number_is_stopped(wrong):
    expected = np.array([[0.1, 0.9]], np.float32)
    agreement = compare(expected, expected + np.float32([[wrong, 0]]))
    with pytest.raises(HalfPrecisionError, match="lengths by up to"):
        check_agreement(agreement)


def test_of_two_objects_both_are_named_in_any_order():
    expected = np.array([[0.9, 0.8, 0.1], [0.9, 0.8, 0.1]], np.float32)
    found = np.array([[0.8, 0.9, 0.1], [0.9, 0.1, 0.8]], np.float32)
    assert compare(expected, found, objects=2).other_decisions == 1
    assert compare(expected, found, objects=1).other_decisions == 1
    assert compare(expected, found, objects=3).other_decisions == 0


def test_generated_images_are_pictures_that_differ_and_are_the_same_every_time():
    pixels = samples_of(SHIPPED)
    images = variations(pixels, 256)
    assert images.shape == (256, *pixels.shape[1:])
    assert images.dtype == np.float32
    assert images.min() >= 0
    assert images.max() <= 1
    assert len({image.tobytes() for image in images}) == 256
    np.testing.assert_array_equal(images, variations(pixels, 256))


def probabilities_of(model: onnx.ModelProto, images: np.ndarray) -> np.ndarray:
    return run_model(model, pixels=images)[0]


def test_the_shipped_model_of_two_objects_names_the_same_classes_on_generated_images():
    bundle = newest_version(Path("models/capsnet-multimnist"))
    model = onnx.load(bundle / "encoder.onnx")
    half = ort.InferenceSession(half_precision(model).SerializeToString(), providers=["CPUExecutionProvider"])
    found = check_generated(
        partial(probabilities_of, model),
        lambda images: half.run(["probabilities"], {"pixels": images})[0],
        samples_of(bundle),
        read_manifest(bundle).objects_per_image,
    )
    assert found.images >= MIN_CLEAR
    assert found.other_decisions == 0


# Probabilities by the brightness of an image, which variations make differ.


def by_brightness(images: np.ndarray) -> np.ndarray:
    bright = images.mean((1, 2, 3))
    return np.stack([0.5 + bright / 4, 0.5 - bright / 4], axis=1).astype(np.float32)


PIXELS = np.random.default_rng(0).random((8, SIDE, SIDE, 1), np.float32)


def test_one_other_class_among_the_generated_images_is_enough_to_refuse():
    def one_other(images: np.ndarray) -> np.ndarray:
        found = by_brightness(images)
        found[GENERATED // 2] = found[GENERATED // 2, ::-1]
        return found

    assert check_generated(by_brightness, by_brightness, PIXELS).images == GENERATED
    with pytest.raises(HalfPrecisionError, match="changes the class of 1 of 320 images"):
        check_generated(by_brightness, one_other, PIXELS)


def test_where_float32_itself_hardly_decides_another_class_is_no_fault():
    def tied(images: np.ndarray) -> np.ndarray:
        found = by_brightness(images)
        found[0] = [0.5 + TIE / 4, 0.5 - TIE / 4]
        return found

    def other_way_round(images: np.ndarray) -> np.ndarray:
        found = tied(images)
        found[0] = found[0, ::-1]
        return found

    assert check_generated(tied, other_way_round, PIXELS).images == GENERATED - 1


def test_too_few_clear_decisions_are_no_proof():
    def all_the_same(images: np.ndarray) -> np.ndarray:
        return np.full((len(images), 2), 0.5, np.float32)

    with pytest.raises(HalfPrecisionError, match=r"decides 0 of 320 generated images .* at least 256"):
        check_generated(all_the_same, all_the_same, PIXELS)


def test_a_model_of_one_class_has_no_other_to_name():
    def one_class(images: np.ndarray) -> np.ndarray:
        return by_brightness(images)[:, :1]

    assert check_generated(one_class, one_class, PIXELS).images == GENERATED
