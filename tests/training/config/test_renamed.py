"""Names of earlier versions, in runs, presets and bundles that users still have."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from export.contract.manifest import read_manifest
from tests.support.paths import MODELS
from training.config import RunConfig, from_dict, load_preset, to_dict
from training.config.renamed import KEYS, with_current_names, with_original_names
from training.experiments.runner import run_name

OLD = {
    "preset": "cifar10",
    "model": {"architecture": "capsnet", "standardise": True, "official_initialisation": True},
    "data": {"name": "cifar10", "light": "standardised", "blank_share": 0.1},
    "optimiser": {"epochs": 3, "weight_average": 0.99},
}
NEW = {
    "preset": "cifar10",
    "model": {"architecture": "capsnet", "standardize_per_image": True, "official_initialization": True},
    "data": {"name": "cifar10", "light": "standardized", "blank_fraction": 0.1},
    "optimizer": {"epochs": 3, "ema_decay": 0.99},
}


def test_a_configuration_of_an_earlier_version_means_what_it_meant():
    assert from_dict(OLD) == from_dict(NEW)
    matrix = {"architecture": "matrix-capsnet"}
    old, new = ({**matrix, f"class_temperature_{word}": 0.5} for word in ("share", "fraction"))
    assert from_dict({"model": old}) == from_dict({"model": new})


def test_names_go_there_and_back():
    assert with_current_names(OLD) == NEW
    assert with_original_names(NEW) == OLD
    assert with_current_names(NEW) == NEW


def test_a_value_under_both_names_is_refused():
    with pytest.raises(ValueError, match="ema_decay is given twice"):
        from_dict({"optimizer": {"ema_decay": 0.9, "weight_average": 0.9}})


def test_no_earlier_name_is_written():
    text = json.dumps(to_dict(from_dict(OLD)))
    assert not [name for name in KEYS if f'"{name}"' in text]


def test_what_a_run_was_started_from_stays_as_it_was_recorded():
    assert from_dict({**OLD, "started_from": {"config": OLD}}).started_from == {"config": OLD}


@pytest.mark.parametrize("manifest", sorted(MODELS.glob("*/*/manifest.json")), ids=str)
def test_the_runs_of_shipped_bundles_are_read(manifest: Path):
    training = read_manifest(manifest.parent).training
    assert isinstance(from_dict(training["config"]), RunConfig)


def test_networks_of_experiments_keep_the_names_under_which_they_were_trained():
    warmed = load_preset("smallnorb")
    earlier = replace(warmed, optimizer=replace(warmed.optimizer, warmup_steps=0))
    assert run_name(earlier) == "smallnorb-0-58bafc2ad4"
    calibrated = load_preset("matrix-toys")
    earlier = replace(calibrated, model=replace(calibrated.model, activation_logit_sd=None))
    assert run_name(earlier) == "matrix-toys-0-942aa2a93d"
