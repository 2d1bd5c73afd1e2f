import json
import resource
import shutil
import signal
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from training.config import CapsNetConfig, RunConfig
from training.models.capsnet import CapsNet
from training.runs import checkpoint
from training.runs.checkpoint import Progress

CONFIG = RunConfig(
    model=CapsNetConfig(conv_channels=2, primary_types=1, classes=2, class_dim=2, decoder_hidden=())
)


def trained_once(run):
    """A model and its optimizer after one step."""
    checkpoint.write_config(run, CONFIG)
    model = CapsNet(CONFIG.model)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.rand(2, 1, 28, 28)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_weights_and_json_rebuild_the_model(tmp_path):
    model, optimizer = trained_once(tmp_path)
    saved = checkpoint.save(tmp_path, model, optimizer, Progress(step=1), CONFIG)
    loaded = checkpoint.load_model(tmp_path, saved, torch.device("cpu"))
    for (name, expected), (_, found) in zip(
        model.state_dict().items(), loaded.state_dict().items(), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, msg=name)


def test_a_checkpoint_that_has_lost_its_trained_weights_does_not_go_on_from_their_average(tmp_path):
    averaged = replace(CONFIG, optimizer=replace(CONFIG.optimizer, ema_decay=0.9))
    model, optimizer = trained_once(tmp_path)
    saved = checkpoint.save(tmp_path, model, optimizer, Progress(step=1), averaged, CapsNet(CONFIG.model))
    checkpoint.load_trained_weights(model, saved)
    (saved / "raw.safetensors").unlink()
    with pytest.raises(ValueError, match=r"raw\.safetensors is missing; remove"):
        checkpoint.load_trained_weights(model, saved)


def test_a_checkpoint_without_a_sound_configuration_says_what_helps(tmp_path):
    model, optimizer = trained_once(tmp_path)
    config = checkpoint.save(tmp_path, model, optimizer, Progress(step=1), CONFIG) / checkpoint.CONFIG
    config.write_text("{")
    with pytest.raises(ValueError, match=r"config\.json: .*; remove the folder of this checkpoint"):
        checkpoint.trained_config(config.parent)
    config.unlink()
    with pytest.raises(ValueError, match=r"config\.json is missing; remove the folder of this checkpoint"):
        checkpoint.trained_config(config.parent)


def test_whoever_may_read_the_run_may_read_its_weights(tmp_path):
    model, optimizer = trained_once(tmp_path)
    saved = checkpoint.save(tmp_path, model, optimizer, Progress(step=1), CONFIG, model)
    assert len({file.stat().st_mode for file in saved.iterdir()}) == 1


def test_adams_moments_come_back(tmp_path):
    model, optimizer = trained_once(tmp_path)
    saved = checkpoint.save(tmp_path, model, optimizer, Progress(step=1), CONFIG)
    fresh = torch.optim.Adam(model.parameters())
    checkpoint.load_optimizer(saved, model, fresh)
    for parameter in model.parameters():
        for key, value in optimizer.state[parameter].items():
            torch.testing.assert_close(fresh.state[parameter][key], value, rtol=0, atol=0)


def test_the_newest_two_and_the_best_are_kept(tmp_path):
    model, optimizer = trained_once(tmp_path)
    for step in (10, 20, 30, 40):
        checkpoint.save(
            tmp_path, model, optimizer, Progress(step=step, best_step=10, best_error_percent=1.0), CONFIG
        )
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == [
        "step-00000010",
        "step-00000030",
        "step-00000040",
    ]
    assert checkpoint.best_checkpoint(tmp_path).name == "step-00000010"


def test_the_checkpoint_before_a_damaged_one_still_has_its_best(tmp_path):
    model, optimizer = trained_once(tmp_path)
    for step, best in ((10, 10), (15, 10), (20, 20)):
        checkpoint.save(
            tmp_path,
            model,
            optimizer,
            Progress(step=step, best_step=best, best_error_percent=20 - best),
            CONFIG,
        )
    shutil.rmtree(checkpoint.newest_checkpoint(tmp_path))
    assert checkpoint.best_checkpoint(tmp_path).is_dir()


def test_a_damaged_checkpoint_before_the_newest_does_not_end_the_training(tmp_path):
    model, optimizer = trained_once(tmp_path)
    damaged = checkpoint.save(tmp_path, model, optimizer, Progress(step=10), CONFIG)
    (damaged / "progress.json").write_text("{")
    checkpoint.save(tmp_path, model, optimizer, Progress(step=20), CONFIG)
    assert checkpoint.newest_checkpoint(tmp_path).name == "step-00000020"


