"""`capsnet-train experiment` and `report` from the command line to the page that they write."""

import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.tiny_networks import tiny
from training.cli import main
from training.config import Block, RunConfig
from training.data.transforms.multimnist import PAPERS_PARTNERS
from training.experiments import EXPERIMENTS, command
from training.experiments.form import FORMS, Form, folder_name
from training.experiments.quick import BATCH_SIZE, LEARNING_RATE
from training.experiments.runner import Row
from training.experiments.sabour2017 import equivariance, table1
from training.fit.loop import Trainer
from training.runs import checkpoint, provenance
from training.runs.lock import lock_folder

SEED = 3
LINES = {
    line: table1.PAPER[line] for line in (("mnist", table1.CNN), ("mnist", "3 iterations, reconstruction"))
}


def with_epochs(config, epochs):
    return replace(config, optimizer=replace(config.optimizer, epochs=epochs))


CAPSNET = tiny("mnist", conv_channels=4, primary_types=1, decoder_hidden=(8,))
CNN = tiny("mnist-cnn", blocks=(Block(channels=4, kernel=5, pooled=True),), hidden=(8,))


def status(*arguments):
    """Run the command as a shell would name it; how it ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["capsnet-train", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main(sys.argv[1:])
    return ended.value.code


def experiment(folder, root, name="table1", form="--quick"):
    return [
        *("experiment", name, *([form] if form else []), "--device", "cpu", "--data", root),
        *("--out", folder / f"{name}-quick", "--networks", folder / "networks"),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, drawn_mnist_root):
    """Holds the quick form of two lines of table 1, carried out with tiny networks."""
    folder = tmp_path_factory.mktemp("experiments")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table1, "PAPER", LINES)
        patch.setattr(table1, "QUICK", table1.Plan({"mnist": (CAPSNET, CNN)}, (SEED,)))
        assert status(*experiment(folder, drawn_mnist_root)) == 0
    return folder


@pytest.fixture
def report(folder):
    return (folder / "table1-quick" / "report.md").read_text()


@pytest.fixture
def rows(folder):
    return [json.loads(line) for line in (folder / "table1-quick" / "rows.jsonl").read_text().splitlines()]


def test_every_line_has_our_error_the_papers_and_the_difference(report, rows):
    assert sorted((row["data"], row["method"]) for row in rows) == sorted(LINES)
    for row in rows:
        error, paper = row["error_percent"], LINES["mnist", row["method"]]
        deviation = table1.PAPERS_DEVIATION.get(("mnist", row["method"]))
        papers = f"{paper:.2f} ± {deviation}" if deviation else f"{paper:.2f}"
        assert f"| mnist, {row['method']} | {error:.2f} | {papers} | {error - paper:+.2f} |" in report


def test_the_report_says_how_its_rows_came_about(report, folder, drawn_mnist_root):
    command = " ".join(map(str, ["capsnet-train", *experiment(folder, drawn_mnist_root)]))
    runs = [*(folder / "networks").iterdir()]
    seconds = [checkpoint.read_progress(checkpoint.newest_checkpoint(run)).train_seconds for run in runs]
    assert f"- command: `{command}`\n" in report
    assert f"- seeds: {SEED}\n" in report
    assert f"- trained for: {sum(seconds) / 60:.1f} minutes, 2 networks\n" in report
    assert f"- hardware: {provenance.hardware(torch.device('cpu'), RunConfig())}\n" in report
    assert f"- source commit: {provenance.source_commit()}\n" in report


def test_the_quick_form_says_what_is_narrower_and_fewer(report):
    assert "**Quick form**" in report
    assert f"in batches of {BATCH_SIZE} images at a learning rate of {LEARNING_RATE}" in report
    assert "mnist with 4 channels, 1 capsule types, 3 iterations of routing and a decoder of 8, 64 " in report
    assert "mnist-cnn with 4 channels and fully connected layers of 8, 64 training images" in report


def test_what_is_finished_is_not_called_a_part(report):
    assert "In part" not in report


def test_the_report_begins_with_its_figure_and_folds_how_its_rows_came_about(report, folder):
    assert report.startswith(f"# {EXPERIMENTS['table1']}\n\n![figure](figure.png)\n\n")
    shown, _, folded = report.partition("<details markdown>\n<summary>")
    assert "| mnist, " in shown
    assert "- command: " not in shown
    assert "- command: " in folded
    assert folded.endswith("\n\n</details>\n")
    assert (folder / "table1-quick" / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_in_the_joint_page_figures_are_where_they_lie(folder):
    assert status("report", folder) == 0
    page = (folder / "report.md").read_text()
    assert "](figure.png)" not in page
    assert "![figure](table1-quick/figure.png)" in page
    assert f"\n## {EXPERIMENTS['table1']}\n" in page


def test_the_other_form_is_refused_and_nothing_is_changed(folder, drawn_mnist_root, capsys):
    before = (folder / "table1-quick" / "rows.jsonl").read_bytes()
    assert status(*experiment(folder, drawn_mnist_root, form=None)) == 2
    assert "holds the quick form of table1, this is the full form of table1" in capsys.readouterr().err
    assert (folder / "table1-quick" / "rows.jsonl").read_bytes() == before


def test_so_is_another_experiment(folder, drawn_mnist_root, capsys):
    arguments = [*experiment(folder, drawn_mnist_root, "perturb"), "--out", folder / "table1-quick"]
    assert status(*arguments) == 2
    assert "holds the quick form of table1, this is the quick form of perturb" in capsys.readouterr().err


def test_two_commands_in_one_folder_are_refused(folder, drawn_mnist_root, capsys):
    with lock_folder(folder / "table1-quick", "held by the test"):
        assert status(*experiment(folder, drawn_mnist_root)) == 2
    assert f"another command runs an experiment in {folder / 'table1-quick'}" in capsys.readouterr().err


def test_several_processes_of_torchrun_are_refused(tmp_path, drawn_mnist_root, monkeypatch, capsys):
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert status(*experiment(tmp_path, drawn_mnist_root)) == 2
    assert "torchrun started 2: start it without torchrun" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def interrupt_after_an_epoch(networks):
    """Ctrl-C, as soon as there is a checkpoint."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not [*networks.glob("*/checkpoints/step-*")]:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_in_the_last_validation_of_a_training_ends_the_experiment_too(
    tmp_path, drawn_mnist_root, monkeypatch
):
    monkeypatch.setattr(table1, "PAPER", {("mnist", table1.CNN): 0.39})
    monkeypatch.setattr(table1, "QUICK", table1.Plan({"mnist": (CAPSNET, with_epochs(CNN, 1))}, (0,)))
    validate = Trainer._validate

    def interrupted(*arguments):
        validate(*arguments)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_validate", interrupted)
        assert status(*experiment(tmp_path, drawn_mnist_root)) == 130
    assert not (tmp_path / "table1-quick" / "rows.jsonl").exists()
    assert status(*experiment(tmp_path, drawn_mnist_root)) == 0


