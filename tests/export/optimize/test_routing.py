"""Routing with the batch as the last axis, as ONNX Runtime computes it, against the paper's Procedure 1."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from export.optimize.nodes import Nodes
from export.optimize.routing import SAFE_LOGIT, Routing, add_routing, add_squash

# Of poses below 1; a logit that the votes make large is known to so many roundings of float32 only.
TOLERANCE, ROUNDINGS = 2e-6, 16
EPSILON = 1e-7


@st.composite
def routings(draw, votes=(0.3, 3.0, 60.0), priors=(None, 1.0, 60.0)):
    """Weights and numbers of random sizes, and primary capsules u [G, E, R, B] of all lengths below 1."""
    groups, pose, rest, batch = (draw(st.integers(1, 4)) for _ in range(4))
    classes, class_pose = draw(st.integers(2, 5)), draw(st.integers(1, 5))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def normal(*shape):
        return random.standard_normal(shape).astype(np.float32)

    prior = draw(st.sampled_from(priors))
    routing = Routing(
        votes=draw(st.sampled_from(votes)) * normal(groups, pose, rest, classes, class_pose),
        iterations=draw(st.integers(1, 4)),
        none_of_the_above=draw(st.booleans()),
        priors=None if prior is None else prior * normal(classes, groups, 1, rest, 1),
        bias=draw(st.sampled_from([None, normal(classes, class_pose, 1)])),
    )
    u = normal(groups, pose, rest, batch)
    u *= random.random((groups, 1, rest, batch), np.float32) / np.linalg.norm(u, axis=1, keepdims=True)
    return routing, u


def squash(s):
    """Eq. 1."""
    square = (s**2).sum()
    return square / (1 + square) * s / np.sqrt(square + EPSILON)


def procedure_1(routing, u):
    """Poses v [J, D, B] and the logits of all iterations, by the paper's loops, in float64."""
    groups, pose, rest, classes, class_pose = routing.votes.shape
    lower = [(g, r) for g in range(groups) for r in range(rest)]
    poses, seen = np.zeros((classes, class_pose, u.shape[-1])), []
    for image in range(u.shape[-1]):
        # u_hat_j|i = W_ij u_i
        u_hat = np.array(
            [
                [
                    sum(
                        np.float64(u[g, e, r, image]) * routing.votes[g, e, r, j].astype(np.float64)
                        for e in range(pose)
                    )
                    for j in range(classes)
                ]
                for g, r in lower
            ]
        )
        b = np.zeros((len(lower), classes))
        if routing.priors is not None:
            b += [[routing.priors[j, g, 0, r, 0] for j in range(classes)] for g, r in lower]
        for _ in range(routing.iterations):
            seen.append(b.copy())
            c = np.array([softmax(b[i], routing.none_of_the_above) for i in range(len(lower))])
            for j in range(classes):
                s = sum(c[i, j] * u_hat[i, j] for i in range(len(lower)))
                poses[j, :, image] = squash(s if routing.bias is None else s + routing.bias[j, :, 0])
            for i in range(len(lower)):
                for j in range(classes):
                    b[i, j] += u_hat[i, j] @ poses[j, :, image]
    return poses, np.array(seen)


def softmax(b, none_of_the_above):
    """Eq. 3; without the share of one more logit that is 0, which no class receives (Sec. 7)."""
    b = np.append(b, 0) if none_of_the_above else b
    e = np.exp(b - b.max())
    return (e / e.sum())[:-1] if none_of_the_above else e / e.sum()


def run(nodes, inputs, outputs, x):
    """What the nodes make of x; inputs and outputs are names with shapes."""
    graph = helper.make_graph(
        nodes.nodes,
        "nodes",
        [helper.make_tensor_value_info(inputs[0], TensorProto.FLOAT, inputs[1])],
        [helper.make_tensor_value_info(outputs[0], TensorProto.FLOAT, outputs[1])],
        nodes.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {inputs[0]: x})[0]


def routed(routing, u):
    nodes = Nodes()
    v = add_routing(nodes, "u", routing, "routing")
    return run(nodes, ("u", [*u.shape[:3], "batch"]), (v, [*routing.votes.shape[3:], "batch"]), u)


@given(routings())
@settings(max_examples=80)
def test_the_nodes_compute_procedure_1(case):
    routing, u = case
    expected, logits = procedure_1(routing, u)
    found = routed(routing, u)
    assert found.shape == expected.shape
    bound = TOLERANCE + ROUNDINGS * 2**-24 * np.abs(logits).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=bound)


