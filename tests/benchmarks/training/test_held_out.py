"""Which of two networks is better on what both held out."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.training.held_out import compare_networks, held_out, load, main
from training.config import load_preset
from training.data.run_images import training_batches
from training.evaluate.evaluation import evaluate
from training.models.build import build
from training.runs import checkpoint

NO_DATA = Path("none")  # digits are drawn


def test_a_run_and_its_bundle_make_the_same_errors_those_of_validation(tiny_run, trained_bundle):
    found, pictures = compare_networks([tiny_run, trained_bundle], NO_DATA, versions=1)
    progress = checkpoint.read_progress(checkpoint.best_checkpoint(tiny_run))
    assert pictures == checkpoint.read_config(tiny_run).data.validation_images
    assert found.before == found.after == round(progress.best_error_percent * pictures / 100)
    assert found.p == 1


def test_a_network_that_learned_nothing_is_found_worse(tiny_run, tmp_path, monkeypatch):
    def untrained(place: Path):
        network, config = load(tiny_run)
        return (build(config.model).eval() if place == tmp_path else network), config

    monkeypatch.setattr("benchmarks.training.held_out.load", untrained)
    found, _ = compare_networks([tmp_path, tiny_run], NO_DATA, versions=1)
    assert found.before > 2 * found.after
    assert found.p < 0.001


def test_each_image_is_shown_with_so_many_partners_and_the_errors_are_those_of_evaluate(
    drawn_mnist_root, monkeypatch
):
    preset = load_preset("multimnist-small")
    config = replace(preset, data=replace(preset.data, validation_images=100))
    network = build(config.model).eval()
    monkeypatch.setattr("benchmarks.training.held_out.load", lambda _: (network, config))
    found, pictures = compare_networks([Path("a"), Path("b")], drawn_mnist_root, versions=3)
    _, held = training_batches(config, drawn_mnist_root)
    assert pictures == 300
    with torch.no_grad():
        assert found.before == evaluate(network, held, config.loss, versions=3).errors


def test_networks_that_held_out_others_are_not_compared(tiny_run):
    config = checkpoint.read_config(tiny_run)
    for other in (
        replace(config, seed=config.seed + 1),
        replace(config, data=replace(config.data, validation_images=7)),
        replace(config, data=replace(config.data, folder_digest="another folder's")),
        replace(config, data=replace(config.data, crop_pixels=24)),
    ):
        with pytest.raises(ValueError, match="cannot be compared: "):
            held_out([config, other], NO_DATA)


def test_all_versions_of_an_image_count_together(monkeypatch, drawn_mnist_root):
    """One digit that is wrong with all its partners is one digit: either way, chance goes as far."""
    preset = load_preset("multimnist-small")
    config = replace(preset, data=replace(preset.data, validation_images=100))
    networks = {Path("a"): [3, 103, 203], Path("b"): []}
    monkeypatch.setattr("benchmarks.training.held_out.load", lambda place: (networks[place], config))
    monkeypatch.setattr("benchmarks.training.held_out.wrong_images", lambda network, *_: network)
    found, _ = compare_networks([*networks], drawn_mnist_root, versions=3)
    assert (found.before, found.after, found.p) == (3, 0, 1)


def test_images_that_training_shifts_are_shown_as_they_are_and_then_shifted(tiny_run, monkeypatch):
    shown = []

    def wrong_images(network, batches, versions=1):
        shown.append(torch.cat([batch.pixels for batch in batches.fixed(64, versions)]))
        return [len(shown) - 1]

    monkeypatch.setattr("benchmarks.training.held_out.wrong_images", wrong_images)
    found, pictures = compare_networks([tiny_run, tiny_run], NO_DATA, versions=3)
    _, held = training_batches(checkpoint.read_config(tiny_run), NO_DATA)
    (as_they_are,) = held.fixed(len(held))
    assert (found.before, found.after, pictures) == (3, 3, 3 * len(held))
    assert torch.equal(shown[0], as_they_are.pixels)
    shifts = [(down, right) for down in range(-2, 3) for right in range(-2, 3)]
    for version in shown[1:3]:
        by_shift = [
            (version == torch.roll(as_they_are.pixels, shift, (2, 3))).flatten(1).all(1) for shift in shifts
        ]
        assert torch.stack(by_shift).any(0).float().mean() > 0.9  # of others, ink was shifted out
        assert torch.stack(by_shift).any(1).sum() > 10
    assert not torch.equal(shown[1], shown[2])
    for first, second in zip(shown[:3], shown[3:], strict=True):
        assert torch.equal(first, second)


def test_several_versions_are_not_compared_if_training_shifted_them_otherwise(tiny_run):
    config = checkpoint.read_config(tiny_run)
    further = replace(config, data=replace(config.data, max_shift_pixels=3))
    held_out([config, further], NO_DATA)
    with pytest.raises(ValueError, match="max_shift_pixels 2, 3"):
        held_out([config, further], NO_DATA, versions=2)


def test_images_that_are_shown_as_they_are_have_one_version(tiny_run, monkeypatch):
    network, config = load(tiny_run)
    still = replace(config, data=replace(config.data, max_shift_pixels=0))
    monkeypatch.setattr("benchmarks.training.held_out.load", lambda _: (network, still))
    with pytest.raises(ValueError, match="drawn has one version of each image, not 2"):
        compare_networks([tiny_run, tiny_run], NO_DATA, versions=2)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["runs/nope", "runs/nope"], "runs/nope"),
        (["RUN", "RUN", "--versions", "0"], "expected a whole number from 1 on, got 0"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_words(tiny_run, monkeypatch, capsys, given, told):
    arguments = [str(tiny_run) if word == "RUN" else word for word in given]
    monkeypatch.setattr("sys.argv", ["held_out", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert told in capsys.readouterr().err