def test_a_write_that_is_cut_short_leaves_no_checkpoint(tmp_path, monkeypatch):
    model, optimizer = trained_once(tmp_path)
    checkpoint.save(tmp_path, model, optimizer, Progress(step=1), CONFIG)

    def full_disk(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(checkpoint, "write_atomically", full_disk)
    with pytest.raises(OSError, match="no space"):
        checkpoint.save(tmp_path, model, optimizer, Progress(step=2), CONFIG)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]


def test_weights_that_do_not_fit_on_the_disk_are_an_error_that_names_the_checkpoint(tmp_path):
    model, optimizer = trained_once(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"step-00000001 cannot be written: .*too large"):
            checkpoint.save(tmp_path, model, optimizer, Progress(step=1), CONFIG)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_without_its_best_checkpoint_a_run_has_its_newest_and_no_validation_error(tmp_path):
    model, optimizer = trained_once(tmp_path)
    for step in (10, 20):
        checkpoint.save(
            tmp_path, model, optimizer, Progress(step=step, best_step=10, best_error_percent=1.0), CONFIG
        )
    shutil.rmtree(checkpoint.checkpoint_at(tmp_path, 10))
    newest = checkpoint.best_checkpoint(tmp_path)
    assert (newest.name, checkpoint.read_progress(newest)) == ("step-00000020", Progress(step=20))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda state: state.pop("conv1.bias.step"), r"conv1\.bias\.step is missing there, \[\] here"),
        (lambda state: state.update({"conv1.bias.exp_avg": torch.zeros(3)}), r"is \[3\] there, \[2\] here"),
    ],
)
def test_the_state_of_other_weights_is_refused(tmp_path, change, what):
    model, optimizer = trained_once(tmp_path)
    saved = checkpoint.save(tmp_path, model, optimizer, Progress(step=1), CONFIG)
    state = load_file(saved / "optimizer.safetensors")
    change(state)
    save_file(state, saved / "optimizer.safetensors")
    with pytest.raises(ValueError, match=f"knows of other weights: .*{what}; remove"):
        checkpoint.load_optimizer(saved, model, torch.optim.Adam(model.parameters()))


def test_what_a_killed_write_has_left_goes_at_the_next_one(tmp_path):
    model, optimizer = trained_once(tmp_path)
    left = tmp_path / "checkpoints" / ".step-00000007.partial"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    checkpoint.save(tmp_path, model, optimizer, Progress(step=8), CONFIG)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000008"]


def test_weights_that_are_not_finite_are_never_written(tmp_path):
    model, optimizer = trained_once(tmp_path)
    with torch.no_grad():
        model.conv1.weight[0, 0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"not finite at step 7: conv1\.weight"):
        checkpoint.save(tmp_path, model, optimizer, Progress(step=7), CONFIG)
    assert checkpoint.checkpoints(tmp_path) == []


def test_progress_survives_json(tmp_path):
    model, optimizer = trained_once(tmp_path)
    progress = Progress(step=3, epochs=0.5, best_step=3, best_error_percent=1.25, hardware="a CPU")
    saved = checkpoint.save(tmp_path, model, optimizer, progress, CONFIG)
    assert checkpoint.read_progress(saved) == progress


def test_a_folder_that_is_no_run_is_an_error_that_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"is not a run of capsnet-train: it has no config\.json"):
        checkpoint.read_config(tmp_path)


def test_a_run_without_checkpoints_is_an_error_that_says_so(tmp_path):
    checkpoint.write_config(tmp_path, CONFIG)
    with pytest.raises(FileNotFoundError, match="has no checkpoint yet"):
        checkpoint.best_checkpoint(tmp_path)


def test_the_configuration_comes_back_from_json(tmp_path):
    config = replace(CONFIG, seed=5)
    checkpoint.write_config(tmp_path, config)
    assert checkpoint.read_config(tmp_path) == config
    assert json.loads((tmp_path / "config.json").read_text())["seed"] == 5


@pytest.mark.parametrize("damaged", ["", '{"sed": 3}'])
def test_a_damaged_configuration_is_an_error_that_names_its_copy(tmp_path, damaged):
    checkpoint.write_config(tmp_path, CONFIG)
    (tmp_path / "config.json").write_text(damaged)
    with pytest.raises(ValueError, match=r"config\.json: [^;]+(; did you mean seed\?)?$"):
        checkpoint.read_config(tmp_path)
    model = CapsNet(CONFIG.model)
    optimizer = torch.optim.Adam(model.parameters())
    saved = checkpoint.save(tmp_path, model, optimizer, Progress(step=10), CONFIG)
    with pytest.raises(ValueError, match=rf"config\.json: .*; {saved}/config\.json is a copy$"):
        checkpoint.read_config(tmp_path)


