"""Calibration of EM routing: activations that vary over images from the first step on."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from export.graph import EncoderGraph
from export.parity import run_onnx
from export.to_onnx import to_onnx
from training.config import DataConfig, LossConfig, MatrixCapsNetConfig, OptimizerConfig, RunConfig
from training.data.batches import make_batches
from training.data.images import Images
from training.evaluate.inspection import activity
from training.fit.loop import Limits, Trainer
from training.models import calibration
from training.models.build import build
from training.models.calibration import calibrate
from training.models.fused_matrix_capsules import FusedMatrixCapsules
from training.runs import checkpoint
from training.runs.checkpoint import Progress

TARGET = 2.0
TINY = MatrixCapsNetConfig(
    "matrix-capsnet",
    conv_channels=8,
    primary_types=3,
    conv_caps_types=(4, 4),
    inverse_temperature=0.02,
    class_temperature_fraction=1,
    activation_logit_sd=TARGET,
)


def pictures(count=24, seed=0):
    """Bars of several widths, angles and brightness, [N, 2, 32, 32]."""
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    angle, width, offset, level = torch.rand(4, count, 2, 1, 1, generator=generator)
    across = (x - 16) * torch.cos(3.14 * angle) + (y - 16) * torch.sin(3.14 * angle) + 10 * (offset - 0.5)
    return (
        0.3
        + 0.6 * level * torch.sigmoid(4 * (2 + 4 * width - across.abs()))
        + 0.05 * torch.rand(count, 2, 32, 32, generator=generator)
    )


def network(calibrated=True, **changes):
    torch.manual_seed(0)
    model = build(replace(TINY, **changes))
    if calibrated:
        calibrate(model, pictures())
    return model


@torch.no_grad()
def logits(model, pixels):
    """Of the convolutional capsules' activations in the last iteration, by layer."""
    children, found = model.primary_capsules(pixels), []
    for layer in model.conv_caps:
        *_, last = layer.iterations(children)
        budget, costs = layer.routing.budget(), layer.routing.costs(last.mass, last.variance)
        found.append(layer.routing.inverse_temperatures()[-1] * (budget - costs))
        children = layer(children)
    return found


@pytest.mark.parametrize("iterations", [2, 3])
def test_activations_of_a_fresh_network_vary(iterations):
    found = activity(network(routing_iterations=iterations), pictures())
    [last] = [of for of in found if (of.layer, of.iteration) == ("conv_caps.1", iterations)]
    assert last.sd[1] > 0.02


@pytest.mark.parametrize("iterations", [1, 2, 3])
@pytest.mark.parametrize("target", [0.5, TARGET])
def test_logits_have_the_configured_deviation_over_the_images_and_begin_around_0(iterations, target):
    model = network(routing_iterations=iterations, activation_logit_sd=target)
    for found in logits(model, pictures()):
        assert found.std(dim=0).median().item() == pytest.approx(target, rel=0.1)
        assert found.mean().abs() < target / 2
        if iterations == 1:  # with more, types compete, and a budget acts back on the next costs
            assert found.mean(dim=(0, 1)).abs().max() < target / 2


def test_they_do_so_where_the_budgets_begin_elsewhere_as_officially():
    for found in logits(network(routing_iterations=1, official_routing=True), pictures()):
        assert found.mean(dim=(0, 1)).abs().max() < TARGET / 2
        assert found.std(dim=0).median().item() == pytest.approx(TARGET, rel=0.1)


def test_lambda_grows_over_the_iterations_as_it_does_uncalibrated():
    plain = network(calibrated=False, activation_logit_sd=None)
    model = network()
    for layer, other in zip(model.conv_caps, plain.conv_caps, strict=True):
        ramp, expected = (torch.tensor(of.routing.inverse_temperatures()) for of in (layer, other))
        torch.testing.assert_close(ramp / ramp[-1], expected / expected[-1])
    assert model.class_caps.routing.inverse_temperatures() == plain.class_caps.routing.inverse_temperatures()


