import math
from dataclasses import replace

import pytest
import torch

from training.config import (
    DataConfig,
    LossConfig,
    MatrixCapsNetConfig,
    OptimizerConfig,
    RunConfig,
    from_dict,
    load_preset,
    to_dict,
)
from training.data.batches import make_batches
from training.data.images import Images
from training.fit.loop import Limits, Trainer
from training.loss.losses import proportion_loss, spread_loss, spread_margin
from training.models.build import build
from training.models.matrix_capsnet import MatrixCapsNet
from training.models.matrix_capsules import PrimaryMatrixCapsules
from training.runs import checkpoint
from training.runs.checkpoint import Progress

PAPER = MatrixCapsNetConfig(architecture="matrix-capsnet")
OFFICIAL = replace(PAPER, official_routing=True)
SMALL = replace(PAPER, conv_channels=64, primary_types=8, conv_caps_types=(16, 16))
TINY = replace(PAPER, conv_channels=4, primary_types=2, conv_caps_types=(3, 2), classes=3)


def parameters(config):
    return sum(parameter.numel() for parameter in build(config).parameters())


def test_the_papers_networks_have_about_310k_and_68k_parameters_and_the_cnn_4_2_million():
    names = ("matrix-smallnorb", "matrix-smallnorb-small", "smallnorb-cnn")
    assert [parameters(load_preset(name).model) for name in names] == [317_194, 68_754, 4_253_349]


def test_the_presets_are_the_papers_networks_on_pictures_prepared_alike():
    large, small, cnn = map(load_preset, ("matrix-smallnorb", "matrix-smallnorb-small", "smallnorb-cnn"))
    without = {
        "activation_logit_sd": None,
        "calibration_momentum": 0.0,
        "density_exponent": 1.0,
        "matrix_noise": 0.03,
        "inverse_temperature": 0.01,
        "class_temperature_fraction": 0.25,
    }  # what makes it learn
    assert [replace(each.model, **without) for each in (large, small)] == [PAPER, SMALL]
    assert large.data == small.data == cnn.data == load_preset("smallnorb").data
    assert cnn.model.standardize_per_image
    assert (large.loss.classification, large.optimizer) == ("spread", small.optimizer)


def test_capsules_lie_where_the_paper_has_them():
    model = MatrixCapsNet(PAPER)
    assert [len(layer.fields.inside) for layer in model.conv_caps] == [6 * 6, 4 * 4]
    assert model.class_caps.fields.inside.shape == (1, 16)


@pytest.mark.parametrize("size", [(32, 34), (28, 28)])
def test_images_of_another_size_are_refused(size):
    with pytest.raises(ValueError, match=r"takes images of 32x32 pixels, got \(1, 2,"):
        MatrixCapsNet(TINY)(torch.rand(1, 2, *size))


