"""The explain graph is added to a bundle, of which everything else stays."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest

from export.cli import main
from export.contract.manifest import BundleError, newest_version, read_checked, read_manifest
from export.contract.one_at_a_time import one_at_a_time
from export.explain.add import ExplainError, add_explain, check_last_iteration
from export.explain.graph import explain_graph
from export.explain.shared_weights import share_weights
from tests.support.broken_bundle import of_unknown_operator, samples_with
from tests.support.explained import capsnet_manifest, run_named
from tests.support.paths import MODELS
from tests.support.random_encoders import pictures, random_encoder, with_weights
from tests.support.tiny_bundle import replace_file, rewrite_manifest, write_bundle


@pytest.fixture
def bundle(tmp_path):
    """A published one without the graph."""
    folder = tmp_path / "capsnet-multimnist" / "1"
    shutil.copytree(newest_version(MODELS / "capsnet-multimnist"), folder)
    manifest = read_manifest(folder)
    rewrite_manifest(folder, graphs={r: g for r, g in manifest.graphs.items() if r != "explain"})
    (folder / "explain.onnx").unlink(missing_ok=True)
    return folder


def contents(bundle) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in bundle.iterdir()}


def test_the_rest_of_the_bundle_stays_as_it_is(bundle):
    before, manifest = contents(bundle), read_manifest(bundle)
    added = add_explain(bundle)
    after, changed = contents(bundle), read_manifest(bundle)
    assert after.keys() - before.keys() == {"explain.onnx"}
    assert {name for name in before if after[name] != before[name]} == {"manifest.json"}
    explain = changed.graphs["explain"]
    assert changed == manifest.model_copy(update={"graphs": {**manifest.graphs, "explain": explain}})
    assert len(read_checked(bundle, explain)) == added.bytes < 50_000


def test_who_writes_it_waits_for_another_process_that_does(bundle):
    with ThreadPoolExecutor() as pool:
        with one_at_a_time(bundle / ".explain.lock"):
            adding = pool.submit(add_explain, bundle)
            with pytest.raises(TimeoutError):
                adding.result(timeout=5)
            assert not (bundle / "explain.onnx").exists()
        assert adding.result().path.is_file()
    assert not list(bundle.glob(".*"))


def test_its_answers_stay_and_so_does_its_digest(bundle):
    before = read_manifest(bundle).digest
    add_explain(bundle)
    assert read_manifest(bundle).digest == before


def test_the_manifest_describes_the_graph(bundle):
    add_explain(bundle)
    explain, loaded = read_manifest(bundle).graphs["explain"], onnx.load(bundle / "explain.onnx")
    assert [t.name for t in explain.inputs] == [v.name for v in loaded.graph.input] == ["pixels"]
    assert [t.name for t in explain.outputs] == [v.name for v in loaded.graph.output]
    found = run_named_file(bundle)
    for tensor in explain.outputs:
        assert (None, *found[tensor.name].shape[1:]) == tensor.shape
        low, high = tensor.range or (-np.inf, np.inf)
        assert low <= found[tensor.name].min() <= found[tensor.name].max() <= high + 1e-6


def run_named_file(bundle) -> dict[str, np.ndarray]:
    model = onnx.load(bundle / "explain.onnx")  # with the weights of the other file
    return run_named(model, pixels=np.load(bundle / "samples.npz")["pixels"])


def test_adding_it_twice_changes_nothing(bundle):
    add_explain(bundle)
    before = contents(bundle)
    add_explain(bundle)
    assert contents(bundle) == before


def test_a_lost_file_of_a_graph_that_is_listed_is_written_again(bundle):
    add_explain(bundle)
    before = contents(bundle)
    (bundle / "explain.onnx").unlink()
    add_explain(bundle)
    assert contents(bundle) == before


def test_another_explain_graph_that_is_listed_is_not_replaced(bundle):
    add_explain(bundle)
    model = onnx.load(bundle / "explain.onnx", load_external_data=False)
    model.producer_version = "an earlier one"
    replace_file(bundle, "explain", model.SerializeToString())
    before = contents(bundle)
    with pytest.raises(BundleError, match="has an explain graph already"):
        add_explain(bundle)
    assert contents(bundle) == before


def test_another_file_of_its_name_is_not_overwritten(bundle):
    manifest = read_manifest(bundle)
    (bundle / "encoder.onnx").rename(bundle / "explain.onnx")
    encoder = manifest.graphs["encoder"].model_copy(update={"file": "explain.onnx"})
    rewrite_manifest(bundle, graphs={**manifest.graphs, "encoder": encoder})
    before = contents(bundle)
    with pytest.raises(BundleError, match=r"explain\.onnx is the file of its encoder"):
        add_explain(bundle)
    assert contents(bundle) == before


def test_a_manifest_that_disagrees_with_the_encoder_is_told_in_one_line(bundle):
    manifest = read_manifest(bundle)
    rewrite_manifest(bundle, parameters=manifest.parameters | {"primary_types": 31})
    with pytest.raises(BundleError, match="cannot be explained: ") as refused:
        add_explain(bundle)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda pixels: pixels[:0], r"samples: pixels is float32 \[0, 36, 36, 1\]"),
        (lambda pixels: pixels.astype(np.float64), "samples: pixels is float64"),
        (lambda pixels: np.array("picture"), "samples: pixels is <U7"),
        (lambda pixels: pixels[:, 1:], r"pixels has the shape \[35, 36, 1\] in each .* \[36, 36, 1\]"),
        (lambda pixels: 0 * pixels, "samples: probabilities differs by"),
    ],
)
def test_samples_that_the_service_refuses_are_refused(bundle, change, told):
    replace_file(bundle, "samples", samples_with(bundle, change, "pixels"))
    with pytest.raises(BundleError, match=told):
        add_explain(bundle)


def test_a_graph_that_cannot_be_run_is_told_in_one_line(bundle):
    replace_file(bundle, "encoder", of_unknown_operator(bundle))
    with pytest.raises(BundleError, match="the encoder cannot be run: ") as refused:
        add_explain(bundle)
    assert "\n" not in str(refused.value)


def test_an_encoder_without_poses_is_refused(bundle):
    graphs = read_manifest(bundle).graphs
    encoder = graphs["encoder"].model_copy(update={"outputs": graphs["encoder"].outputs[:1]})
    rewrite_manifest(bundle, graphs={**graphs, "encoder": encoder})
    with pytest.raises(BundleError, match=r"manifest: the encoder has .*; .* it needs .*poses"):
        add_explain(bundle)


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN"])
def test_a_manifest_with_a_number_that_json_lacks_is_refused_and_stays(bundle, number):
    file = bundle / "manifest.json"
    facts = json.loads(file.read_bytes())
    facts["metrics"][0]["value"] = float(number)
    file.write_text(json.dumps(facts))
    before = contents(bundle)
    with pytest.raises(BundleError, match=r"metrics\.0\.value: Input should be a finite number"):
        add_explain(bundle)
    assert contents(bundle) == before


def test_the_command_names_the_file_and_the_difference(bundle, capsys):
    main(["explain", str(bundle.parent)])
    said = capsys.readouterr().out
    assert "differs by 0.0e+00 from the encoder's answer" in said
    assert f"wrote {bundle}/explain.onnx" in said


def test_a_graph_that_gives_another_answer_is_refused():
    encoder, manifest = random_encoder("the paper's"), capsnet_manifest("the paper's")
    other = with_weights(encoder, {"class_caps.weight": lambda weight: weight * 1.001})
    explain = explain_graph(other, manifest)
    with pytest.raises(ExplainError, match=r"last iteration's probabilities differ by .* at most 1e-05"):
        check_last_iteration(encoder.SerializeToString(), explain.SerializeToString(), pictures(encoder, 8))


def test_an_answer_that_is_no_number_is_refused():
    encoder, manifest = random_encoder("the paper's"), capsnet_manifest("the paper's")
    broken = with_weights(encoder, {"conv1.bias": lambda bias: bias * np.nan}).SerializeToString()
    explain = explain_graph(encoder, manifest).SerializeToString()
    with pytest.raises(ExplainError, match="differ by nan"):
        check_last_iteration(broken, explain, pictures(encoder, 8))


def test_a_bundle_that_cannot_be_explained_stays_as_it_is(tmp_path):
    bundle = write_bundle(tmp_path / "tiny" / "1")
    before = contents(bundle)
    with pytest.raises(BundleError, match="parameters do not state the network's architecture"):
        add_explain(bundle)
    assert contents(bundle) == before


@pytest.mark.parametrize("model", ["capsnet-mnist", "capsnet-multimnist", "matrix-capsnet-toys"])
def test_shipped_bundles_have_the_graph_that_the_command_makes(model):
    bundle = newest_version(MODELS / model)
    encoder, held = (bundle / "encoder.onnx").read_bytes(), onnx.ModelProto()
    held.ParseFromString((bundle / "explain.onnx").read_bytes())
    made = explain_graph(onnx.load_model_from_string(encoder), read_manifest(bundle))
    assert held == share_weights(made, encoder, "encoder.onnx")