def test_ctrl_c_in_a_training_ends_with_130_and_the_same_command_goes_on(
    tmp_path, drawn_mnist_root, monkeypatch
):
    monkeypatch.setattr(table1, "PAPER", {("mnist", table1.CNN): 0.39})
    monkeypatch.setattr(table1, "QUICK", table1.Plan({"mnist": (CAPSNET, with_epochs(CNN, 60))}, (0,)))
    thread = threading.Thread(target=interrupt_after_an_epoch, args=[tmp_path / "networks"])
    thread.start()
    assert status(*experiment(tmp_path, drawn_mnist_root)) == 130
    thread.join()
    [network] = (tmp_path / "networks").iterdir()
    stopped_at = checkpoint.read_progress(checkpoint.newest_checkpoint(network)).step
    assert stopped_at < 120, "the training had ended before it was stopped"
    assert not (tmp_path / "table1-quick" / "rows.jsonl").exists()

    assert status(*experiment(tmp_path, drawn_mnist_root)) == 0
    log = [json.loads(line) for line in (network / "log.jsonl").read_text().splitlines()]
    epochs = [row["step"] for row in log if row["kind"] == "validation"]
    assert epochs == [*range(2, 121, 2)], "each epoch is trained once"
    [row] = [json.loads(line) for line in (tmp_path / "table1-quick" / "rows.jsonl").read_text().splitlines()]
    assert (row["network"], row["steps"]) == (network.name, 120)


