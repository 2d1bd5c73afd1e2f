from dataclasses import replace

import pytest
import torch

from training.config import Block, CapsNetConfig, CnnConfig, DataConfig, LossConfig
from training.data.batches import Batch, make_batches
from training.data.images import Images
from training.evaluate.evaluation import evaluate
from training.loss.objective import compute_losses, reconstruct, total_loss
from training.models.build import build
from training.models.capsnet import lengths

CAPSNET = CapsNetConfig(image_size=20, conv_channels=4, primary_types=2, classes=4, decoder_hidden=(8,))
CNN = CnnConfig("cnn", image_size=20, classes=4, blocks=(Block(4, 3, True),), hidden=(8,), dropout=0.5)
PAIRS = DataConfig(name="multimnist", max_shift_pixels=2)


def images(count=24):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (count, 1, 16, 16), generator=generator, dtype=torch.uint8)
    return Images(pixels, torch.arange(count) % 4)


def pairs():
    return make_batches(PAIRS, 4, images())


def batch_of_pairs():
    return next(pairs().fixed(24))


def test_each_object_is_drawn_from_its_own_capsule_alone():
    model, batch = build(CAPSNET), batch_of_pairs()
    v = model(batch.pixels)
    drawn = reconstruct(model.decoder, v, batch.masks)
    assert drawn.shape == batch.objects.shape
    for k in range(2):
        torch.testing.assert_close(drawn[:, k], model.decoder(v, batch.masks[:, k]))


def test_the_reconstruction_loss_is_the_sum_over_both_objects():
    model, batch = build(CAPSNET), batch_of_pairs()
    both = compute_losses(model, batch, LossConfig()).reconstruction
    each = [
        compute_losses(
            model,
            Batch(batch.pixels, batch.targets, batch.masks[:, k : k + 1], batch.objects[:, k : k + 1]),
            LossConfig(),
        )
        for k in range(2)
    ]
    torch.testing.assert_close(both, each[0].reconstruction + each[1].reconstruction)


def test_a_decoder_may_draw_images_in_the_light_that_all_of_them_have():
    """What is drawn is then the same for an image and for a darker copy of it with less contrast."""
    config = LossConfig(reconstruction_target="standardized")
    model, batch = build(replace(CAPSNET, standardize_per_image=True)), batch_of_pairs()
    dim = Batch(0.2 + 0.5 * batch.pixels, batch.targets, batch.masks, 0.2 + 0.5 * batch.objects)
    loss, of_dim = (compute_losses(model, shown, config).reconstruction for shown in (batch, dim))
    torch.testing.assert_close(of_dim, loss)
    drawn = reconstruct(model.decoder, model(batch.pixels), batch.masks)
    mean = batch.objects.mean(dim=(2, 3, 4), keepdim=True)
    deviation = batch.objects.std(dim=(2, 3, 4), keepdim=True, correction=0)
    target = (0.5 + (batch.objects - mean) / deviation / 6).clamp(0, 1)
    torch.testing.assert_close(loss, (drawn - target).square().sum() / len(batch.pixels))


def test_where_there_is_no_object_a_decoder_of_standardized_images_draws_black():
    config = LossConfig(reconstruction_target="standardized")
    model = build(replace(CAPSNET, standardize_per_image=True))
    empty = batch_of_pairs().without_objects(torch.ones(24, dtype=torch.bool))
    drawn = reconstruct(model.decoder, model(empty.pixels), empty.masks)
    loss = compute_losses(model, empty, config).reconstruction
    torch.testing.assert_close(loss, drawn.square().sum() / 24)


def test_a_network_without_a_decoder_has_no_reconstruction_loss():
    model = build(
        CapsNetConfig(image_size=20, conv_channels=4, primary_types=2, classes=4, decoder_hidden=())
    )
    assert compute_losses(model, batch_of_pairs(), LossConfig()).reconstruction == 0


def test_the_margin_loss_is_weighted():
    config = LossConfig(margin_weight=0.05, reconstruction_weight=0.5)
    assert total_loss(2.0, 3.0, config) == pytest.approx(1.6)


@pytest.mark.parametrize("exclusive", [True, False])
def test_a_cnn_is_trained_by_the_cross_entropy_of_its_probabilities(exclusive):
    model = build(CnnConfig("cnn", image_size=20, classes=4, blocks=CNN.blocks, exclusive=exclusive))
    targets = torch.eye(4) if exclusive else torch.eye(4) + torch.eye(4).roll(1, 0)
    found = compute_losses(model, Batch.of(torch.rand(4, 1, 20, 20), targets), LossConfig())
    p = found.probabilities.double()
    expected = -(targets * p.log()).sum(dim=1)
    if not exclusive:
        expected = expected - ((1 - targets) * (1 - p).log()).sum(dim=1)
    assert found.classification.item() == pytest.approx(expected.mean().item(), rel=1e-5)


def test_both_objects_must_be_named_for_an_image_to_be_right():
    model = build(CAPSNET)
    found = evaluate(model, pairs(), LossConfig())
    with torch.no_grad():
        batch = batch_of_pairs()
        named = lengths(model(batch.pixels)).argsort(dim=1, descending=True)[:, :2]
    truth = [set(row.nonzero().flatten().tolist()) for row in batch.targets]
    right = [len(set(row.tolist()) & those) for row, those in zip(named, truth, strict=True)]
    assert found.errors == sum(count < 2 for count in right)
    assert found.object_errors == 48 - sum(right)
    assert (found.images, found.objects) == (24, 48)
    assert found.error_percent >= found.object_error_percent


def test_versions_are_counted_as_images_of_their_own():
    found = evaluate(build(CAPSNET), pairs(), LossConfig(), versions=3)
    assert (found.images, found.objects) == (72, 144)


def test_dropout_is_off_in_an_evaluation_and_on_again_after_it():
    model, some = build(CNN), pairs()
    first, second = (evaluate(model, some, LossConfig()) for _ in range(2))
    assert first == second
    assert model.training
