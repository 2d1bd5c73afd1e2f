import errno
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from signal import SIGINT, SIGTERM

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import helper

from export import bundle, next_version, parity
from export.bundle import publish
from export.cli import main
from export.confidence import measure_again
from export.contract.manifest import BundleError, Manifest, newest_version, read_checked, read_manifest
from export.evaluate import evaluate_bundle, evaluate_encoder
from export.next_version import publish_next
from tests.support.paths import ROOT
from tests.support.tiny_bundle import replace_file, rewrite_manifest, write_bundle
from training.config import load_preset, to_dict
from training.evaluate.metrics import Errors
from training.runs import checkpoint
from training.runs.open_run import open_run
from training.runs.result import note_measurement, times_measured


def test_a_bundle_holds_six_files(trained_bundle):
    graphs = {"encoder.onnx", "decoder.onnx", "explain.onnx"}
    names = {path.name for path in trained_bundle.iterdir()}
    assert names == graphs | {"samples.npz", "manifest.json", "MODEL_CARD.md"}


def test_the_manifest_describes_the_graphs(trained_bundle):
    manifest = read_manifest(trained_bundle)
    assert manifest.model == "capsnet-drawn"
    assert manifest.class_names == tuple("0123456789")
    assert manifest.pose_shape == (8,)
    for role, graph in manifest.graphs.items():
        loaded = onnx.load(trained_bundle / graph.file)
        assert [t.name for t in graph.inputs] == [v.name for v in loaded.graph.input], role
        assert [t.name for t in graph.outputs] == [v.name for v in loaded.graph.output], role
        assert all(t.shape[0] is None for t in (*graph.inputs, *graph.outputs)), role
        assert manifest.opset == loaded.opset_import[0].version
        read_checked(trained_bundle, graph)


def test_the_samples_hold_what_the_graphs_give(trained_bundle):
    manifest = read_manifest(trained_bundle)
    samples = np.load(trained_bundle / manifest.samples.file, allow_pickle=False)
    encoder = ort.InferenceSession(trained_bundle / "encoder.onnx", providers=["CPUExecutionProvider"])
    probabilities, poses = encoder.run(None, {"pixels": samples["pixels"]})
    np.testing.assert_allclose(probabilities, samples["probabilities"], atol=1e-5)
    np.testing.assert_allclose(poses, samples["poses"], atol=1e-5)
    decoder = ort.InferenceSession(trained_bundle / "decoder.onnx", providers=["CPUExecutionProvider"])
    [reconstruction] = decoder.run(None, {"poses": samples["poses"], "mask": samples["mask"]})
    np.testing.assert_allclose(reconstruction, samples["reconstruction"], atol=1e-5)


def test_the_samples_try_the_decoder_with_other_classes_in_turn(trained_bundle):
    mask = np.load(trained_bundle / "samples.npz", allow_pickle=False)["mask"]
    np.testing.assert_array_equal(mask, np.eye(10)[:8])


def test_the_manifest_says_how_the_model_was_trained_and_how_well_it_does(trained_bundle, tiny_run):
    manifest = read_manifest(trained_bundle)
    assert manifest.training["config"] == json.loads((tiny_run / "config.json").read_text())
    assert manifest.training["command"]
    assert 0 < manifest.parity.max_abs_error <= manifest.parity.tolerance == 1e-5
    measured = evaluate_bundle(trained_bundle, Path("data"))
    assert manifest.metrics[0].value == measured.error_percent
    assert json.loads((tiny_run / "result.json").read_text())["errors"] == measured.errors


def test_the_model_card_states_error_command_and_hardware(trained_bundle):
    manifest, card = read_manifest(trained_bundle), (trained_bundle / "MODEL_CARD.md").read_text()
    assert f"**Test error {manifest.metrics[0].value:.2f} %**" in card
    assert manifest.training["command"] in card
    assert manifest.training["hardware"] in card