def test_a_step_of_beta_moves_the_logits_of_every_layer_alike():
    model = network(routing_iterations=1)
    before = logits(model, pictures())[0]
    with torch.no_grad():
        model.conv_caps[0].routing.beta_a += 0.003
    after = logits(model, pictures())[0]
    torch.testing.assert_close(after - before, torch.full_like(after, 0.03), rtol=0, atol=1e-4)


def test_the_compiled_kernel_and_the_array_operations_agree():
    model, pixels = network(), pictures(4, seed=1)
    children = model.primary_capsules(pixels)
    for layer in model.conv_caps:
        *_, last = layer.iterations(children)
        parents = layer(children)
        torch.testing.assert_close(parents.activations, last.log_activations.exp(), rtol=0, atol=1e-4)
        torch.testing.assert_close(parents.poses, last.mean, rtol=0, atol=1e-4)
        children = parents


@pytest.mark.parametrize("iterations", [1, 3])
def test_with_a_momentum_activations_come_back_to_life_while_training(iterations):
    model = network(
        routing_iterations=iterations, density_exponent=0.25, matrix_noise=0.3, calibration_momentum=0.2
    )
    assert not model.conv_caps[0].routing.beta_a.requires_grad
    for layer in model.conv_caps:
        layer.routing.beta_u.data -= 1  # as training does, until all parents are active on every image
    pixels = pictures()
    assert logits(model, pixels)[0].mean() > 2
    for _ in range(60):
        model(pixels)
    for found in logits(model, pixels):
        assert found.std(dim=0).median().item() == pytest.approx(TARGET, rel=0.1)
        assert found.mean(dim=(0, 1)).abs().max() < 0.5


def test_activations_come_back_where_all_logits_are_beyond_what_float32_tells_from_1():
    """Not even varied over images: a larger lambda would move them further away, without end."""
    model, pixels = network(calibration_momentum=0.05), pictures()
    for layer in model.conv_caps:
        layer.routing.budget_offset += 60 / layer.routing.final_inverse_temperature
    assert all(found.quantile(0.1) > 16 for found in logits(model, pixels))
    for _ in range(300):
        model(pixels)
    for found in logits(model, pixels):
        assert found.std(dim=0).median().item() == pytest.approx(TARGET, rel=0.2)


@pytest.mark.parametrize("change", [{"vector_poses": True}, {}])
def test_gradients_of_votes_that_are_made_again_are_those_of_what_was_calibrated_then(change, monkeypatch):
    def gradients():
        model = network(calibration_momentum=0.5, **change)
        if not change:
            monkeypatch.setattr(FusedMatrixCapsules, "can_be_fused", lambda *_: False)
        before = model.conv_caps[0].routing.inverse_temperatures()
        capsules = model(pictures(6, seed=1))
        assert model.conv_caps[0].routing.inverse_temperatures() != before
        loss = capsules.poses.square().sum() + capsules.activations.sum()

        return torch.autograd.grad(loss, [each for each in model.parameters() if each.requires_grad])

    expected = gradients()
    monkeypatch.setattr("training.models.matrix_capsules.VOTES_AT_ONCE", 1)
    for found, together in zip(gradients(), expected, strict=True):
        assert (found - together).norm() < 1e-3 * together.norm() + 1e-6


def test_only_steps_of_training_move_what_was_calibrated():
    model = network(calibration_momentum=0.2)
    before = {name: value.clone() for name, value in model.named_buffers()}
    pixels = pictures(8, seed=1) * 0.5
    with torch.no_grad():
        model(pixels)
    model(pixels[:1])  # a single image has no deviation
    model.eval()(pixels)
    for parameter in model.train().parameters():
        parameter.requires_grad_(False)
    model(pixels)
    for name, value in model.named_buffers():
        assert torch.equal(value, before[name]), name


def test_a_momentum_needs_a_target():
    with pytest.raises(ValueError, match="calibration_momentum: there is no activation_logit_sd"):
        replace(TINY, activation_logit_sd=None, calibration_momentum=0.1)


