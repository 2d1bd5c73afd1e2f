"""Kernels in Triton run on CUDA devices alone."""

import pytest
import torch
from torch import Tensor

from training.models.capsules import ClassCapsules
from training.models.cuda import class_capsules, device
from training.models.cuda.class_capsules import CudaClassCapsules
from training.models.cuda.device import has_c_compiler, runs_triton, use_full_float32
from training.models.forms import use_training_forms


def test_nothing_is_rounded_to_tf32():
    backends = torch.backends.cuda.matmul, torch.backends.cudnn
    for backend in backends:
        backend.allow_tf32 = True
    use_full_float32()
    assert not any(backend.allow_tf32 for backend in backends)


@pytest.mark.parametrize("kind", ["cpu", "meta", "mps"])
def test_they_run_on_no_other_device(kind):
    assert not runs_triton(torch.device(kind))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_they_run_where_torch_brings_triton():
    pytest.importorskip("triton", reason="Triton is not installed; `pip install triton==3.9.0` adds it")
    assert runs_triton(torch.device("cuda")) == (torch.cuda.get_device_capability() >= (7, 0))


def test_a_c_compiler_is_found_by_its_name_or_as_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert not has_c_compiler()
    (tmp_path / "clang").write_text("#!/bin/sh\n")
    (tmp_path / "clang").chmod(0o755)
    assert has_c_compiler()
    (tmp_path / "clang").unlink()
    monkeypatch.setenv("CC", "/opt/cc")
    assert has_c_compiler()


def test_without_a_c_compiler_kernels_are_left_out_with_a_warning(monkeypatch, caplog):
    monkeypatch.setattr(device, "find_spec", lambda name: object())
    monkeypatch.setattr(device, "has_c_compiler", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda of: (9, 0))
    assert not runs_triton.__wrapped__(torch.device("cuda"))
    assert "no C compiler" in caplog.text


def test_torch_compile_has_one_graph_of_a_layer_that_has_kernels(monkeypatch):
    """Dynamo cannot trace the search for Triton and for a compiler."""

    def search(device):
        raise AssertionError("it was asked for while the layer was traced")

    monkeypatch.setattr(class_capsules, "runs_triton", search)
    layer = ClassCapsules(2, 3, 4, 16, iterations=2)
    use_training_forms(layer)
    torch.compile(layer, backend="eager", fullgraph=True)(torch.rand(1, 2, 3))


@pytest.mark.parametrize(
    ("upper", "lower_dim", "by_kernels"),
    [(10, 8, True), (32, 16, True), (33, 8, False), (1000, 8, False), (32, 17, False), (10, 32, True)],
)
def test_layers_that_do_not_fit_into_registers_or_shared_memory_are_routed_by_array_operations(
    monkeypatch, upper, lower_dim, by_kernels
):
    used: list[Tensor] = []
    monkeypatch.setattr(class_capsules, "runs_triton", lambda of: True)
    monkeypatch.setattr(CudaClassCapsules, "fused", lambda self, u: used.append(u))
    layer = ClassCapsules(2, lower_dim, upper, 16, iterations=2)
    use_training_forms(torch.nn.Sequential(layer))
    assert isinstance(layer, CudaClassCapsules)
    layer(torch.randn(1, 2, lower_dim, requires_grad=True))
    assert bool(used) == by_kernels