def test_primary_capsules_stay_in_float32_under_autocast():
    torch.manual_seed(0)
    layer, features = PrimaryMatrixCapsules(8, 3), torch.rand(2, 8, 4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(features)
        assert layer(features.bfloat16()).poses.dtype == torch.float32
    for one, other in zip(found, layer(features), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("size", "channels", "classes"), [(17, 1, 2), (28, 1, 10), (33, 3, 7)])
def test_any_size_channels_and_classes(size, channels, classes):
    config = replace(TINY, image_size=size, image_channels=channels, classes=classes)
    poses, probabilities = build(config).classify(torch.rand(2, channels, size, size))
    assert poses.shape == (2, classes, 16)
    assert probabilities.shape == (2, classes)
    assert ((probabilities >= 0) & (probabilities <= 1)).all()


def test_the_places_of_class_capsules_children_are_the_centers_of_their_receptive_fields():
    """A capsule sees 17 pixels: 5, then 3 every 2, then 3 every 4; the first one those from 0 to 16."""
    offsets = MatrixCapsNet(PAPER).class_caps.offsets.unflatten(0, (4, 4, -1))
    rows, columns = offsets[..., 0, 3], offsets[..., 0, 7]
    expected = torch.tensor([8.5, 12.5, 16.5, 20.5]) / 32
    torch.testing.assert_close(rows[:, 0], expected)
    torch.testing.assert_close(columns[0], expected)
    assert not MatrixCapsNet(replace(PAPER, coordinate_addition=False)).class_caps.offsets.any()


def test_a_pixel_reaches_the_capsules_whose_receptive_field_it_lies_in_and_no_other():
    """Which is what the places are the centers of. In one iteration no child asks its other parents."""
    model = MatrixCapsNet(replace(TINY, standardize_per_image=False, routing_iterations=1))
    pixels = torch.rand(1, 2, 32, 32, requires_grad=True)
    capsules = model.primary_caps(torch.relu(model.conv(pixels)))
    seen = capsules
    for layer in model.conv_caps:
        seen = layer(seen)
    [gradient] = torch.autograd.grad(seen.poses[0, 5].sum(), pixels)  # row 1, column 1
    reached = gradient[0].abs().sum(dim=0) > 0
    for seen_along in (reached.any(dim=1), reached.any(dim=0)):
        assert seen_along.nonzero().flatten().tolist() == [*range(4, 21)]


def test_a_flat_picture_has_a_gradient():
    pixels = torch.ones(1, 2, 20, 20, requires_grad=True)
    [gradient] = torch.autograd.grad(build(replace(TINY, image_size=20))(pixels).poses.sum(), pixels)
    assert gradient.isfinite().all()


def test_the_official_variant_begins_with_the_official_codes_values():
    """In its own terms: deviations 0.3 and 0.01; biases 0.5 and, of the classes, 2 and 1."""
    torch.manual_seed(0)
    model = build(OFFICIAL)
    for layer, deviation, sigma_bias, activation_bias in (
        (model.conv_caps[0], 0.3, 0.5, 0.5),
        (model.class_caps, 0.01, 2.0, 1.0),
    ):
        assert layer.weight.std().item() == pytest.approx(0.88 * deviation, rel=0.05)  # truncated
        assert layer.weight.abs().max() <= 2 * deviation
        assert 0.5 * math.log(2 * math.pi * math.e) * sigma_bias == pytest.approx(
            layer.routing.beta_u[0].item()
        )
        assert layer.routing.beta_a.tolist() == [-activation_bias] * len(layer.routing.beta_a)
    assert model.class_caps.offsets.abs().sum(dim=0).nonzero().flatten().tolist() == [0, 1]


@pytest.mark.parametrize(
    ("config", "lambdas", "inertia", "cost", "floors"),
    [
        (PAPER, (0.01, 0.01, 0.0025), 0, 1, (1e-7, 1e-7, 1e-7)),
        (OFFICIAL, (0.01, 0.01, 0.0025), 0.1, 2, (1e-7, 1e-7, 1e-5)),
        (load_preset("matrix-toys").model, (0.02, 0.02, 0.02), 0, 1, (1e-7, 1e-7, 1e-7)),
    ],
)
def test_every_layer_is_routed_with_its_numbers(config, lambdas, inertia, cost, floors):
    """In the official code lambda of the class capsules is a quarter of the others'."""
    model = build(replace(config, activation_logit_sd=None, calibration_momentum=0.0))
    routings = [layer.routing for layer in (*model.conv_caps, model.class_caps)]
    assert [routing.constants.inverse_temperature for routing in routings] == pytest.approx(lambdas)
    assert [routing.constants.mass_floor for routing in routings] == pytest.approx(floors)
    for routing in routings:
        assert (routing.constants.mean_inertia, routing.constants.cost_scale) == (inertia, cost)
        grown = routing.constants.inverse_temperature
        schedule = [grown * 0.05, grown * 0.0975, grown * 0.142625][: routing.iterations]
        assert routing.inverse_temperatures() == pytest.approx(schedule)


def test_a_configuration_survives_its_file():
    config = RunConfig(model=SMALL, loss=LossConfig(classification="spread"))
    assert from_dict(to_dict(config)) == config


def test_spread_loss_penalises_what_is_nearer_than_the_margin():
    activations = torch.tensor([[0.9, 0.1, 0.6], [0.2, 0.3, 0.1]])
    targets = torch.tensor([[1.0, 0, 0], [1, 0, 0]])
    first, second = (0.5 - 0.3) ** 2, (0.5 + 0.1) ** 2 + (0.5 - 0.1) ** 2
    assert spread_loss(activations, targets, 0.5).item() == pytest.approx((first + second) / 2)


def test_the_margin_grows_linearly_over_the_training():
    config = LossConfig(classification="spread", spread_margins=(0.2, 0.9))
    assert [spread_margin(config, step, 8) for step in (0, 7)] == pytest.approx([0.2, 0.9])
    assert spread_margin(config, 2, 8) == pytest.approx(0.4)
    assert spread_margin(config, 0, 1) == 0.2


def test_the_official_margin_is_a_sigmoid_of_the_step():
    config = LossConfig(classification="spread", spread_margins=(0.2, 0.99), spread_schedule="official")
    assert spread_margin(config, 200_000, 10) == pytest.approx(0.2 + 0.79 / 2)
    assert spread_margin(config, 10**9, 10) == pytest.approx(0.99, abs=1e-3)


def test_the_cross_entropy_is_of_shares():
    activations, targets = torch.tensor([[0.2, 0.6]]), torch.tensor([[0.0, 1.0]])
    assert proportion_loss(activations, targets).item() == pytest.approx(-torch.tensor(0.75).log().item())
    zero = torch.zeros(1, 2, requires_grad=True)
    loss = proportion_loss(zero, targets)
    assert loss.isfinite()
    assert torch.autograd.grad(loss, zero)[0].isfinite().all()


@pytest.mark.parametrize(
    ("loss", "change"),
    [
        ("spread", {}),
        ("margin", {}),
        ("cross-entropy", {}),
        ("spread", {"vector_poses": True}),
        ("spread", {"mixing_proportions": True}),
        ("spread", {"official_routing": True}),
    ],
)
def test_it_learns_to_tell_bright_bands_with_every_loss_and_in_every_ablation(tmp_path, loss, change):
    torch.manual_seed(0)
    pixels, labels = torch.randint(60, (60, 2, 21, 21), dtype=torch.uint8), torch.arange(60) % 3
    for image, label in zip(pixels, labels.tolist(), strict=True):
        image[:, 7 * label : 7 * label + 7] += 180
    config = RunConfig(
        model=replace(TINY, image_size=21, conv_channels=8, decoder_hidden=(8,), **change),
        loss=LossConfig(classification=loss),
        data=DataConfig(name="toys", validation_images=10, max_shift_pixels=0),
        optimizer=OptimizerConfig(batch_size=15, epochs=15, learning_rate=0.01, weight_decay=2e-7),
    )
    checkpoint.write_config(tmp_path, config)
    trainer = Trainer(tmp_path, config, torch.device("cpu"), Progress())
    shown = make_batches(config.data, 3, Images(pixels, labels))
    trainer.fit(shown, shown, Limits())
    assert trainer.progress.best_error_percent < 10
