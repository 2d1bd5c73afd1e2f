"""From which probability on an answer is confident: measured at export, carried by the manifest, judged."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from export.cli import main
from export.contract.confidence import are_blank, are_confident, threshold_of, weakest_named
from export.contract.manifest import read_manifest
from export.evaluate import answers
from tests.support.tiny_bundle import confidence, rewrite_manifest, write_bundle
from training.data.run_images import training_batches
from training.runs.from_bundle import run_config


def test_the_threshold_is_the_largest_that_99_percent_of_the_right_answers_reach():
    right = np.random.default_rng(0).random(1234).astype(np.float32)
    threshold = threshold_of(right)
    assert (right >= threshold).mean() >= 0.99
    assert (right >= threshold + 2e-4).mean() < 0.99


@pytest.mark.parametrize("probability", [1e-4, 2.29794e-6, 3e-30])
def test_the_threshold_of_small_probabilities_is_not_0(probability):
    found = threshold_of(np.full(100, probability, np.float32))
    assert found == pytest.approx(probability, rel=1e-3)
    assert 0 < found <= np.float32(probability)


def test_one_right_answer_is_a_threshold():
    assert threshold_of(np.array([0.87654], np.float32)) == 0.8765


def test_of_two_objects_the_less_probable_decides():
    probabilities = np.array([[0.9, 0.2, 0.7], [0.1, 0.95, 0.3]], np.float32)
    assert weakest_named(probabilities, 1).tolist() == pytest.approx([0.9, 0.95])
    assert weakest_named(probabilities, 2).tolist() == pytest.approx([0.7, 0.3])


def test_a_picture_is_blank_if_every_channel_is_nearly_flat():
    pixels = np.zeros((4, 28, 28, 2), np.float32)
    pixels[1] = np.array([1, 0.3])
    pixels[2, 3, 4, 1] = 10 / 255  # as much as JPEG leaves
    pixels[3, 3, 4, 1] = 0.1
    assert are_blank(pixels).tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    ("own", "asked", "expected"),
    [
        (None, None, [None, None]),
        (0.8, None, [True, False]),
        (0.8, 0.95, [False, False]),
        (None, 0.6, [True, True]),
    ],
)
def test_what_is_asked_for_goes_before_the_models_own_threshold(tmp_path, own, asked, expected):
    manifest = read_manifest(write_bundle(tmp_path / "tiny" / "1", min_probability=own))
    probabilities = np.array([[0.9, 0.1, 0.2], [0.1, 0.7, 0.2]], np.float32)
    assert are_confident(probabilities, np.array([False, False]), manifest, asked) == expected


def test_export_measures_the_threshold_on_the_images_held_out_for_validation(trained_bundle):
    manifest = read_manifest(trained_bundle)
    _, held_out = training_batches(run_config(manifest), Path("data"))
    found = manifest.confidence
    assert found.data == f"drawn, {len(held_out)} images held out of training for validation"
    encoder = (trained_bundle / "encoder.onnx").read_bytes()
    best = [
        (float(one.max()), int(one.argmax()) == int(targets.argmax()))
        for probabilities, batch in answers(encoder, "capsnet", held_out)
        for one, targets in zip(probabilities, batch.targets, strict=True)
    ]
    right = [probability for probability, is_right in best if is_right]
    wrong = [probability for probability, is_right in best if not is_right]
    assert (found.right, found.wrong) == (len(right), len(wrong))
    assert found.min_probability == threshold_of(np.array(right, np.float32))
    assert found.right_confident == sum(one >= found.min_probability for one in right) >= 0.99 * len(right)
    assert found.wrong_confident == sum(one >= found.min_probability for one in wrong)


def test_the_command_of_a_card_prints_the_threshold_again_and_publishes_nothing(
    trained_bundle, tmp_path, capsys, monkeypatch
):
    found = read_manifest(trained_bundle).confidence
    program, *arguments = found.command.split()
    assert program == "capsnet-export"
    first = shutil.copytree(trained_bundle, tmp_path / arguments[-1] / "1")
    before = {path.name: path.read_bytes() for path in first.iterdir()}
    monkeypatch.chdir(tmp_path)
    main(arguments)
    printed = capsys.readouterr().out
    assert printed.startswith(f"threshold {found.min_probability:g}: reached by {found.right_confident} of")
    assert [path.name for path in first.parent.iterdir()] == ["1"]
    assert {path.name: path.read_bytes() for path in first.iterdir()} == before


def test_a_bundle_of_which_nothing_was_held_out_gets_no_threshold(trained_bundle, tmp_path, capsys):
    bundle = shutil.copytree(trained_bundle, tmp_path / "capsnet-drawn" / "1")
    training = json.loads((bundle / "manifest.json").read_text())["training"]
    training["config"]["data"]["validation_images"] = 0
    rewrite_manifest(bundle, training=training)
    with pytest.raises(SystemExit):
        main(["threshold", str(bundle)])
    assert "nothing was held out" in capsys.readouterr().err
    assert [path.name for path in bundle.parent.iterdir()] == ["1"]


def test_the_digest_is_the_same_for_the_same_answers_and_another_for_others(tmp_path):
    first = write_bundle(tmp_path / "tiny" / "1", seed=1)
    digest = read_manifest(first).digest
    assert len(digest) == 8
    assert read_manifest(write_bundle(tmp_path / "again" / "tiny" / "7", seed=1)).digest == digest
    assert read_manifest(write_bundle(tmp_path / "tiny" / "2", seed=2)).digest != digest
    changes = [
        {"confidence": confidence(0.5)},
        {"class_names": ("a", "b", "c")},
        {"preprocessing": read_manifest(first).preprocessing.model_copy(update={"polarity": "any"})},
    ]
    manifest = read_manifest(first)
    assert len({digest, *(manifest.model_copy(update=change).digest for change in changes)}) == 4
    assert manifest.model_copy(update={"source_commit": "f" * 40}).digest == digest
