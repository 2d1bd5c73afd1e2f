"""Matrix capsules, from a run to a bundle; none of the networks is trained."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from export import parity
from export.bundle import publish
from export.cli import main
from export.contract.architecture import capsnet_architecture
from export.contract.manifest import newest_version, read_manifest
from export.evaluate import evaluate_bundle
from export.graph import EncoderGraph
from export.optimize.half_precision import HalfPrecisionError, halved
from export.parity import run_onnx
from export.to_onnx import to_onnx, trace_encoder
from export.triton import write_repository
from service.inference.loading import load_engine
from service.inference.providers import EngineOptions
from tests.support.paths import MODELS
from tests.support.smallnorb_files import store
from tests.support.tiny_bundle import replace_file
from training.config import MatrixCapsNetConfig, RunConfig, load_preset
from training.models.build import build
from training.models.calibration import calibrate
from training.models.matrix_capsnet import MatrixCapsNet
from training.runs.checkpoint import Progress, save, write_config
from training.runs.from_bundle import trained_config
from training.runs.inspection import inspect_network
from training.runs.matrix_bundle import read_encoder

TINY = MatrixCapsNetConfig(
    architecture="matrix-capsnet",
    image_size=24,
    conv_channels=4,
    primary_types=2,
    conv_caps_types=(3, 4),
    decoder_hidden=(8,),
)
PROGRESS = Progress(step=100, epochs=1.5, train_seconds=3600, hardware="a CPU", command="capsnet-train fit")


def write_run(run: Path, config: RunConfig) -> Path:
    """As capsnet-train leaves it, the weights random."""
    torch.manual_seed(0)
    model = build(config.model)
    for name, parameter in model.named_parameters():
        if "beta" in name:
            nn.init.normal_(parameter, std={"beta_u": 0.1, "beta_a": 1e-3}[name.rpartition(".")[2]])
    if isinstance(model, MatrixCapsNet):
        calibrate(model, torch.rand(8, 2, config.model.image_size, config.model.image_size))
    write_config(run, config)
    save(run, model, torch.optim.Adam(model.parameters()), PROGRESS, config)
    return run


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("data")
    store(root, "toys")
    return root


@pytest.fixture(scope="module")
def bundle(data, tmp_path_factory) -> Path:
    return published(TINY, data, tmp_path_factory)


def published(model: MatrixCapsNetConfig, data: Path, tmp_path_factory) -> Path:
    preset = load_preset("matrix-toys")
    shown = replace(preset.data, resize_pixels=32, crop_pixels=24, validation_images=40)
    run = write_run(tmp_path_factory.mktemp("runs") / "toys", replace(preset, model=model, data=shown))
    return publish(run, tmp_path_factory.mktemp("models") / "matrix-toys", data).path


@pytest.fixture(scope="module")
def encoder(bundle) -> onnx.ModelProto:
    return onnx.load(bundle / "encoder.onnx")


def test_the_manifest_describes_a_network_of_two_views_and_matrices(bundle):
    manifest = read_manifest(bundle)
    assert manifest.architecture == "matrix-capsnet"
    assert manifest.parameters["conv_caps_types"] == [3, 4]
    assert (manifest.views, manifest.preprocessing.channels, manifest.pose_shape) == (2, 2, (4, 4))
    assert manifest.preprocessing.crop_share == 24 / 32
    assert manifest.class_names == ("animal", "human", "airplane", "truck", "car")


def test_poses_have_no_bound_and_probabilities_have(bundle):
    outputs = {t.name: t for graph in read_manifest(bundle).graphs.values() for t in graph.outputs}
    ranges = {name: tensor.range for name, tensor in outputs.items()}
    bounded = {"probabilities", "reconstruction", "activations", "activities", "assignments"}
    bounded |= {f"conv_caps.{place}.{what}" for place in (0, 1) for what in ("activations", "entropy")}
    assert {name for name, found in ranges.items() if found == (0, 1)} == bounded
    assert {found for name, found in ranges.items() if name not in bounded} == {None}
    assert outputs["poses"].shape == (None, 5, 16)


def test_pytorch_and_the_graph_agree_at_several_batch_sizes(bundle):
    found = read_manifest(bundle).parity
    assert 0 < found.max_abs_error <= found.tolerance == 1e-4
    assert found.routing_iterations == (TINY.routing_iterations,)
    assert found.batch_sizes == (1, 3, 4)


def test_em_routing_is_unrolled_into_a_static_graph(encoder):
    operators = {node.op_type for node in encoder.graph.node}
    assert not operators & {"Loop", "If", "Scan", "Shape", "Size", "NonZero", "Range", "Expand", "ScatterND"}
    values = (*encoder.graph.value_info, *encoder.graph.output)
    shapes = {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim] for value in values
    }
    for node in encoder.graph.node:
        first, *others = shapes[node.output[0]]
        assert first == "batch", node.name
        assert all(isinstance(size, int) and size > 0 for size in others), node.name


def test_it_computes_in_float32_and_holds_little_beside_the_weights(encoder):
    produced = {name for node in encoder.graph.node for name in node.output}
    kinds = {v.name: v.type.tensor_type.elem_type for v in encoder.graph.value_info if v.name in produced}
    assert set(kinds.values()) == {onnx.TensorProto.FLOAT}
    weights = sum(
        parameter.numel() for name, parameter in build(TINY).named_parameters() if "dec" not in name
    )
    held = sum(numpy_helper.to_array(tensor).size for tensor in encoder.graph.initializer)
    assert held < 2 * weights


def test_values_are_named_after_what_they_are_in_the_procedure(encoder):
    produced = {name for node in encoder.graph.node for name in node.output}
    for layer in ("conv_caps/0", "conv_caps/1", "class_caps"):
        assert {f"{layer}/votes", f"{layer}/activations"} <= produced
        for turn in (1, 2, 3):
            letters = ("mass", "mean", "squares", "variance", "log_activations")
            assert {f"{layer}/routing/{letter}_{turn}" for letter in letters} <= produced
        assert {f"{layer}/routing/assignments_{turn}" for turn in (2, 3)} <= produced


def test_votes_without_coordinates_have_nothing_added(encoder):
    held = {tensor.name for tensor in encoder.graph.initializer}
    assert "class_caps.offsets" in held
    assert not held & {"conv_caps.0.offsets", "conv_caps.1.offsets"}


@pytest.mark.parametrize(("exponent", "advised"), [(1.0, True), (0.25, False)])
def test_the_gates_error_says_how_to_train_what_passes(monkeypatch, exponent, advised):
    model = MatrixCapsNet(replace(TINY, density_exponent=exponent))
    monkeypatch.setattr(parity, "_differences", lambda *_: [("poses", 4, 1.0)])
    with pytest.raises(parity.ParityError, match=r"poses differs by 1 .* at batch size 4") as error:
        parity.check_parity(model, None, np.zeros((parity.IMAGES, 24, 24, 2), np.float32))
    assert ("train with fewer, or with density_exponent = 0.25" in str(error.value)) == advised


def test_samples_are_pairs_whose_views_differ_and_answers_that_do(bundle, encoder):
    samples = np.load(bundle / "samples.npz")
    left, right = np.moveaxis(samples["pixels"], 3, 0)
    assert left.shape == (8, 24, 24)
    np.testing.assert_array_equal(np.roll(left, -2, axis=2), right)
    assert (left != right).any()
    assert np.ptp(samples["probabilities"], axis=1).min() > 0
    assert np.ptp(samples["probabilities"], axis=0).min() > 0
    for found, name in zip(
        run_onnx(encoder, pixels=samples["pixels"][2:3]), ("probabilities", "poses"), strict=True
    ):
        np.testing.assert_allclose(found[0], samples[name][2], rtol=0, atol=1e-4)


def test_the_bundles_error_is_measured_again(bundle, data, capsys):
    [metric] = read_manifest(bundle).metrics
    assert metric.value == evaluate_bundle(bundle, data).error_percent
    assert metric.data.startswith("toys test set, 810 images")
    main(["evaluate", str(bundle), "--data", str(data)])
    assert f"test error {metric.value:.2f} %" in capsys.readouterr().out


def test_the_service_serves_it(bundle, tmp_path):
    engine = load_engine(bundle, "matrix-toys", EngineOptions("cpu", 16, tmp_path, threads=1))
    samples = np.load(bundle / "samples.npz")
    probabilities, poses = engine.encode(samples["pixels"][:3])
    np.testing.assert_allclose(probabilities, samples["probabilities"][:3], rtol=0, atol=1e-4)
    np.testing.assert_allclose(poses, samples["poses"][:3], rtol=0, atol=1e-4)


def test_a_graph_with_routing_from_moments_is_derived_from_it(bundle, tmp_path, capsys):
    assert capsnet_architecture(read_manifest(bundle)) is None
    plan = load_engine(bundle, "matrix-toys", EngineOptions("cpu", 16, tmp_path, threads=1)).encoder.plan
    assert plan.errors.keys() == {"em_moments"}
    assert plan.errors["em_moments"] <= 1e-4
    assert plan.milliseconds["exclusive"]["em_moments"].keys() == {1, 2}
    main(["optimize", str(bundle), "--out", str(tmp_path / "optimized")])
    head, *rows, _, _ = capsys.readouterr().out.splitlines()
    assert head.split()[4:6] == ["1", "2"]
    assert [row.split()[0] for row in rows] == ["plain", "em_moments"]
    assert (tmp_path / "optimized" / "em_moments.onnx").is_file()


def test_em_routing_is_not_rounded_to_half_precision(encoder):
    with pytest.raises(HalfPrecisionError, match="EM routing divides by variances near 0"):
        halved(encoder.SerializeToString(), "matrix-capsnet")


def test_it_becomes_a_model_of_triton(bundle, tmp_path):
    written = write_repository(bundle, tmp_path / "triton", "cpu", 16)
    assert "matrix-toys-reconstruct" in written.models
    config = (tmp_path / "triton" / "matrix-toys" / "config.pbtxt").read_text()
    assert "dims: [ 5, 16 ]" in config
    assert "max_batch_size: 16" in config
    assert "preferred_batch_size: [ 2 ]" in config
    decoder = (tmp_path / "triton" / "matrix-toys-decoder" / "config.pbtxt").read_text()
    assert "preferred_batch_size: [ 16 ]" in decoder


def test_a_convolutional_network_is_refused(data, tmp_path):
    preset = load_preset("toys-cnn")
    narrow = replace(preset.model, hidden=(), blocks=preset.model.blocks[:1])
    run = write_run(tmp_path / "cnn", replace(preset, model=narrow))
    with pytest.raises(
        ValueError, match="is a cnn, which has no poses; a bundle is made of a network of capsules"
    ):
        publish(run, tmp_path / "models" / "cnn", data)


ABLATIONS = replace(
    TINY,
    routing_iterations=2,
    image_channels=1,
    image_size=20,
    standardize_per_image=False,
    vector_poses=True,
    mixing_proportions=True,
    coordinate_addition=False,
    decoder_hidden=(),
)


@pytest.mark.long
def test_the_ablations_export_as_well():
    model = MatrixCapsNet(ABLATIONS).eval()
    encoder = trace_encoder(model)
    for images in (1, 5):
        pixels = torch.rand(images, 20, 20, 1)
        with torch.no_grad():
            expected = EncoderGraph(model)(pixels)
        for found, values in zip(run_onnx(encoder, pixels=pixels.numpy()), expected, strict=True):
            np.testing.assert_allclose(found, values.numpy(), rtol=0, atol=1e-4)


class Logarithms(nn.Module):
    """What EM routing takes logarithms of, on its own."""

    input_names, output_names = ("x",), ("of_sigmoid", "of_sum")

    def forward(self, x):
        return nn.functional.logsigmoid(x), x.logsumexp(dim=1)


def test_logarithms_of_what_is_too_small_for_a_number_stay_exact():
    """A sigmoid is 0 in float32 below -104, and so are all exponentials of far-off votes."""
    x = torch.tensor([[-500.0, -499.0, -1e30], [-3.0, 0.0, 400.0]])
    found = run_onnx(to_onnx(Logarithms(), (x,)), x=x.numpy())
    for values, expected in zip(found, Logarithms()(x), strict=True):
        np.testing.assert_allclose(values, expected.numpy(), rtol=1e-6)


@pytest.mark.parametrize(
    "which", ["official", pytest.param("tempered", marks=pytest.mark.long), "shipped", "as configured"]
)
def test_a_bundle_is_read_back_as_the_network_that_its_graph_is(bundle, data, tmp_path_factory, which):
    if which == "shipped":
        bundle = newest_version(MODELS / "matrix-capsnet-toys")
    elif which == "official":  # whose beta_a does not begin at 0
        official = replace(TINY, official_routing=True, activation_logit_sd=1.0, routing_iterations=2)
        bundle = published(official, data, tmp_path_factory)
    elif which == "tempered":  # as matrix-toys-3-iterations, with fewer
        two = replace(TINY, density_exponent=0.25, matrix_noise=0.3, routing_iterations=2)
        bundle = published(replace(two, activation_logit_sd=2.0), data, tmp_path_factory)
    config = trained_config(bundle).model
    assert isinstance(config, MatrixCapsNetConfig)
    model = read_encoder(bundle, replace(config, decoder_hidden=()))
    pixels = torch.rand(5, 2, config.image_size, config.image_size)
    with torch.no_grad():
        expected = model(pixels)
    probabilities, poses = run_onnx(
        onnx.load(bundle / "encoder.onnx"), pixels=pixels.permute(0, 2, 3, 1).contiguous().numpy()
    )
    np.testing.assert_allclose(probabilities, expected.activations.numpy(), atol=1e-4)
    np.testing.assert_allclose(poses, expected.poses.numpy(), atol=1e-4)


def with_renamed_values(bundle: Path, folder: Path, before: str, now: str) -> Path:
    """A copy of a bundle, in whose encoder all values of this name have another one."""
    copy = shutil.copytree(bundle, folder / "renamed")
    model = onnx.load(bundle / "encoder.onnx")
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [name.replace(before, now) for name in names]
    for tensor in model.graph.initializer:
        tensor.name = tensor.name.replace(before, now)
    for value in model.graph.output:
        value.name = value.name.replace(before, now)
    replace_file(copy, "encoder", model.SerializeToString())
    return copy


def test_the_tenth_iteration_of_a_bundle_is_not_taken_for_the_first(bundle, tmp_path):
    config = replace(TINY, decoder_hidden=())
    of_ten = with_renamed_values(bundle, tmp_path, "log_activations_2", "log_activations_10")
    found, expected = (read_encoder(each, config).state_dict() for each in (of_ten, bundle))
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_a_bundle_without_what_activations_are_computed_with_says_what_helps(bundle, tmp_path):
    without = with_renamed_values(bundle, tmp_path, "log_activations_1", "another_value")
    with pytest.raises(ValueError, match="its graph does not hold all weights: inspect its run"):
        read_encoder(without, replace(TINY, decoder_hidden=()))


def test_a_bundle_is_inspected_as_its_run_is(bundle, data):
    found = inspect_network(bundle, data, torch.device("cpu"), 20)
    assert found.images == 20
    assert [(of.layer, of.iteration) for of in found.activity][-3:] == [("class_caps", t) for t in (1, 2, 3)]
