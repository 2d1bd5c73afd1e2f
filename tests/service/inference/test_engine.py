"""The engine: checked against its manifest, on the device asked for or not at all."""

import os
import sys
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import EPFail

from export.contract.manifest import BundleError, read_manifest
from export.optimize.half_precision import halved
from service.inference.checks import check_half, check_samples
from service.inference.engine import Engine
from service.inference.loading import check_bundle, load_engine
from service.inference.providers import PROVIDERS, DeviceError, EngineOptions
from service.inference.session_pool import pool_of_one
from service.inference.sessions import check_device, open_session
from tests.support.small_pictures import to_npy
from tests.support.tiny_bundle import (
    PAIRS,
    SIDE,
    decoder_model,
    encoder_model,
    make_model,
    replace_file,
    rewrite_manifest,
    run_model,
    write_bundle,
)

needs_no_gpu = pytest.mark.skipif(
    PROVIDERS["cuda"] in ort.get_available_providers(), reason="this onnxruntime has the CUDA provider"
)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "tiny" / "1")


def load(bundle: Path, device: str = "cpu") -> Engine:
    return load_engine(bundle, "tiny", EngineOptions(device, 32, bundle.parent / "cache"))


def saved(model: onnx.ModelProto) -> bytes:
    return model.SerializeToString()


def test_the_graphs_give_what_the_samples_say(bundle):
    engine = load(bundle)
    with np.load(bundle / "samples.npz") as samples:
        probabilities, poses = engine.encode(samples["pixels"])
        np.testing.assert_allclose(probabilities, samples["probabilities"], atol=1e-6)
        np.testing.assert_allclose(poses, samples["poses"], atol=1e-6)
        (pictures,) = engine.decode(samples["poses"], samples["mask"])
        np.testing.assert_allclose(pictures, samples["reconstruction"], atol=1e-6)


@pytest.mark.parametrize("images", [1, 3, 32])
def test_any_batch_size_runs(bundle, images):
    probabilities, poses = load(bundle).encode(np.zeros((images, SIDE, SIDE, 1), np.float32))
    assert (probabilities.shape, poses.shape) == ((images, 3), (images, 3, 4))


def test_a_bundle_without_a_decoder_loads(tmp_path):
    engine = load(write_bundle(tmp_path / "tiny" / "1", decoder=False))
    assert engine.decoder is None


@pytest.mark.parametrize("file", ["encoder.onnx", "decoder.onnx", "samples.npz"])
def test_a_changed_file_is_refused_by_name(bundle, file):
    content = bytearray((bundle / file).read_bytes())
    content[-1] ^= 1
    (bundle / file).write_bytes(content)
    with pytest.raises(BundleError, match=file):
        load(bundle)


@pytest.mark.parametrize("file", ["encoder.onnx", "decoder.onnx", "samples.npz", "manifest.json"])
def test_a_missing_file_is_refused_by_name(bundle, file):
    (bundle / file).unlink()
    with pytest.raises(BundleError, match=file):
        load(bundle)


def test_a_folder_of_another_name_is_refused(bundle):
    with pytest.raises(BundleError, match="tiny"):
        load_engine(bundle, "other", EngineOptions("cpu", 32, bundle))


def test_a_graph_whose_shapes_are_not_the_manifests_is_refused(bundle):
    replace_file(bundle, "encoder", saved(encoder_model(np.random.default_rng(0), 4, 4)))
    with pytest.raises(BundleError, match=r"encoder\.onnx has the outputs"):
        load(bundle)


def test_a_manifest_whose_classes_are_not_the_graphs_is_refused(bundle):
    rewrite_manifest(bundle, class_names=("0", "1"))
    with pytest.raises(BundleError, match="manifest: the encoder"):
        load(bundle)


def test_other_weights_than_the_samples_were_made_with_are_refused(bundle):
    replace_file(bundle, "decoder", saved(decoder_model(np.random.default_rng(99), 3, 4)))
    with pytest.raises(BundleError, match="samples: reconstruction differs"):
        load(bundle)


