"""Two overlapping digits, named and drawn apart: errors, and the columns of figure 5."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support.figures import areas
from training.config import Block, load_preset
from training.data.run_images import evaluation_batches
from training.experiments.quick import narrowed
from training.experiments.runner import Runner
from training.experiments.sabour2017 import multimnist, segment, table1
from training.experiments.sabour2017.multimnist import CAPSNET, CNN, Shown, columns, in_order_of, look


def network(preset, **narrower):
    config = narrowed(load_preset(preset), 64, 1)
    return replace(
        config, model=replace(config.model, **narrower), data=replace(config.data, validation_images=20)
    )


PLAN = multimnist.Plan(
    {
        CAPSNET: network("multimnist", conv_channels=4, primary_types=1, decoder_hidden=(8,)),
        CNN: network("multimnist-cnn", blocks=(Block(channels=4, kernel=5, pooled=True),), hidden=(8,)),
    },
    seeds=(0,),
    partners=(1, 2),
)


@pytest.fixture(scope="module")
def runner(tmp_path_factory, drawn_mnist_root):
    folder = tmp_path_factory.mktemp("multimnist")
    runner = Runner(folder / "out", folder / "networks", drawn_mnist_root, torch.device("cpu"))
    multimnist.run(runner, PLAN)
    return runner


def pair(labels, longest):
    return Shown(torch.zeros(1, 2, 2), torch.zeros(10, 16), labels, longest)


def test_in_the_papers_form_it_trains_nothing_that_table_1_has_trained():
    assert tuple(multimnist.FULL.networks.values()) == table1.FULL.networks["multimnist"]
    assert multimnist.FULL.seeds == table1.FULL.seeds
    assert multimnist.FULL.partners == (1, 1000), "the fixed test set, and the paper's of 10 million pairs"


def test_segment_trains_nothing_that_it_has_trained():
    for mine, theirs in ((segment.FULL, multimnist.FULL), (segment.QUICK, multimnist.QUICK)):
        assert mine.network == theirs.networks[CAPSNET]
        assert mine.seeds == theirs.seeds


@pytest.mark.parametrize("method", [CAPSNET, CNN])
@pytest.mark.parametrize("partners", [1, 2])
def test_errors_are_of_exact_pairs_and_of_digits_over_all_partners(runner, method, partners):
    trained = runner.trained(PLAN.networks[method])
    wrong = missed = 0
    for batch in evaluation_batches(trained.config, runner.root).fixed(50, partners):
        with torch.no_grad():
            answers = trained.model(batch.pixels)
        scores = answers.norm(dim=2) if method == CAPSNET else answers
        for best, there in zip(scores.argsort(dim=1)[:, -2:].tolist(), batch.targets, strict=True):
            names = set(there.nonzero().flatten().tolist())
            wrong += set(best) != names
            missed += len(names - set(best))
    [row] = [r for r in runner.rows() if (r.get("method"), r.get("partners")) == (method, partners)]
    assert row["images"] == 200 * partners
    assert row["error_percent"] == pytest.approx(100 * wrong / (200 * partners))
    assert row["object_error_percent"] == pytest.approx(100 * missed / (400 * partners))


def test_what_has_been_measured_is_not_measured_again(runner):
    before = runner.rows()
    multimnist.run(runner, PLAN)
    assert runner.rows() == before


def test_a_right_class_stands_where_its_label_does():
    assert in_order_of((2, 8), (8, 2)) == (2, 8)
    assert in_order_of((2, 8), (7, 2)) == (2, 7)
    assert in_order_of((2, 8), (8, 7)) == (7, 8)
    assert in_order_of((2, 8), (3, 7)) == (3, 7)


def test_a_starred_column_draws_a_digit_that_is_neither_label_nor_prediction():
    starred = pair((5, 0), (0, 5, 7))
    assert starred.prediction == (5, 0)
    assert starred.intruder == (7, 0)


def test_columns_are_of_the_kinds_that_they_are_under(runner):
    right, wrong = pair((1, 2), (2, 1, 3)), pair((4, 9), (4, 0, 9))
    found = columns(iter([wrong] * 2 + [right] * 12))
    assert [kind for kind, _, _ in found] == [*multimnist.COLUMNS] * 2
    drawn = {kind: classes for kind, _, classes in found}
    assert drawn == {"right": (1, 2), "starred": (3, 2), "label": (4, 9), "prediction": (4, 0)}


def test_columns_that_no_pair_is_found_for_stay_empty():
    found = columns(iter([pair((4, 9), (4, 0, 9))]))
    assert [column and column[0] for column in found] == [None] * 6 + ["label", "prediction"] + [None] * 8


def test_each_reconstruction_is_what_its_capsule_alone_is_decoded_to(runner):
    trained = runner.trained(PLAN.networks[CAPSNET])
    batches = evaluation_batches(trained.config, runner.root)
    shown = columns(look(trained.model, batches))
    [row] = [row for row in runner.rows() if row.get("figure") == 5]
    kept = np.load(runner.out / row["pictures"])
    assert any(shown)
    for column, (pixels, *apart) in zip(shown, kept, strict=True):
        if column is None:
            continue
        _, seen, drawn = column
        assert np.array_equal(pixels, (255 * seen.pixels[0]).byte().numpy())
        for label, picture in zip(drawn, apart, strict=True):
            only = torch.zeros_like(seen.v)
            only[label] = seen.v[label]
            with torch.no_grad():
                decoded = trained.model.decoder(only[None], torch.ones(1, 10))[0, 0]
            assert np.abs(picture / 255 - decoded.numpy()).max() < 0.51 / 255


def test_the_report_has_the_papers_number_beside_each_test_set(runner):
    rows = [
        {"method": CAPSNET, "partners": partners, "images": 10_000 * partners, "seed": 0}
        | {"error_percent": 6.2, "object_error_percent": 3.1}
        for partners in (1, 1000)
    ]
    text = multimnist.report(rows)
    for pairs in ("10,000", "10,000,000"):
        assert f"| {CAPSNET}, {pairs} pairs | 6.20 | 5.20 | +1.00 | 3.10 |" in text
        assert f"| {CNN}, {pairs} pairs |  | 8.10 |  |  |" in text, "what is not measured stays blank"


def test_the_figure_shows_the_first_digit_in_red_and_the_second_in_green(tmp_path):
    pictures = np.zeros((16, 3, 36, 36), np.uint8)
    pictures[:, 1, :, :18] = pictures[:, 2, :, 18:] = 255
    captions = [["L:(1, 2)", "R:(1, 2)"]] * 15 + [None]
    rows = []
    for seed, shown in ((1, np.zeros_like(pictures)), (0, pictures)):  # of several seeds, the first one's
        np.save(tmp_path / f"figure5-{seed}.npy", shown)
        rows.append({"figure": 5, "seed": seed, "pictures": f"figure5-{seed}.npy", "columns": captions})
    multimnist.plot(rows, tmp_path / "figure.png")
    for color in ((255, 0, 0), (0, 255, 0)):
        assert areas(tmp_path / "figure.png", color) == 15, "a column without a pair stays empty"
