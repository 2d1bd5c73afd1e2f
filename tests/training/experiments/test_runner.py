"""What a runner keeps, and when it measures anew."""

import json
from dataclasses import replace

import pytest
import torch

from training.config import RunConfig
from training.data.batches import Batch
from training.experiments.runner import Runner, describe, networks_of, run_name

CONFIG = RunConfig()
OTHER = replace(CONFIG, optimizer=replace(CONFIG.optimizer, epochs=7))


@pytest.fixture
def runner(tmp_path):
    return Runner(tmp_path / "out", tmp_path / "networks", tmp_path / "data", torch.device("cpu"))


def seeded(config, seed):
    return replace(config, seed=seed)


def measure(runner, key, config, found, **settings):
    return runner.measure(key, networks_of(config) | settings, lambda: {"found": found})["found"]


def found(runner):
    return [row["found"] for row in runner.rows()]


def test_what_was_found_on_the_same_network_is_not_measured_again(runner):
    assert measure(runner, {"method": "a"}, CONFIG, 1) == 1
    assert measure(runner, {"method": "a"}, CONFIG, 2) == 1


def test_a_network_that_has_changed_is_measured_anew_and_its_old_row_goes(runner):
    measure(runner, {"method": "a"}, CONFIG, 1)
    assert measure(runner, {"method": "a"}, OTHER, 2) == 2
    assert [(row["found"], row["network"]) for row in runner.rows()] == [(2, run_name(OTHER))]


def test_so_do_all_rows_of_networks_of_its_kind_and_no_others(runner):
    for seed in (0, 1):
        measure(runner, {"method": "a", "seed": seed}, seeded(CONFIG, seed), f"old {seed}")
    cnn = replace(CONFIG, preset="mnist-cnn")
    measure(runner, {"method": "b", "seed": 0}, cnn, "another")
    measure(runner, {"method": "a", "seed": 0}, OTHER, "new")
    assert found(runner) == ["another", "new"], "a mean over seeds would be of two plans"


def test_a_row_that_is_there_twice_counts_once(runner):
    measure(runner, {"method": "a", "seed": 0}, seeded(CONFIG, 0), 1)
    measure(runner, {"method": "a", "seed": 1}, seeded(CONFIG, 1), 2)
    file = runner.out / "rows.jsonl"
    first, second = file.read_text().splitlines()
    copied = json.dumps(json.loads(first) | {"command": "another"})
    file.write_text("\n".join([first, second, copied, second]) + "\n")
    assert found(runner) == [1, 2]
    measure(runner, {"method": "a", "seed": 2}, seeded(CONFIG, 2), 3)
    assert found(runner) == [1, 2, 3]
    assert file.read_text().splitlines()[:2] == [first, second]
    assert file.read_text().count("\n") == 3


def test_another_seed_is_not_another_plan(runner):
    measure(runner, {"method": "a", "seed": 0}, seeded(CONFIG, 0), 1)
    measure(runner, {"method": "a", "seed": 1}, seeded(CONFIG, 1), 2)
    assert found(runner) == [1, 2]


def test_rows_of_another_plan_go_once_one_of_another_seed_is_measured(runner):
    """As with `--seed 2`."""
    measure(runner, {"method": "a", "seed": 0}, seeded(CONFIG, 0), "old")
    measure(runner, {"method": "b", "seed": 0}, seeded(CONFIG, 0), "old, too")
    cnn = replace(CONFIG, preset="mnist-cnn")
    measure(runner, {"method": "c", "seed": 0}, cnn, "another")
    measure(runner, {"method": "a", "seed": 2}, seeded(OTHER, 2), "new")
    assert found(runner) == ["another", "new"]


def test_the_same_measured_twice_is_refused_with_both_lines(runner):
    for seed in (0, 1):
        measure(runner, {"method": "a", "seed": seed}, seeded(CONFIG, seed), seed)
    file = runner.out / "rows.jsonl"
    first, second = map(json.loads, file.read_text().splitlines())
    again = second | {"found": 1.5, "hardware": "another CPU"}
    file.write_text("".join(json.dumps(row) + "\n" for row in (first, second, again)))
    with pytest.raises(ValueError, match=r"rows\.jsonl, lines 2 and 3 are two measurements of the same"):
        measure(runner, {"method": "a", "seed": 1}, seeded(CONFIG, 1), 3)
    assert measure(runner, {"method": "a", "seed": 0}, seeded(CONFIG, 0), 4) == 0


