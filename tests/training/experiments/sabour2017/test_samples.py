from dataclasses import replace

import pytest
import torch

from tests.support.figures import areas
from training.config import DataConfig, RunConfig, load_preset
from training.data.batches import make_batches
from training.data.run_images import evaluation_batches, training_batches
from training.evaluate.evaluation import evaluate
from training.experiments import figure
from training.experiments.quick import narrowed
from training.experiments.runner import Runner
from training.experiments.sabour2017 import samples
from training.experiments.sabour2017.samples import CAPSNET, CNN, Plan
from training.runs import checkpoint

IMAGES, MOST = (20, 50), 96


def tiny(preset: str) -> RunConfig:
    config = narrowed(narrowed(load_preset(preset), MOST, 2), MOST, 2)
    return samples.repeated(replace(config, data=replace(config.data, validation_images=20)), MOST, 2)


@pytest.fixture(scope="module")
def runner(tmp_path_factory, drawn_mnist_root):
    folder = tmp_path_factory.mktemp("samples")
    runner = Runner(folder / "out", folder / "networks", drawn_mnist_root, torch.device("cpu"))
    plan = Plan({CAPSNET: tiny("mnist"), CNN: tiny("mnist-cnn")}, IMAGES, (0, 1), test_images=150)
    samples.run(runner, plan)
    return runner


def configs(runner, **like):
    """Configurations of the rows that have these values."""
    rows = [row for row in runner.rows() if all(row[name] == value for name, value in like.items())]
    return [checkpoint.read_config(runner.networks / row["network"]) for row in rows]


def test_each_network_takes_as_many_steps_whatever_it_is_trained_on(runner):
    rows = runner.rows()
    assert len(rows) == 8
    assert {row["steps"] for row in rows} == {2 * MOST // 32}


def test_with_the_same_seed_both_networks_are_trained_on_the_same_images(runner):
    first, second = configs(runner, training_images=50, seed=1)
    assert type(first.model) is not type(second.model)
    one, other = (training_batches(config, runner.root)[0].images.pixels for config in (first, second))
    assert torch.equal(one, other)
    [another, _] = configs(runner, training_images=50, seed=0)
    assert not torch.equal(one, training_batches(another, runner.root)[0].images.pixels)


def test_a_larger_training_set_holds_the_smaller_one(runner):
    few, many = (
        training_batches(configs(runner, training_images=count, seed=0)[0], runner.root)[0].images.pixels
        for count in IMAGES
    )
    assert torch.equal(few[: IMAGES[0]], many[: IMAGES[0]])


def test_errors_are_those_of_the_last_weights_on_the_first_test_images(runner):
    for row in runner.rows():
        run = runner.networks / row["network"]
        config = checkpoint.read_config(run)
        model = checkpoint.load_model(run, checkpoint.newest_checkpoint(run), runner.device)
        whole = evaluation_batches(config, runner.root)
        first = make_batches(config.data, 10, whole.images[:150])
        assert row["error_percent"] == evaluate(model, first, config.loss).error_percent
        assert row["images"] == 150


def test_a_run_that_goes_on_measures_nothing_twice(runner, tmp_path):
    again = replace(runner, networks=tmp_path / "no networks")
    before = runner.rows()
    samples.run(again, Plan({CAPSNET: tiny("mnist"), CNN: tiny("mnist-cnn")}, IMAGES, (0, 1), 150))
    assert runner.rows() == before
    assert not again.networks.exists()


def rows_of(capsnet: list[float], cnn: list[float]) -> list[dict]:
    """One row per network and seed, trained on 100 images."""
    return [
        {"method": method, "training_images": 100, "seed": seed, "error_percent": error}
        | {"steps": 60, "batch": 32, "images": 2000}
        for method, errors in ((CAPSNET, capsnet), (CNN, cnn))
        for seed, error in enumerate(errors)
    ]


@pytest.mark.parametrize(
    ("capsnet", "cnn", "said"),
    [
        ([10.0, 11.0, 12.0], [14.0, 15.5, 16.0], "CapsNet is better with 100 training images."),
        ([14.0, 15.5, 16.0], [10.0, 11.0, 12.0], "CNN is better with 100 training images."),
        ([10.0, 11.0, 12.0], [12.0, 11.0, 11.0], "No clear difference with 100 training images."),
        ([10.0, 11.0, 12.0], [13.0, 12.0, 13.0], "No clear difference with 100"),  # 2.5 standard errors
        ([10.0], [12.0], "Too few seeds to tell with 100 training images."),
    ],
)
def test_the_report_says_which_network_is_better_where_seeds_agree(capsnet, cnn, said):
    assert said in samples.report(rows_of(capsnet, cnn))


def test_the_report_says_of_which_test_images_errors_are():
    rows = rows_of([10.0, 20.0], [11.0, 21.0])
    assert "measured on the first 2,000 test images" in samples.report(rows)
    assert "measured on the 10,000 test" in samples.report([row | {"images": 10_000} for row in rows])


def test_differences_are_of_networks_with_the_same_seed():
    text = samples.report(rows_of([10.0, 20.0, 30.0], [11.0, 21.0, 31.0]))
    assert "| 100 | 20.00 ± 10.00 (3) | 21.00 ± 10.00 (3) | -1.00 ± 0.00 (3) |" in text


def test_the_figure_has_a_line_for_either_network(tmp_path):
    rows = rows_of([10.0, 11.0], [40.0, 44.0])
    rows += [row | {"training_images": 1000, "error_percent": row["error_percent"] / 4} for row in rows]
    samples.plot(rows, tmp_path / "figure.png")
    legend = 1
    for color in (figure.OURS, figure.OTHER):
        assert areas(tmp_path / "figure.png", color) > legend


@pytest.mark.parametrize(("few", "epoch"), [(50, 50), (50, 120), (7, 100)])
def test_an_epoch_shows_each_training_image_as_often_as_any_other_or_once_more(few, epoch, drawn_mnist_root):
    data = DataConfig(validation_images=100, training_images=few, epoch_images=epoch)
    train, _ = training_batches(RunConfig(data=data), drawn_mnist_root)
    once, _ = training_batches(RunConfig(data=replace(data, epoch_images=None)), drawn_mnist_root)
    shown = [(image == once.images.pixels).flatten(1).all(dim=1) for image in train.images.pixels]
    times = torch.stack(shown).sum(dim=0)
    assert len(once) == few
    assert (len(train), int(times.sum())) == (epoch, epoch)
    assert times.max() - times.min() <= 1


def test_an_epoch_that_would_leave_images_out_is_refused(drawn_mnist_root):
    config = RunConfig(data=DataConfig(validation_images=100, training_images=50, epoch_images=49))
    with pytest.raises(ValueError, match="epoch_images is 49; expected at least the 50 trained on"):
        training_batches(config, drawn_mnist_root)
