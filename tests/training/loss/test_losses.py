import torch

from training.config import LossConfig
from training.loss.losses import margin_loss, reconstruction_loss, sigmoid_loss, softmax_loss


def test_margin_loss_is_equation_4_summed_over_classes():
    lengths = torch.tensor([[0.5, 0.3, 0.05]])
    targets = torch.tensor([[1.0, 0.0, 0.0]])
    expected = (0.9 - 0.5) ** 2 + 0.5 * (0.3 - 0.1) ** 2 + 0.0
    torch.testing.assert_close(margin_loss(lengths, targets, LossConfig()), torch.tensor(expected))


def test_margin_loss_is_the_mean_over_the_batch():
    lengths, targets = torch.rand(4, 3), torch.eye(3)[[0, 1, 2, 0]]
    each = [margin_loss(lengths[i : i + 1], targets[i : i + 1], LossConfig()) for i in range(4)]
    torch.testing.assert_close(margin_loss(lengths, targets, LossConfig()), torch.stack(each).mean())


def test_margins_that_are_kept_cost_nothing():
    lengths = torch.tensor([[0.95, 0.02, 0.92]])
    assert margin_loss(lengths, torch.tensor([[1.0, 0.0, 1.0]]), LossConfig()) == 0


def test_the_weight_and_the_margins_are_configurable():
    config = LossConfig(present_margin=0.8, absent_margin=0.2, absent_weight=1.0)
    found = margin_loss(torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, 0.0]]), config)
    torch.testing.assert_close(found, torch.tensor(0.3**2 + 0.3**2))


def test_reconstruction_error_is_summed_over_pixels_and_averaged_over_images():
    images = torch.zeros(2, 1, 28, 28)
    found = reconstruction_loss(images + 0.5, images)
    torch.testing.assert_close(found, torch.tensor(784 * 0.25))


def test_two_reconstructions_of_an_image_are_summed():
    objects = torch.zeros(3, 2, 1, 36, 36)
    found = reconstruction_loss(objects + 0.5, objects)
    torch.testing.assert_close(found, torch.tensor(2 * 36 * 36 * 0.25))


def test_softmax_loss_is_minus_the_log_of_the_present_classs_probability():
    logits, labels = torch.randn(6, 4), torch.arange(6) % 4
    expected = -logits.softmax(dim=1).log()[torch.arange(6), labels].mean()
    torch.testing.assert_close(softmax_loss(logits, torch.eye(4)[labels]), expected)


def test_sigmoid_loss_is_summed_over_classes_of_which_several_may_be_present():
    logits, targets = torch.randn(6, 4), torch.eye(4)[[0, 1, 2, 0, 1, 2]] + torch.eye(4)[3]
    p = logits.sigmoid()
    expected = -(targets * p.log() + (1 - targets) * (1 - p).log()).sum(dim=1).mean()
    torch.testing.assert_close(sigmoid_loss(logits, targets), expected)
