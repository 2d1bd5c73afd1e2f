"""python -m benchmarks.gpu.agreement on the CPU."""

import json

import pytest

from benchmarks.gpu import agreement
from tests.support.paths import ROOT


def test_the_classes_of_two_ways_on_the_cpu_are_compared(drawn_mnist_root, tmp_path, capsys):
    file = tmp_path / "agreement.jsonl"
    asked = ["--device", "cpu", "--images", "70", "--batch", "32", "--data", drawn_mnist_root, "--json", file]
    for _ in range(2):
        assert agreement.main([str(ROOT / "models" / "capsnet-mnist"), *map(str, asked)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert file.read_text().splitlines() == lines
    found = json.loads(lines[0])
    assert (found["images"], found["other_classes"], found["provider"]) == (70, 0, "CPUExecutionProvider")
    assert found["wrong"] == found["wrong_on_cpu"] < 20
    assert 0 <= found["probability_difference"] < 1e-5
    assert 0 <= found["pose_difference"] < 1e-5
    assert found["images_per_second"] > 0


@pytest.mark.parametrize(
    ("model", "said"),
    [("capsnet-multimnist", "takes images of 36x36x1"), ("capsnet-mnist", "download mnist")],
)
def test_what_it_cannot_compare_is_told_in_words(model, said, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        agreement.main([str(ROOT / "models" / model), "--device", "cpu", "--data", str(tmp_path)])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
