"""What a model card says of networks that differ; none of them is trained."""

import re
from dataclasses import asdict, replace

import pytest

from export.contract.manifest import Manifest, read_manifest
from export.model_card import model_card
from tests.support.paths import ROOT
from tests.support.tiny_bundle import write_bundle
from training.config import RunConfig, differences, load_preset, to_dict
from training.data.datasets import DATASETS, trainable
from training.runs.checkpoint import Progress

PROGRESS = Progress(step=100, epochs=1.5, train_seconds=3600, hardware="a CPU", command="capsnet-train fit")
COUNTED = {"times_measured": 0, "earlier_versions": 0}


@pytest.fixture
def tiny(tmp_path) -> Manifest:
    return read_manifest(write_bundle(tmp_path / "tiny" / "1"))


def card_of(tiny: Manifest, config: RunConfig) -> str:
    """The card of a bundle that comes from such a run; line breaks as spaces."""
    training = {"config": to_dict(config), **asdict(PROGRESS), **COUNTED}
    objects = config.data.spec.objects_per_image
    card = model_card(tiny.model_copy(update={"training": training, "objects_per_image": objects}))
    return card.replace("\n", " ")


def row(card: str, name: str) -> str:
    """What the table of training says about something."""
    [value] = re.findall(rf"\| {name} \| (.*?) \|", card)
    return value


def with_data(name: str, **changes) -> RunConfig:
    config = load_preset(name)
    return replace(config, data=replace(config.data, **changes))


def test_a_manifest_older_than_an_option_gives_the_card_of_its_default(tiny):
    config = load_preset("mnist")
    training = {"config": differences(config), **asdict(PROGRESS), **COUNTED}
    assert model_card(tiny.model_copy(update={"training": training})).replace("\n", " ") == card_of(
        tiny, config
    )


def test_shipped_bundles_give_their_cards():
    for model in (ROOT / "models").iterdir():
        manifest = read_manifest(max(model.iterdir()))
        card = model_card(manifest)
        assert f"{manifest.parameter_count:,} parameters" in card
        assert manifest.training["command"] in card
        assert (max(model.iterdir()) / "MODEL_CARD.md").read_text() == card


def test_the_papers_network_is_told_without_what_it_does_not_have(tiny):
    card = card_of(tiny, load_preset("mnist"))
    assert "Conv1 with 256 channels, 32 types of 8-D primary capsules" in card
    assert "10 class capsules of 16 dimensions, 3 routing iterations. " in card
    assert "512 and 1024 units; 1,411,344 of the parameters are its own. " in card
    assert row(card, "loss") == (
        "margin loss (m+ 0.9, m- 0.1, lambda 0.5) + 0.0005 x summed squared pixel error"
    )
    assert row(card, "first weights") == "random, PyTorch's"
    assert row(card, "optimizer") == "Adam, rate 0.001 x 0.96^(step / 2000), at least 1e-06, batch 128"
    assert row(card, "cooldown") == "none"
    for absent in ("average", "unit variance", "none of the above", "bias", "divided", "learned (Sec. 2)"):
        assert absent not in card
    for absent in ("Before Conv1", "kernels"):
        assert absent not in card


def test_the_official_networks_flags_and_loss_are_told(tiny):
    card = card_of(tiny, load_preset("mnist-official"))
    assert row(card, "loss").startswith("0.05 x margin loss")
    assert row(card, "first weights") == "random, as in the official code"
    assert "Class capsules have a bias before the squash" in card
    assert "divided by the number of types" in card


def test_a_stem_and_other_kernels_are_told(tiny):
    card = card_of(tiny, load_preset("multimnist-small"))
    assert "Conv1 with 192 channels" in card
    assert "Before Conv1 there is a convolution with 96 channels, kernels of 5x5 and stride 2." in card
    assert "The kernels of Conv1 and PrimaryCapsules are 5x5 (9x9 in the paper)." in card
    assert row(card, "optimizer") == "Adam, rate 0.003, batch 128"


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (5641, "1.57 hours"),
        (757, "0.21 hours"),
        (204, "3.4 minutes"),
        (61, "1.0 minutes"),
        (9.96, "10.0 seconds"),
    ],
)
def test_the_time_of_a_short_training_is_told_in_minutes_or_seconds(tiny, seconds, told):
    progress = asdict(replace(PROGRESS, train_seconds=seconds))
    first = {"config": to_dict(load_preset("mnist")), "source_commit": "0" * 40, **progress}
    config = replace(load_preset("mnist"), started_from=first)
    training = {"config": to_dict(config), **progress, **COUNTED}
    card = model_card(tiny.model_copy(update={"training": training}))
    assert row(card, "trained").endswith(f" epochs, {told}")
    assert row(card, "1 stage before").startswith(f"100 steps, {told}, ")