def test_what_is_of_more_networks_together_than_before_is_measured_anew_alone(runner):
    members = [seeded(CONFIG, seed) for seed in range(3)]
    for seed in (0, 1):
        measure(runner, {"seed": seed}, members[seed], f"seed {seed}")
    for count in (2, 3):
        runner.measure({"networks": 2}, networks_of(*members[:count]), lambda count=count: {"found": count})
    assert found(runner) == ["seed 0", "seed 1", 3]


def test_what_is_measured_on_more_images_is_measured_anew(runner):
    measure(runner, {"method": "a"}, CONFIG, 1, versions=1)
    assert measure(runner, {"method": "a"}, CONFIG, 2, versions=32) == 2
    assert found(runner) == [2]


def test_so_are_all_rows_that_were_measured_on_fewer_with_the_same_network(runner):
    for method in "abc":
        measure(runner, {"method": method}, CONFIG, f"{method} of 1", images=1)
    measure(runner, {"method": "a"}, CONFIG, "a of 2", images=2)
    assert found(runner) == ["a of 2"], "stopped here, the report would be of two plans"


def numbered(*sizes):
    """Batches of these sizes, of images that are numbered from 0."""
    numbers = torch.arange(sum(sizes), dtype=torch.float32).reshape(-1, 1, 1, 1)
    return [Batch.of(part, torch.zeros(len(part), 2)) for part in numbers.split(sizes)]


def test_counts_go_on_after_an_interruption(runner, monkeypatch):
    monkeypatch.setattr("training.experiments.runner.COUNTS_KEPT_S", -1.0)
    counted = []

    def count_until(last):
        def of_batch(batch):
            images = batch.pixels.flatten().int().tolist()
            if last in images:
                raise KeyboardInterrupt
            counted.extend(images)
            return torch.tensor([len(images), sum(images)])

        return of_batch

    five = numbered(1, 1, 1, 1, 1)
    with pytest.raises(KeyboardInterrupt):
        runner.count({"row": "a"}, five, count_until(3))
    assert runner.count({"row": "another"}, numbered(2), count_until(None)).tolist() == [2, 1]
    assert runner.count({"row": "a"}, five, count_until(None)).tolist() == [5, 10]
    assert counted == [0, 1, 2, 0, 1, 3, 4], "what was counted before is not counted again"
    runner.measure(
        {"row": "a"}, {}, lambda: {"found": runner.count({"row": "a"}, five, count_until(4)).tolist()}
    )
    assert counted == [0, 1, 2, 0, 1, 3, 4], "nor before the row has been written"
    assert [row["found"] for row in runner.rows()] == [[5, 10]]
    [of_the_other] = runner.out.glob("unfinished-*")
    of_the_other.write_text('{"images": 1')
    with pytest.raises(ValueError, match=f"{of_the_other.name} is damaged.*remove it"):
        runner.count({"row": "another"}, numbered(2), count_until(None))


def test_counts_go_on_in_batches_of_another_size(runner, monkeypatch):
    """As when a GPU goes on with what a CPU began."""
    monkeypatch.setattr("training.experiments.runner.COUNTS_KEPT_S", -1.0)

    def count(batches, last=None):
        def of_batch(batch):
            if last in batch.pixels.flatten().tolist():
                raise KeyboardInterrupt
            return torch.tensor([len(batch), int(batch.pixels.sum())])

        return runner.count({"row": "a"}, batches, of_batch)

    with pytest.raises(KeyboardInterrupt):
        count(numbered(2, 2, 2, 2), last=6)
    assert count(numbered(4, 4)).tolist() == [8, 28]
    with pytest.raises(KeyboardInterrupt):
        count(numbered(5, 5, 2), last=10)
    assert count(numbered(3, 3, 3, 3)).tolist() == [12, 66]


def test_a_damaged_row_stops_what_is_measured_next_and_nothing_is_lost(runner):
    measure(runner, {"method": "a"}, CONFIG, 1)
    file = runner.out / "rows.jsonl"
    damaged = file.read_bytes() + b'{"method": "b", "fou'
    file.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 2 is damaged"):
        measure(runner, {"method": "c"}, CONFIG, 3)
    assert file.read_bytes() == damaged


def test_a_setting_names_all_that_the_quick_form_changes():
    text = describe(CONFIG)
    for part in ("256 channels", "32 capsule types", "decoder of 512-1024", "batches of 128", "rate 0.001"):
        assert part in text
    assert "3 iterations of routing" in text
    cooled = replace(CONFIG, optimizer=replace(CONFIG.optimizer, cooldown_epochs=3))
    assert "falls to 0 over the last 3 epochs" in describe(cooled)
