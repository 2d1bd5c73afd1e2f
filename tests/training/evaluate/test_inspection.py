"""What is measured of EM routing, against networks whose activations are known."""

import math
from dataclasses import replace

import pytest
import torch

from training.config import MatrixCapsNetConfig
from training.data.batches import Batch
from training.evaluate.inspection import activity, inspect, summary
from training.models.build import build
from training.models.em import Capsules

TINY = MatrixCapsNetConfig(
    "matrix-capsnet", conv_channels=4, primary_types=2, conv_caps_types=(3, 2), routing_iterations=2
)
LAYERS = ["primary_caps", "conv_caps.0", "conv_caps.1", "class_caps"]


def network(**changes):
    torch.manual_seed(0)
    return build(replace(TINY, **changes))


def batch(images=20):
    generator = torch.Generator().manual_seed(1)
    pixels = torch.rand(images, 2, 32, 32, generator=generator)
    return Batch.of(pixels, torch.eye(5)[torch.arange(images) % 5])


def by_place(found):
    return {(of.layer, of.iteration): of for of in found}


def test_every_layer_and_iteration_is_measured():
    found = by_place(activity(network(), batch().pixels))
    assert [*found] == [(LAYERS[0], 0), *((name, t) for name in LAYERS[1:] for t in (1, 2))]


def test_the_deviations_are_those_of_the_layers_activations():
    model, given = network(), []
    with model.conv_caps[1].register_forward_hook(lambda _, __, capsules: given.append(capsules)):
        model(batch().pixels)
    sd = given[0].activations.std(dim=0)
    found = by_place(activity(model, batch().pixels))["conv_caps.1", 2]
    assert found.sd[1] == pytest.approx(sd.flatten().quantile(0.5).item(), rel=1e-3)
    assert found.sd[0] < found.sd[1] < found.sd[2]


def test_at_first_assignments_have_the_largest_entropy_and_then_less():
    found = by_place(activity(network(), batch().pixels))
    for name in LAYERS[1:]:
        assert found[name, 1].entropy == pytest.approx(1, abs=1e-5)
        assert found[name, 2].entropy < 1 - 1e-4


def test_the_mass_is_the_childrens_activation_shared_out():
    """All 16 positions of 2 types give what they have to 5 classes."""
    model = network()
    with torch.no_grad():
        model.conv_caps[1].routing.beta_a.fill_(100.0)  # all are active
    found = by_place(activity(model, batch().pixels))
    for iteration in (1, 2):
        assert found["class_caps", iteration].mass == pytest.approx(16 * 2 / 5, rel=1e-4)
    assert found["conv_caps.1", 2].saturated == 1
    assert found["conv_caps.1", 2].sd == (0, 0, 0)


def test_freezing_activations_that_are_constant_changes_nothing():
    model = network()
    with torch.no_grad():
        for layer in model.conv_caps:
            layer.routing.beta_a.fill_(100.0)
    primary, *convolutional = inspect(model, batch()).frozen
    assert primary.layers == ("primary_caps",)
    assert convolutional[-1].layers == ("conv_caps.0", "conv_caps.1")
    assert [each.changed_percent for each in convolutional] == [0, 0, 0]


def test_freezing_activations_that_decide_changes_the_answers():
    """The class capsules answer 0 where a child is active and 1 where none is."""
    model, active = network(), torch.arange(16) % 4 == 0

    def vary(_, __, capsules):
        return Capsules(capsules.poses, active[:, None, None].float().expand_as(capsules.activations))

    def count(_, given, capsules):
        there = given[0].activations.mean(dim=(1, 2)) > 0.5
        return Capsules(capsules.poses, torch.eye(5)[1 - there.long()][:, None])

    with model.conv_caps[1].register_forward_hook(vary), model.class_caps.register_forward_hook(count):
        found = {each.layers: each.changed_percent for each in inspect(model, batch(16)).frozen}
    assert found["conv_caps.1",] == found["conv_caps.0", "conv_caps.1"] == 25
    assert found["conv_caps.0",] == found["primary_caps",] == 0


def test_error_and_mode_are_those_of_the_network():
    model, shown = network().train(), batch()
    found = inspect(model, shown)
    assert model.training
    with torch.no_grad():
        wrong = model(shown.pixels).activations.argmax(dim=1) != shown.targets.argmax(dim=1)
    assert found.error_percent == pytest.approx(100 * wrong.float().mean().item())
    assert found.images == 20


def test_a_log_gets_the_last_iteration_of_each_layer():
    found = activity(network(), batch().pixels)
    row = summary(found)
    assert row["conv_caps.1_sd"] == by_place(found)["conv_caps.1", 2].sd[1]
    assert "primary_caps_entropy" not in row
    assert all(math.isfinite(value) for value in row.values())


def test_mixing_proportions_are_measured_too():
    assert len(activity(network(mixing_proportions=True), batch().pixels)) == 7
