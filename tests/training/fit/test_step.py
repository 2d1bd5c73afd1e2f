"""A training step learns what a straightforward implementation learns; on CUDA it waits for nothing."""

import json
import logging
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from benchmarks.training.straightforward import StraightforwardCapsNet, StraightforwardStep
from benchmarks.training.straightforward_em import LoopedCapsules
from tests.support.gpu_sync import never_waiting
from tests.support.paths import ROOT
from tests.support.tiny_networks import TINY_MATRIX
from training.config import (
    Block,
    CapsNetConfig,
    CnnConfig,
    LossConfig,
    OptimizerConfig,
    RunConfig,
)
from training.data.batches import Batch, make_batches
from training.data.images import Images
from training.fit import step as step_module
from training.fit.loop import Limits, Trainer
from training.fit.step import TrainStep, lay_channels_last
from training.models.baselines import BaselineCnn
from training.models.build import build
from training.models.cpu import convolution
from training.models.em import Capsules, EMRouting, ReceptiveFields
from training.models.matrix_capsules import MatrixCapsules
from training.runs import checkpoint
from training.runs.checkpoint import Progress

# Large enough for every layer to take the algorithm that it is trained by on a CPU.
CONFIG = CapsNetConfig(conv_channels=96, primary_types=8, classes=3, class_dim=4, decoder_hidden=(8,))
FOLLOWING = replace(TINY_MATRIX, activation_logit_sd=2.0, calibration_momentum=0.1)
BATCH = 64
RATE = 0.001


def batch(images=BATCH, device="cpu"):
    generator = torch.Generator().manual_seed(1)
    pixels = torch.rand(images, 1, 28, 28, generator=generator)
    return Batch.of(pixels, torch.eye(3)[torch.arange(images) % 3]).to(torch.device(device))


def network(config=CONFIG, device="cpu"):
    torch.manual_seed(0)
    return build(config).to(device)


def total(losses):
    margin, reconstruction = losses.tolist()
    return margin + LossConfig().reconstruction_weight * reconstruction


@pytest.mark.parametrize("config", [CONFIG, replace(TINY_MATRIX, image_channels=2)])
def test_convolutions_alone_are_laid_out_channels_last(config):
    model = build(config)
    lay_channels_last(model)
    layouts = {
        name: value.is_contiguous(memory_format=torch.channels_last)
        for name, value in model.named_parameters()
        if value.dim() == 4 and min(value.shape) > 1
    }
    assert any(layouts.values())
    for name, is_last in layouts.items():
        assert is_last == ("conv" in name or "primary" in name), name


@pytest.mark.parametrize("bfloat16", [False, True])
def test_the_loss_and_all_gradients_are_those_of_a_straightforward_implementation_in_float64(
    bfloat16, monkeypatch
):
    monkeypatch.setattr(convolution, "has_bfloat16_instructions", lambda: bfloat16)
    assert convolution.worthwhile_tile((BATCH, 96, 20, 20), 64, kernel=9, stride=2) is not None
    ours = network()
    plain = StraightforwardCapsNet(ours).double()
    shown = batch()
    step = TrainStep(ours, LossConfig(), 0.0)  # so that the gradients stay those of these weights
    loss = total(step(shown, 0.0))
    expected = StraightforwardStep(plain, 0.0)(shown.pixels.double(), shown.targets.double()).item()
    assert loss == pytest.approx(expected, rel=1e-4 if bfloat16 else 1e-6)
    pairs = [
        (ours.conv1.weight, plain.conv1.weight),
        (ours.conv1.bias, plain.conv1.bias),
        (ours.primary_caps.conv.weight, plain.primary_caps.conv.weight),
        (ours.primary_caps.conv.bias, plain.primary_caps.conv.bias),
        *zip(ours.decoder.parameters(), plain.decoder.parameters(), strict=True),
    ]
    gradients = [(own.grad, other.grad) for own, other in pairs]
    by_class = plain.digit_caps.weight.grad[0].transpose(1, 2).flatten(2)  # [I, E, J * D]
    for own, other in [*gradients, (ours.class_caps.weight.grad, by_class)]:
        assert (own - other).norm() < (1e-2 if bfloat16 else 1e-4) * other.norm()


CNN = CnnConfig(
    architecture="cnn",
    classes=3,
    hidden=(16,),
    dropout=0.0,
    blocks=(Block(channels=16, kernel=5, pooled=True), Block(channels=24, kernel=5)),
)


