"""What a lab keeps, and when it measures anew."""

from dataclasses import replace

import pytest
import torch

from training.config import RunConfig
from training.experiments.runner import Lab, describe, networks_of, run_name

CONFIG = RunConfig()
OTHER = replace(CONFIG, optimizer=replace(CONFIG.optimizer, epochs=7))


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path / "out", tmp_path / "networks", tmp_path / "data", torch.device("cpu"))


def seeded(config, seed):
    return replace(config, seed=seed)


def measure(lab, key, config, found, **way):
    return lab.measure(key, networks_of(config) | way, lambda: {"found": found})["found"]


def found(lab):
    return [row["found"] for row in lab.rows()]


def test_what_was_found_on_the_same_network_is_not_measured_again(lab):
    assert measure(lab, {"method": "a"}, CONFIG, 1) == 1
    assert measure(lab, {"method": "a"}, CONFIG, 2) == 1


def test_a_network_that_has_changed_is_measured_anew_and_its_old_row_goes(lab):
    measure(lab, {"method": "a"}, CONFIG, 1)
    assert measure(lab, {"method": "a"}, OTHER, 2) == 2
    assert [(row["found"], row["network"]) for row in lab.rows()] == [(2, run_name(OTHER))]


def test_so_do_all_rows_of_networks_of_its_kind_and_no_others(lab):
    for seed in (0, 1):
        measure(lab, {"method": "a", "seed": seed}, seeded(CONFIG, seed), f"old {seed}")
    cnn = replace(CONFIG, preset="mnist-cnn")
    measure(lab, {"method": "b", "seed": 0}, cnn, "another")
    measure(lab, {"method": "a", "seed": 0}, OTHER, "new")
    assert found(lab) == ["another", "new"], "a mean over seeds would be of two plans"


def test_another_seed_is_not_another_plan(lab):
    measure(lab, {"method": "a", "seed": 0}, seeded(CONFIG, 0), 1)
    measure(lab, {"method": "a", "seed": 1}, seeded(CONFIG, 1), 2)
    assert found(lab) == [1, 2]


def test_what_is_of_more_networks_together_than_before_is_measured_anew_alone(lab):
    members = [seeded(CONFIG, seed) for seed in range(3)]
    for seed in (0, 1):
        measure(lab, {"seed": seed}, members[seed], f"seed {seed}")
    for count in (2, 3):
        lab.measure({"networks": 2}, networks_of(*members[:count]), lambda count=count: {"found": count})
    assert found(lab) == ["seed 0", "seed 1", 3]


def test_what_is_measured_on_more_images_is_measured_anew(lab):
    measure(lab, {"method": "a"}, CONFIG, 1, versions=1)
    assert measure(lab, {"method": "a"}, CONFIG, 2, versions=32) == 2
    assert found(lab) == [2]


def test_so_are_all_rows_that_were_measured_on_fewer_with_the_same_network(lab):
    for method in "abc":
        measure(lab, {"method": method}, CONFIG, f"{method} of 1", images=1)
    measure(lab, {"method": "a"}, CONFIG, "a of 2", images=2)
    assert found(lab) == ["a of 2"], "stopped here, the report would be of two plans"


def test_counts_go_on_after_an_interruption(lab, monkeypatch):
    monkeypatch.setattr("training.experiments.runner.COUNTS_KEPT_S", -1.0)
    counted = []

    def count_until(last):
        def of_batch(batch):
            if batch == last:
                raise KeyboardInterrupt
            counted.append(batch)
            return torch.tensor([1, batch])

        return of_batch

    with pytest.raises(KeyboardInterrupt):
        lab.count({"row": "a"}, range(5), count_until(3))
    assert lab.count({"row": "another"}, range(2), count_until(None)).tolist() == [2, 1]
    assert lab.count({"row": "a"}, range(5), count_until(None)).tolist() == [5, 10]
    assert counted == [0, 1, 2, 0, 1, 3, 4], "what was counted before is not counted again"
    lab.measure(
        {"row": "a"}, {}, lambda: {"found": lab.count({"row": "a"}, range(5), count_until(4)).tolist()}
    )
    assert counted == [0, 1, 2, 0, 1, 3, 4], "nor before the row has been written"
    assert [row["found"] for row in lab.rows()] == [[5, 10]]
    [of_the_other] = lab.out.glob("unfinished-*")
    of_the_other.write_text('{"batches": 1')
    with pytest.raises(ValueError, match=f"{of_the_other.name} is damaged.*remove it"):
        lab.count({"row": "another"}, range(2), count_until(None))


def test_a_damaged_row_stops_what_is_measured_next_and_nothing_is_lost(lab):
    measure(lab, {"method": "a"}, CONFIG, 1)
    file = lab.out / "rows.jsonl"
    damaged = file.read_bytes() + b'{"method": "b", "fou'
    file.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 2 is damaged"):
        measure(lab, {"method": "c"}, CONFIG, 3)
    assert file.read_bytes() == damaged


def test_a_setting_names_all_that_the_quick_form_changes():
    text = describe(CONFIG)
    for part in ("256 channels", "32 capsule types", "decoder of 512-1024", "batches of 128", "rate 0.001"):
        assert part in text
    assert "3 iterations of routing" in text
    cooled = replace(CONFIG, optimizer=replace(CONFIG.optimizer, cooldown_epochs=3))
    assert "falls to 0 over the last 3 epochs" in describe(cooled)
