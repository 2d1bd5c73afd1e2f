"""`capsnet-train experiment all`: every experiment whose data is there."""

import gzip
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.train_command import status
from training import cli
from training.config import load_preset
from training.data.readers.mnist import FILE_PREFIX
from training.experiments import EXPERIMENTS, markdown
from training.experiments.command import read_claim, run_experiment
from training.experiments.hinton2018 import norb
from training.experiments.quick import narrowed
from training.experiments.runner import ROWS, MissingDataError, Runner, measure_each
from training.experiments.sabour2017 import routing


def all_quick(folder: Path) -> list[object]:
    folders = ["--data", folder / "data", "--out", folder / "out", "--networks", folder / "networks"]
    return ["experiment", "all", "--quick", "--device", "cpu", *folders]


def test_experiments_without_their_data_are_named_with_what_downloads_it(tmp_path, capsys):
    assert status(*all_quick(tmp_path)) == 2
    printed = capsys.readouterr()
    assert f"skipped, because their data is missing: {', '.join(EXPERIMENTS)}" in printed.out
    assert "no experiment has its data" in printed.err
    for name, data in (("table1", "mnist"), ("smallnorb", "smallnorb"), ("svhn", "svhn")):
        assert f"{name}: " in printed.err
        assert f"capsnet-train download {data} --data {tmp_path / 'data'}" in printed.err


def test_an_experiment_that_fails_for_another_reason_ends_all_with_its_error(tmp_path, capsys):
    (tmp_path / "data" / "mnist").mkdir(parents=True)
    for prefix in FILE_PREFIX.values():
        for kind in ("images-idx3", "labels-idx1"):
            file = tmp_path / "data" / "mnist" / f"{prefix}-{kind}-ubyte.gz"
            file.write_bytes(gzip.compress(b"no IDX file"))
    assert status(*all_quick(tmp_path)) == 2
    assert re.search("table1 failed:\n.* is not an IDX file", capsys.readouterr().err)


def on(folder: Path, name: str, data: str) -> list[object]:
    folders = ["--data", folder / "data", "--out", folder / "out", "--networks", folder / "networks"]
    return ["experiment", name, "--quick", "--device", "cpu", "--on", data, *folders]


def test_on_carries_out_the_part_on_one_data_set_alone(tmp_path, capsys):
    """Neither is there: the message is about the one that was asked for."""
    assert status(*on(tmp_path, "norb", "toys")) == 2
    printed = capsys.readouterr().err
    assert "capsnet-train make toys" in printed
    assert "smallnorb" not in printed


def test_a_part_that_an_experiment_has_not_is_refused_with_those_it_has(tmp_path, capsys):
    assert status(*on(tmp_path, "norb", "mnist")) == 2
    assert "norb has no part on mnist; it has one on each of smallnorb, toys" in capsys.readouterr().err
    assert status(*on(tmp_path, "svhn", "mnist")) == 2
    assert "svhn has no part on mnist; it has no parts by data set" in capsys.readouterr().err
    assert status(*on(tmp_path, "all", "mnist")) == 2
    assert "--on mnist goes with one experiment, not with all" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_was_finished_stays_so_when_a_part_of_it_is_asked_for_again(tmp_path, monkeypatch):
    """But not if the part was measured anew."""

    def measure(runner, plan):
        for data in plan.networks:
            runner.measure({"data": data}, {"version": version}, dict)

    version = 1
    run_norb_as(monkeypatch, measure)
    runner = Runner(tmp_path / "out", tmp_path, tmp_path, torch.device("cpu"))
    for part, is_finished in (("toys", False), (None, True), ("toys", True)):
        run_experiment("norb", runner, "quick", part)
        assert read_claim(runner.out).finished == is_finished
    version = 2
    run_experiment("norb", runner, "quick", "toys")
    assert not read_claim(runner.out).finished


def run_norb_as(monkeypatch: pytest.MonkeyPatch, measure: Callable[[Runner, object], None]) -> None:
    """`norb` without networks: its rows come from `measure`, and its report has nothing to say of them."""
    monkeypatch.setattr(norb, "run", measure)
    monkeypatch.setattr(norb, "report", lambda rows: "")
    monkeypatch.setattr(norb, "plot", lambda rows, path: path.touch())
    monkeypatch.setattr(markdown, "origins", lambda rows: "")


def test_a_set_that_is_not_there_is_a_part_that_is_left(tmp_path, monkeypatch):
    """Another stood in for it; the report is as that of `--on` the other."""

    def measure(runner, plan):
        for data in (one for one in plan.networks if one in available):
            runner.measure({"data": data}, {}, dict)

    run_norb_as(monkeypatch, measure)
    runner = runner_in(tmp_path / "out")
    available = {"toys"}
    report = run_experiment("norb", runner, "quick")
    assert "**In part**: everything has been measured on toys, nothing on other data" in report.read_text()
    claim = read_claim(runner.out)
    assert (claim.finished, claim.parts) == (False, ("toys",))
    available = {"toys", "smallnorb"}
    assert "In part" not in run_experiment("norb", runner, "quick").read_text()
    assert read_claim(runner.out).finished