@pytest.mark.parametrize("bfloat16", [False, True])
def test_the_loss_and_all_gradients_of_a_cnn_are_those_in_float64(bfloat16, monkeypatch):
    monkeypatch.setattr(step_module, "has_bfloat16_instructions", lambda: bfloat16)
    monkeypatch.setattr(convolution, "has_bfloat16_instructions", lambda: bfloat16)
    ours = network(CNN)
    plain = BaselineCnn(CNN).double()
    plain.load_state_dict(ours.state_dict())
    shown = batch()
    loss, _ = TrainStep(ours, LossConfig(), 0.0)(shown, 0.0)
    expected = torch.nn.functional.cross_entropy(plain(shown.pixels.double()), shown.targets.double())
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-3 if bfloat16 else 1e-6)
    assert ours.convolutions[1].weight.is_contiguous(memory_format=torch.channels_last) == bfloat16
    for own, other in zip(ours.parameters(), plain.parameters(), strict=True):
        assert own.grad is not None
        assert other.grad is not None
        assert own.grad.dtype == torch.float32
        apart = (own.grad - other.grad).norm() / other.grad.norm()
        # Rounded, another pixel may be the largest of those that are pooled, and gets the gradient.
        assert 1e-3 < apart < 0.15 if bfloat16 else apart < 1e-4


def test_some_steps_lower_the_loss_as_those_of_a_straightforward_implementation(monkeypatch):
    monkeypatch.setattr(convolution, "has_bfloat16_instructions", lambda: False)
    config = replace(CONFIG, conv_channels=8, primary_types=1)
    ours, shown = network(config), batch(8)
    plain = StraightforwardStep(StraightforwardCapsNet(ours), RATE)
    step = TrainStep(ours, LossConfig(), RATE)
    losses = [total(step(shown, RATE)) for _ in range(5)]
    assert losses == pytest.approx([plain(shown.pixels, shown.targets).item() for _ in range(5)], rel=1e-4)
    assert losses[-1] < losses[0]


def test_the_rate_is_that_of_the_step():
    ours, shown = network(replace(CONFIG, conv_channels=2, primary_types=1)), batch(4)
    step = TrainStep(ours, LossConfig(), RATE)
    before = ours.conv1.weight.detach().clone()
    step(shown, 0.0)
    assert torch.equal(ours.conv1.weight, before)
    step(shown, RATE)
    assert not torch.equal(ours.conv1.weight, before)


@pytest.mark.skipif(torch.cuda.is_available(), reason="here a graph can be captured")
def test_where_no_graph_can_be_captured_the_step_says_so_and_goes_on(caplog):
    """That of a build without CUDA, which refuses to."""
    ours, shown = network(replace(CONFIG, conv_channels=2, primary_types=1)), batch(4)
    step = TrainStep(ours, LossConfig(), RATE)
    step._capture_next = True
    with caplog.at_level(logging.WARNING):
        losses = [total(step(shown, RATE)) for _ in range(5)]
    assert losses[-1] < losses[0]
    assert [record.message.split(",")[0] for record in caplog.records] == ["no CUDA graph could be captured"]


def test_capturing_a_graph_leaves_lambda_and_budgets_as_they_were(monkeypatch):
    """Before it captures, torch runs the network three times on the first batch."""

    def warmed_up(losses, sample):
        for _ in range(3):
            sum(losses(*sample)).backward()
        return losses

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", warmed_up)
    models, shown = [build(FOLLOWING) for _ in range(2)], batch(4)
    models[1].load_state_dict(models[0].state_dict())
    for model in models:
        step = TrainStep(model, LossConfig(classification="spread"), RATE)
        step._capture_next = model is models[0]
        step(shown, RATE)
    captured, launched = (model.state_dict() for model in models)
    assert all(torch.equal(captured[name], launched[name]) for name in launched)