def test_names_of_classes_are_published_as_utf8_whatever_the_locale(trained_bundle, tmp_path):
    first = shutil.copytree(trained_bundle, tmp_path / "1")
    rewrite_manifest(first, class_names=("Kätzchen", *read_manifest(first).class_names[1:]))
    program = """if True:
        import sys
        from pathlib import Path
        from export import bundle
        from export.contract.manifest import read_manifest
        bundle._write_card_and_manifest(Path(sys.argv[2]), read_manifest(Path(sys.argv[1])))"""
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", program, str(first), str(tmp_path)]
    subprocess.run(command, env=os.environ | plain, cwd=ROOT, check=True)
    assert read_manifest(tmp_path).class_names[0] == "Kätzchen"
    assert "Kätzchen" in (tmp_path / "MODEL_CARD.md").read_text(encoding="utf-8")


def test_a_publisher_that_comes_second_takes_the_next_number(tmp_path):
    aside = tmp_path / ".aside"
    aside.mkdir()
    for taken in ("1", "2"):
        (tmp_path / taken).mkdir()
        (tmp_path / taken / "manifest.json").write_text("{}")
    assert next_version._rename_to_next_version(aside, tmp_path) == tmp_path / "3"


def test_nothing_is_published_when_the_gate_fails(tiny_run, tmp_path, monkeypatch):
    monkeypatch.setitem(parity.TOLERANCE, "capsnet", 1e-12)
    with pytest.raises(parity.ParityError):
        bundle.publish(tiny_run, tmp_path / "model", Path("data"))
    assert not (tmp_path / "model").exists()