@given(routings())
@settings(max_examples=80)
def test_no_logit_is_beyond_the_largest_one(case):
    routing, u = case
    _, logits = procedure_1(routing, u)
    assert np.abs(logits).max() <= routing.largest_logit * (1 + 1e-6)


def test_the_largest_logit_is_nearly_reached():
    """By one long capsule whose votes agree: the bound is not merely large."""
    votes = np.zeros((1, 2, 1, 2, 3), np.float32)
    votes[0, 0, 0, 0, 0] = 50
    u = np.array([0.999, 0], np.float32).reshape(1, 2, 1, 1)
    routing = Routing(votes, 3, False, None, None)
    _, logits = procedure_1(routing, u)
    assert routing.largest_logit == pytest.approx(100)
    assert logits.max() > 0.99 * routing.largest_logit


@pytest.mark.parametrize("none_of_the_above", [False, True])
@pytest.mark.parametrize("shift", [-2000.0, 2000.0])
def test_logits_that_overflow_exp_are_shifted(none_of_the_above, shift):
    """Only their differences count, and with none-of-the-above that to 0."""
    random = np.random.default_rng(0)
    votes = random.standard_normal((2, 3, 2, 4, 5)).astype(np.float32)
    priors = shift + random.standard_normal((4, 2, 1, 2, 1)).astype(np.float32)
    u = 0.5 * random.random((2, 3, 2, 3), np.float32)
    routing = Routing(votes, 2, none_of_the_above, priors, None)
    expected, _ = procedure_1(routing, u)
    np.testing.assert_allclose(routed(routing, u), expected, rtol=0, atol=16 * 2**-24 * 2000)
    assert (np.abs(expected).max() < 1e-9) == (none_of_the_above and shift < 0)


@pytest.mark.parametrize(("size", "shifted"), [(0.1, False), (100.0, True)])
def test_logits_are_shifted_only_where_they_can_overflow(size, shifted):
    votes = np.full((1, 2, 3, 4, 5), size, np.float32)
    routing, nodes = Routing(votes, 3, False, None, None), Nodes()
    assert (routing.largest_logit > SAFE_LOGIT) == shifted
    add_routing(nodes, "u", routing, "routing")
    assert any(node.op_type == "ReduceMax" for node in nodes.nodes) == shifted


def test_exp_of_a_safe_logit_can_be_summed_and_inverted_in_float32():
    largest = np.exp(np.float32(SAFE_LOGIT))
    assert np.isfinite(np.float32(1000) * largest)
    assert np.exp(-np.float32(SAFE_LOGIT)) > np.finfo(np.float32).tiny


@pytest.mark.parametrize("iterations", [1, 2, 4])
def test_predictions_are_never_held(iterations):
    """No value has an element for each pair of capsules and element of the class pose."""
    votes = np.ones((2, 3, 5, 7, 11), np.float32)
    nodes = Nodes()
    add_routing(nodes, "u", Routing(votes, iterations, True, None, None), "routing")
    graph = helper.make_graph(
        nodes.nodes,
        "routing",
        [helper.make_tensor_value_info("u", TensorProto.FLOAT, [2, 3, 5, 1])],
        [helper.make_empty_tensor_value_info(nodes.nodes[-1].output[0])],
        nodes.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in inferred.value_info}
    assert shapes.keys() >= {node.output[0] for node in nodes.nodes[:-1]}
    assert max(np.prod(shape) for shape in shapes.values()) <= 7 * 2 * 3 * 5  # [J, K, 1]


@pytest.mark.parametrize("length", [0.0, 1e-3, 1.0, 30.0])
def test_squash_is_equation_1(length):
    s = np.random.default_rng(0).standard_normal((4, 3, 2)).astype(np.float32)
    s *= length / np.linalg.norm(s, axis=1, keepdims=True)
    nodes = Nodes()
    v = add_squash(nodes, "s", 1, "v")
    found = run(nodes, ("s", s.shape), (v, s.shape), s)
    expected = np.stack([[squash(s[j, :, b].astype(np.float64)) for b in range(2)] for j in range(4)])
    np.testing.assert_allclose(found, expected.transpose(0, 2, 1), rtol=1e-6, atol=1e-12)
    assert np.linalg.norm(found, axis=1).max() < 1