def test_weights_that_are_not_finite_are_a_damage_that_is_named(tmp_path):
    model, optimizer = trained_once(tmp_path)
    saved = checkpoint.save(tmp_path, model, optimizer, Progress(step=1), CONFIG)
    weights = load_file(saved / "model.safetensors")
    name = sorted(weights)[0]
    weights[name].view(-1)[0] = float("nan")
    save_file(weights, saved / "model.safetensors")
    with pytest.raises(ValueError, match=rf"damaged: {name} has numbers that are not finite; remove"):
        checkpoint.load_model(tmp_path, saved, torch.device("cpu"))


def test_a_checkpoint_without_its_optimizer_says_what_helps(tmp_path):
    model, optimizer = trained_once(tmp_path)
    saved = checkpoint.save(tmp_path, model, optimizer, Progress(step=1), CONFIG)
    (saved / "optimizer.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="remove the folder of this checkpoint") as missing:
        checkpoint.load_optimizer(saved, model, optimizer)
    assert missing.value.filename == str(saved / "optimizer.safetensors")


@pytest.mark.parametrize("other", ["{}", '{"step": 2}'])
def test_progress_of_another_step_is_refused(tmp_path, other):
    model, optimizer = trained_once(tmp_path)
    saved = checkpoint.save(tmp_path, model, optimizer, Progress(step=3), CONFIG)
    (saved / "progress.json").write_text(other)
    with pytest.raises(ValueError, match=r"progress\.json is of step [02], not of step-00000003; remove"):
        checkpoint.read_progress(saved)


def test_a_copy_by_hand_and_a_file_among_the_checkpoints_are_left_alone(tmp_path):
    model, optimizer = trained_once(tmp_path)
    copy = checkpoint.save(tmp_path, model, optimizer, Progress(step=1), CONFIG).with_name(
        "step-00000001-keep"
    )
    shutil.copytree(checkpoint.checkpoint_at(tmp_path, 1), copy)
    (tmp_path / "checkpoints" / "step-notes.txt").touch()
    for step in (2, 3, 4):
        newest = checkpoint.save(tmp_path, model, optimizer, Progress(step=step), CONFIG)
    assert checkpoint.newest_checkpoint(tmp_path) == newest
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == ["step-00000003", "step-00000004"]
    assert copy.is_dir()


def test_a_checkpoint_that_does_not_say_how_far_it_is_says_what_helps(tmp_path):
    model, optimizer = trained_once(tmp_path)
    saved = checkpoint.save(tmp_path, model, optimizer, Progress(step=1), CONFIG)
    (saved / "progress.json").unlink()
    with pytest.raises(ValueError, match=r"progress\.json cannot be read: No such file .*; remove"):
        checkpoint.read_progress(saved)


@pytest.mark.parametrize(("name", "content"), [("config.json", '{"my": "own"}'), ("log.jsonl", "my own\n")])
def test_files_of_something_else_are_not_written_over(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=rf"holds a {name} that is not of a run; choose another --out"):
        checkpoint.refuse_a_run(tmp_path)


def test_a_run_that_was_stopped_before_its_first_checkpoint_may_begin_anew(tmp_path):
    checkpoint.write_config(tmp_path, CONFIG)
    (tmp_path / "log.jsonl").touch()
    checkpoint.refuse_a_run(tmp_path)


@pytest.mark.parametrize(
    ("best", "now", "is_best"),
    [
        ((None, None), (50.0, 1.0), True),
        ((10.0, 0.2), (9.0, 0.3), True),
        ((10.0, 0.2), (11.0, 0.1), False),
        ((10.0, 0.2), (10.0, 0.1), True),
        ((10.0, 0.2), (10.0, 0.3), False),
        ((10.0, 0.2), (10.0, 0.2), True),  # as of a decoder alone
        ((10.0, None), (10.0, 0.3), True),  # of a checkpoint of an earlier version
    ],
)
def test_the_best_has_the_lowest_error_and_of_equals_the_lowest_loss(best, now, is_best):
    assert Progress(best_error_percent=best[0], best_loss=best[1]).is_best(*now) is is_best