@pytest.mark.parametrize(("device", "tolerance"), [("cpu", 1e-4), ("cuda", 1e-3), ("tensorrt", 1e-2)])
@pytest.mark.parametrize("name", ["probabilities", "poses", "reconstruction"])
def test_an_output_may_differ_from_its_sample_by_its_devices_tolerance_and_no_more(
    bundle, device, tolerance, name
):
    """The graphs run on the CPU, which made the samples: all that differs is what is added to them here."""
    engine = replace(load(bundle), device=device)
    with np.load(bundle / "samples.npz") as stored:
        samples = dict(stored)
    absent = int(samples["mask"][0].argmin())  # of this class nothing is drawn, so its pose counts once
    place = (0, absent) if name != "reconstruction" else (0, 0)

    def differing_by(difference: float) -> dict[str, np.ndarray]:
        changed = samples[name].copy()
        changed[place] += difference
        return {**samples, name: changed}

    check_samples(engine, differing_by(0.9 * tolerance))
    with pytest.raises(BundleError, match=f"samples: {name} differs by .* at most {tolerance:g} is allowed"):
        check_samples(engine, differing_by(1.1 * tolerance))


def test_samples_are_run_in_batches_that_the_engine_takes(bundle):
    class Watched:
        def __init__(self, session):
            self.session, self.sizes = session, []

        def run(self, names, feeds):
            self.sizes.append(len(feeds["pixels"]))
            return self.session.run(names, feeds)

    manifest, options = read_manifest(bundle), EngineOptions("cpu", 3, bundle.parent / "cache")
    encoder = (bundle / "encoder.onnx").read_bytes()
    watched = Watched(open_session(encoder, manifest.graphs["encoder"], "cpu", options, 1))
    with np.load(bundle / "samples.npz") as samples:
        check_samples(Engine(manifest, "cpu", 3, 32, 1, pool_of_one(watched), None), samples)
        assert sum(watched.sizes) == len(samples["pixels"]) > 3
    assert max(watched.sizes) == 3


def test_a_graph_that_gives_no_numbers_is_refused(bundle):
    nodes = [
        helper.make_node("ReduceSum", ["pixels", "axes"], ["zero"], keepdims=0),
        helper.make_node("Log", ["zero"], ["nothing"]),
        helper.make_node("Reshape", ["nothing", "column"], ["one"]),
        helper.make_node("Expand", ["one", "wide"], ["probabilities"]),
        helper.make_node("Reshape", ["nothing", "cube"], ["deep"]),
        helper.make_node("Expand", ["deep", "large"], ["poses"]),
    ]
    constants = {
        "axes": np.array([1, 2, 3]),
        "column": np.array([-1, 1]),
        "wide": np.array([1, 3]),
        "cube": np.array([-1, 1, 1]),
        "large": np.array([1, 3, 4]),
    }
    outputs = {"probabilities": (None, 3), "poses": (None, 3, 4)}
    model = make_model(nodes, constants, {"pixels": (None, SIDE, SIDE, 1)}, outputs)
    replace_file(bundle, "encoder", saved(model))
    with np.load(bundle / "samples.npz") as samples:
        arrays = {**samples, "pixels": -samples["pixels"]}
    file = BytesIO()
    np.savez(file, **arrays)
    replace_file(bundle, "samples", file.getvalue())
    with pytest.raises(BundleError, match="samples: probabilities differs by nan"):
        load(bundle)


@pytest.mark.parametrize("name", ["pixels", "probabilities", "mask"])
def test_samples_without_an_array_are_refused_by_its_name(bundle, name):
    with np.load(bundle / "samples.npz") as samples:
        arrays = {key: samples[key] for key in samples.files if key != name}
    file = BytesIO()
    np.savez(file, **arrays)
    replace_file(bundle, "samples", file.getvalue())
    with pytest.raises(BundleError, match=name):
        load(bundle)


@pytest.mark.parametrize("content", [b"no archive", b"PK\x03\x04 no archive either", b""])
def test_samples_that_are_no_archive_are_refused(bundle, content):
    replace_file(bundle, "samples", content)
    with pytest.raises(BundleError, match="samples"):
        load(bundle)


def test_one_array_in_place_of_the_samples_is_refused(bundle):
    replace_file(bundle, "samples", to_npy(np.zeros((8, SIDE, SIDE, 1), np.float32)))
    with pytest.raises(BundleError, match=r"samples: cannot be read: .* no archive"):
        load(bundle)


def with_samples(bundle: Path, **changed: bytes) -> None:
    """The samples with other bytes for some of the arrays, and the hash to match."""
    file = BytesIO()
    with np.load(bundle / "samples.npz") as samples, ZipFile(file, "w") as archive:
        for name in samples.files:
            archive.writestr(f"{name}.npy", changed.get(name, to_npy(samples[name])))
    replace_file(bundle, "samples", file.getvalue())


