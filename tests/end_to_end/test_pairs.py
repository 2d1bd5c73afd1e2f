"""MultiMNIST from the run to the service's answer, on a narrow network and drawn digits."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from export.bundle import publish, sample_pixels
from export.contract.manifest import read_manifest
from export.evaluate import evaluate_bundle
from export.parity import ROUTING_ITERATIONS
from tests.support.live_service import live_service, settings_for
from tests.support.small_pictures import to_png
from training.cli import main
from training.config import load_preset
from training.data.run_images import evaluation_batches, training_batches
from training.experiments.quick import narrowed
from training.fit.loop import Limits, Trainer
from training.runs import checkpoint
from training.runs.checkpoint import Progress


@pytest.fixture(scope="module")
def run(tmp_path_factory, drawn_mnist_root):
    config = narrowed(load_preset("multimnist"), 480, epochs=1)
    config = replace(config, data=replace(config.data, validation_images=100))
    run = tmp_path_factory.mktemp("runs") / "pairs"
    checkpoint.write_config(run, config)
    trainer = Trainer(run, config, torch.device("cpu"), Progress())
    assert trainer.fit(*training_batches(config, drawn_mnist_root), Limits())
    return run


@pytest.fixture(scope="module")
def bundle(run, tmp_path_factory, drawn_mnist_root):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ROUTING_ITERATIONS, "capsnet", ())  # other numbers are for test_parity.py
        return publish(run, tmp_path_factory.mktemp("models") / "capsnet-multimnist", drawn_mnist_root).path


@pytest.fixture(scope="module")
def client(bundle):
    settings = settings_for(bundle.parents[1], default_model="capsnet-multimnist", optimize=False)
    with live_service(settings) as client:
        yield client


def ask(client, route, root):
    """What the service makes of a test image of two digits, posted as PNG."""
    batch = next(evaluation_batches(load_preset("multimnist"), root).fixed(1))
    picture = to_png((batch.pixels[0, 0] * 255).byte().numpy())
    answer = client.post(route, content=picture, headers={"Content-Type": "image/png"})
    assert answer.status_code == 200, answer.text
    [result] = answer.json()["results"]
    return result


def test_the_manifest_counts_images_and_their_objects(bundle, drawn_mnist_root):
    manifest = read_manifest(bundle)
    assert manifest.objects_per_image == 2
    found = evaluate_bundle(bundle, drawn_mnist_root)
    assert (found.images, found.objects) == (200, 400)
    measured = {metric.name: metric.value for metric in manifest.metrics}
    assert measured == {"test_error": found.error_percent, "object_error": found.object_error_percent}
    assert "An image of two objects is right if both are named." in (bundle / "MODEL_CARD.md").read_text()


def test_the_samples_show_two_digits(bundle):
    with np.load(bundle / "samples.npz", allow_pickle=False) as samples:
        pixels = samples["pixels"]
    one = sample_pixels(36, 1, objects=1)
    assert pixels.shape == (8, 36, 36, 1)
    assert (pixels.sum(axis=(1, 2, 3)) > 1.2 * one.sum(axis=(1, 2, 3))).all()


def test_classify_names_both_digits(client, drawn_mnist_root):
    result = ask(client, "/classify", drawn_mnist_root)
    assert result["labels"] == [one["label"] for one in result["classes"][:2]]
    assert result["label"] == result["labels"][0]


def test_segment_takes_two_digits_apart_unless_asked_for_more(client, drawn_mnist_root):
    for query, count in (("", 2), ("?k=3", 3)):
        assert len(ask(client, f"/segment{query}", drawn_mnist_root)["objects"]) == count


def test_the_full_test_set_gives_each_digit_the_papers_number_of_partners(run, drawn_mnist_root, monkeypatch):
    monkeypatch.setattr("training.runs.result.PAPERS_PARTNERS", 3)
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", str(run), "--full", "--data", str(drawn_mnist_root)])
    assert ended.value.code == 0
    assert json.loads((run / "result-full.json").read_text())["images"] == 3 * 200


def test_only_pairs_have_a_full_test_set(tiny_run, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", str(tiny_run), "--full"])
    assert ended.value.code == 2
    assert "--full is for runs on multimnist" in capsys.readouterr().err
