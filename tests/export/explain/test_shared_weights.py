"""A bundle holds its weights once: the explain graph reads the encoder's file."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from export.explain.graph import explain_graph
from export.explain.shared_weights import hold_weights, share_weights
from tests.support.explained import capsnet_manifest, run_named
from tests.support.random_encoders import pictures, random_encoder


@pytest.fixture
def explain() -> onnx.ModelProto:
    return explain_graph(random_encoder("everything"), capsnet_manifest("everything"))


@pytest.fixture
def encoder() -> bytes:
    return random_encoder("everything").SerializeToString()


def test_shared_weights_are_not_in_the_file(explain, encoder):
    shared = share_weights(explain, encoder, "encoder.onnx")
    assert shared.ByteSize() < explain.ByteSize() / 2
    far = [tensor.name for tensor in shared.graph.initializer if tensor.external_data]
    assert {"conv1.weight", "primary_caps.conv.weight", "class_caps.weight"} <= {*far}


def test_a_runtime_that_knows_nothing_of_bundles_reads_them(explain, encoder, tmp_path):
    """By ONNX's own rule: from the file in the graph's folder."""
    (tmp_path / "encoder.onnx").write_bytes(encoder)
    onnx.save(share_weights(explain, encoder, "encoder.onnx"), tmp_path / "explain.onnx")
    onnx.checker.check_model(tmp_path / "explain.onnx")
    pixels = pictures(explain, 2)
    session = ort.InferenceSession(tmp_path / "explain.onnx", providers=["CPUExecutionProvider"])
    for found, expected in zip(
        session.run(None, {"pixels": pixels}), run_named(explain, pixels=pixels).values(), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


def test_they_can_be_put_back(explain, encoder):
    held = hold_weights(share_weights(explain, encoder, "encoder.onnx").SerializeToString(), encoder)
    assert onnx.load_model_from_string(held) == explain


def test_where_and_how_long_they_are_may_be_left_out(explain, encoder):
    shared = share_weights(explain, encoder, "encoder.onnx")
    for tensor in shared.graph.initializer:
        kept = [entry for entry in tensor.external_data if entry.key != "length"]
        del tensor.external_data[:]
        tensor.external_data.extend(kept)
    assert onnx.load_model_from_string(hold_weights(shared.SerializeToString(), encoder)) == explain
    first = next(tensor for tensor in shared.graph.initializer if tensor.external_data)
    del first.external_data[1:]  # only the file's name
    held = onnx.load_model_from_string(hold_weights(shared.SerializeToString(), encoder))
    values = next(tensor.raw_data for tensor in held.graph.initializer if tensor.name == first.name)
    assert values == encoder[: len(values)]


def test_values_that_the_other_file_lacks_stay(explain, encoder):
    other = random_encoder("a stem").SerializeToString()
    assert share_weights(explain, other, "encoder.onnx") == explain