def huge_array() -> bytes:
    """An array whose header says that 4 EiB follow."""
    file = BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (2**30, 2**30)}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (huge_array(), "samples: cannot be read: .*(allocate|big|large)"),
        (to_npy(np.float32(1)), r"samples: pixels is float32 \[\]"),
        (to_npy(np.zeros((0, SIDE, SIDE, 1), np.float32)), r"samples: pixels is float32 \[0, 28, 28, 1\]"),
        (to_npy(np.zeros((8, SIDE, SIDE, 1))), "samples: pixels is float64"),
        (to_npy(np.zeros((8, SIDE, SIDE), np.float32)), r"samples: pixels has the shape \[28, 28\]"),
        (b"no array", "samples: cannot be read: pixels is not an array"),
        (b"\x93NUMPY\x01\x00\x10\x00{'descr': nonsense", "samples: cannot be read"),
    ],
)
def test_samples_of_an_odd_array_are_refused(bundle, content, said):
    with_samples(bundle, pixels=content)
    with pytest.raises(BundleError, match=said):
        load(bundle)


@pytest.mark.parametrize("file", ["encoder.onnx", "decoder.onnx", "samples.npz", "manifest.json"])
def test_what_is_no_regular_file_is_refused_by_name(bundle, file):
    (bundle / file).unlink()
    (bundle / file).symlink_to(os.devnull)
    with pytest.raises(BundleError, match=f"{file} is no regular file"):
        load(bundle)


@pytest.mark.parametrize("device", ["cuda", "tensorrt"])
def test_a_graph_that_no_device_can_read_is_no_fault_of_the_device(bundle, device):
    graph = read_manifest(bundle).graphs["encoder"]
    with pytest.raises(BundleError, match=r"encoder\.onnx cannot be loaded"):
        open_session(b"no graph", graph, device, EngineOptions(device, 32, bundle.parent / "cache"), 1)


def test_bytes_that_are_no_graph_are_refused(bundle):
    replace_file(bundle, "encoder", b"no graph")
    with pytest.raises(BundleError, match=r"encoder\.onnx"):
        load(bundle)


def test_a_graph_with_weights_in_another_file_is_refused(bundle):
    model = onnx.load_from_string((bundle / "encoder.onnx").read_bytes())
    onnx.save_model(
        model, bundle / "encoder.onnx", save_as_external_data=True, location="weights", size_threshold=0
    )
    replace_file(bundle, "encoder", (bundle / "encoder.onnx").read_bytes())
    with pytest.raises(BundleError, match="external data"):
        load(bundle)


@pytest.mark.parametrize("role", ["encoder", "decoder"])
def test_weights_in_another_file_are_refused_however_that_is_encoded_and_before_loading(bundle, role):
    more = b"\x70\x01\x6a\x0e\x0a\x88\x00location\x12\x01w"  # the 8 takes two bytes instead of one
    graph = b"\x2a" + bytes([len(more)]) + more  # protobuf joins it with the other half of the graph
    file = bundle / f"{role}.onnx"
    replace_file(bundle, role, file.read_bytes() + b"\x3a" + bytes([len(graph)]) + graph)
    assert onnx.load(file, load_external_data=False).graph.initializer[-1].data_location == 1
    with pytest.raises(BundleError, match="external data"):
        check_bundle(bundle, "tiny")


@pytest.mark.parametrize("channels", [1, 3])
def test_a_model_of_two_views_without_a_channel_for_each_is_refused(bundle, channels):
    facts = read_manifest(bundle).preprocessing.model_copy(update={"channels": channels})
    rewrite_manifest(bundle, views=2, preprocessing=facts)
    with pytest.raises(BundleError, match=f"views is 2 .*channels is {channels}; a pair of 2 views has 2"):
        load(bundle)


def test_a_model_of_one_view_and_two_channels_is_refused_for_that(bundle):
    rewrite_manifest(bundle, preprocessing=PAIRS)
    with pytest.raises(BundleError, match=r"channels is 2; .* 1 channel \(gray\) or 3"):
        load(bundle)