ORIGIN = {"network": "a", "setting": "narrow", "seed": 7, "hours": 0.5, "hardware": "a machine"}
ORIGIN |= {"command": "capsnet-train experiment", "source_commit": "abc", "steps": 5, "parameters": 1000}
CHANGES = {"change": [0.01] * 10, "settling": [0.01] * 9, "trained_iterations": 3}
STOP = {"validation_error_percent": 1.0, "asked_error_percent": 2.0, "epochs": 1.0}
MOTION = {"amounts": [-1, 0, 1], "probability": [0.5, 1, 1], "accuracy_percent": [50, 100, 100]}
MOTION |= {"degrees": [9, 0, 7], "explained": 0.5, "explained_by_components": 0.25, "deviations": [[1, -2]]}
MOTIONS = dict.fromkeys(equivariance.MOTIONS, MOTION)
FIRST = {  # what these experiments may have found when they are stopped, and a part of what they say then
    "table1": (
        {"data": "mnist", "method": table1.CNN, "wrong": [*range(5)]},
        "| mnist, baseline CNN | 5.00 | 0.39 | +4.61 |",
    ),
    "affnist": ({"data": "shifted-mnist", "method": "CapsNet", "accuracy_percent": 95.0} | STOP, "95.00"),
    "routing": ({"figure": "A.1", "epoch": 0} | CHANGES, "| 2 | 0.01 | 0.01 | 0.007 | +0.003 |"),
    "smallnorb": ({"data": "smallnorb", "class_error_percent": [5.0] * 5}, "| 5.00 | 2.7 (1 network) |"),
    "equivariance": ({"method": "CapsNet", "motions": MOTIONS}, "| turn, CapsNet | 1.00, 0.75 |"),
    "samples": ({"method": "CNN", "training_images": 100, "batch": 32}, "| 100 |  | 5.00 |  |"),
}


def stored(folder: Path, name: str, form: Form = "quick", finished: bool = False) -> Path:
    """A folder as an experiment leaves it after its first row."""
    out = folder / folder_name(name, form)
    out.mkdir(parents=True)
    claim = {"experiment": name, "form": form, "finished": finished}
    (out / "experiment.json").write_text(json.dumps(claim))
    row = {"error_percent": 5.0, "images": 100} | ORIGIN | FIRST[name][0]
    (out / "rows.jsonl").write_text(json.dumps(row) + "\n")
    return out


@pytest.mark.parametrize("name", FIRST)
def test_an_experiment_that_was_stopped_has_a_page_that_says_so(name, tmp_path):
    out = stored(tmp_path, name)
    assert status("report", tmp_path) == 0
    page = (tmp_path / "report.md").read_text()
    assert "**In part**" in page
    assert FIRST[name][1] in page
    assert "- trained for: 0.50 hours, 1 network\n" in page
    assert (out / "figure.png").exists()


def test_the_joint_page_is_in_the_order_of_the_experiments(tmp_path):
    for name in sorted(FIRST):
        stored(tmp_path, name)
    stored(tmp_path, "table1", "full")
    stored(tmp_path, "table1", "medium")
    assert status("report", tmp_path) == 0
    lines = (tmp_path / "report.md").read_text().splitlines()
    titles = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
    names = ["table1", "table1", *(name for name in EXPERIMENTS if name in FIRST)]
    assert titles == [EXPERIMENTS[name] for name in names]
    figures = [line for line in lines if line.startswith("![figure]")]
    folders = ("table1", "table1-medium", "table1-quick")
    assert figures[:3] == [f"![figure]({folder}/figure.png)" for folder in folders]


