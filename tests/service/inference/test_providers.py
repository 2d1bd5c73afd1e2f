"""Devices: the one asked for or an error, and what their providers are told."""

from pathlib import Path

import pytest

from export.contract.manifest import Graph, Tensor
from service.inference.providers import (
    PROVIDERS,
    DeviceError,
    EngineOptions,
    candidates,
    cuda_options,
    provider_list,
    sample_tolerances,
    tensorrt_options,
)
from tests.support.tiny_bundle import digest


def test_auto_is_cuda_if_it_is_there_and_else_the_cpu():
    cpu, cuda, tensorrt = PROVIDERS["cpu"], PROVIDERS["cuda"], PROVIDERS["tensorrt"]
    assert candidates("auto", [cpu]) == ["cpu"]
    assert candidates("auto", [tensorrt, cuda, cpu]) == ["cuda", "cpu"]


@pytest.mark.parametrize("device", ["cuda", "tensorrt"])
def test_an_explicit_device_is_the_only_candidate(device):
    assert candidates(device, list(PROVIDERS.values())) == [device]


@pytest.mark.parametrize("device", ["cuda", "tensorrt"])
def test_a_device_that_this_onnxruntime_has_not_is_an_error(device):
    with pytest.raises(DeviceError, match=f"{PROVIDERS[device]}.*CPUExecutionProvider"):
        candidates(device, ["CPUExecutionProvider"])


def two_inputs() -> Graph:
    poses = Tensor(name="poses", shape=(None, 10, 16))
    mask = Tensor(name="mask", shape=(None, 10))
    picture = Tensor(name="reconstruction", shape=(None, 28, 28, 1))
    return Graph(file="decoder.onnx", sha256=digest(b""), inputs=(poses, mask), outputs=(picture,))


@pytest.mark.parametrize(("device", "available"), [("cpu", PROVIDERS.values()), ("auto", [PROVIDERS["cpu"]])])
def test_half_precision_without_a_gpu_is_an_error_that_names_the_settings(device, available):
    with pytest.raises(DeviceError, match=r"needs a GPU.*CAPSNET_DEVICE=cuda.*CAPSNET_PRECISION=float32"):
        candidates(device, list(available), "half")


def test_half_precision_never_ends_on_the_cpu():
    assert candidates("auto", list(PROVIDERS.values()), "half") == ["cuda"]


def test_tensorrt_profiles_cover_one_image_to_the_largest_batch():
    options = tensorrt_options(two_inputs(), 32, Path("/cache"), half=False)
    assert options["trt_profile_min_shapes"] == "poses:1x10x16,mask:1x10"
    assert options["trt_profile_max_shapes"] == "poses:32x10x16,mask:32x10"
    assert options["trt_profile_opt_shapes"] == "poses:32x10x16,mask:32x10"


def test_tensorrt_keeps_its_engines_and_timings():
    options = tensorrt_options(two_inputs(), 32, Path("/cache"), half=False)
    assert options["trt_engine_cache_enable"] == options["trt_timing_cache_enable"] == "1"
    assert options["trt_engine_cache_path"] == options["trt_timing_cache_path"] == "/cache"


@pytest.mark.parametrize(("half", "said"), [(False, "0"), (True, "1")])
def test_tensorrt_may_use_float16_only_when_asked_and_then_not_for_norms(half, said):
    options = tensorrt_options(two_inputs(), 32, Path("/cache"), half=half)
    assert (options["trt_fp16_enable"], options["trt_layer_norm_fp32_fallback"]) == (said, said)


def test_engines_of_two_precisions_are_kept_apart(tmp_path):
    folders = {
        provider_list("tensorrt", two_inputs(), EngineOptions("tensorrt", 8, tmp_path, precision=precision))[
            0
        ][1]["trt_engine_cache_path"]
        for precision in ("float32", "half")
    }
    assert len(folders) == 2
    assert all(Path(folder).is_dir() for folder in folders)


def test_a_cache_that_cannot_be_written_is_an_error_that_names_the_setting(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DeviceError, match="CAPSNET_CACHE"):
        provider_list("tensorrt", two_inputs(), EngineOptions("tensorrt", 8, tmp_path / "file"))


def test_cuda_computes_in_full_float32():
    assert cuda_options(records=False)["use_tf32"] == "0"


def test_matrix_capsules_have_smaller_batches_unless_told_otherwise(tmp_path):
    options = EngineOptions("cuda", 0, tmp_path)
    assert options.largest_batch("cuda") > options.largest_batch("cuda", "matrix-capsnet")
    assert options.largest_batch("cpu") > options.largest_batch("cpu", "matrix-capsnet")
    assert options._replace(max_batch=100).largest_batch("cuda", "matrix-capsnet") == 100


@pytest.mark.parametrize(("precision", "expected"), [("float32", "0"), ("half", "1")])
def test_convolutions_in_half_precision_have_channels_last(tmp_path, precision, expected):
    options = EngineOptions("cuda", 8, tmp_path, precision=precision)
    assert dict(provider_list("cuda", two_inputs(), options))[PROVIDERS["cuda"]]["prefer_nhwc"] == expected


def test_only_the_cuda_provider_itself_makes_cuda_graphs(tmp_path):
    options = EngineOptions("cuda", 8, tmp_path)
    cuda = dict(provider_list("cuda", two_inputs(), options, records=True))
    tensorrt = dict(provider_list("tensorrt", two_inputs(), options, records=True))
    assert cuda[PROVIDERS["cuda"]]["enable_cuda_graph"] == "1"
    assert tensorrt[PROVIDERS["cuda"]]["enable_cuda_graph"] == "0"
    assert tensorrt[PROVIDERS["tensorrt"]]["trt_cuda_graph_enable"] == "0"


def test_every_provider_has_others_behind_it_that_end_with_the_cpu(tmp_path):
    for device in PROVIDERS:
        names = [name for name, _ in provider_list(device, two_inputs(), EngineOptions(device, 8, tmp_path))]
        assert (names[0], names[-1]) == (PROVIDERS[device], PROVIDERS["cpu"])


def test_half_precision_may_differ_more_from_the_samples_but_not_in_the_decoder():
    plain, half = sample_tolerances("cuda", "float32"), sample_tolerances("cuda", "half")
    assert half["probabilities"] == 5e-3
    assert half["reconstruction"] == plain["reconstruction"] < half["poses"]