@pytest.mark.parametrize(
    ("epochs", "told"),
    [(1.5, "1.5"), (12.34, "12.3"), (999.4, "999"), (999.7, "1000"), (1000, "1000"), (1234.5, "1234")],
)
def test_epochs_are_told_without_an_exponent(tiny, epochs, told):
    progress = asdict(replace(PROGRESS, epochs=epochs))
    training = {"config": to_dict(load_preset("mnist")), **progress, **COUNTED}
    card = model_card(tiny.model_copy(update={"training": training}))
    assert f", {told} of " in row(card, "trained")


def test_pairs_are_made_of_mnist(tiny):
    card = card_of(tiny, load_preset("multimnist"))
    assert row(card, "data").startswith("pairs of digits of the mnist training set")
    assert "multimnist training set" not in card
    assert "An image of two objects is right if both are named." in card
    assert "two are named in every image" in card
    assert "each alone, centered" not in card


def test_own_pictures_are_told_as_such(tiny):
    card = card_of(tiny, with_data("images", folder="/home/anna/pics", class_names=("cat", "dog")))
    assert row(card, "data").startswith("pictures of one's own")
    assert "brings each image to zero mean and unit variance" in card
    assert '"none of the above"' in card
    assert "of any polarity" in card_of(tiny.model_copy(update=any_polarity(tiny)), load_preset("images"))
    assert "/home/anna" not in card
    assert "centered" not in card


def any_polarity(tiny: Manifest) -> dict:
    return {"preprocessing": tiny.preprocessing.model_copy(update={"polarity": "any"})}


def test_a_run_that_may_end_early_is_told_as_such(tiny):
    assert row(card_of(tiny, load_preset("images")), "end") == ("when 10 epochs have not improved validation")
    assert "| end |" not in card_of(tiny, load_preset("mnist"))


def test_an_average_of_weights_is_told(tiny):
    config = load_preset("mnist")
    averaged = replace(config, optimizer=replace(config.optimizer, ema_decay=0.999))
    assert "a moving average of those that were trained, of which each step kept 0.999" in card_of(
        tiny, averaged
    )


def test_training_on_fewer_images_is_told(tiny):
    data = row(card_of(tiny, with_data("mnist", training_images=600, epoch_images=6000)), "data")
    assert "at most 600 of the others trained on" in data
    assert "repeated to 6000 an epoch" in data


def test_a_network_without_a_decoder_has_no_reconstruction_loss(tiny):
    config = load_preset("mnist")
    card = card_of(tiny, replace(config, model=replace(config.model, decoder_hidden=())))
    assert "It has no decoder." in card
    assert "pixel error" not in card


def test_an_empty_image_is_a_limit_unless_a_stage_has_shown_some(tiny):
    blanks, plain = load_preset("mnist-longer"), load_preset("mnist")
    warned = "It has never seen an empty image"
    assert warned in card_of(tiny, plain)
    assert warned not in card_of(tiny, blanks)
    stage = {"config": to_dict(blanks), **asdict(PROGRESS), "checkpoint": "step-00000100"}
    card = card_of(tiny, replace(plain, started_from=stage))
    assert warned not in card
    assert row(card, "first weights") == "those of the stage before"
    assert "what is none of its classes gets low probabilities at best." in card


def test_a_decoder_that_the_stage_before_did_not_have_began_at_random(tiny):
    whole = load_preset("matrix-toys-decoder")
    before = with_model(load_preset("matrix-toys"), decoder_hidden=())
    for stage, told in ((before, "; of the decoder random, PyTorch's"), (whole, "")):
        origin = {"config": to_dict(stage), **asdict(PROGRESS), "checkpoint": "step-00000100"}
        config = replace(whole, started_from=origin)
        card = card_of(of_matrices(tiny, config), config)
        assert row(card, "first weights") == f"those of the stage before{told}"


@pytest.mark.parametrize(("epochs", "told"), [(2, "2 epochs"), (1, "epoch"), (30, "10 epochs")])
def test_a_cooldown_is_no_longer_than_the_training(tiny, epochs, told):
    config = load_preset("mnist")
    optimizer = replace(config.optimizer, epochs=epochs, cooldown_epochs=10)
    card = card_of(tiny, replace(config, optimizer=optimizer))
    assert row(card, "cooldown") == f"to 0 over the last {told}"


def test_the_card_names_the_warmup(tiny):
    assert row(card_of(tiny, load_preset("mnist")), "optimizer").endswith(", batch 128")
    told = row(card_of(tiny, load_preset("multimnist")), "optimizer")
    assert told.endswith(", batch 128, warm-up of at most 1000 steps")


def test_names_and_commands_mean_nothing_to_markdown(tiny):
    progress = asdict(replace(PROGRESS, command="fit 'a|b`c'"))
    training = {"config": to_dict(load_preset("mnist")), **progress, **COUNTED}
    names = ("*bold* <b>x", "a|b", "c")
    card = model_card(tiny.model_copy(update={"training": training, "class_names": names}))
    assert "| command | `` fit 'a\\|b`c' `` |" in card
    assert "Classes: \\*bold\\* \\<b\\>x, a\\|b, c. A probability" in card


