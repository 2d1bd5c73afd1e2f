"""A bundle as what a run begins with."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from export.contract.manifest import BundleError, read_manifest, sha256_of
from export.fold import weight_factors
from export.model_card import model_card
from export.to_onnx import trace
from tests.support.paths import ROOT
from tests.support.train_command import status
from training.config import CapsNetConfig, RunConfig, StemConvolution, differences
from training.models.build import build
from training.runs import checkpoint, from_bundle
from training.runs.run_config import new_config
from training.runs.weights import start_with

TINY = CapsNetConfig(
    image_size=17, conv_channels=4, primary_types=2, classes=3, class_dim=4, decoder_hidden=(8,)
)


def fit(*arguments) -> object:
    return status("fit", "--preset", "drawn", "--device", "cpu", *arguments)


def bundle_of(model, folder: Path, like: Path) -> Path:
    """The model's graphs with another bundle's manifest, as far as it does not describe that one's graphs."""
    shutil.copytree(like, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    described, manifest["graphs"] = manifest["graphs"], {}
    for role, graph in trace(model.eval()).by_role().items():
        file = folder / f"{role}.onnx"
        file.write_bytes(graph.SerializeToString())
        manifest["graphs"][role] = {**described[role], "sha256": sha256_of(file)}
    manifest["training"]["config"] = differences(RunConfig(model=model.config))
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def weights(bundle: Path) -> dict[str, torch.Tensor]:
    return from_bundle.weights(bundle, from_bundle.origin(bundle)["bundle"])


def test_the_weights_are_those_of_the_run_that_was_exported(trained_bundle, tiny_run):
    found = weights(trained_bundle)
    expected = checkpoint.read_weights(checkpoint.best_checkpoint(tiny_run))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    "change",
    [
        {
            "learned_priors": True,
            "none_of_the_above": True,
            "standardize_per_image": True,
            "capsule_bias": True,
        },
        {"stem": (StemConvolution(3, 5, 2),), "kernel": 3, "decoder_hidden": ()},
    ],
)
def test_every_weight_of_every_option_comes_back(change, trained_bundle, tmp_path):
    model = build(replace(TINY, **change))
    for parameter in model.parameters():  # export leaves out what adds nothing, as a bias of zeros
        torch.nn.init.normal_(parameter, std=0.1)
    found = weights(bundle_of(model, tmp_path / "1", trained_bundle))
    expected = model.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_what_export_multiplied_weights_by_is_taken_out_again(trained_bundle, tmp_path):
    model = build(replace(TINY, primary_coupling=True))
    bundle = bundle_of(model, tmp_path / "1", trained_bundle)
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert manifest["graphs"]["encoder"].pop("weight_factors") == {}
    manifest["graphs"]["encoder"]["weight_factors"] = weight_factors(model)
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    torch.testing.assert_close(weights(bundle), dict(model.state_dict()))


def test_a_manifest_without_the_factors_is_refused(trained_bundle, tmp_path):
    bundle = bundle_of(build(TINY), tmp_path / "1", trained_bundle)
    manifest = json.loads((bundle / "manifest.json").read_text())
    del manifest["graphs"]["encoder"]["weight_factors"]
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="lacks the encoder's weight_factors: give its run instead"):
        weights(bundle)


def test_the_recorded_factor_is_the_one_that_counts(trained_bundle, tmp_path):
    shutil.copytree(trained_bundle, tmp_path / "1")
    file = tmp_path / "1" / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["graphs"]["encoder"]["weight_factors"] = {"conv1.weight": 0.5}
    file.write_text(json.dumps(manifest))
    found, expected = weights(tmp_path / "1")["conv1.weight"], weights(trained_bundle)["conv1.weight"]
    torch.testing.assert_close(found, 2 * expected)


def test_weights_that_export_computed_with_are_named(trained_bundle, tmp_path):
    model = build(replace(TINY, learned_priors=True, routing_iterations=1))
    bundle = bundle_of(model, tmp_path / "1", trained_bundle)
    with pytest.raises(ValueError, match=r"do not hold class_caps\.routing\.priors: give its run instead"):
        weights(bundle)


def test_matrix_capsules_cannot_be_started_from_and_say_so(tmp_path, capsys):
    out = tmp_path / "run"
    assert fit("--start-from", ROOT / "models" / "matrix-capsnet-toys", "--out", out) == 2
    assert "is a matrix-capsnet, whose graphs do not hold all weights" in capsys.readouterr().err
    assert not out.exists()


