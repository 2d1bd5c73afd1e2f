"""What EM routing does before the first step of training, as the benchmark finds it."""

import sys

import pytest
import torch
from torch import nn

from benchmarks.training import em_first_step
from benchmarks.training.em_first_step import at_first, networks
from training.data.batches import Batch


@pytest.fixture(scope="module")
def batches() -> list[Batch]:
    generator = torch.Generator().manual_seed(0)
    shapes = torch.rand(2, 4, 2, 4, 4, generator=generator)
    pictures = [nn.functional.interpolate(some, size=32, mode="bilinear") for some in shapes]
    return [Batch.of(some, torch.eye(5)[:4]) for some in pictures]


@pytest.fixture(scope="module")
def found(batches):
    return {name: at_first(config, batches, seed=0) for name, config in networks().items()}


def test_each_e_step_drives_types_apart_and_the_presets_exponent_and_noise_dampen_it(found):
    paper, gentle = found["calibrated, three"], found["three, exponent 1/4, noise 0.3"]
    for strong, weak in zip(paper.layers, gentle.layers, strict=True):
        assert len(strong.driven_apart) == len(weak.driven_apart) == 2
        assert min(strong.driven_apart) > 2
        assert max(weak.driven_apart) < min(strong.driven_apart)
    assert paper.gradient > 5 * gentle.gradient
    assert [len(layer.driven_apart) for layer in found["calibrated, two"].layers] == [1, 1]


def test_with_the_official_constants_costs_hardly_move_activations(found):
    for official, calibrated in zip(
        found["Procedure 1, three"].layers, found["calibrated, three"].layers, strict=True
    ):
        assert official.activation_sd < 0.01
        assert official.scaled_cost < 0.2
        assert calibrated.scaled_cost > 10 * official.scaled_cost


def test_a_row_is_printed_for_each_network(found, batches, monkeypatch, capsys):
    made = {config.model: found[name] for name, config in networks().items()}
    monkeypatch.setattr(sys, "argv", ["em_first_step"])
    monkeypatch.setattr(em_first_step, "random_batches", lambda _: batches)
    monkeypatch.setattr(em_first_step, "at_first", lambda config, *_: made[config.model])
    em_first_step.main()
    heading, *rows = capsys.readouterr().out.splitlines()
    assert " ".join(heading.split()) == "lambda x cost sd of activation driven apart gradient"
    assert [row[:32].strip() for row in rows] == list(networks())
    for row, one in zip(rows, found.values(), strict=True):
        costs, deviations = (
            ", ".join(f"{getattr(layer, name):.2g}" for layer in one.layers)
            for name in ("scaled_cost", "activation_sd")
        )
        factors = "; ".join(
            ", ".join(f"{factor:.1f}" for factor in layer.driven_apart) for layer in one.layers
        )
        assert " ".join(row[32:].split()) == f"{costs} {deviations} {factors} {one.gradient:.3f}"