def test_a_set_of_which_some_seeds_are_there_but_no_data_is_a_part_that_is_left(tmp_path, monkeypatch):
    """They were measured elsewhere; without its data the rest of it is not."""

    def measure(runner, plan):
        def on(data):
            if data not in available:
                raise MissingDataError("gone")
            for seed in plan.seeds:
                runner.measure({"data": data, "seed": seed}, {}, dict)

        measure_each(runner, plan.networks, on)

    run_norb_as(monkeypatch, measure)
    runner = runner_in(tmp_path / "out")
    available = {"smallnorb"}
    run_experiment("norb", runner, "quick", "smallnorb", 0)
    available = {"toys"}
    report = run_experiment("norb", runner, "quick")
    assert "**In part**" in report.read_text()
    assert not read_claim(runner.out).finished
    available = {"toys", "smallnorb"}
    assert "In part" not in run_experiment("norb", runner, "quick").read_text()


@pytest.fixture
def measured_by_name(monkeypatch) -> None:
    """`norb` without networks: a row for each seed and data set."""

    def measure(runner, plan):
        for data in plan.networks:
            for seed in plan.seeds:
                runner.measure({"data": data, "seed": seed}, {}, dict)

    run_norb_as(monkeypatch, measure)
    monkeypatch.setattr(norb, "QUICK", replace(norb.QUICK, seeds=(0, 1)))


def runner_in(out: Path) -> Runner:
    return Runner(out, out.parent, out.parent, torch.device("cpu"))


def test_seeds_can_be_measured_apart_and_put_together(measured_by_name, tmp_path):
    apart = [runner_in(tmp_path / f"seed-{seed}") for seed in (0, 1)]
    for seed, runner in enumerate(apart):
        report = run_experiment("norb", runner, "quick", None, seed)
        assert {row["seed"] for row in runner.rows()} == {seed}
        assert "**In part**" in report.read_text()
    whole = runner_in(tmp_path / "whole")
    whole.out.mkdir()
    lines = [(runner.out / ROWS).read_text() for runner in apart]
    (whole.out / ROWS).write_text("".join(lines))
    assert "In part" not in run_experiment("norb", whole, "quick").read_text()
    assert (whole.out / ROWS).read_text() == "".join(lines)


def test_a_seed_of_what_is_finished_leaves_it_finished(measured_by_name, tmp_path):
    runner = runner_in(tmp_path / "out")
    for on, seed, parts, finished in (
        (None, 0, (), False),
        ("toys", None, ("toys",), False),
        ("toys", 0, ("toys",), False),
        (None, None, (), True),
        (None, 1, (), True),
    ):
        run_experiment("norb", runner, "quick", on, seed)
        claim = read_claim(runner.out)
        assert (claim.parts, claim.finished) == (parts, finished)


def test_a_seed_that_an_experiment_has_not_is_refused_with_those_it_has(tmp_path, capsys):
    folders = ["--data", tmp_path / "data", "--out", tmp_path / "out", "--networks", tmp_path / "networks"]
    for name, said in (
        ("table1", "table1 has no seed 7; it has seeds 0, 1"),
        ("perturb", "perturb has no seed 7; it has no seeds to choose from"),
        ("all", "--seed 7 goes with one experiment, not with all"),
    ):
        assert status("experiment", name, "--quick", "--device", "cpu", "--seed", 7, *folders) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_part_that_is_finished_is_said_to_be_and_all_parts_are_the_whole(tmp_path, monkeypatch):
    def measure(runner, plan):
        for data in plan.networks:
            runner.measure({"data": data}, {}, dict)

    run_norb_as(monkeypatch, measure)
    runner = Runner(tmp_path / "out", tmp_path, tmp_path, torch.device("cpu"))
    report = run_experiment("norb", runner, "quick", "toys")
    assert "everything has been measured on toys, nothing on other data" in report.read_text()
    report = run_experiment("norb", runner, "quick", "smallnorb")
    assert read_claim(runner.out).finished
    assert "In part" not in report.read_text()


def test_experiments_without_data_are_not_in_the_joint_page(tmp_path, capsys):
    status(*all_quick(tmp_path))
    assert status("report", tmp_path / "out") == 2
    assert "holds no experiment" in capsys.readouterr().err


def test_what_a_part_of_the_data_is_there_for_is_reported_in_part(
    tmp_path, drawn_mnist_root, monkeypatch, capsys
):
    """Routing's figure A.1 is of MNIST, A.2 of CIFAR-10."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mnist").symlink_to(drawn_mnist_root / "mnist")
    network = narrowed(load_preset("mnist"), 64, 1)
    network = replace(network, data=replace(network.data, validation_images=20))
    plan = replace(routing.QUICK, network=routing._steady(network, 1), stages=(0, 1), images=20)
    monkeypatch.setattr(routing, "QUICK", plan)
    monkeypatch.setattr(cli, "EXPERIMENTS", {name: EXPERIMENTS[name] for name in ("routing", "svhn")})

    assert status(*all_quick(tmp_path)) == 0
    printed = capsys.readouterr()
    report = tmp_path / "out" / "routing-quick" / "report.md"
    assert "measured in part, because some of their data is missing: routing\n" in printed.out
    assert "skipped, because their data is missing: svhn\n" in printed.out
    assert f"routing: measured in part, see {report}; the rest: none of" in printed.err
    assert "capsnet-train download cifar10" in printed.err
    assert "**In part**" in report.read_text()
    assert "Figure A.1" in report.read_text()
    assert (report.parent / "figure.png").exists()