@pytest.mark.parametrize("form", FORMS)
def test_a_smaller_form_is_called_what_it_is(form, tmp_path):
    report = command.write_report(stored(tmp_path, "table1", form, finished=True)).read_text()
    assert ("**Quick form**" in report) == (form == "quick")
    assert ("**Medium form**: the paper's networks, trained for 10 epochs" in report) == (form == "medium")


@pytest.mark.parametrize("name", ["table1", "affnist", "norb-ablation", "attack"])
def test_every_medium_form_says_what_is_smaller_in_it(name):
    assert command.said_of(command.Claim(name, "medium")).startswith("**Medium form**: ")


def test_a_folder_of_an_unknown_form_is_damaged(tmp_path):
    out = stored(tmp_path, "table1", "full")
    (out / "experiment.json").write_text(json.dumps({"experiment": "table1", "form": "small"}))
    with pytest.raises(ValueError, match="there is no form 'small'; expected, in a line"):
        command.read_claim(out)


def test_the_medium_form_has_the_papers_networks_for_ten_epochs():
    for data, networks in table1.MEDIUM.networks.items():
        for config, full in zip(networks, table1.FULL.networks[data], strict=True):
            assert (config.model, config.data, config.loss) == (full.model, full.data, full.loss)
            assert (config.optimizer.epochs, config.optimizer.cooldown_epochs) == (10, 5)
    assert table1.MEDIUM.seeds == (0, 1, 2)


def test_an_experiment_without_a_medium_form_says_which_have_one(tmp_path, drawn_mnist_root, capsys):
    assert status(*experiment(tmp_path, drawn_mnist_root, "perturb", "--medium")) == 2
    said = "perturb has no medium form; there is one of table1, affnist, norb-ablation, attack"
    assert said in capsys.readouterr().err
    assert not (tmp_path / "perturb-quick").exists()
    assert status("experiment", "all", "--medium") == 2
    assert "--medium goes with one experiment, not with all" in capsys.readouterr().err
    assert status("experiment", "table1", "--medium", "--quick") == 2


def test_table_1_compares_errors_image_by_image(report, rows):
    for row in rows:
        assert len(row["wrong"]) == round(row["error_percent"] * row["images"] / 100)
        assert row["wrong"] == sorted(set(row["wrong"]))
    wrong = {row["method"]: row["wrong"] for row in rows}
    [methods] = [methods for methods in table1.COMPARED.values() if wrong.keys() >= set(methods)]
    before, after = (wrong[method] for method in methods)
    assert f" | {len(before)} to {len(after)} | " in report
    assert "| what helps | errors | fewer | p | seeds |" in report


def test_table_1_says_that_its_pairs_are_not_the_papers():
    row = {"data": "multimnist", "method": table1.CNN, "seed": 0, "error_percent": 5.0, "images": 10_000}
    row["wrong"] = [*range(500)]
    text = table1.report([row])
    assert "10,000 pairs, the fixed test set of one partner for each test digit" in text
    assert f"The paper's has {PAPERS_PARTNERS:,} partners for each, 10 million pairs" in text


@pytest.mark.parametrize("damage", [b'{"data": "mnist", "met', b"\xff\xfe\x00garbage", b"[]", b"{}"])
@pytest.mark.parametrize("command", ["experiment", "report"])
def test_a_damaged_line_is_named_and_nothing_is_lost(damage, command, tmp_path, drawn_mnist_root, capsys):
    file = stored(tmp_path, "table1") / "rows.jsonl"
    before = file.read_bytes() + damage + b"\n"
    file.write_bytes(before)
    arguments = experiment(tmp_path, drawn_mnist_root) if command == "experiment" else ["report", tmp_path]
    assert status(*arguments) == 2
    said = capsys.readouterr().err
    assert f"capsnet-train: {file}, line 2 is " in said
    assert len(said.splitlines()) == 1
    assert file.read_bytes() == before