def test_a_version_that_is_published_meanwhile_is_not_mixed_with_the_one_that_was_found(
    trained_bundle, tmp_path
):
    shutil.copytree(trained_bundle, tmp_path / "1")
    found, expected = from_bundle.origin(tmp_path)["bundle"], weights(trained_bundle)
    bundle_of(build(TINY), tmp_path / "2", trained_bundle)
    assert all(
        torch.equal(tensor, expected[name]) for name, tensor in from_bundle.weights(tmp_path, found).items()
    )


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({}, r" has no training\.config: how was it trained\?"),
        ({"config": {"model": {"gone": 1}}}, r": training\.config: configuration: model\.gone"),
        ({"config": {}}, r" has no training\.step: how long was it trained\?"),
    ],
)
def test_a_manifest_that_does_not_say_how_it_was_trained_is_named(
    training, message, trained_bundle, tmp_path
):
    bundle = shutil.copytree(trained_bundle, tmp_path / "1")
    manifest = json.loads((bundle / "manifest.json").read_text())
    (bundle / "manifest.json").write_text(json.dumps({**manifest, "training": training}))
    with pytest.raises(BundleError, match=rf"^the manifest of {manifest['model']}{message}"):
        from_bundle.origin(tmp_path)


def test_weights_of_another_architecture_are_named_in_one_line():
    narrow, wide = build(TINY), build(replace(TINY, conv_channels=5, decoder_hidden=()))
    with pytest.raises(ValueError, match="another architecture") as refused:
        start_with(wide, narrow.state_dict())
    said = str(refused.value)
    assert "conv1.weight is [4, 1, 9, 9] there, [5, 1, 9, 9] here and 6 others" in said
    assert "\n" not in said
    with pytest.raises(ValueError, match=r"decoder\.hidden\.0\.weight is \[8, 12\] there, missing here"):
        start_with(build(replace(TINY, decoder_hidden=())), narrow.state_dict())


def test_a_graph_that_is_not_the_manifests_is_refused(trained_bundle, tmp_path):
    damaged = shutil.copytree(trained_bundle, tmp_path / "1")
    (damaged / "encoder.onnx").write_bytes(b"other")
    with pytest.raises(BundleError, match="the manifest says"):
        weights(damaged)


def test_the_newest_version_of_a_model_is_taken(trained_bundle, tmp_path):
    shutil.copytree(trained_bundle, tmp_path / "9")
    second = bundle_of(build(TINY), tmp_path / "10", trained_bundle)
    assert from_bundle.is_bundle(tmp_path)
    found, expected = weights(tmp_path), weights(second)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert from_bundle.origin(tmp_path)["bundle"].endswith("/10")


def test_a_stray_file_is_no_version(trained_bundle, tmp_path):
    shutil.copytree(trained_bundle, tmp_path / "1")
    (tmp_path / "2024").touch()
    assert from_bundle.origin(tmp_path)["bundle"].endswith("/1")


def test_a_run_stays_one_if_a_bundle_was_published_into_it(tiny_run, trained_bundle, tmp_path):
    run = shutil.copytree(tiny_run, tmp_path / "run")
    shutil.copytree(trained_bundle, run / "1")
    origin = new_config(tmp_path / "second", preset="drawn", start_from=run).started_from
    assert origin["checkpoint"] == checkpoint.newest_checkpoint(run).name


def test_a_folder_that_is_neither_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="is neither a run of capsnet-train nor a bundle"):
        new_config(tmp_path / "second", preset="drawn", start_from=ROOT / "docs")


def test_a_run_that_starts_from_a_bundle_begins_with_its_weights_and_says_so(trained_bundle, tmp_path):
    run = tmp_path / "second"
    assert fit("--start-from", trained_bundle, "--out", run, "--max-minutes", "1e-9") == 0
    [first] = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert first["classification_loss"] < 0.2, "random weights begin near 0.8"
    manifest, config = read_manifest(trained_bundle), checkpoint.read_config(run)
    origin = config.started_from
    assert origin["bundle"] == f"{manifest.model}/{trained_bundle.name}"
    assert origin["step"] == manifest.training["step"] == config.steps_before
    third = new_config(tmp_path / "third", preset="drawn", start_from=run)
    assert third.steps_before == config.steps_before + third.started_from["step"] > config.steps_before
    training = {**manifest.training, "config": differences(config)}
    card = model_card(manifest.model_copy(update={"training": training}))
    assert f"published as {origin['bundle']}" in card


def test_a_bundle_that_cannot_be_started_from_leaves_nothing_behind(tmp_path, capsys):
    out = tmp_path / "run"
    assert fit("--start-from", ROOT / "models" / "capsnet-mnist", "--out", out) == 2
    assert "the data set is mnist there, drawn here" in capsys.readouterr().err
    assert not out.exists()
