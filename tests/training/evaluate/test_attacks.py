"""Adversarial examples: how far pixels go, and in which direction."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from training.config import Block, CapsNetConfig, CnnConfig, LossConfig, MatrixCapsNetConfig
from training.evaluate import attacks
from training.loss.losses import margin_loss, spread_loss
from training.models.build import build
from training.models.standardize import standardize_per_image

SIZE, CLASSES = 20, 3
SHAPE = {"image_size": SIZE, "image_channels": 2, "classes": CLASSES, "standardize_per_image": True}
CAPSNET = CapsNetConfig(**SHAPE, conv_channels=4, primary_types=2, decoder_hidden=(8,))
MATRIX = MatrixCapsNetConfig(
    **SHAPE, architecture="matrix-capsnet", conv_channels=8, primary_types=2, conv_caps_types=(3, 2)
)
CNN = CnnConfig(
    **SHAPE, architecture="cnn", blocks=(Block(channels=4, kernel=5, pooled=True),), hidden=(8,), dropout=0.5
)
LOSSES = {
    "matrix": LossConfig(classification="spread"),
    "capsnet": LossConfig(),
    "cnn": LossConfig(),
}
NETWORKS = {"matrix": MATRIX, "capsnet": CAPSNET, "cnn": CNN}
EPSILON = 0.03


@pytest.fixture(params=NETWORKS)
def network(request):
    """A network, its loss, images and what they show."""
    model = build(NETWORKS[request.param]).eval()
    return model, LOSSES[request.param], torch.rand(5, 2, SIZE, SIZE), torch.arange(5) % CLASSES


def scores(model, pixels):
    with torch.no_grad():
        return model(pixels).softmax(dim=1) if model.config == CNN else model.classify(pixels).probabilities


def fgsm(model, pixels, labels, epsilon, loss, targeted=False):
    return attacks.moved(pixels, attacks.direction(model, pixels, labels, loss, targeted), epsilon)


def test_fgsm_moves_every_pixel_by_epsilon_and_none_out_of_the_range(network):
    model, loss, pixels, labels = network
    pixels[:, :, :4], pixels[:, :, 4:8] = 0.01, 0.99
    found = fgsm(model, pixels, labels, EPSILON, loss)
    change = found - pixels
    inside = (found > 0) & (found < 1)
    moved = change[inside & (change != 0)].abs()
    assert len(moved) > 0.5 * change.numel()
    torch.testing.assert_close(moved, torch.full_like(moved, EPSILON))
    assert found.min() == 0
    assert found.max() == 1


def test_fgsm_climbs_the_loss_and_a_targeted_one_descends_that_of_its_target(network):
    model, loss, pixels, labels = network
    small = 1e-3
    before = scores(model, pixels)
    away = scores(model, fgsm(model, pixels, labels, small, loss))
    towards = scores(model, fgsm(model, pixels, labels, small, loss, targeted=True))
    index = torch.arange(5), labels

    def lead(p):  # over the other classes
        return p[index] - (p.sum(dim=1) - p[index]) / (CLASSES - 1)

    assert (lead(away) < lead(before)).all()
    assert (lead(towards) > lead(before)).all()


def test_bim_with_one_step_is_fgsm(network):
    model, loss, pixels, labels = network
    once = attacks.bim(model, pixels, labels, EPSILON, 1, loss)
    torch.testing.assert_close(once, fgsm(model, pixels, labels, EPSILON, loss))


def test_bim_stays_within_epsilon_and_the_range(network):
    model, loss, pixels, labels = network
    found = attacks.bim(model, pixels, labels, EPSILON, 4, loss)
    assert (found - pixels).abs().max() <= EPSILON + 1e-6
    assert found.min() >= 0
    assert found.max() <= 1


def test_the_second_step_of_bim_goes_by_the_gradient_where_the_first_has_led(network):
    model, loss, pixels, labels = network
    step = attacks.BIM_REACH * EPSILON / 2
    first = (pixels + step * attacks.direction(model, pixels, labels, loss)).clamp(0, 1)
    second = first + step * attacks.direction(model, first, labels, loss)
    expected = torch.clamp(second, pixels - EPSILON, pixels + EPSILON).clamp(0, 1)
    torch.testing.assert_close(attacks.bim(model, pixels, labels, EPSILON, 2, loss), expected)


def test_an_image_is_attacked_as_if_it_were_alone(network):
    model, loss, pixels, labels = network
    together = attacks.gradient(model, pixels, labels, loss)
    alone = [attacks.gradient(model, pixels[i : i + 1], labels[i : i + 1], loss) for i in range(5)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-3, atol=1e-6)


def test_attacks_leave_images_and_network_as_they_were(network):
    model, loss, pixels, labels = network
    before = pixels.clone()
    attacks.bim(model, pixels, labels, EPSILON, 2, loss)
    assert torch.equal(pixels, before)
    assert not pixels.requires_grad
    assert all(weight.grad is None for weight in model.parameters())


def test_the_gradient_is_of_each_images_own_loss():
    """Written down for the two losses of capsules and for cross entropy, before any mean."""
    pixels, labels = torch.rand(4, 2, SIZE, SIZE), torch.tensor([0, 2, 1, 1])
    targets = F.one_hot(labels, CLASSES).float()
    of_network = {
        "matrix": lambda p: 4 * spread_loss(p, targets, 0.9),
        "capsnet": lambda p: 4 * margin_loss(p, targets, LossConfig()),
        "cnn": lambda logits: F.cross_entropy(logits, labels, reduction="sum"),
    }
    for name, config in NETWORKS.items():
        model, shown = build(config).eval(), pixels.clone().requires_grad_()
        answer = model(shown) if name == "cnn" else model.classify(shown).probabilities
        [expected] = torch.autograd.grad(of_network[name](answer), shown)
        found = attacks.gradient(model, pixels, labels, LOSSES[name])
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6, msg=name)


def test_gradients_of_matrix_capsules_on_a_cpu_are_those_of_plain_array_operations():
    """The compiled routing's own way back, all the way to the pixels."""
    model, pixels = build(MATRIX).eval(), torch.rand(4, 2, SIZE, SIZE, requires_grad=True)
    torch.nn.init.normal_(model.class_caps.routing.beta_a, std=0.01)
    labels = torch.tensor([0, 2, 1, 1])
    assert model.class_caps.can_be_fused(pixels)
    capsules = model.primary_caps(torch.relu(model.conv(standardize_per_image(pixels))))
    for layer in (*model.conv_caps, model.class_caps):
        seen = layer.fields.seen(capsules.activations)
        capsules = layer.routing(layer.votes(capsules.poses), seen, layer.fields, layer.shares)
    loss = 4 * spread_loss(capsules.activations.squeeze(1), F.one_hot(labels, CLASSES).float(), 1.0)
    [expected] = torch.autograd.grad(loss, pixels)
    found = attacks.gradient(model, pixels.detach(), labels, attacks.with_widest_margins(LOSSES["matrix"]))
    scale = expected.abs().mean()
    assert scale > 0
    # Both round, and a few pixels amplify it, more or less by the number of threads.
    assert (found - expected).norm() < 5e-4 * expected.norm()
    assert torch.isclose(found / scale, expected / scale, rtol=1e-3, atol=1e-3).float().mean() > 0.99
    torch.testing.assert_close(found / scale, expected / scale, rtol=1e-2, atol=1e-2)
    large = expected.abs() > 0.01 * scale
    assert (found.sign() == expected.sign())[large].all()


def test_an_image_beyond_the_margins_of_the_loss_stays_and_with_the_widest_moves():
    model, pixels, labels = build(CAPSNET).eval(), torch.rand(2, 2, SIZE, SIZE), torch.tensor([0, 1])
    easy = replace(LossConfig(), present_margin=0.0, absent_margin=1.0)
    assert torch.equal(fgsm(model, pixels, labels, EPSILON, easy), pixels), "nothing is left to learn"
    widest = attacks.with_widest_margins(easy)
    assert not torch.equal(fgsm(model, pixels, labels, EPSILON, widest), pixels)