@pytest.mark.usefixtures("own_iterations_only")
def test_nothing_is_left_when_publishing_breaks_off(tiny_run, tmp_path, monkeypatch):
    def full_disk(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(bundle, "model_card", full_disk)
    with pytest.raises(OSError, match="No space left on device") as failed:
        bundle.publish(tiny_run, tmp_path / "model", Path("data"))
    assert failed.value.filename == str(tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("place", ["run", "run/measured.jsonl", "."])
def test_a_folder_that_cannot_be_written_is_said_before_anything_is_measured(
    tiny_run, tmp_path, monkeypatch, place
):
    run = shutil.copytree(tiny_run, tmp_path / "run")
    before = sorted(path.name for path in run.iterdir())
    locked = tmp_path / place
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != locked)
    with pytest.raises(PermissionError, match=str(locked)):
        publish(run, tmp_path / "capsnet-drawn", Path("data"))
    assert sorted(path.name for path in run.iterdir()) == before
    assert not (tmp_path / "capsnet-drawn").exists()


@pytest.mark.parametrize(
    ("out", "remark", "error", "told"),
    [
        ("file/pets", None, NotADirectoryError, "file'"),
        ("nowhere/pets", None, FileNotFoundError, "leads nowhere: .*nowhere'"),
        ("drawn/1/pets", None, BundleError, "in a published version, which must not change: .*/1$"),
        ("drawn/2", None, ValueError, "is a version's folder; give its model's folder, .*/drawn$"),
        (".", None, ValueError, "is a folder of models; add the name of this one: .*/NAME$"),
        ("drawn", None, ValueError, "holds versions of capsnet-drawn; publish under that name"),
        ("pets", "caf\udce9", ValueError, "is not UTF-8"),
    ],
)
def test_what_can_be_said_before_anything_is_measured_is(
    tiny_run, trained_bundle, tmp_path, monkeypatch, out, remark, error, told
):
    (tmp_path / "file").touch()
    (tmp_path / "nowhere").symlink_to("none")
    (tmp_path / "drawn").symlink_to(trained_bundle.parent)
    monkeypatch.setattr(bundle, "open_run", lambda *_: pytest.fail("it is opened to be measured"))
    with pytest.raises(error, match=told):
        publish(tiny_run, tmp_path / out, Path("data"), remark=remark)


def test_a_version_that_was_put_aside_in_its_models_folder_keeps_nobody_from_publishing(
    trained_bundle, tmp_path
):
    shutil.copytree(trained_bundle, tmp_path / "pets" / "withdrawn" / "1")
    shutil.copytree(trained_bundle, tmp_path / "pets" / "3")
    bundle._refuse_among_models(tmp_path / "pets")


def test_a_run_on_the_middle_of_digits_is_refused_for_a_service_shows_the_whole(
    tiny_run, tmp_path, monkeypatch
):
    opened = open_run(tiny_run, torch.device("cpu"))
    cropped = replace(opened.recorded, data=replace(opened.recorded.data, crop_pixels=20))
    monkeypatch.setattr(bundle, "open_run", lambda *_: replace(opened, recorded=cropped))
    with pytest.raises(
        ValueError, match="trained with crop_pixels, but a service shows a model of drawn the whole"
    ):
        publish(tiny_run, tmp_path / "capsnet-drawn", Path("data"))
    assert not (tmp_path / "capsnet-drawn").exists()


def test_an_error_of_novel_viewpoints_says_so():
    run = load_preset("smallnorb")
    novel = replace(run.data, familiar="azimuth")
    for data, expected in (
        (run.data, "smallnorb test set, "),
        (novel, "smallnorb test set, viewpoints of another azimuth only, "),
    ):
        [metric] = bundle._metrics(Errors(10, 1, 10, 1), data, "toys")
        assert metric.data == f"{expected}10 images, 1 wrong"


def test_a_bundle_that_names_other_classes_is_not_measured(trained_bundle, tmp_path):
    renamed = shutil.copytree(trained_bundle, tmp_path / "capsnet-drawn" / "1")
    manifest = json.loads((renamed / "manifest.json").read_text())
    manifest["class_names"].reverse()
    (renamed / "manifest.json").write_text(json.dumps(manifest))
    for measure in (evaluate_bundle, measure_again):
        with pytest.raises(BundleError, match=r"names 1 of 9, 8, .*; trained on were 1 of 0, 1, "):
            measure(renamed, Path("data"))


def test_a_graph_of_another_number_of_classes_is_not_measured(tiny_run):
    pixels = helper.make_tensor_value_info("pixels", 1, ["N", 28, 28, 1])
    probabilities = helper.make_tensor_value_info("probabilities", 1, ["N", 1])
    mean = helper.make_node("ReduceMean", ["pixels"], ["means"], axes=[1, 2], keepdims=0)
    graph = helper.make_graph(
        [mean, helper.make_node("Identity", ["means"], ["probabilities"])], "one", [pixels], [probabilities]
    )
    encoder = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(BundleError, match=r"probabilities are \(32, 1\), not \(32, 10\)"):
        evaluate_encoder(
            encoder.SerializeToString(), "capsnet", checkpoint.read_config(tiny_run), Path("data")
        )


def test_after_the_largest_version_there_is_no_next_one(tmp_path):
    (tmp_path / "999999999").mkdir()
    with pytest.raises(ValueError, match="no version after 999999999"):
        publish_next(tmp_path, lambda folder: None)
    assert [path.name for path in tmp_path.iterdir()] == ["999999999"]


def test_changed_bytes_are_refused(trained_bundle, tmp_path):
    copy = shutil.copytree(trained_bundle, tmp_path / "1")
    manifest = read_manifest(copy)
    encoder = copy / "encoder.onnx"
    encoder.write_bytes(encoder.read_bytes()[:-1])
    with pytest.raises(BundleError, match=r"encoder\.onnx has sha256 .*; the manifest says"):
        read_checked(copy, manifest.graphs["encoder"])


@pytest.mark.parametrize("name", ["../encoder.onnx", "..\\encoder.onnx", "encoder\0.onnx"])
def test_a_manifest_whose_file_is_no_plain_name_is_refused(tmp_path, name):
    bundle = write_bundle(tmp_path / "tiny" / "1")
    text = (bundle / "manifest.json").read_text()
    (bundle / "manifest.json").write_text(text.replace('"encoder.onnx"', json.dumps(name)))
    with pytest.raises(BundleError, match=re.escape(f"{name!r} is not a plain file name")):
        read_manifest(bundle)


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN"])
def test_a_manifest_with_a_number_that_json_lacks_is_refused(tmp_path, number):
    bundle = write_bundle(tmp_path / "tiny" / "1")
    facts = json.loads((bundle / "manifest.json").read_bytes())
    facts["parity"]["max_abs_error"] = float(number)
    (bundle / "manifest.json").write_text(json.dumps(facts))
    with pytest.raises(BundleError, match=r"parity\.max_abs_error: Input should be a finite number"):
        read_manifest(bundle)


@pytest.mark.parametrize("shape", [(-4, -1), (0,), ()])
def test_a_pose_shape_without_positive_sides_is_refused(tmp_path, shape):
    bundle = write_bundle(tmp_path / "tiny" / "1")
    rewrite_manifest(bundle, pose_shape=shape)
    with pytest.raises(BundleError, match="pose_shape"):
        read_manifest(bundle)


def test_the_card_says_how_often_the_test_set_was_measured_before(trained_bundle):
    times = read_manifest(trained_bundle).training["times_measured"]
    said = f"measured {times} time{'s' * (times != 1)} on this run before this version was made"
    card = (trained_bundle / "MODEL_CARD.md").read_text()
    assert f"| test set | {said}; 0 earlier versions of this name |" in card


def test_what_the_stages_before_were_measured_is_counted(tiny_run, tmp_path):
    config = checkpoint.read_config(tiny_run)
    of_run = {"config": to_dict(config), "times_measured": 2}
    assert times_measured(tmp_path, replace(config, started_from=of_run)) == 2
    assert times_measured(tmp_path, replace(config, started_from=of_run | {"bundle": "a/1"})) == 3
    of_one_that_did_not_count = {
        "config": to_dict(replace(config, started_from={"config": to_dict(config), "bundle": "a/1"})),
        "bundle": "a/2",
    }
    assert times_measured(tmp_path, replace(config, started_from=of_one_that_did_not_count)) == 2


def test_a_run_that_was_measured_as_it_finished_has_been_measured_once(tiny_run, tmp_path):
    (tmp_path / "result.json").write_text("{}")
    config = checkpoint.read_config(tiny_run)
    assert times_measured(tmp_path, config) == 1
    note_measurement(tmp_path, "step-00000001", 1.0)
    assert times_measured(tmp_path, config) == 2


@pytest.mark.usefixtures("own_iterations_only")
def test_the_command_publishes_the_next_version_beside_the_first(tiny_run, trained_bundle, tmp_path, capsys):
    model = tmp_path / "capsnet-drawn"  # whose name it gets, not that of the folder behind the link
    (tmp_path / "Other Disk").mkdir()
    model.symlink_to("Other Disk")
    first = shutil.copytree(trained_bundle, model / "2")  # the one before has been removed
    before = {path.name: path.read_bytes() for path in first.iterdir()}
    measured = times_measured(tiny_run, checkpoint.read_config(tiny_run))
    main(["bundle", str(tiny_run), "--out", str(model), "--remark", "The better of two seeds."])
    assert f"published {model / '3'}" in capsys.readouterr().out
    assert (model / "3" / "MODEL_CARD.md").read_text().endswith("\n## Remark\n\nThe better of two seeds.\n")
    assert "## Remark" not in (model / "2" / "MODEL_CARD.md").read_text()
    assert read_manifest(model / "3").model == "capsnet-drawn"
    counted = read_manifest(model / "3").training
    assert (counted["times_measured"], counted["earlier_versions"]) == (measured, 2)
    assert times_measured(tiny_run, checkpoint.read_config(tiny_run)) == measured + 1
    assert {path.name: path.read_bytes() for path in first.iterdir()} == before
    assert sorted(path.name for path in model.iterdir()) == ["2", "3"]
    main(["evaluate", str(model)])
    assert capsys.readouterr().out.startswith(f"{model / '3'}: test error")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bundle", "nowhere", "--out", "m"], "nowhere is not a run of capsnet-train"),
        (["evaluate", "nowhere"], "nowhere is not a folder"),
    ],
)
def test_a_users_mistake_ends_with_one_line_and_status_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"capsnet-export: {message}")