@pytest.mark.parametrize("changes", [{"placement": "digit"}, {"polarity": "light-on-dark"}])
def test_a_rule_that_may_treat_the_views_of_a_pair_differently_is_refused(bundle, changes):
    rewrite_manifest(bundle, views=2, preprocessing=PAIRS.model_copy(update=changes))
    with pytest.raises(BundleError, match="polarity any, and placement fit or centre-crop; got"):
        load(bundle)


@needs_no_gpu
@pytest.mark.filterwarnings("ignore:Specified provider")
def test_tensorrts_libraries_are_loaded_where_pip_has_installed_them(bundle, tmp_path, monkeypatch):
    # The package loads its libraries as it is imported.
    loads = "from pathlib import Path; Path(__file__).with_name('loaded').touch()"
    (tmp_path / "tensorrt_libs.py").write_text(loads)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tensorrt_libs", raising=False)
    graph, content = read_manifest(bundle).graphs["encoder"], (bundle / "encoder.onnx").read_bytes()
    for device, loaded in (("cuda", False), ("tensorrt", True)):
        with pytest.raises(DeviceError):
            open_session(content, graph, device, EngineOptions(device, 32, bundle.parent / "cache"), 1)
        assert (tmp_path / "loaded").exists() == loaded


@needs_no_gpu
@pytest.mark.parametrize("device", ["cuda", "tensorrt"])
def test_a_device_that_cannot_be_had_is_no_reason_to_use_another(bundle, device):
    with pytest.raises(DeviceError, match=device):
        load(bundle, device)


@needs_no_gpu
def test_auto_without_a_gpu_is_the_cpu_and_says_so(bundle):
    assert load(bundle, "auto").device == "cpu"


ignores_the_runtimes_own_warning = pytest.mark.filterwarnings("ignore:Specified provider")


@pytest.fixture
def _cuda_without_a_driver(monkeypatch) -> None:
    """The runtime names a provider that it cannot start, as onnxruntime-gpu does without a driver."""
    there = [PROVIDERS["cuda"], PROVIDERS["cpu"]]
    monkeypatch.setattr(ort, "get_available_providers", lambda: there)


@needs_no_gpu
@ignores_the_runtimes_own_warning
@pytest.mark.parametrize("device", ["cuda", "tensorrt"])
def test_a_graph_that_the_runtime_puts_on_another_device_than_asked_for_is_an_error(bundle, device):
    graph, content = read_manifest(bundle).graphs["encoder"], (bundle / "encoder.onnx").read_bytes()
    with pytest.raises(DeviceError, match="ONNX Runtime chose CPUExecutionProvider"):
        open_session(content, graph, device, EngineOptions(device, 32, bundle.parent / "cache"), 1)


@needs_no_gpu
@ignores_the_runtimes_own_warning
@pytest.mark.usefixtures("_cuda_without_a_driver")
def test_an_explicit_device_that_does_not_start_is_an_error(bundle):
    with pytest.raises(DeviceError, match="device cuda cannot be used"):
        load(bundle, "cuda")


@needs_no_gpu
@ignores_the_runtimes_own_warning
@pytest.mark.usefixtures("_cuda_without_a_driver")
def test_where_auto_takes_the_next_best_device_the_log_says_why(bundle, caplog):
    assert load(bundle, "auto").device == "cpu"
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "device cuda cannot be used" in warning
    assert "trying the next best device" in warning


@needs_no_gpu
@ignores_the_runtimes_own_warning
@pytest.mark.usefixtures("_cuda_without_a_driver")
def test_a_device_that_does_not_start_is_noticed_without_a_bundle(tmp_path):
    with pytest.raises(DeviceError, match="device cuda cannot be used"):
        check_device(EngineOptions("cuda", 32, tmp_path))
    check_device(EngineOptions("auto", 32, tmp_path))  # may be the CPU


@needs_no_gpu
@ignores_the_runtimes_own_warning
@pytest.mark.usefixtures("_cuda_without_a_driver")
def test_in_half_precision_there_is_no_next_best_device(bundle, caplog):
    options = EngineOptions("auto", 8, bundle.parent / "cache", precision="half")
    with pytest.raises(DeviceError, match="device cuda cannot be used"):
        load_engine(bundle, "tiny", options)
    assert "next best" not in caplog.text


