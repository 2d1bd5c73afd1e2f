"""benchmarks.gpu.steps on the CPU."""

import gc
import json
import weakref

import pytest
import torch

from benchmarks.gpu.steps import main


def test_a_row_for_each_preset_and_a_table_of_what_takes_the_time(tmp_path, capsys):
    rows, kernels = tmp_path / "rows.jsonl", tmp_path / "kernels.txt"
    options = ["--device", "cpu", "--presets", "drawn", "--batch", "4", "--seconds", "0.01"]
    assert main([*options, "--json", str(rows), "--kernels", str(kernels)]) == 0
    [row] = map(json.loads, rows.read_text().splitlines())
    assert (row["preset"], row["graphs"]) == ("drawn", False)
    assert row["images_per_second"] == pytest.approx(4000 / row["milliseconds"])
    assert "drawn" in capsys.readouterr().out
    assert "drawn, batch 4, 5 steps" in kernels.read_text()
    assert "convolution_backward" in kernels.read_text()


class Cycle:
    """Refers to itself, as CUDA graphs do."""

    def __init__(self) -> None:
        self.itself = self


def test_what_an_earlier_row_left_behind_is_freed_first():
    left_behind = weakref.ref(Cycle())
    gc.disable()
    try:
        main(["--device", "cpu", "--presets", "drawn", "--batch", "4", "--seconds", "0.01"])
    finally:
        gc.enable()
    assert left_behind() is None


@pytest.mark.parametrize("name", ["nothing", "gone/nothing.toml"])
def test_a_preset_that_is_not_there_is_named(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--device", "cpu", "--presets", f"drawn,{name}"])
    assert ended.value.code == 2
    assert "nothing" in capsys.readouterr().err


@pytest.mark.parametrize("device", ["nothing", "meta"])
def test_a_device_that_is_none_is_named(device, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--device", device])
    assert ended.value.code == 2
    assert f"expected cuda or cpu, got {device}" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_what_to_do(capsys):
    assert main([]) == 2
    assert "--device cpu" in capsys.readouterr().err