def test_the_loop_over_positions_that_the_benchmark_compares_with_computes_the_same():
    """With float64, in which rounding hides nothing."""
    torch.manual_seed(0)
    ours = MatrixCapsules(ReceptiveFields.sliding(6, 3, 2), 2, EMRouting(3, 3)).double()
    children = Capsules(torch.randn(2, 36, 2, 16).double(), torch.rand(2, 36, 2).double())
    parameters = [*(part.requires_grad_() for part in children), *ours.parameters()]

    def results(layer):
        poses, activations = layer(children)
        found = torch.autograd.grad(poses.square().sum() + activations.sum(), parameters)
        return [poses, activations, *found]

    for found, expected in zip(results(LoopedCapsules(ours)), results(ours), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.long
@pytest.mark.parametrize(
    ("network", "other", "parameters", "apart"),
    [
        ("capsnet", "straightforward", 8_215_568, 1e-4),
        ("matrix-capsnet", "a loop over positions", 68_754, 1e-4),
        ("cnn", "straightforward", 13_484_826, 3e-4),  # in bfloat16 where a CPU has it
    ],
)
def test_the_benchmark_prints_times_memory_and_the_difference_of_the_loss(
    tmp_path, network, other, parameters, apart
):
    command = [sys.executable, "-m", "benchmarks.training.step", "--network", network, "--batch", "2"]
    ran = subprocess.run(
        [*command, "--seconds", "0.01", "--json", str(tmp_path / "found.json")],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert "times ours" in ran.stdout
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["batch"] == 2
    for kind in (other, "ours"):
        assert found["seconds"][kind] > 0
        assert found["peak_bytes"][kind] > parameters * 4 * 4  # weights, gradients and two moments
    assert found["loss_difference"][other] < apart


needs_cuda = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]


class TestOnCuda:
    pytestmark = needs_cuda

    def test_a_captured_step_computes_what_a_launched_one_does(self):
        shown = batch(device="cuda")
        steps = [
            TrainStep(network(device="cuda"), LossConfig(), RATE, graphs=graphs) for graphs in (True, False)
        ]
        for _ in range(5):
            captured, launched = (total(step(shown, RATE)) for step in steps)
            assert captured == pytest.approx(launched, rel=1e-3)

    def test_a_graph_is_captured(self, caplog):
        step = TrainStep(network(device="cuda"), LossConfig(), RATE)
        step(batch(device="cuda"), RATE)
        assert not caplog.records

    def test_each_step_learns_from_its_own_batch_at_its_own_rate(self):
        shown = batch(device="cuda")
        step = TrainStep(network(device="cuda"), LossConfig(), RATE)
        first = total(step(shown, 0.0))
        assert total(step(Batch.of(1 - shown.pixels, shown.targets), 0.0)) != pytest.approx(first, rel=1e-3)
        assert total(step(shown, RATE)) == pytest.approx(first, rel=1e-3)
        assert total(step(shown, RATE)) < first

    def test_no_step_waits_for_the_device(self, tmp_path):
        config = RunConfig(model=CONFIG, optimizer=OptimizerConfig(batch_size=4, epochs=1, ema_decay=0.9))
        checkpoint.write_config(tmp_path, config)
        trainer = Trainer(tmp_path, config, torch.device("cuda"), Progress())
        images = Images(torch.zeros(28, 1, 28, 28, dtype=torch.uint8), torch.arange(28) % 3)
        shown = make_batches(config.data, 3, images).to(torch.device("cuda"))
        trainer._step(shown, per_epoch=7)  # captures, and fetches the epoch's order
        trainer._count_step(7)
        with never_waiting():
            trainer._step(shown, per_epoch=7)

    def test_a_resumed_run_goes_on_from_the_moments_it_left(self, tmp_path):
        """Channels-last weights meet moments that were stored in the plain order."""
        config = RunConfig(model=CONFIG, optimizer=OptimizerConfig(batch_size=4, epochs=1))
        images = Images(torch.arange(28).repeat(784).view(28, 1, 28, 28).byte(), torch.arange(28) % 3)
        checkpoint.write_config(tmp_path, config)
        shown = make_batches(config.data, 3, images)
        Trainer(tmp_path, config, torch.device("cuda"), Progress()).fit(shown, shown, Limits(max_minutes=0))
        trainer = Trainer(tmp_path, config, torch.device("cuda"), Progress())
        assert trainer.progress.step == 1
        assert trainer.fit(shown, shown, Limits())

    def test_a_captured_step_leaves_out_others_each_time(self):
        """Dropout in a replay follows the generator, and capturing leaves the generator where it was."""
        torch.manual_seed(0)
        model = build(CnnConfig("cnn", classes=3, blocks=(Block(4, 3),), hidden=(64,), dropout=0.5)).to(
            "cuda"
        )
        step, shown = TrainStep(model, LossConfig(), RATE), batch(device="cuda")
        found = []
        for seed in (1, 2, 1):
            torch.manual_seed(seed)
            found.append(total(step(shown, 0.0)))
        assert found[0] == pytest.approx(found[2], rel=1e-6)
        assert found[0] != pytest.approx(found[1], rel=1e-6)
