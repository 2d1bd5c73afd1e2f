"""The explain graph shows what routing does, as the papers' procedures have it, and ends with the answer."""

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from export.contract.explain_outputs import explain_outputs
from export.contract.manifest import BundleError, newest_version, read_manifest
from export.explain.file import check_last_iteration
from export.explain.graph import explain_graph
from export.to_onnx import trace_encoder
from tests.support.explained import (
    MATRIX_CONFIGURATIONS,
    TINY_MATRIX,
    capsnet_manifest,
    manifest_of,
    matrix_network,
    run_named,
)
from tests.support.paths import MODELS
from tests.support.random_encoders import CONFIGURATIONS, encoder_parts, pictures, random_encoder
from training.config import MatrixCapsNetConfig
from training.models.build import build
from training.models.em import Capsules

SHIPPED = ("capsnet-mnist", "capsnet-multimnist", "matrix-capsnet-toys")


def with_output(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The same graph with one more of its values as an output."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    changed.graph.output.append(next(value for value in model.graph.value_info if value.name == name))
    return changed


def squashed(s: np.ndarray) -> np.ndarray:
    squared = np.square(s).sum(axis=-1, keepdims=True)
    return s * squared / (1 + squared) / np.sqrt(squared + 1e-7)


def softmax(b: np.ndarray, none: bool) -> np.ndarray:
    """Over the classes, [N, J, I]; with one more logit, 0, if there is none of the above."""
    powers = np.exp(b)
    return powers / (powers.sum(axis=1, keepdims=True) + (1 if none else 0))


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_of_a_capsnet_it_shows_procedure_1(name):
    encoder, parts = random_encoder(name), encoder_parts(name)
    pixels = pictures(encoder, 3)
    found = run_named(explain_graph(encoder, capsnet_manifest(name)), pixels=pixels)
    u = run_named(with_output(encoder, "primary_caps/u"), pixels=pixels)["primary_caps/u"].astype(float)
    u_hat = np.einsum("nie,iejd->njid", u, parts.votes.reshape(*parts.votes.shape[:2], *parts.poses))
    b = np.zeros(u_hat.shape[:3]) + (0 if parts.priors is None else parts.priors)
    for t in range(parts.iterations):
        c = softmax(b, parts.none_of_the_above)
        s = np.einsum("nji,njid->njd", c, u_hat) + (0 if parts.bias is None else parts.bias)
        v = squashed(s)
        agreement = np.einsum("njid,njd->nji", u_hat, v)
        for output, expected in {"couplings": c, "agreements": agreement, "capsules": v}.items():
            np.testing.assert_allclose(found[output][:, t].reshape(expected.shape), expected, atol=2e-5)
        np.testing.assert_allclose(found["activations"][:, t], np.linalg.norm(v, axis=-1), atol=1e-5)
        b = b + agreement
    lengths = np.linalg.norm(u, axis=-1)
    np.testing.assert_allclose(found["activities"].reshape(lengths.shape), lengths, atol=1e-5)


def inputs_of(model, layer, pixels: torch.Tensor) -> Capsules:
    """What a layer of matrix capsules is given."""
    given: list[Capsules] = []
    with layer.register_forward_pre_hook(lambda _, arguments: given.extend(arguments)):
        model(pixels)
    return given[0]


def entropy_share(assignments: np.ndarray, activity: np.ndarray, layer) -> np.ndarray:
    """Of each child's assignments [N, P, J, C] over all parents that it reaches: mean by activity, [N]."""
    fields, places = layer.fields, layer.fields.inside.shape[1]
    types = assignments.shape[3] // places
    sums = np.zeros((len(assignments), len(fields.counts), types))
    summands = -(assignments * np.log(np.maximum(assignments, 1e-38))).sum(axis=2)  # [N, P, C]
    for parent, inside in enumerate(fields.inside.tolist()):
        sums[:, inside] += summands[:, parent].reshape(-1, places, types)
    reached = fields.counts.numpy() > 0
    largest = np.log(np.maximum(fields.counts.numpy()[reached] * assignments.shape[2], 2))[:, None]
    weights = activity[:, reached]
    return (sums[:, reached] / largest * weights).sum((1, 2)) / weights.sum((1, 2))


LONG = {"1 iteration", "2 iterations, a softer density", "vectors"}  # the others hold what is in them
of_each_matrix_network = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in MATRIX_CONFIGURATIONS]
)