@pytest.mark.parametrize("content", [b"", b"no graph"])
def test_an_encoder_that_does_not_run_is_told_in_one_line(trained_bundle, tmp_path, content):
    damaged = shutil.copytree(trained_bundle, tmp_path / "capsnet-drawn" / "1")
    replace_file(damaged, "encoder", content)
    with pytest.raises(BundleError, match="the encoder cannot be run: ") as refused:
        evaluate_bundle(damaged, Path("data"))
    assert "\n" not in str(refused.value)


def test_a_name_that_no_model_can_have_is_refused(tiny_run, tmp_path):
    with pytest.raises(ValueError, match="model name 'My Model' must match"):
        bundle.publish(tiny_run, tmp_path / "My Model", Path("data"))
    assert not (tmp_path / "My Model").exists()


def test_no_version_is_published_in_another_version(tiny_run, trained_bundle, tmp_path):
    first = shutil.copytree(trained_bundle, tmp_path / "capsnet-drawn" / "1")
    with pytest.raises(ValueError, match=f"give its model's folder, {first.parent}"):
        bundle.publish(tiny_run, first, Path("data"))
    assert not (first / "1").exists()


def test_the_newest_version_is_the_bundle_itself_or_one_with_a_manifest(trained_bundle, tmp_path):
    first = shutil.copytree(trained_bundle, tmp_path / "capsnet-drawn" / "1")
    (tmp_path / "capsnet-drawn" / "2").mkdir()
    assert newest_version(first.parent) == first
    shutil.copytree(trained_bundle, first / "1")
    assert newest_version(first) == first


