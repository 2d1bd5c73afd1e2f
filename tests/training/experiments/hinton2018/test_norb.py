"""Matrix capsules on stereo pairs by one crop and by several, and without one part after the other."""

from dataclasses import replace

import pytest
import torch

from tests.support.figures import areas
from tests.support.smallnorb_files import PAIRS, store
from tests.support.train_command import status
from training.config import Block, RunConfig, load_preset
from training.data.batches import make_batches
from training.data.readers.files import MissingDataError
from training.data.run_images import evaluation_batches
from training.evaluate.evaluation import evaluate
from training.experiments import figure
from training.experiments.hinton2018 import norb, norb_ablation, stereo
from training.experiments.hinton2018.norb import CNN, ONE, SEVERAL, SMALL_CAPSULES
from training.experiments.hinton2018.norb_ablation import FULL_NETWORK
from training.experiments.quick import narrowed
from training.experiments.runner import Runner
from training.models.build import build
from training.runs import checkpoint

TESTED = 100  # images


def tiny(preset: str, **narrower) -> RunConfig:
    config = narrowed(load_preset(preset), 32, 1)
    data = replace(config.data, resize_pixels=28, crop_pixels=20, validation_images=20)
    return replace(config, model=replace(config.model, image_size=20, **narrower), data=data)


CAPSULES_CONFIG = tiny(
    "matrix-toys", conv_channels=4, primary_types=2, conv_caps_types=(2, 2), decoder_hidden=()
)
CNN_CONFIG = tiny("toys-cnn", blocks=(Block(channels=4, kernel=5, pooled=True),), hidden=(8,))


def on_smallnorb(config: RunConfig) -> RunConfig:
    return replace(config, data=replace(config.data, name="smallnorb"))


NORB_PLAN = norb.Plan(
    {
        "smallnorb": {SMALL_CAPSULES: on_smallnorb(CAPSULES_CONFIG), CNN: on_smallnorb(CNN_CONFIG)},
        "toys": {SMALL_CAPSULES: CAPSULES_CONFIG, CNN: CNN_CONFIG},
    },
    (0,),
    TESTED,
)
ABLATION_PLAN = norb_ablation.Plan(
    {
        "smallnorb": (on_smallnorb(CAPSULES_CONFIG), on_smallnorb(CNN_CONFIG)),
        "toys": (CAPSULES_CONFIG, CNN_CONFIG),
    },
    (0,),
    TESTED,
)


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    """Where toys alone are; both experiments have been carried out, each in a folder of its own."""
    folder = tmp_path_factory.mktemp("norb")
    store(folder / "data", "toys")
    runner = Runner(folder / "norb", folder / "networks", folder / "data", torch.device("cpu"))
    norb.run(runner, NORB_PLAN)
    norb_ablation.run(replace(runner, out=folder / "ablation"), ABLATION_PLAN)
    return runner


@pytest.fixture(scope="module")
def ablation(runner):
    return replace(runner, out=runner.out.parent / "ablation")


def trained(runner, row):
    run = runner.networks / row["network"]
    config = checkpoint.read_config(run)
    return checkpoint.load_model(run, checkpoint.best_checkpoint(run), runner.device).eval(), config


def first_images(runner, config):
    return make_batches(config.data, 5, evaluation_batches(config, runner.root).images[:TESTED])


def test_the_error_by_one_crop_is_that_of_an_evaluation(runner):
    assert {row["method"] for row in runner.rows()} == {SMALL_CAPSULES, CNN}
    for row in runner.rows():
        model, config = trained(runner, row)
        found = evaluate(model, first_images(runner, config), config.loss)
        assert (row["error_percent"][ONE], row["images"]) == (found.error_percent, TESTED)


def test_the_error_by_several_crops_is_that_of_their_mean_probabilities(runner):
    for row in runner.rows():
        model, config = trained(runner, row)
        images = evaluation_batches(config, runner.root).images[:TESTED]
        mean = torch.zeros(TESTED, 5)
        for far, down, right in [
            (0, 0, 0),
            *((f, v, h) for f in (1, 2, 3) for v in (-1, 1) for h in (-1, 1)),
        ]:
            top, left = 4 + far * down, 4 + far * right
            part = images.pixels[:, :, top : top + 20, left : left + 20].float() / 255
            with torch.no_grad():
                seen = model(part)
            mean += (seen.softmax(dim=1) if row["method"] == CNN else seen.activations) / 13
        wrong = (mean.argmax(dim=1) != images.labels).double().mean().item()
        assert row["error_percent"][SEVERAL] == pytest.approx(100 * wrong)