@of_each_matrix_network
@torch.no_grad()
def test_of_matrix_capsules_it_shows_em_routing(name):
    model, encoder, manifest = matrix_network(name)
    pixels = pictures(encoder, 3)
    found = run_named(explain_graph(encoder, manifest), pixels=pixels)
    shown = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    for path, layer in {"conv_caps.0": model.conv_caps[0], "conv_caps.1": model.conv_caps[1]}.items():
        children = inputs_of(model, layer, shown)
        votes = layer.votes(children.poses)
        for t, step in enumerate(layer.iterations(children)):
            distance = (votes - step.mean.unsqueeze(3)).norm(dim=4)  # [N, P, J, C]
            assignments = step.assignments.expand(distance.shape)
            mass = assignments * layer.fields.seen(children.activations).unsqueeze(2)
            mean = (mass * distance).sum(dim=3) / mass.sum(dim=3)
            for what, expected in {"activations": step.log_activations.exp(), "distances": mean}.items():
                output = found[f"{path}.{what}"][:, t]  # [N, J, R, R]
                by_type = expected.transpose(1, 2).reshape(output.shape)
                np.testing.assert_allclose(output, by_type, rtol=1e-3, atol=1e-3)
            share = entropy_share(assignments.numpy(), children.activations.numpy(), layer)
            np.testing.assert_allclose(found[f"{path}.entropy"][:, t], share, atol=1e-3)
    layer = model.class_caps
    children = inputs_of(model, layer, shown)
    votes, size = layer.votes(children.poses), found["activities"].shape[2]

    def by_place(x: torch.Tensor) -> torch.Tensor:
        """[N, ..., C] to [N, ..., K, R, R]."""
        return x.unflatten(-1, (size, size, -1)).movedim(-1, -3)

    for t, step in enumerate(layer.iterations(children)):
        distance = (votes - step.mean.unsqueeze(3)).norm(dim=4).squeeze(1)
        assignments = step.assignments.expand(len(pixels), 1, model.config.classes, -1).squeeze(1)
        expected = {
            "assignments": by_place(assignments),
            "distances": by_place(distance),
            "capsules": step.mean.squeeze(1),
            "activations": step.log_activations.exp().squeeze(1),
        }
        for output, values in expected.items():
            np.testing.assert_allclose(found[output][:, t], values, rtol=1e-3, atol=1e-3, err_msg=output)
    activity = by_place(children.activations.flatten(1))
    np.testing.assert_allclose(found["activities"], activity, atol=1e-5)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_last_iteration_is_the_answer_of_a_random_capsnet(name):
    encoder = random_encoder(name)
    explain = explain_graph(encoder, capsnet_manifest(name))
    check_last_iteration(encoder.SerializeToString(), explain.SerializeToString(), pictures(encoder, 8))


@of_each_matrix_network
def test_the_last_iteration_is_the_answer_of_random_matrix_capsules(name):
    _, encoder, manifest = matrix_network(name)
    explain = explain_graph(encoder, manifest)
    check_last_iteration(encoder.SerializeToString(), explain.SerializeToString(), pictures(encoder, 8))


@pytest.mark.parametrize("model", SHIPPED)
def test_the_last_iteration_is_the_answer_of_a_shipped_bundle(model):
    """To its samples, to noise, and to an empty and a full picture."""
    bundle = newest_version(MODELS / model)
    encoder = onnx.load(bundle / "encoder.onnx")
    explain = explain_graph(encoder, read_manifest(bundle)).SerializeToString()
    samples = np.load(bundle / "samples.npz")["pixels"]
    even = np.stack([np.zeros_like(samples[0]), np.ones_like(samples[0])])
    for pixels in (samples, pictures(encoder, 8), even):
        check_last_iteration(encoder.SerializeToString(), explain, pixels)


def test_matrix_capsules_of_many_positions_can_be_explained():
    """Their equal shares are more numbers than the exporter folds into a constant."""
    small = {"conv_channels": 1, "primary_types": 1, "conv_caps_types": (1, 1), "routing_iterations": 1}
    config = MatrixCapsNetConfig(**(TINY_MATRIX | small | {"image_size": 140}))
    encoder = trace_encoder(build(config).eval())
    explain = explain_graph(encoder, manifest_of(config, (4, 4)))
    check_last_iteration(encoder.SerializeToString(), explain.SerializeToString(), pictures(encoder, 2))


def test_it_is_static_and_only_its_batch_is_free():
    _, encoder, manifest = matrix_network("the paper's")
    for graph, of in (
        (explain_graph(encoder, manifest), manifest),
        (explain_graph(random_encoder("everything"), capsnet_manifest("everything")), None),
    ):
        operators = {node.op_type for node in graph.graph.node}
        assert not operators & {"Loop", "If", "Scan", "Shape", "Size", "NonZero", "Range", "Expand"}
        shapes = {
            value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
            for value in graph.graph.output
        }
        assert all(shape[0] == "batch" and 0 not in shape for shape in shapes.values())
        for name, shape in (explain_outputs(of) if of else {}).items():
            assert shapes[name] == ["batch", *shape]


def test_an_encoder_without_names_of_its_values_says_that_it_cannot_be_explained():
    """As those of other exporters."""
    encoder = onnx.ModelProto()
    encoder.CopyFrom(random_encoder("the paper's"))
    for node in encoder.graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                names[place] = name.replace("class_caps/u_hat", "Transpose_17")
    with pytest.raises(BundleError, match="the encoder has no value class_caps/u_hat; export its run anew"):
        explain_graph(encoder, capsnet_manifest("the paper's"))


def test_a_manifest_that_does_not_state_the_architecture_is_refused():
    manifest = capsnet_manifest("the paper's").model_copy(update={"parameters": {}})
    with pytest.raises(BundleError, match="parameters do not state the network's architecture"):
        explain_graph(random_encoder("the paper's"), manifest)


def test_it_adds_no_weights():
    encoder = random_encoder("the paper's")
    explain = explain_graph(encoder, capsnet_manifest("the paper's"))
    held = {tensor.name for tensor in encoder.graph.initializer}
    added = [tensor for tensor in explain.graph.initializer if tensor.name not in held]
    assert sum(numpy_helper.to_array(tensor).nbytes for tensor in added) < 1000
