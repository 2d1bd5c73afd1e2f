"""What a run may go on with: the configuration that it was trained with, but for its schedule."""

import re
import shutil
from dataclasses import replace

import pytest
import torch

from tests.training.data.readers.test_folder import make_folder
from training.config import CapsNetConfig, RunConfig, load_preset
from training.data.own_pictures import configure
from training.data.run_images import training_batches
from training.models.capsnet import CapsNet
from training.runs import checkpoint
from training.runs.checkpoint import Progress
from training.runs.run_config import new_config, new_or_matching_config, resumed_config

TINY = CapsNetConfig(conv_channels=2, primary_types=1, class_dim=2, decoder_hidden=())
DRAWN = replace(load_preset("drawn"), model=TINY)


def stored(run, config: RunConfig):
    """A run with one checkpoint."""
    checkpoint.write_config(run, config)
    model = CapsNet(TINY)
    checkpoint.save(run, model, torch.optim.Adam(model.parameters()), Progress(step=1), config)
    return run


@pytest.mark.parametrize(
    ("edited", "said"),
    [
        (replace(DRAWN, seed=3), "seed 3 (0 before)"),
        (replace(DRAWN, model=replace(TINY, routing_iterations=1)), "model.routing_iterations 1 (3 before)"),
        (
            replace(DRAWN, data=replace(DRAWN.data, validation_images=9)),
            "data.validation_images 9 (500 before)",
        ),
        (
            replace(DRAWN, optimizer=replace(DRAWN.optimizer, batch_size=9)),
            "optimizer.batch_size 9 (32 before)",
        ),
    ],
)
def test_a_run_is_not_resumed_as_another_one(tmp_path, edited, said):
    run = stored(tmp_path / "run", DRAWN)
    checkpoint.write_config(run, edited)
    told = f"run/config.json has changed since step-00000001: {said}; undo this, or start another run"
    with pytest.raises(ValueError, match=re.escape(told)):
        resumed_config(run)


def test_a_run_cannot_go_on_with_its_decoder_alone(tmp_path):
    """Adam has moments of other weights."""
    config = replace(DRAWN, model=replace(TINY, decoder_hidden=(2,)))
    run = stored(tmp_path / "run", config)
    checkpoint.write_config(run, replace(config, optimizer=replace(config.optimizer, trained_part="decoder")))
    with pytest.raises(ValueError, match=re.escape("optimizer.trained_part decoder (network before)")):
        resumed_config(run)


def test_a_runs_schedule_and_loss_may_be_changed_before_it_is_resumed(tmp_path):
    run = stored(tmp_path / "run", DRAWN)
    changed = replace(
        DRAWN,
        optimizer=replace(DRAWN.optimizer, epochs=9),
        loss=replace(DRAWN.loss, reconstruction_weight=0.0),
    )
    checkpoint.write_config(run, changed)
    assert resumed_config(run) == changed


@pytest.fixture
def pictures(tmp_path):
    return make_folder(tmp_path, counts=(30, 6))


@pytest.fixture
def earlier(pictures, tmp_path):
    """A run on pictures, of each class of which it holds out some."""
    return stored(tmp_path / "earlier", configure(load_preset("images"), pictures))


def held_out(config, tmp_path):
    return training_batches(config, tmp_path)[1].images.pixels


def test_a_run_on_pictures_goes_on_with_what_it_held_out(earlier, pictures):
    recorded = checkpoint.read_config(earlier)
    assert resumed_config(earlier) == recorded
    assert new_or_matching_config(earlier, images=pictures) == recorded
    with pytest.raises(ValueError, match=r"already holds another run: seed 1 \(0 before\); continue"):
        new_or_matching_config(earlier, images=pictures, seed=1)


def test_a_run_that_starts_from_another_holds_out_the_same(earlier, pictures, tmp_path):
    config = new_config(tmp_path / "new", images=pictures, start_from=earlier)
    assert torch.equal(held_out(config, tmp_path), held_out(checkpoint.read_config(earlier), tmp_path))
    with pytest.raises(ValueError, match=r"the seed is 0 there, 1 here$"):
        new_config(tmp_path / "new", images=pictures, start_from=earlier, seed=1)


def test_a_run_on_pictures_holds_out_some_of_each_class(pictures, tmp_path):
    config = new_config(tmp_path / "new", images=pictures)
    assert (config.data.held_out, config.data.validation_images) == ("each-class", 2)


def test_a_run_does_not_start_from_one_on_other_pictures(earlier, pictures, tmp_path):
    (pictures / "more").mkdir()
    for name in ("1.png", "2.png"):
        shutil.copy(next(pictures.glob("*/*.png")), pictures / "more" / name)
    with pytest.raises(ValueError, match="name the folder that it learned from, or train anew"):
        new_config(tmp_path / "newest", images=pictures, start_from=earlier)


@pytest.mark.parametrize(
    ("name", "text"), [("config.json", '{"model_type": "bert"}'), ("log.jsonl", "row 1")]
)
def test_torchrun_writes_over_nothing_that_is_not_of_a_run(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=f"holds a {name} that is not of a run; choose another --out"):
        new_or_matching_config(tmp_path, preset="mnist")


def test_a_run_that_started_from_random_weights_is_not_one_that_started_from_others(tmp_path, monkeypatch):
    monkeypatch.setattr("training.runs.run_config.load_preset", lambda _: DRAWN)
    random = stored(tmp_path / "random", DRAWN)
    started = stored(tmp_path / "started", new_config(tmp_path / "started", start_from=random))
    for out, start_from in ((random, started), (started, None)):
        with pytest.raises(ValueError, match="already holds another run: only one of the two starts from"):
            new_or_matching_config(out, start_from=start_from)
    checkpoint.checkpoint_at(random, 1).rename(checkpoint.checkpoint_at(random, 2))
    assert new_or_matching_config(started, start_from=random) == checkpoint.read_config(started)
