"""Settings that would silently have no effect are refused in presets; runs that have them can be read."""

import re
import tomllib

import pytest

from training.config import from_dict, load_preset

CNN = '[model]\narchitecture = "cnn"\nblocks = [{ channels = 4, kernel = 3 }]\n'
DECODER = '[optimizer]\ntrained_part = "decoder"\n'
MATRIX = '[model]\narchitecture = "matrix-capsnet"\n'
BRIGHTER = '[data]\nlight = "standardized"\nmax_brightness = 0.1\n'
CONTRASTED = '[data]\nlight = "standardized"\ncontrast = [0.8, 1.2]\n'
NOT_STANDARDIZED = "data.light: the network does not standardize its images"


def own(tmp_path, text):
    (tmp_path / "mine.toml").write_text(text)
    return str(tmp_path / "mine.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{CNN}[data]\nblank_fraction = 0.1", "data.blank_fraction: a network of exclusive classes learns"),
        (f"{CNN}[data]\nscribble_fraction = 0.1", "data.scribble_fraction: a network of exclusive classes"),
        (f'{CNN}[data]\nname = "multimnist"', "model.exclusive: an image of multimnist shows 2 classes"),
        (f"{MATRIX}official_routing = true\nmatrix_noise = 0.3", "model.matrix_noise: has no effect with"),
        (
            f"{MATRIX}mixing_proportions = true\nactivation_logit_sd = 2.0\ncalibration_momentum = 0.05",
            "model.activation_logit_sd: has no effect with mixing_proportions, which nothing calibrates; "
            "model.calibration_momentum: has no effect",
        ),
        (
            f"{MATRIX}mixing_proportions = true\ninverse_temperature = 0.5\nclass_temperature_fraction = 3.0",
            "model.inverse_temperature: has no effect with mixing_proportions, which have no lambda; "
            "model.class_temperature_fraction: has no effect",
        ),
        (
            f"{MATRIX}routing_iterations = 1\ndensity_exponent = 0.25",
            "model.density_exponent: has no effect with one iteration of routing, which has no E-step",
        ),
        (
            f"{DECODER}stop_at_error_percent = 15\n[loss]\nreconstruction_weight = 0",
            "loss.reconstruction_weight: with 0, a decoder alone learns nothing; "
            "optimizer.stop_at_error_percent: a decoder alone changes no answer: it would be trained for one",
        ),
        (
            f'{CNN}[loss]\nclassification = "spread"\nreconstruction_weight = 0.1',
            "loss.classification: has no effect on a convolutional network: cross entropy and no decoder; "
            "loss.reconstruction_weight: has no effect",
        ),
        ("[loss]\npresent_margin = 0.05", "loss.present_margin: below loss.absent_margin, 0.1"),
        (
            "[loss]\nspread_margins = [0.2, 0.5]",
            "loss.spread_margins: has no effect, loss.classification is margin",
        ),
        (
            '[loss]\nclassification = "spread"\nabsent_weight = 0.4',
            "loss.absent_weight: has no effect, loss.classification is spread",
        ),
        (
            f"{MATRIX}[loss]\nreconstruction_weight = 0.1",
            "loss.reconstruction_weight: has no effect without a decoder, model.decoder_hidden is empty",
        ),
        (BRIGHTER, NOT_STANDARDIZED),
        (CONTRASTED, NOT_STANDARDIZED),
        (f"{CNN}{BRIGHTER}", NOT_STANDARDIZED),
        (f"{MATRIX}standardize_per_image = false\n{BRIGHTER}", NOT_STANDARDIZED),
    ],
)
def test_a_preset_with_a_setting_without_effect_is_refused_and_a_run_that_has_it_can_be_read(
    tmp_path, text, message
):
    with pytest.raises(ValueError, match=re.escape(f"preset mine: {message}")):
        load_preset(own(tmp_path, text))
    from_dict(tomllib.loads(text))


@pytest.mark.parametrize(
    "text",
    [
        f"{CNN}exclusive = false\n[data]\nblank_fraction = 0.1\nscribble_fraction = 0.1",
        f'{CNN}exclusive = false\n[data]\nname = "multimnist"',
        "[data]\nblank_fraction = 0.1",
        f"{CNN}[loss]\nmargin_weight = 0.5",
        f'{CNN}[loss]\nclassification = "cross-entropy"\nreconstruction_weight = 0.0',
        "[loss]\npresent_margin = 0.8\nreconstruction_weight = 0.1",
        '[loss]\nclassification = "spread"\nspread_margins = [0.2, 0.5]',
        f"{MATRIX}[loss]\nreconstruction_weight = 0.0",
        f"{MATRIX}decoder_hidden = [8]\n[loss]\nreconstruction_weight = 0.1",
        f"{MATRIX}official_routing = true\nmatrix_noise = 0.03",
        f"{MATRIX}mixing_proportions = true",
        f"{MATRIX}routing_iterations = 2\ndensity_exponent = 0.25",
        f"{DECODER}batch_size = 16",
        f"{MATRIX}{BRIGHTER}",
        '[data]\nlight = "standardized"',
    ],
)
def test_the_same_settings_are_taken_where_they_have_one(tmp_path, text):
    load_preset(own(tmp_path, text))
