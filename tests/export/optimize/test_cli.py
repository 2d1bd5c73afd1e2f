import os
import shutil
from pathlib import Path

import onnx
import pytest

from export.cli import main
from export.contract.manifest import newest_version, read_manifest, sha256_of
from tests.support.broken_bundle import of_unknown_operator, without_images
from tests.support.paths import ROOT
from tests.support.tiny_bundle import replace_file, rewrite_manifest, write_bundle

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


def test_each_model_has_its_own_folder_unless_another_is_given(trained_bundle, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["optimize", str(trained_bundle), "--half"])
    assert (tmp_path / "optimized" / "capsnet-drawn" / "half.onnx").is_file()


def test_a_bundle_that_cannot_gain_is_refused(trained_bundle, tmp_path, capsys):
    said = failure(capsys, str(trained_bundle), "--out", str(tmp_path))
    assert "capsnet-drawn: no convolution is large enough to gain from a transform" in said


@pytest.mark.parametrize("below", ["", "fast", "../1/fast"])
def test_nothing_is_written_into_a_published_version(tmp_path, capsys, below):
    published = write_bundle(tmp_path / "models" / "tiny" / "1")
    before = sorted(published.iterdir())
    said = failure(capsys, str(published), "--half", "--out", str(published / below))
    assert "is in a published version, which must not change" in said
    assert sorted(published.iterdir()) == before


def test_a_folder_that_is_not_there_is_said(tmp_path, capsys):
    assert "none is not a folder" in failure(capsys, str(tmp_path / "none"))


def test_without_a_number_it_takes_as_many_threads_as_it_may_use_cpus(tmp_path, monkeypatch, capsys):
    def only_say(bundle: Path, out: Path, threads: int) -> None:
        raise ValueError(f"{threads} threads")

    monkeypatch.setattr("export.optimize.report.optimize_bundle", only_say)
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        said = failure(capsys, str(SHIPPED), "--out", str(tmp_path))
    finally:
        os.sched_setaffinity(0, allowed)
    assert "1 threads" in said


@pytest.mark.parametrize("threads", ["-1", "99999999999"])
def test_a_number_of_threads_that_cannot_be_is_refused(tmp_path, capsys, threads):
    said = failure(capsys, str(SHIPPED), "--threads", threads, "--out", str(tmp_path / "out"))
    assert f"--threads must be 0 (one per usable CPU) to 1024, got {threads}" in said
    assert not (tmp_path / "out").exists()


def test_missing_test_images_are_told_before_anything_is_measured(tmp_path, capsys):
    nowhere = str(tmp_path / "data")
    said = failure(capsys, str(SHIPPED), "--half", "--data", nowhere, "--out", str(tmp_path / "out"))
    assert nowhere in said
    assert not (tmp_path / "out").exists()


def test_half_precision_needs_no_faster_graph(trained_bundle, tmp_path, capsys):
    main(["optimize", str(trained_bundle), "--half", "--out", str(tmp_path / "out")])
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("capsnet-drawn: no convolution is large enough")
    assert second.startswith(f"wrote {tmp_path / 'out' / 'half.onnx'}: of ")


@pytest.mark.parametrize("half", [[], ["--half"]])
def test_graphs_of_another_version_do_not_stay_beside_those_of_this_one(
    trained_bundle, tmp_path, monkeypatch, half
):
    def refuse(*_: object) -> None:
        raise ValueError("keep to float32")

    another = tmp_path / "plain.onnx"
    for name in ("toom_cook_1d", "toom_cook_2d", "em_moments", "half", "plain"):
        (tmp_path / f"{name}.onnx").touch()
    monkeypatch.setattr("export.optimize.half_gate.check_half", refuse)
    with pytest.raises(SystemExit):
        main(["optimize", str(trained_bundle), *half, "--out", str(tmp_path)])
    assert list(tmp_path.iterdir()) == [another]


