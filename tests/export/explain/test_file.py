"""The file of the explain graph: its weights are the encoder's, and it gives the encoder's answer."""

import numpy as np
import onnx
import pytest

from export.contract.manifest import BundleError, newest_version, read_manifest, sha256_of
from export.explain.file import ExplainError, check_last_iteration, explain_file
from export.explain.graph import explain_graph
from export.explain.shared_weights import share_weights
from tests.support.explained import capsnet_manifest, run_named
from tests.support.paths import MODELS
from tests.support.random_encoders import pictures, random_encoder, with_weights
from tests.support.tiny_bundle import SIDE, write_bundle

BUNDLE = newest_version(MODELS / "capsnet-multimnist")
PIXELS = np.zeros((8, SIDE, SIDE, 1), np.float32)


def encoder_manifest_and_pixels():
    """Those of a shipped bundle, whose manifest does not list an explain graph yet."""
    manifest = read_manifest(BUNDLE)
    graphs = {role: graph for role, graph in manifest.graphs.items() if role != "explain"}
    encoder, samples = (BUNDLE / "encoder.onnx").read_bytes(), np.load(BUNDLE / "samples.npz")
    return encoder, manifest.model_copy(update={"graphs": graphs}), samples["pixels"]


def test_it_holds_none_of_the_encoders_weights():
    content, _ = explain_file(*encoder_manifest_and_pixels())
    assert len(content) < 50_000


def test_the_digest_of_a_bundle_stays():
    encoder, manifest, pixels = encoder_manifest_and_pixels()
    _, explain = explain_file(encoder, manifest, pixels)
    listed = manifest.model_copy(update={"graphs": {**manifest.graphs, "explain": explain}})
    assert listed.digest == manifest.digest


def test_the_manifest_describes_the_graph(tmp_path):
    encoder, manifest, pixels = encoder_manifest_and_pixels()
    content, explain = explain_file(encoder, manifest, pixels)
    (tmp_path / "encoder.onnx").write_bytes(encoder)
    (tmp_path / explain.file).write_bytes(content)
    assert sha256_of(tmp_path / explain.file) == explain.sha256
    loaded = onnx.load(tmp_path / "explain.onnx")  # with the weights of the other file
    assert [t.name for t in explain.inputs] == [v.name for v in loaded.graph.input] == ["pixels"]
    assert [t.name for t in explain.outputs] == [v.name for v in loaded.graph.output]
    found = run_named(loaded, pixels=pixels)
    for tensor in explain.outputs:
        assert (None, *found[tensor.name].shape[1:]) == tensor.shape
        low, high = tensor.range or (-np.inf, np.inf)
        assert low <= found[tensor.name].min() <= found[tensor.name].max() <= high + 1e-6


def test_a_manifest_that_disagrees_with_the_encoder_is_told_in_one_line():
    encoder, manifest, pixels = encoder_manifest_and_pixels()
    other = manifest.model_copy(update={"parameters": manifest.parameters | {"primary_types": 31}})
    with pytest.raises(ExplainError, match="the explain graph cannot be made: ") as refused:
        explain_file(encoder, other, pixels)
    assert "\n" not in str(refused.value)


def test_a_graph_that_gives_another_answer_is_refused():
    encoder, manifest = random_encoder("the paper's"), capsnet_manifest("the paper's")
    other = with_weights(encoder, {"class_caps.weight": lambda weight: weight * 1.001})
    explain = explain_graph(other, manifest)
    with pytest.raises(ExplainError, match=r"last iteration's probabilities differ by .* at most 1e-05"):
        check_last_iteration(encoder.SerializeToString(), explain.SerializeToString(), pictures(encoder, 8))


def test_a_graph_that_cannot_be_run_is_told_in_one_line():
    encoder, broken = random_encoder("the paper's"), onnx.ModelProto()
    broken.CopyFrom(encoder)
    broken.graph.node[-1].op_type = "Nonsense"
    with pytest.raises(BundleError, match=r"the explain graph cannot be run: .*Nonsense") as refused:
        check_last_iteration(encoder.SerializeToString(), broken.SerializeToString(), pictures(encoder, 8))
    assert "\n" not in str(refused.value)


def test_an_answer_that_is_no_number_is_refused():
    encoder, manifest = random_encoder("the paper's"), capsnet_manifest("the paper's")
    broken = with_weights(encoder, {"conv1.bias": lambda bias: bias * np.nan}).SerializeToString()
    explain = explain_graph(encoder, manifest).SerializeToString()
    with pytest.raises(ExplainError, match="differ by nan"):
        check_last_iteration(broken, explain, pictures(encoder, 8))


def test_an_encoder_whose_architecture_is_not_stated_cannot_be_explained(tmp_path):
    bundle = write_bundle(tmp_path / "tiny" / "1")
    with pytest.raises(ExplainError, match="parameters do not state the network's architecture"):
        explain_file((bundle / "encoder.onnx").read_bytes(), read_manifest(bundle), PIXELS)


@pytest.mark.parametrize("model", ["capsnet-mnist", "capsnet-multimnist", "matrix-capsnet-toys"])
def test_shipped_bundles_have_the_graph_that_export_makes(model):
    bundle = newest_version(MODELS / model)
    encoder, held = (bundle / "encoder.onnx").read_bytes(), onnx.ModelProto()
    held.ParseFromString((bundle / "explain.onnx").read_bytes())
    made = explain_graph(onnx.load_model_from_string(encoder), read_manifest(bundle))
    assert held == share_weights(made, encoder, "encoder.onnx")