def test_a_run_that_fails_on_its_device_is_not_repeated_on_another(bundle):
    content, options = (
        (bundle / "encoder.onnx").read_bytes(),
        EngineOptions("cpu", 32, bundle.parent / "cache"),
    )
    session = open_session(content, read_manifest(bundle).graphs["encoder"], "cpu", options, 1)
    native = session._sess

    class Failing:
        """The runtime's own session, on a device that has failed."""

        def run(self, *_: object) -> None:
            raise EPFail("the device is gone")

        def __getattr__(self, name: str) -> object:
            return getattr(native, name)

    session._sess = Failing()
    with pytest.raises(EPFail, match="the device is gone"):
        session.run(None, {"pixels": np.zeros((1, SIDE, SIDE, 1), np.float32)})


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda", "tensorrt"])
def test_an_explicit_gpu_is_the_one_in_use(bundle, device):
    if PROVIDERS[device] not in ort.get_available_providers():
        pytest.skip(f"this onnxruntime has no {PROVIDERS[device]}")
    check_device(EngineOptions(device, 8, bundle.parent / "cache"))
    engine = load(bundle, device)
    assert (engine.device, engine.provider) == (device, PROVIDERS[device])


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda", "tensorrt"])
def test_on_a_gpu_half_precision_passes_the_samples(bundle, device):
    if PROVIDERS[device] not in ort.get_available_providers():
        pytest.skip(f"this onnxruntime has no {PROVIDERS[device]}")
    engine = load_engine(bundle, "tiny", EngineOptions(device, 32, bundle.parent / "cache", precision="half"))
    assert (engine.device, engine.precision) == (device, "half")


def half_engine(bundle: Path, encoder: bytes) -> Engine:
    """An engine in half precision with its graph on a CPU, which rounds less often than a GPU does."""
    manifest, options = read_manifest(bundle), EngineOptions("cpu", 8, bundle.parent / "cache")
    session = open_session(encoder, manifest.graphs["encoder"], "cpu", options, 1)
    return Engine(manifest, "cpu", 8, 8, 1, pool_of_one(session), None, precision="half")


def test_an_encoder_in_half_precision_may_differ_from_the_samples_as_such_a_one_does(bundle):
    plain = (bundle / "encoder.onnx").read_bytes()
    engine = half_engine(bundle, halved(plain, "capsnet"))
    with np.load(bundle / "samples.npz") as samples:
        check_samples(engine, samples)
        check_half(engine, plain, samples["pixels"])
        assert np.abs(engine.encode(samples["pixels"])[1] - samples["poses"]).max() > 1e-6


def test_an_encoder_whose_lengths_half_precision_spoils_is_refused(bundle):
    other = encoder_model(np.random.default_rng(99), 3, 4)
    engine = half_engine(bundle, halved(other.SerializeToString(), "capsnet"))
    with (
        np.load(bundle / "samples.npz") as samples,
        pytest.raises(BundleError, match=r"probabilities differs by .* at most 0\.005"),
    ):
        check_samples(engine, samples)


def two_near_classes(first: int) -> bytes:
    """An encoder in which the class `first` is a little more probable than another, whatever the picture."""
    model = encoder_model(np.random.default_rng(0), 3, 4)
    weights = next(weight for weight in model.graph.initializer if weight.name == "weights")
    by_class = numpy_helper.to_array(weights).reshape(-1, 3, 4).copy()
    by_class[:, 1] = by_class[:, 0]
    by_class[:, 2] = 0
    by_class[:, first] *= 1.006
    weights.CopyFrom(numpy_helper.from_array(by_class.reshape(-1, 12), "weights"))
    return saved(model)


def test_an_encoder_whose_classes_half_precision_changes_is_refused_though_its_lengths_are_near(bundle):
    plain, other = two_near_classes(0), two_near_classes(1)
    pixels = np.random.default_rng(0).random((8, SIDE, SIDE, 1), np.float32)
    probabilities, poses = run_model(plain, pixels=pixels)
    check_half(half_engine(bundle, halved(plain, "capsnet")), plain, pixels)
    engine = half_engine(bundle, halved(other, "capsnet"))
    check_samples(engine, {"pixels": pixels, "probabilities": probabilities, "poses": poses})
    with pytest.raises(BundleError, match="samples: half precision changes the class of"):
        check_half(engine, plain, pixels)


def test_half_precision_on_a_cpu_is_an_error_that_says_what_to_set(bundle):
    options = EngineOptions("cpu", 8, bundle.parent / "cache", precision="half")
    with pytest.raises(DeviceError, match="CAPSNET_PRECISION=float32"):
        load_engine(bundle, "tiny", options)