def test_matrix_capsules_are_told_why_there_is_no_half_of_them(tmp_path, capsys):
    toys = str(ROOT / "models" / "matrix-capsnet-toys")
    said = failure(capsys, toys, "--half", "--out", str(tmp_path / "out"))
    assert "EM routing divides by variances near 0" in said


def test_a_graph_whose_values_have_other_names_has_no_faster_routing(tmp_path, capsys):
    bundle = shutil.copytree(newest_version(ROOT / "models" / "matrix-capsnet-toys"), tmp_path / "toys" / "1")
    content = (bundle / "encoder.onnx").read_bytes().replace(b"/routing/mean_", b"/routing/what_")
    replace_file(bundle, "encoder", content)
    said = failure(capsys, str(bundle), "--out", str(tmp_path / "out"))
    assert "no layer has routing as capsnet-export writes it" in said


def test_a_graph_that_is_not_what_its_manifest_says_has_no_faster_one_and_is_told_why(tmp_path, capsys):
    bundle = shutil.copytree(newest_version(SHIPPED), tmp_path / "capsnet-mnist" / "1")
    content = (bundle / "encoder.onnx").read_bytes().replace(b"class_caps.weight", b"class_caps.others")
    replace_file(bundle, "encoder", content)
    said = failure(capsys, str(bundle), "--out", str(tmp_path / "out"))
    assert "capsnet-mnist: the graph has no weight class_caps.weight" in said


@pytest.mark.parametrize("content", [b"", b"no zip"])
def test_samples_that_cannot_be_read_are_told_before_a_graph_is_written(
    trained_bundle, tmp_path, capsys, content
):
    bundle = shutil.copytree(trained_bundle, tmp_path / "tiny" / "1")
    replace_file(bundle, "samples", content)
    assert "samples: cannot be read" in failure(capsys, str(bundle), "--out", str(tmp_path / "fast"))
    assert not (tmp_path / "fast").exists()


@pytest.mark.parametrize("role", ["encoder", "samples"])
def test_a_bundle_that_the_service_refuses_is_refused_before_a_graph_is_written(tmp_path, capsys, role):
    """On an empty batch ONNX Runtime 1.31 would end the process."""
    bundle = shutil.copytree(newest_version(SHIPPED), tmp_path / "capsnet-mnist" / "1")
    if role == "samples":
        told, content = "pixels is float32 [0, 28, 28, 1]", without_images(bundle)
    else:
        told, content = "the encoder cannot be run: ", of_unknown_operator(bundle)
    replace_file(bundle, role, content)
    said = failure(capsys, str(bundle), "--out", str(tmp_path / "fast"))
    assert told in said
    assert said.count("\n") == 1
    assert not (tmp_path / "fast").exists()


def test_parameters_of_other_classes_are_refused_before_a_graph_is_written(tmp_path, capsys):
    bundle = shutil.copytree(newest_version(SHIPPED), tmp_path / "capsnet-mnist" / "1")
    parameters = read_manifest(bundle).parameters
    rewrite_manifest(bundle, parameters=parameters | {"classes": 5, "class_dim": 32})
    said = failure(capsys, str(bundle), "--out", str(tmp_path / "fast"))
    assert "parameters state 5 classes with poses of 32 numbers; the encoder has 10 with 16" in said
    assert not (tmp_path / "fast").exists()


def test_bytes_that_are_no_graph_are_told_in_one_line(tmp_path, capsys):
    bundle = write_bundle(tmp_path / "tiny" / "1")
    (bundle / "encoder.onnx").write_bytes(b"no graph")
    encoder = read_manifest(bundle).graphs["encoder"]
    changed = encoder.model_copy(update={"sha256": sha256_of(bundle / "encoder.onnx")})
    rewrite_manifest(bundle, graphs={**read_manifest(bundle).graphs, "encoder": changed})
    assert "encoder.onnx is no ONNX graph" in failure(capsys, str(bundle))
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", str(bundle)])
    assert ended.value.code == 2
    assert "no training.config" in capsys.readouterr().err
