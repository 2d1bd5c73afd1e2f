"""benchmarks.inference.throughput ends well on a small network; its tables say what was measured."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.inference.report import PLAIN, SERVED, Report, Row
from benchmarks.inference.throughput import main
from export.contract.manifest import newest_version
from tests.support.paths import ROOT
from tests.support.tiny_bundle import write_bundle

ONE_AXIS, BOTH_AXES = "ours, one axis", "ours, both axes"


def run_briefly(bundle: Path, only: str, found: Path) -> subprocess.CompletedProcess[str]:
    briefly = ["--batches", "3,1", "--threads", "1", "--seconds", "0.05"]
    arguments = [str(bundle), "--only", only, *briefly, "--json", str(found)]
    command = [sys.executable, "-m", "benchmarks.inference.throughput", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_every_contender_has_the_plain_graphs_outputs(trained_bundle, tmp_path):
    # Without torch.compile, which takes half a minute.
    done = run_briefly(trained_bundle, "eager,openvino,plain,ours", tmp_path / "found.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    rows = {row["name"]: row for row in found["rows"]}
    assert rows.keys() >= {"torch eager", PLAIN, SERVED}, done.stderr
    assert ("OpenVINO" in rows) == bool(find_spec("openvino"))
    for name, row in rows.items():
        assert set(row["images_per_second"]) == {"1", "3"}
        assert row["peak_bytes"]["3"] >= row["peak_bytes"]["1"] > 0
        assert max(row["difference"].values()) < 1e-5, name
        assert f"| {name} " in done.stdout
    assert set(found["ratios"]["as served"]) == {"1", "3"}


@pytest.mark.long
def test_matrix_capsules_have_contenders_of_their_own(tmp_path):
    toys = newest_version(ROOT / "models" / "matrix-capsnet-toys")
    done = run_briefly(toys, "eager,plain,moments,served", tmp_path / "found.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert [row["name"] for row in found["rows"]] == ["torch eager", PLAIN, "ours, from moments", SERVED]
    for row in found["rows"]:
        assert max(row["difference"].values()) < 1e-4, row["name"]
    assert set(found["of_best_variant"]) == {"1", "3"}


def test_a_graph_without_a_capsnets_weights_is_measured_without_torch_and_says_so(tmp_path):
    done = run_briefly(write_bundle(tmp_path / "tiny" / "1"), "eager,plain", tmp_path / "found.json")
    assert done.returncode == 0, done.stderr
    assert [row["name"] for row in json.loads((tmp_path / "found.json").read_text())["rows"]] == [PLAIN]
    assert "torch eager is left out" in done.stderr
    assert "conv1.weight" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--batches", "1,0"), "from 1 on, got 0"),
        (("--seconds", "nan"), "above 0, got nan"),
        (("--only", "caffe"), "torch eager"),
        ((str(ROOT / "models"),), "no manifest.json"),
    ],
)
def test_an_option_that_cannot_be_is_answered_with_what_can(capsys, arguments, words):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    told = capsys.readouterr()
    assert (ended.value.code, told.out) == (2, "")
    assert words in told.err


def row(name: str, *seconds: float, peak: int = 1) -> Row:
    """Measured at batches of 2."""
    return Row(name, {2: list(seconds)}, {2: peak}, difference={"poses": 1e-6})


def test_a_ratio_is_that_of_the_median_round():
    rows = [row(PLAIN, 2, 20, 200), row(ONE_AXIS, 1, 5, 100)]  # the machine became slower meanwhile
    assert Report(rows, {2: "toom_cook_1d"}).ratios["ours"][2].to_plain == 2


def test_ours_is_what_is_chosen_for_the_size_though_another_be_faster():
    report = Report([row(PLAIN, 4), row(ONE_AXIS, 2, peak=3), row(BOTH_AXES, 1)], {2: "toom_cook_1d"})
    assert report.chosen_names() == {2: ONE_AXIS}
    assert report.ratios["ours"][2][:2] == (2, 2)
    assert report.ratios["ours"][2].memory_to_plain == 3


def test_the_best_other_is_none_of_ours():
    rows = [row(PLAIN, 6), row("OpenVINO", 4), row(BOTH_AXES, 1), row(SERVED, 2)]
    ratios = Report(rows, {2: "toom_cook_2d"}).ratios
    assert {found[2].best_other for found in ratios.values()} == {"OpenVINO"}
    assert (ratios["ours"][2].to_best_other, ratios["as served"][2].to_best_other) == (4, 2)


def test_the_best_other_is_the_fastest_of_each_round():
    rows = [row(PLAIN, 2, 6, 6), row("OpenVINO", 6, 2, 2), row(BOTH_AXES, 1, 1, 1)]
    assert Report(rows, {2: "toom_cook_2d"}).ratios["ours"][2].to_best_other == 2


def test_what_is_served_is_compared_with_the_fastest_variant_of_each_round():
    variants = [row(PLAIN, 2, 4, 4), row(ONE_AXIS, 4, 2, 8), row(BOTH_AXES, 8, 8, 8)]
    assert Report([*variants, row(SERVED, 2, 4, 5)], {2: "plain"}).of_best_variant == {2: 0.8}
    assert Report([*variants[1:], row(SERVED, 2, 4, 5)], {2: "plain"}).of_best_variant == {}


def test_without_the_plain_graph_there_are_speeds_but_no_ratios():
    lines = list(Report([row("OpenVINO", 4), row(BOTH_AXES, 1)], {2: "toom_cook_2d"}).lines())
    assert not any("/" in line for line in lines[2:])
    assert any("**2**" in line for line in lines)