def test_every_variant_is_measured_and_differs_from_the_whole_network(ablation):
    rows = {row["method"]: row for row in ablation.rows()}
    assert rows.keys() == norb_ablation.PAPER.keys()
    assert list(rows)[-3:] == ["vectors as poses", "vectors, no coordinate addition", "mixing proportions"]
    assert len({row["network"] for row in rows.values()}) == len(rows)
    for row in rows.values():
        model, config = trained(ablation, row)
        assert (
            row["error_percent"] == evaluate(model, first_images(ablation, config), config.loss).error_percent
        )


def test_the_medium_form_of_the_ablation_has_the_full_networks_for_five_epochs():
    for data, networks in norb_ablation.MEDIUM.networks.items():
        for config, full in zip(networks, norb_ablation.FULL.networks[data], strict=True):
            assert (config.model, config.data, config.loss) == (full.model, full.data, full.loss)
            assert (config.optimizer.epochs, config.optimizer.cooldown_epochs) == (5, 3)
    assert norb_ablation.MEDIUM.seeds == (0, 1, 2)


def test_all_methods_of_a_seed_are_measured_before_the_next_seed(tmp_path):
    runner = Runner(tmp_path / "out", tmp_path / "networks", tmp_path / "data", torch.device("cpu"))
    methods = {SMALL_CAPSULES: CAPSULES_CONFIG, CNN: CNN_CONFIG}
    stereo.measure_methods(
        runner, "toys", methods, (3, 4), 1, lambda runner, config, images: {"is": config.seed}
    )
    found = [(row["method"], row["seed"], row["is"]) for row in runner.rows()]
    assert found == [(SMALL_CAPSULES, 3, 3), (CNN, 3, 3), (SMALL_CAPSULES, 4, 4), (CNN, 4, 4)]


def test_variants_have_what_their_names_say():
    found = norb_ablation.variants(CAPSULES_CONFIG, CNN_CONFIG)
    whole = replace(CAPSULES_CONFIG, model=replace(CAPSULES_CONFIG.model, routing_iterations=3))
    assert found[FULL_NETWORK] == whole
    assert [found[f"{n} iterations"].model.routing_iterations for n in (2, 3, 5)] == [2, 3, 5]
    assert found["1 iteration"].model.routing_iterations == 1
    assert found["vectors, no coordinate addition"].model == replace(
        whole.model, vector_poses=True, coordinate_addition=False
    )
    for name in ("margin loss", "cross entropy"):
        assert found[name].model == whole.model
    assert found["margin loss"].loss.classification == "margin"
    assert found["cross entropy"].loss.classification == "cross-entropy"
    assert found["mixing proportions"].model.mixing_proportions


@pytest.mark.parametrize(("experiment", "plan"), [(norb, NORB_PLAN), (norb_ablation, ABLATION_PLAN)])
def test_a_run_that_goes_on_measures_nothing_twice(experiment, plan, runner, ablation, tmp_path, capsys):
    again = replace(runner if experiment is norb else ablation, networks=tmp_path / "no networks")
    before = again.rows()
    experiment.run(again, plan)
    assert again.rows() == before
    assert not again.networks.exists()
    assert "smallnorb is not measured" in capsys.readouterr().out


def test_a_set_that_has_come_is_measured_under_its_own_name(runner, tmp_path):
    root = tmp_path / "data"
    store(root, "smallnorb")
    both = replace(runner, out=tmp_path / "out", root=root)
    norb.run(both, NORB_PLAN)
    assert {(row["data"], row["method"]) for row in both.rows()} == {
        ("smallnorb", SMALL_CAPSULES),
        ("smallnorb", CNN),
    }
    assert all(row["images"] == TESTED <= PAIRS for row in both.rows())


@pytest.mark.parametrize(("experiment", "plan"), [(norb, NORB_PLAN), (norb_ablation, ABLATION_PLAN)])
def test_without_any_data_both_ways_to_get_some_are_named(experiment, plan, tmp_path):
    runner = Runner(tmp_path / "out", tmp_path / "networks", tmp_path / "data", torch.device("cpu"))
    with pytest.raises(MissingDataError, match=r"capsnet-train download smallnorb .*capsnet-train make toys"):
        experiment.run(runner, plan)