@pytest.mark.parametrize("change", [{"activation_logit_sd": None}, {"mixing_proportions": True}])
def test_without_a_target_or_eq_2_nothing_changes_and_nothing_is_stored(change):
    model, untouched = network(**change), network(calibrated=False, **change)
    assert model.state_dict().keys() == dict(model.named_parameters()).keys()
    for name, value in model.state_dict().items():
        assert torch.equal(value, untouched.state_dict()[name])


def test_images_that_are_all_the_same_are_an_error():
    with pytest.raises(ValueError, match="it needs two images that differ"):
        calibrate(network(calibrated=False), pictures(1).expand(4, -1, -1, -1))


@pytest.mark.parametrize(
    "change", [pytest.param({}, marks=pytest.mark.long), {"routing_iterations": 2, "density_exponent": 0.25}]
)
def test_the_exported_graph_computes_with_what_was_measured(change):
    model, pixels = network(**change).eval(), pictures(3, seed=2)
    with torch.no_grad():
        expected = model(pixels)
    graph = to_onnx(EncoderGraph(model), (pixels.permute(0, 2, 3, 1).contiguous(),))
    [feed] = [given.name for given in graph.graph.input]
    found = run_onnx(graph, **{feed: pixels.permute(0, 2, 3, 1).contiguous().numpy()})
    np.testing.assert_allclose(found[0], expected.activations.numpy(), atol=1e-4)
    np.testing.assert_allclose(found[1], expected.poses.numpy(), atol=1e-4)


def configuration(**changes):
    return RunConfig(
        model=replace(TINY, classes=5),
        loss=LossConfig(classification="spread"),
        data=DataConfig(name="toys", validation_images=10, max_shift_pixels=0, max_brightness=0.1),
        optimizer=OptimizerConfig(batch_size=8, epochs=2, learning_rate=0.003, **changes),
    )


def train(folder, config, limits=None, start=None):
    checkpoint.write_config(folder, config)
    trainer = Trainer(folder, config, torch.device("cpu"), Progress(), start)
    images = Images((255 * pictures()).byte(), torch.arange(24) % 5)
    shown = make_batches(config.data, 5, images)
    trainer.fit(shown, shown, limits or Limits())
    return load_file(checkpoint.newest_checkpoint(folder) / "model.safetensors")


def test_a_resumed_run_is_to_the_bit_the_one_that_was_never_stopped(tmp_path):
    whole = train(tmp_path / "whole", configuration())
    assert whole["conv_caps.0.routing.final_inverse_temperature"] != 0.02 * (1 - 0.95**3)
    train(tmp_path / "parts", configuration(), Limits(max_minutes=1e-9))
    assert checkpoint.read_progress(checkpoint.newest_checkpoint(tmp_path / "parts")).step < 6
    parts = train(tmp_path / "parts", configuration())
    assert all(torch.equal(parts[name], value) for name, value in whole.items())


def test_averaged_weights_have_what_was_measured(tmp_path):
    found = train(tmp_path, configuration(ema_decay=0.9))
    raw = load_file(checkpoint.newest_checkpoint(tmp_path) / "raw.safetensors")
    name = "conv_caps.1.routing.budget_offset"
    assert found[name].any()
    assert torch.equal(found[name], raw[name])


def test_a_run_that_starts_from_another_keeps_what_that_had_measured(tmp_path):
    first = train(tmp_path / "first", configuration())
    name = "conv_caps.0.routing.final_inverse_temperature"
    changed = first | {name: torch.tensor(0.123)}
    assert train(tmp_path / "second", configuration(), start=changed)[name] == torch.tensor(0.123)


def test_costs_that_no_longer_vary_in_a_later_round_are_another_error(monkeypatch):
    costs = iter([torch.tensor([[[1.0]], [[2.0]]]), torch.ones(2, 1, 1)])
    monkeypatch.setattr(calibration, "_costs", lambda *_: next(costs))
    with pytest.raises(ValueError, match="these no longer vary; try another --seed"):
        network()
