import onnx
import pytest

from export.cli import main
from tests.support.places import ROOT

SHIPPED = ROOT / "models" / "capsnet-mnist"


def failure(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["optimize", *arguments])
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_optimize_writes_both_variants_and_says_how_fast_and_how_exact_they_are(tmp_path, capsys):
    main(["optimize", str(SHIPPED), "--out", str(tmp_path / "optimized"), "--threads", "1"])
    head, plain, *variants, fastest, wrote = capsys.readouterr().out.splitlines()
    assert head.startswith("images/s in batches of")
    assert head.split()[4:10] == ["1", "2", "4", "8", "16", "32"]
    assert [line.split()[0] for line in (plain, *variants)] == ["plain", "toom_cook_1d", "toom_cook_2d"]
    assert all(float(line.split()[-1]) <= 1e-5 for line in variants)
    assert fastest.startswith("the fastest: ")
    assert wrote.startswith("wrote ")
    for variant in ("toom_cook_1d", "toom_cook_2d"):
        onnx.checker.check_model(tmp_path / "optimized" / f"{variant}.onnx")


def test_a_bundle_that_cannot_gain_is_refused(trained_bundle, tmp_path, capsys):
    said = failure(capsys, str(trained_bundle), "--out", str(tmp_path))
    assert "capsnet-drawn: its convolutions are too small to gain from a transform" in said


def test_a_folder_that_is_not_there_is_said(tmp_path, capsys):
    assert "none is not a folder" in failure(capsys, str(tmp_path / "none"))


def test_a_number_of_threads_below_0_is_refused(capsys):
    said = failure(capsys, str(SHIPPED), "--threads", "-1")
    assert "--threads must be at least 0 (0: one per CPU), got -1" in said
