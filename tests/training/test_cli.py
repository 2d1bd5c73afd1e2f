"""capsnet-train as a user meets it."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.paths import ROOT
from tests.support.smallnorb_files import store
from tests.support.train_command import status
from training import cli
from training.cli import _duration
from training.config import CapsNetConfig, RunConfig, load_preset
from training.data.own_pictures import configure
from training.data.run_images import training_batches
from training.models.build import build
from training.models.capsnet import CapsNet
from training.runs import checkpoint
from training.runs.checkpoint import Progress
from training.runs.provenance import command_line
from training.runs.run_config import new_config

TINY = CapsNetConfig(conv_channels=2, primary_types=1, class_dim=2, decoder_hidden=())


def stored_run(folder: Path, seed: int = 0) -> Path:
    """A run with one checkpoint, as if it had just begun."""
    config = replace(load_preset("drawn"), seed=seed, model=TINY)
    checkpoint.write_config(folder, config)
    model = CapsNet(TINY)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.rand(2, 1, 28, 28)).sum().backward()
    optimizer.step()
    checkpoint.save(folder, model, optimizer, Progress(step=1), config)
    return folder


def test_evaluate_measures_a_run_on_all_test_images(tiny_run):
    result = json.loads((tiny_run / "result.json").read_text())
    assert result["images"] == 1000
    assert result["error_percent"] == result["errors"] / 10
    assert result["error_percent"] < 5


def test_evaluate_measures_the_same_again(tiny_run, capsys):
    before = json.loads((tiny_run / "result.json").read_text())
    assert status("evaluate", tiny_run, "--device", "cpu") == 0
    assert f"{before['errors']} of 1000" in capsys.readouterr().out
    assert json.loads((tiny_run / "result.json").read_text()) == before


def test_evaluate_says_that_a_run_cannot_be_written_before_it_measures_anything(
    tiny_run, tmp_path, monkeypatch, capsys
):
    run = shutil.copytree(tiny_run, tmp_path / "run")
    before = (run / "measured.jsonl").read_text()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != run / "measured.jsonl")
    monkeypatch.setattr("training.runs.result.evaluate", lambda *_: pytest.fail("it was measured"))
    assert status("evaluate", run, "--device", "cpu") == 2
    assert f"{run}/measured.jsonl: Permission denied" in capsys.readouterr().err
    assert (run / "measured.jsonl").read_text() == before


def test_a_run_that_holds_nothing_out_may_start_from_one_that_did(tiny_run, tmp_path, monkeypatch):
    every = load_preset("drawn")
    every = replace(every, data=replace(every.data, validation_images=0), seed=1)
    monkeypatch.setattr("training.runs.run_config.load_preset", lambda _: every)
    config = new_config(tmp_path / "run", preset="drawn", start_from=tiny_run)
    train, validation = training_batches(config, tmp_path)
    assert (len(train), validation) == (4500, None)


def test_a_run_that_holds_nothing_out_does_not_start_from_one_on_other_data(tiny_run, tmp_path):
    with pytest.raises(ValueError, match=r"saw other images: the data set is drawn there, mnist here$"):
        new_config(tmp_path / "run", preset="mnist-long", start_from=tiny_run)


def test_a_checkpoint_says_where_it_comes_from(tiny_run):
    progress = checkpoint.read_progress(checkpoint.best_checkpoint(tiny_run))
    assert "torch" in progress.hardware
    assert progress.source_commit
    assert progress.train_seconds > 0


def test_max_minutes_ends_with_a_checkpoint_and_status_0(tmp_path, capsys):
    assert status("fit", "--preset", "drawn", "--out", tmp_path / "run", "--max-minutes", "0.0001") == 0
    assert "continue with: capsnet-train fit --out" in capsys.readouterr().out
    assert checkpoint.newest_checkpoint(tmp_path / "run") is not None
    assert not (tmp_path / "run" / "result.json").exists()


def test_the_command_that_goes_on_has_what_it_needs(tmp_path, capsys):
    run, data = tmp_path / "my run", tmp_path / "my data"
    data.mkdir()
    where = ("--data", data, "--device", "cpu")
    assert status("fit", "--preset", "drawn", "--out", run, *where, "--max-minutes", "0.0001") == 0
    said = f"continue with: capsnet-train fit --out '{run}' --resume --data '{data}' --device cpu\n"
    assert capsys.readouterr().out.endswith(said)


@pytest.mark.parametrize(("arguments", "said"), [((), True), (("--preset", "drawn"), False)])
def test_without_a_preset_a_cpu_is_told_how_long_it_will_take_and_what_is_shorter(
    arguments, said, tmp_path, monkeypatch, capsys
):
    usual = replace(load_preset("drawn"), preset="mnist")  # in place of MNIST
    monkeypatch.setattr("training.runs.run_config.load_preset", lambda _: usual)
    run = tmp_path / "run"
    assert status("fit", *arguments, "--out", run, "--max-minutes", "1e-9", "--device", "cpu") == 0
    told = re.search(
        r"no --preset given: mnist, whose 6 epochs take about \d+ minutes on this CPU; "
        r"--preset mnist-short trains the same network in 4, about \d+ minutes",
        capsys.readouterr().err,
    )
    assert bool(told) == said


@pytest.mark.parametrize(
    ("hours", "said"), [(0.001, "1 minutes"), (0.5, "30 minutes"), (3.2, "3 hours"), (100, "4 days")]
)
def test_an_estimate_is_told_roughly(hours, said):
    assert _duration(hours) == said


def test_starting_from_another_run_begins_with_its_weights_and_says_so(tiny_run, tmp_path):
    run = tmp_path / "second"
    arguments = ["fit", "--preset", "drawn", "--start-from", tiny_run, "--out", run, "--max-minutes", "1e-9"]
    assert status(*arguments) == 0
    origin = checkpoint.read_config(run).started_from
    assert origin["step"] == checkpoint.read_progress(checkpoint.newest_checkpoint(tiny_run)).step
    assert origin["config"] == json.loads((tiny_run / "config.json").read_text())
    [first] = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert first["classification_loss"] < 0.2, "random weights begin near 0.8"


def test_a_run_goes_on_by_its_own_command_once_what_it_started_from_is_gone(tmp_path, monkeypatch, capsys):
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "1")
    narrow = replace(load_preset("drawn"), model=TINY)
    monkeypatch.setattr("training.runs.run_config.load_preset", lambda _: narrow)
    first, run = stored_run(tmp_path / "first"), tmp_path / "second"
    arguments = ["fit", "--preset", "drawn", "--start-from", first, "--out", run, "--max-minutes", "1e-9"]
    assert status(*arguments) == 0
    origin = checkpoint.read_config(run).started_from
    shutil.rmtree(first)
    capsys.readouterr()
    assert status(*arguments) == 0
    assert f"{run} goes on; --start-from was read once, at its start" in capsys.readouterr().out
    assert checkpoint.read_progress(checkpoint.newest_checkpoint(run)).step == 2
    assert checkpoint.read_config(run).started_from == origin


def test_a_decoder_alone_begins_with_the_best_weights_of_a_run(tiny_run, tmp_path, monkeypatch, capsys):
    preset = load_preset("drawn")
    alone = replace(preset, optimizer=replace(preset.optimizer, trained_part="decoder"))
    monkeypatch.setattr("training.runs.run_config.load_preset", lambda _: alone)
    monkeypatch.setattr(checkpoint, "best_checkpoint", lambda run: checkpoint.checkpoints(run)[0])
    run = tmp_path / "second"
    assert status("fit", "--preset", "drawn", "--out", run) == 2
    assert "drawn trains a decoder on the poses of a network; name its run" in capsys.readouterr().err
    assert not run.exists()
    arguments = ["fit", "--preset", "drawn", "--start-from", tiny_run, "--out", run, "--max-minutes", "1e-9"]
    assert status(*arguments) == 0
    origin = checkpoint.read_config(run).started_from
    assert origin["checkpoint"] == checkpoint.checkpoints(tiny_run)[0].name


def test_images_held_out_now_must_have_been_held_out_then(tmp_path, capsys):
    first = stored_run(tmp_path / "first", seed=1)
    arguments = ["fit", "--preset", "drawn", "--start-from", first, "--out", tmp_path / "second"]
    assert status(*arguments) == 2
    assert "would be held out here" in capsys.readouterr().err


def test_weights_of_another_architecture_are_refused_before_anything_is_made(tmp_path, capsys):
    first = stored_run(tmp_path / "first")
    arguments = ["fit", "--preset", "drawn", "--start-from", first, "--out", tmp_path / "second"]
    assert status(*arguments) == 2
    assert f"{first} holds the weights of another architecture" in capsys.readouterr().err
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["fit", "--preset", "nmist", "--out", "x"],
            "no preset 'nmist'; did you mean mnist? There are affnist, affnist-cnn, affnist-small, ",
        ),
        (["fit", "--out", "nowhere", "--resume"], "nowhere is not a run of capsnet-train"),
        (["evaluate", "nowhere"], "nowhere is not a run of capsnet-train"),
        (["fit", "--preset", "mnist", "--out", "x", "--data", "nowhere"], "capsnet-train download mnist"),
        (
            ["fit", "--preset", "drawn", "--out", "x", "--start-from", "nowhere"],
            "nowhere is neither a run of capsnet-train nor a bundle",
        ),
        (
            ["make", "toys", "--data", "/proc/nowhere"],
            "capsnet-train: /proc/nowhere: No such file or directory",
        ),
    ],
)
def test_a_mistake_ends_with_one_line_and_status_2(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert status(*arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("capsnet-train: ")
    assert message in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == [], "a failed start leaves nothing behind"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 11.9 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes\nC++"),
        torch.OutOfMemoryError("CUDA out of memory"),
    ],
)
def test_what_does_not_fit_into_memory_is_told_in_one_line(monkeypatch, capsys, error):
    def refused(_: object) -> None:
        raise error

    monkeypatch.setattr(cli, "_fit", refused)
    assert status("fit", "--out", "x") == 2
    [said] = capsys.readouterr().err.splitlines()
    assert said.startswith("capsnet-train: this does not fit into memory: ")
    assert "optimizer.batch_size" in said


def test_an_error_of_ours_keeps_its_traceback(monkeypatch):
    def wrong(_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(cli, "_fit", wrong)
    with pytest.raises(RuntimeError, match="a bug"):
        status("fit", "--out", "x")


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path, capsys):
    run = stored_run(tmp_path / "run")
    assert status("fit", "--preset", "drawn", "--out", run) == 2
    assert "already holds a run; continue it with --resume" in capsys.readouterr().err


def test_a_resumed_run_keeps_what_it_was_started_with(tmp_path, capsys):
    run = stored_run(tmp_path / "run")
    assert status("fit", "--out", run, "--resume", "--seed", "3") == 2
    assert "--seed: a resumed run keeps the values that it was started with" in capsys.readouterr().err


def test_training_keeps_freed_memory(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr("training.fit.memory.keep_freed_memory", lambda: kept.append(True))
    no_data = tmp_path / "empty"
    assert status("fit", "--data", no_data, "--out", tmp_path / "run", "--device", "cpu") == 2
    assert kept


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there_is_an_error_never_another_one(tmp_path, capsys):
    assert status("fit", "--preset", "drawn", "--out", tmp_path / "run", "--device", "cuda") == 2
    assert "no CUDA device" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon"])
def test_minutes_must_be_a_positive_number(value, capsys):
    assert status("fit", "--out", "x", "--max-minutes", value) == 2
    assert "--max-minutes" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["-0.1", "1", "nan", "much"])
def test_the_decay_of_an_average_is_below_1(value, capsys):
    assert status("fit", "--out", "x", "--ema-decay", value) == 2
    assert "--ema-decay" in capsys.readouterr().err


WITHOUT = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Without())
from {module}.cli import main
main({arguments})
"""


