from dataclasses import replace

import pytest
import torch

from training.config import load_preset
from training.experiments import table1
from training.experiments.lab import Lab
from training.experiments.quick import narrowed

PLAN = table1.Plan(
    {
        name: (narrowed(load_preset(name), 64, 1), narrowed(load_preset(f"{name}-cnn"), 64, 1))
        for name in ("mnist", "multimnist")
    },
    seeds=(0,),
)


def smaller(config):
    return replace(config, data=replace(config.data, validation_images=20))


@pytest.fixture(scope="module")
def lab(tmp_path_factory, drawn_mnist_root):
    folder = tmp_path_factory.mktemp("table1")
    plan = replace(PLAN, networks={k: (smaller(a), smaller(b)) for k, (a, b) in PLAN.networks.items()})
    lab = Lab(folder / "out", folder / "networks", drawn_mnist_root, torch.device("cpu"))
    table1.run(lab, plan)
    return lab


def test_each_line_of_the_papers_table_is_measured_on_the_whole_test_set(lab):
    rows = lab.rows()
    assert {(row["data"], row["method"]) for row in rows} == table1.PAPER.keys()
    assert all(row["images"] == 200 and 0 <= row["error_percent"] <= 100 for row in rows)


def test_networks_without_reconstruction_have_no_decoder(lab):
    parameters = {row["method"]: row["parameters"] for row in lab.rows() if row["data"] == "mnist"}
    assert parameters["3 iterations"] < parameters["3 iterations, reconstruction"]
    assert parameters["1 iteration"] == parameters["3 iterations"]


def test_the_table_has_the_papers_number_beside_ours(lab):
    rows = [
        {"data": "mnist", "method": "3 iterations, reconstruction", "error_percent": error}
        for error in (0.3, 0.4, 0.5)
    ]
    text = table1.report(rows)
    assert "| mnist, 3 iterations, reconstruction | 0.40 ± 0.10 (3) | 0.25 | +0.15 |" in text
    assert "| mnist, 3 iterations |  | 0.35 |  |" in text, "what has not been measured stays blank"


def test_a_figure_is_drawn(lab, tmp_path):
    table1.draw(lab.rows(), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