def test_no_image_shows_more_objects_than_there_are_classes(trained_bundle):
    facts = json.loads((trained_bundle / "manifest.json").read_text())
    with pytest.raises(ValueError, match="objects_per_image is 11, of 10 different classes"):
        Manifest.model_validate(facts | {"objects_per_image": 11})


@pytest.mark.usefixtures("own_iterations_only")
def test_where_nothing_was_held_out_parity_is_said_to_be_of_images_trained_on(tiny_run, tmp_path):
    run = shutil.copytree(tiny_run, tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    config["data"]["validation_images"] = 0
    for place in (run, *checkpoint.checkpoints(run)):
        (place / "config.json").write_text(json.dumps(config))
    published = publish(run, tmp_path / "capsnet-drawn", Path("data"))
    assert read_manifest(published.path).parity.images == "drawn, trained on"


@pytest.mark.long
@pytest.mark.parametrize(("signal", "status"), [(SIGINT, 130), (SIGTERM, 143)])
def test_a_command_that_is_interrupted_leaves_nothing_and_no_traceback(tiny_run, tmp_path, signal, status):
    program = """if True:
        import os, sys
        from export import bundle
        from export.cli import main
        bundle.explain_file = lambda *_: os.kill(os.getpid(), int(sys.argv[1]))
        main(["bundle", *sys.argv[2:]])"""
    run = shutil.copytree(tiny_run, tmp_path / "run")
    out = tmp_path / "capsnet-drawn"
    command = [sys.executable, "-c", program, str(int(signal)), str(run), "--out", str(out)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (status, "")
    assert not out.exists()