@pytest.mark.parametrize(
    ("module", "arguments", "said"),
    [
        ("training", ["--help"], "capsnet-train fit --preset mnist"),
        ("training", ["fit", "--help"], "--max-minutes"),
        ("training", ["download", "--help"], "--mirror"),
        ("export", ["--help"], "capsnet-export bundle"),
    ],
)
def test_help_works_without_torch(module, arguments, said):
    script = WITHOUT.format(package="torch", module=module, arguments=arguments)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert said in done.stdout


@pytest.mark.parametrize(
    ("command", "arguments", "package"),
    [
        ("train", ["fit", "--out", "new"], "torch"),
        ("train", ["inspect", "models/capsnet-mnist"], "onnx"),
        ("export", ["triton", "models/capsnet-mnist", "--out", "new"], "onnx"),
        ("export", ["optimize", "models/capsnet-mnist", "--out", "new"], "onnxruntime"),
    ],
)
def test_a_command_that_lacks_a_package_says_how_to_get_it(command, arguments, package):
    module = {"train": "training", "export": "export"}[command]
    script = WITHOUT.format(package=package, module=module, arguments=arguments)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == f"capsnet-{command} needs {package}: pip install -e '.[train,cpu]'\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "--out", ""], "must be a folder, got an empty text"),
        (["fit", "--out", "new", "--images", ""], "must be a path, got an empty text"),
        (["fit", "--out", "new", "--start-from", ""], "must be a path, got an empty text"),
        (["evaluate", ""], "must be a path, got an empty text"),
        (["make", "toys", "--data", ""], "must be a folder, got an empty text"),
        (["make", "toys", "--data", __file__], f"must be a folder, got {__file__}: {__file__} is a file"),
        (["fit", "--out", "pyproject.toml/run"], "pyproject.toml is a file"),
        (["fit", "--out", 300 * "a"], "must be a folder, got aaa"),
        (["fit", "--out", "ba\udcff"], r"must be a path in UTF-8, got 'ba\udcff'"),
        (["fit", "--out", "new", "--start-from", "ba\udcff"], "must be a path in UTF-8"),
        (["fit", "--out", "new", "--seed", str(2**32)], "whole number from 0 to 4294967295, got 4294967296"),
        (["fit", "--out", "new", "--preset", ""], "no preset ''; there are"),
        (["fit", "--out", "new", "--max-minutes", "abc"], "must be a number above 0, got abc"),
        (["fit", "--out", "new", "--ema-decay", "1"], "must be a number from 0 to below 1, got 1"),
        (["experiment", "table1", "--networks", "pyproject.toml"], "pyproject.toml is a file"),
    ],
)
def test_what_can_be_no_folder_preset_or_number_is_refused_at_once(arguments, message, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert status(*arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "program",
    [f"/anywhere/{name}" for name in ("bin/capsnet-train", "training/cli.py", "training/__main__.py")],
)
def test_a_run_notes_its_command_by_name_however_it_was_started(program, monkeypatch):
    monkeypatch.setattr(sys, "argv", [program, "fit", "--out", "my run"])
    assert command_line() == "capsnet-train fit --out 'my run'"


@pytest.mark.parametrize("command", ["training.cli", "export.cli", "service.cli", "service.score.cli"])
def test_every_command_prints_its_version(command, capsys):
    with pytest.raises(SystemExit) as ended:
        import_module(command).main(["--version"])
    assert ended.value.code == 0
    name = {"training.cli": "train", "export.cli": "export", "service.cli": "serve"}.get(command, "score")
    assert capsys.readouterr().out == f"capsnet-{name} {version('capsnet')}\n"


def test_inspect_prints_a_table_or_json_of_validation_images(tmp_path, capsys):
    store(tmp_path / "data", "toys")
    preset = load_preset("matrix-toys")
    narrow = {"conv_channels": 4, "primary_types": 2, "conv_caps_types": (2, 3), "decoder_hidden": ()}
    config = replace(
        preset,
        model=replace(preset.model, **narrow),
        data=replace(preset.data, validation_images=40),
    )
    run, model = tmp_path / "run", build(config.model)
    checkpoint.write_config(run, config)
    checkpoint.save(run, model, torch.optim.Adam(model.parameters()), Progress(step=1), config)
    arguments = ("inspect", run, "--data", tmp_path / "data", "--device", "cpu", "--count", "12")
    assert status(*arguments) == 0
    table = capsys.readouterr().out
    assert table.startswith("12 validation images, error ")
    assert "conv_caps.0 and conv_caps.1" in table
    assert status(*arguments, "--images", tmp_path) == 2
    assert f"--images is for your own pictures; {run} is of toys" in capsys.readouterr().err
    assert status(*arguments, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["images"] == 12
    assert {of["layer"] for of in found["activity"]} >= {"conv_caps.0", "class_caps"}


def stored_weights(run: Path, config: RunConfig) -> Path:
    """A run with one checkpoint, of random weights."""
    model = build(config.model)
    checkpoint.write_config(run, config)
    checkpoint.save(run, model, torch.optim.Adam(model.parameters()), Progress(step=1), config)
    return run


def test_inspect_needs_two_images_that_were_held_out(tmp_path, capsys):
    for label, count in (("a", 3), ("b", 2)):  # one of the three is tested, and one held out
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for index in range(count):
            pixels = np.random.default_rng(index).integers(0, 256, (20, 20), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / label / f"{index}.png")
    config = configure(load_preset("matrix-mnist"), tmp_path / "pictures")
    run = stored_weights(tmp_path / "run", config)
    assert status("inspect", run, "--device", "cpu") == 2
    assert f"{run}: its run held out one image, at least two are needed" in capsys.readouterr().err


def test_inspect_says_what_it_is_for(tmp_path, capsys):
    assert status("inspect", stored_run(tmp_path / "run"), "--device", "cpu") == 2
    assert "is a capsnet: inspect measures the activations of matrix capsules" in capsys.readouterr().err
    matrices, data = load_preset("matrix-mnist").model, load_preset("multimnist").data
    pairs = RunConfig(model=replace(matrices, image_size=36, standardize_per_image=False), data=data)
    assert status("inspect", stored_weights(tmp_path / "pairs", pairs), "--device", "cpu") == 2
    assert "learned from multimnist: inspect measures images of one object" in capsys.readouterr().err
    assert status("inspect", tmp_path / "nothing") == 2
    assert "is neither a run of capsnet-train nor a bundle" in capsys.readouterr().err
