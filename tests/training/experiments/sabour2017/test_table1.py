from dataclasses import replace

import pytest
import torch

from tests.support.figures import areas
from tests.support.tiny_networks import tiny
from training.config import Block
from training.experiments import figure
from training.experiments.runner import Runner
from training.experiments.sabour2017 import table1
from training.runs import checkpoint


def capsnet(preset):
    return tiny(preset, conv_channels=4, primary_types=1, decoder_hidden=(8,))


def cnn(preset):
    return tiny(preset, blocks=(Block(channels=4, kernel=5, pooled=True),), hidden=(8,))


PLAN = table1.Plan(
    {name: (capsnet(name), cnn(f"{name}-cnn")) for name in ("mnist", "multimnist")},
    seeds=(0,),
)


@pytest.fixture(scope="module")
def runner(tmp_path_factory, drawn_mnist_root):
    folder = tmp_path_factory.mktemp("table1")
    runner = Runner(folder / "out", folder / "networks", drawn_mnist_root, torch.device("cpu"))
    table1.run(runner, PLAN)
    return runner


def test_each_line_of_the_papers_table_is_measured_on_the_whole_test_set(runner):
    rows = runner.rows()
    assert {(row["data"], row["method"]) for row in rows} == table1.PAPER.keys()
    assert all(row["images"] == 200 and 0 <= row["error_percent"] <= 100 for row in rows)


def test_networks_without_reconstruction_have_no_decoder(runner):
    parameters = {row["method"]: row["parameters"] for row in runner.rows() if row["data"] == "mnist"}
    assert parameters["3 iterations"] < parameters["3 iterations, reconstruction"]
    assert parameters["1 iteration"] == parameters["3 iterations"]


def test_networks_are_trained_with_the_iterations_that_their_lines_name(runner):
    networks = [row for row in runner.rows() if "iteration" in row["method"]]
    assert len(networks) == 4 + 2
    for row in networks:
        model = checkpoint.read_config(runner.networks / row["network"]).model
        assert row["method"].startswith(f"{model.routing_iterations} iteration")


def test_networks_that_were_trained_before_are_not_said_to_be_resumed(runner, tmp_path):
    again = replace(runner, out=tmp_path / "again")
    table1.run(again, replace(PLAN, networks={"mnist": PLAN.networks["mnist"]}))
    assert [row["resumed"] for row in again.rows()] == [[]] * 5
    assert {row["network"] for row in again.rows()} < {row["network"] for row in runner.rows()}


def test_on_another_machine_what_has_a_row_is_not_trained_again(runner, tmp_path):
    elsewhere = replace(runner, networks=tmp_path / "networks")
    before = runner.rows()
    table1.run(elsewhere, PLAN)
    assert elsewhere.rows() == before
    assert not elsewhere.networks.exists()


def test_of_a_seed_the_cnn_is_measured_last(runner):
    methods = [row["method"] for row in runner.rows() if row["data"] == "mnist"]
    assert methods[-1] == table1.CNN


def test_the_table_has_the_papers_number_beside_ours(runner):
    rows = [
        {"data": "mnist", "method": "3 iterations, reconstruction", "error_percent": error, "images": 10}
        | {"seed": seed, "wrong": []}
        for seed, error in enumerate((0.3, 0.4, 0.5))
    ]
    text = table1.report(rows)
    assert "| mnist, 3 iterations, reconstruction | 0.40 ± 0.10 (3) | 0.25 ± 0.005 | +0.15 |" in text
    assert "| mnist, 3 iterations |  | 0.35 ± 0.036 |  |" in text, "what has not been measured stays blank"
    assert "| mnist, baseline CNN |  | 0.39 |  |" in text


def test_networks_that_were_trained_for_other_numbers_of_steps_are_not_compared():
    methods = {table1.CNN: 10, "3 iterations": 20, "3 iterations, reconstruction": 20}
    rows = [
        {"data": "mnist", "method": method, "seed": 0, "error_percent": 3.0, "images": 9, "wrong": [1]}
        | {"steps": steps}
        for method, steps in methods.items()
    ]
    compared = table1.report(rows)
    assert "| mnist, reconstruction, with routing |" in compared
    assert "| mnist, capsules, not a CNN |" not in compared
    rows[0]["steps"] = 20
    assert "| mnist, capsules, not a CNN |" in table1.report(rows)


def test_the_figure_has_a_dot_for_every_seed_and_a_line_for_every_number_of_the_paper(tmp_path):
    rows = [
        {"data": data, "method": method, "error_percent": 2.0 + place + seed}
        for place, (data, method) in enumerate(table1.PAPER)
        for seed in (0, 1)
    ]
    table1.plot(rows, tmp_path / "figure.png")
    legend = 1
    assert areas(tmp_path / "figure.png", figure.OURS) == len(rows) + legend
    assert areas(tmp_path / "figure.png", figure.PAPER) == len(table1.PAPER) + legend
