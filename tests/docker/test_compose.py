"""The compose file: no service may take all of a machine, and every one comes back."""

import re
from typing import Any

import pytest
import yaml
from torch.distributed.run import get_args_parser

from tests.support.paths import ROOT

SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
SIZE = re.compile(r"(\$\{[A-Z_]+:-)?[1-9][0-9]*[mg]\}?")

each_service = pytest.mark.parametrize("name", SERVICES)


@each_service
def test_the_log_of_a_service_cannot_fill_the_disk(name):
    logging = SERVICES[name]["logging"]
    assert logging["driver"] == "json-file"
    assert SIZE.fullmatch(logging["options"]["max-size"])
    assert int(logging["options"]["max-file"]) > 1


@each_service
def test_memory_processes_and_open_files_of_a_service_are_limited(name):
    assert SIZE.fullmatch(SERVICES[name]["mem_limit"])
    assert SERVICES[name]["pids_limit"] > 0
    assert SERVICES[name]["ulimits"]["nofile"] > 0


@each_service
def test_a_service_that_fails_is_started_again(name):
    assert SERVICES[name]["restart"] in {"unless-stopped", "on-failure:3"}


@pytest.mark.parametrize("name", [name for name in SERVICES if name.startswith("service")])
def test_each_service_builds_the_stage_of_its_device(name):
    stages = (ROOT / "docker" / "service.Dockerfile").read_text().split("\nFROM ")
    target = SERVICES[name]["build"]["target"]
    [stage] = [one for one in stages if one.splitlines()[0].endswith(f" AS {target}")]
    assert f"CAPSNET_DEVICE={SERVICES[name]['environment']['CAPSNET_DEVICE']}" in stage


def test_a_sidecar_gets_a_gpu_for_each_worker_of_torchrun():
    several = yaml.safe_load((ROOT / "docker" / "several-machines.yml").read_text())["services"]
    [device] = SERVICES["training-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["count"] == several["training-gpu"]["environment"]["PET_NPROC_PER_NODE"]


def test_files_that_the_pages_fill_with_secrets_are_ignored_by_git():
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"/.env", "/api-keys.txt", "/compose.override.yaml", "/deploy/"} <= set(ignored)


def test_images_that_are_pulled_are_named_exactly():
    for service in SERVICES.values():
        if "build" not in service:
            assert re.search(r":v?[0-9]+\.[0-9]+\.[0-9]+(@sha256:[0-9a-f]{64})?$", service["image"])


def test_the_sidecars_of_several_machines_give_torchrun_what_it_reads():
    several = yaml.safe_load((ROOT / "docker" / "several-machines.yml").read_text())["services"]
    assert several.keys() == {name for name in SERVICES if name.startswith("training")}
    known = {f"PET_{action.dest.upper()}" for action in get_args_parser()._actions}
    for service in several.values():
        assert service["network_mode"] == "host"
        assert {name for name in service["environment"] if name.startswith("PET_")} <= known