def test_the_card_says_how_images_are_bent_and_what_takes_their_place(tiny):
    assert row(card_of(tiny, load_preset("digits")), "augmentation") == (
        "rotations of up to 20 degrees; each axis scaled by 0.8 to 1.2; shears of up to 0.2; elastic "
        "displacements of 0.7 pixels at 5x5 points; strokes wider or narrower by up to 0.5 pixels on both "
        "sides; shifts of up to 2 pixels; contrast times 0.5 to 1.3; 6.25% of the images blank, with no "
        "class present; 18.75% of the others scribbles, noise or letters, with no class present"
    )


def of_matrices(tiny: Manifest, config: RunConfig) -> Manifest:
    """As of a bundle of that network."""
    one_input = tiny.preprocessing.model_copy(
        update={"height": 32, "width": 32, "channels": 2, "polarity": "any", "placement": "centre-crop"}
    )
    return tiny.model_copy(
        update={
            "architecture": "matrix-capsnet",
            "parameters": asdict(config.model),
            "pose_shape": (16,) if config.model.vector_poses else (4, 4),
            "views": 2,
            "preprocessing": one_input,
        }
    )


def with_model(config: RunConfig, **changes) -> RunConfig:
    return replace(config, model=replace(config.model, **changes))


def test_matrix_capsules_are_told(tiny):
    config = load_preset("matrix-toys")
    card = card_of(of_matrices(tiny, config), config)
    assert "as in *Matrix Capsules with EM Routing* (Hinton, Sabour, Frosst 2018)" in card
    assert "64 channels (A), 8 types of primary capsules (B), 16 and 16 of convolutional capsules" in card
    assert "5 class capsules, 2 routing iterations (3 in the paper)." in card
    assert "256 and 512 units; 1,202,944 of the parameters are its own, which the paper's network has" in card
    assert "Lambda of Eq. 2 of the class capsules grows towards 0.02; in the official code towards" in card
    uncalibrated = with_model(config, activation_logit_sd=None)
    told = card_of(of_matrices(tiny, uncalibrated), uncalibrated)
    assert "Lambda of Eq. 2 grows towards 0.02, for the class capsules towards 0.02; in the official" in told
    assert row(card, "first weights") == "matrices the identity and some noise, all others random, PyTorch's"
    assert "each stereo pair to zero mean and unit variance" in card
    assert "stereo pairs, the left view first, float32 [N, 32, 32, 2]" in card
    assert "A probability is the activation of a class capsule" in card
    assert "A pose is a 4x4 matrix of numbers of any size, row by row." in card
    assert row(card, "data").startswith("stereo pairs of toys that the repository renders, instances 4, 6, 7")
    assert row(card, "loss") == (
        "spread loss (margin from 0.2 to 0.9, growing linearly) + 0.0005 x summed squared pixel error"
        " + 2e-07 x half the squared weights"
    )
    assert "Elements 3 and 7 have in them where" in card
    for absent in ("Table 1", "Sec. 5", "length of a class capsule"):
        assert absent not in card


def test_a_decoder_that_was_trained_alone_is_told(tiny):
    config = load_preset("matrix-toys-decoder")
    card = card_of(of_matrices(tiny, config), config)
    assert row(card, "loss") == (
        "of the decoder alone, 0.0005 x summed squared pixel error to standardized images"
    )


def test_the_official_code_adds_places_to_other_elements(tiny):
    config = with_model(load_preset("matrix-smallnorb"), official_routing=True)
    assert "Elements 0 and 1 have in them where" in card_of(of_matrices(tiny, config), config)


def test_ablations_of_matrix_capsules_are_told(tiny):
    config = with_model(
        load_preset("matrix-toys"), vector_poses=True, mixing_proportions=True, coordinate_addition=False
    )
    config = replace(
        config, loss=replace(config.loss, classification="cross-entropy", reconstruction_weight=0)
    )
    card = card_of(of_matrices(tiny, config), config)
    assert "Poses are vectors of 16" in card
    assert "A pose is a vector of 16 numbers" in card
    assert "Votes for the class capsules know nothing of where they come from" in card
    assert "so they sum to 1" in card
    assert "what is none of its classes gets shares of 1 as well." in card
    assert "4x4" not in card
    assert row(card, "loss").startswith("cross entropy of the probabilities divided by their sum + 2e-07")


def test_familiar_viewpoints_are_told(tiny):
    config = load_preset("toys")
    config = replace(config, data=replace(config.data, familiar="azimuth"))
    data = row(card_of(tiny, config), "data")
    assert "of a third of the azimuths alone" in data
    assert "4860 images of the test set held out" in data


def test_held_out_toys_and_the_order_of_light_are_told(tiny):
    card = card_of(tiny, load_preset("toys"))
    assert "one toy of each category held out, 4860 pairs of these validated on" in row(card, "data")
    assert row(card, "augmentation").endswith(
        "brightness +- 0.25 of the standardized image; contrast times 0.2 to 1.8, of the standardized image"
    )


def test_every_data_set_that_is_trained_on_has_its_limits():
    assert set(trainable()) == DATASETS.keys() - {"affnist"}
    assert all(DATASETS[name].limits and DATASETS[name].trained_on for name in trainable())