def test_a_row_whose_values_are_of_another_kind_is_named(tmp_path, capsys):
    file = stored(tmp_path, "table1") / "rows.jsonl"
    file.write_text(json.dumps(json.loads(file.read_text().splitlines()[0]) | {"hours": "x"}) + "\n")
    assert status("report", tmp_path) == 2
    assert f"{file} has rows that cannot be used (" in capsys.readouterr().err


def test_what_a_report_needs_beside_its_rows_is_named_if_it_is_gone(tmp_path, capsys, monkeypatch):
    out = stored(tmp_path, "table1")
    monkeypatch.setattr(table1, "plot", lambda rows, file: np.load(out / "columns.npy"))
    assert status("report", tmp_path) == 2
    told = (
        f"{out / 'columns.npy'} is gone; remove {out / 'rows.jsonl'} and run table1 again: networks are kept"
    )
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("fault", [IndexError("list index out of range"), ValueError("not enough values")])
def test_rows_of_which_some_were_removed_are_told_with_what_to_do(tmp_path, capsys, monkeypatch, fault):
    def report(rows: list[Row]) -> str:
        raise fault

    file = stored(tmp_path, "table1") / "rows.jsonl"
    monkeypatch.setattr(table1, "report", report)
    assert status("report", tmp_path) == 2
    assert f"{file} has rows that cannot be used ({fault}); remove" in capsys.readouterr().err


def test_a_part_on_the_copy_of_cifar10_is_a_part_on_cifar10():
    row = {"data": "cifar10-jpeg", "seed": 0, "error_percent": 20.0, "images": 10, "at_most": None}
    claim = command.Claim("matrix-others", "quick", parts=("cifar10",))
    text = command.section(claim, [row | {"parameters": 3} | ORIGIN])
    assert "everything has been measured on cifar10, nothing on other data" in text


def test_table_1_leaves_out_shares_of_no_errors_and_rounds_to_no_negative_zero():
    def rows(*errors: int) -> list[Row]:
        methods = next(iter(table1.COMPARED.values()))
        return [
            {"data": "mnist", "method": method, "seed": 0, "wrong": [*range(count)], "images": 10_000}
            | {"error_percent": count / 100}
            for method, count in zip(methods, errors, strict=True)
        ]

    assert " | 0 to 6 |  | " in table1.report(rows(0, 6))
    assert " | 1,000 to 1,001 | 0 % | " in table1.report(rows(1000, 1001))


def test_a_row_that_lacks_what_reports_are_of_is_named(tmp_path, capsys):
    file = stored(tmp_path, "table1") / "rows.jsonl"
    file.write_text('{"command": "capsnet-train experiment table1", "data": "mnist"}\n')
    assert status("report", tmp_path) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"capsnet-train: {file} has a row without '")
    assert "run table1 again" in said


@pytest.mark.parametrize(
    "damage",
    [
        "",
        '{"experiment": "tab',
        "7",
        '{"experiment": "nothing", "form": "quick"}',
        '{"experiment": ["table1"], "form": "quick"}',
    ],
)
@pytest.mark.parametrize("command", ["experiment", "report"])
def test_a_damaged_claim_is_named(damage, command, tmp_path, drawn_mnist_root, capsys):
    file = stored(tmp_path, "table1") / "experiment.json"
    file.write_text(damage)
    arguments = experiment(tmp_path, drawn_mnist_root) if command == "experiment" else ["report", tmp_path]
    assert status(*arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"capsnet-train: {file}")
    assert len(said.splitlines()) == 1
    assert file.read_text() == damage
