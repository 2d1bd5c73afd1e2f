"""`capsnet-train experiment all`: every experiment whose data is there."""

import gzip
from pathlib import Path

import pytest

from training.cli import main
from training.data.mnist import FILE_PREFIX
from training.experiments import EXPERIMENTS


def status(*arguments) -> object:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code


def all_quick(folder: Path) -> list[object]:
    folders = ["--data", folder / "data", "--out", folder / "out", "--networks", folder / "networks"]
    return ["experiment", "all", "--quick", "--device", "cpu", *folders]


def test_experiments_without_their_data_are_named_with_what_downloads_it(tmp_path, capsys):
    assert status(*all_quick(tmp_path)) == 2
    printed = capsys.readouterr()
    assert f"skipped, as their data is not there: {', '.join(EXPERIMENTS)}" in printed.out
    assert "there is no data for any experiment" in printed.err
    for name, data in (("table1", "mnist"), ("smallnorb", "smallnorb"), ("svhn", "svhn")):
        assert f"{name}: " in printed.err
        assert f"capsnet-train download {data} --data {tmp_path / 'data'}" in printed.err


def test_an_experiment_that_fails_for_another_reason_ends_all_with_its_error(tmp_path, capsys):
    (tmp_path / "data" / "mnist").mkdir(parents=True)
    for prefix in FILE_PREFIX.values():
        for kind in ("images-idx3", "labels-idx1"):
            file = tmp_path / "data" / "mnist" / f"{prefix}-{kind}-ubyte.gz"
            file.write_bytes(gzip.compress(b"no IDX file"))
    assert status(*all_quick(tmp_path)) == 2
    assert "is not an IDX file" in capsys.readouterr().err


def test_experiments_without_data_are_not_in_the_joint_page(tmp_path, capsys):
    status(*all_quick(tmp_path))
    assert status("report", tmp_path / "out") == 2
    assert "holds no experiment" in capsys.readouterr().err