def test_the_command_takes_the_name_with_a_dash(tmp_path, capsys):
    folders = ["--data", tmp_path / "data", "--out", tmp_path / "out"]
    assert status("experiment", "norb-ablation", "--quick", "--device", "cpu", *folders) == 2
    assert "capsnet-train make toys" in capsys.readouterr().err


def norb_row(data, method, seed, one, several):
    return {
        "data": data,
        "method": method,
        "seed": seed,
        "error_percent": {ONE: one, SEVERAL: several},
        "images": 24_300,
        "parameters": 68_754,
    }


def test_the_papers_number_is_compared_with_those_on_its_own_set_alone():
    rows = [norb_row(data, SMALL_CAPSULES, 0, 3.0, 2.5) for data in ("smallnorb", "toys")]
    on_smallnorb, on_toys = norb.report(rows).split("| toys |")
    assert "| small matrix capsules, one crop | 68,754 (paper: 68K) | 3.00 | 2.2 | +0.80 |" in on_smallnorb
    assert "| small matrix capsules, one crop | 68,754 (paper: 68K) | 3.00 | 2.2 |  |" in on_toys
    assert "toys is not smallnorb" in on_toys
    assert "toys is not smallnorb" not in on_smallnorb


def test_the_ablation_marks_what_the_papers_text_does_not_give():
    rows = [
        {
            "data": "smallnorb",
            "method": method,
            "seed": 0,
            "error_percent": 5.0,
            "images": 10,
            "parameters": 7,
        }
        for method in norb_ablation.PAPER
    ]
    lines = norb_ablation.report(rows).splitlines()
    marked = {
        method
        for method in norb_ablation.PAPER
        if any(line.startswith(f"| {method} |") and "*" in line for line in lines)
    }
    assert marked == norb_ablation.PAPER.keys() - {FULL_NETWORK, "mixing proportions", "CNN"}
    assert "| mixing proportions | 7 | 5.00 | 4.5 | +0.50 |" in lines


def test_figures_have_a_dot_for_every_error_and_a_line_for_every_number_of_the_paper(tmp_path):
    rows = [
        norb_row("toys", method, seed, 20 + 8 * seed, 12 + 8 * seed)
        for method in (SMALL_CAPSULES, CNN)
        for seed in (0, 1)
    ]
    norb.plot(rows, tmp_path / "norb.png")
    legend = 1
    assert areas(tmp_path / "norb.png", figure.OURS) == 2 * len(rows) + legend
    assert areas(tmp_path / "norb.png", figure.PAPER) == 2 + legend, "it has none by several crops for these"
    rows = [{"data": "toys", "method": method, "error_percent": 30.0} for method in norb_ablation.PAPER]
    norb_ablation.plot(rows, tmp_path / "ablation.png")
    assert areas(tmp_path / "ablation.png", figure.OURS) == len(rows) + legend
    assert areas(tmp_path / "ablation.png", figure.PAPER) == len(rows) + legend


def test_both_sets_are_drawn_and_told_side_by_side(tmp_path):
    sets = ("smallnorb", "toys")
    rows = [norb_row(data, method, 0, 20, 12) for data in sets for method in (SMALL_CAPSULES, CNN)]
    norb.plot(rows, tmp_path / "norb.png")
    assert areas(tmp_path / "norb.png", figure.OURS) == 2 * len(rows) + 1
    found = {"seed": 0, "error_percent": 5.0, "images": 10, "parameters": 7}
    rows = [found | {"data": data, "method": method} for data in sets for method in norb_ablation.PAPER]
    norb_ablation.plot(rows, tmp_path / "ablation.png")
    assert areas(tmp_path / "ablation.png", figure.OURS) == len(rows) + 1
    on_smallnorb, on_toys = norb_ablation.report(rows).split("| toys |")
    assert "| mixing proportions | 7 | 5.00 | 4.5 | +0.50 |" in on_smallnorb
    assert "| mixing proportions | 7 | 5.00 | 4.5 |  |" in on_toys


@pytest.mark.parametrize("data", ["smallnorb", "toys"])
def test_the_full_form_compares_networks_of_the_papers_sizes_with_three_iterations(data):
    networks = norb.FULL.networks[data]
    sizes = {
        method: sum(weights.numel() for weights in build(config.model).parameters())
        for method, config in networks.items()
    }
    assert sizes == {norb.CAPSULES: 317_194, norb.SMALL_CAPSULES: 68_754, norb.CNN: 4_253_349}
    assert {networks[method].model.routing_iterations for method in (norb.CAPSULES, norb.SMALL_CAPSULES)} == {
        3
    }
