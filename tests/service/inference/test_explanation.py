"""What an explain graph's outputs say, from outputs of which the answer is known."""

import numpy as np
import pytest

from export.contract.manifest import read_manifest
from service.inference.explanation import BINS, explanation
from tests.support.explained import TINY_MATRIX, capsnet_manifest, manifest_of
from tests.support.tiny_explain import write_explained_bundle
from training.config import MatrixCapsNetConfig

T, J, K, R, D = 2, 3, 2, 6, 4


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return read_manifest(write_explained_bundle(tmp_path_factory.mktemp("models") / "tiny" / "1"))


def agreement_outputs(couplings: np.ndarray) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    u_hat, activities = rng.normal(size=(J, K, R, R, D)), rng.random((K, R, R))
    s = np.einsum("tjkrc,jkrcd->tjd", couplings, u_hat)
    squared = np.square(s).sum(axis=-1, keepdims=True)
    v = s * np.sqrt(squared) / (1 + squared)
    outputs = {
        "couplings": couplings,
        "agreements": np.einsum("jkrcd,tjd->tjkrc", u_hat, v),
        "capsules": v,
        "activations": np.linalg.norm(v, axis=-1),
        "activities": activities,
    }
    return {name: values.astype(np.float32) for name, values in outputs.items()} | {"s": s}


def shares(seed: int, classes: int = J) -> np.ndarray:
    drawn = np.random.default_rng(seed).random((T, classes, K, R, R))
    return drawn / drawn.sum(axis=1, keepdims=True)


def test_heat_adds_up_to_the_length_before_the_squash(manifest):
    outputs = agreement_outputs(shares(1))
    found = explanation(outputs, manifest)
    assert found.heat.shape == (T, J, R, R)
    np.testing.assert_allclose(found.heat.sum(axis=(2, 3)), np.linalg.norm(outputs["s"], axis=-1), rtol=1e-4)


def test_a_capsule_of_no_length_has_no_heat(manifest):
    outputs = agreement_outputs(np.zeros((T, J, K, R, R)))
    np.testing.assert_array_equal(explanation(outputs, manifest).heat, 0)


@pytest.mark.parametrize(("share", "expected"), [(np.full(J, 1 / J), 1.0), (np.eye(J)[1], 0.0)])
def test_entropy_is_1_where_all_classes_are_alike_and_0_where_there_is_one(manifest, share, expected):
    couplings = np.broadcast_to(share[None, :, None, None, None], (T, J, K, R, R))
    found = explanation(agreement_outputs(couplings), manifest)
    np.testing.assert_allclose(found.entropy, expected, atol=1e-6)


def test_where_no_capsule_is_active_all_count_alike(manifest):
    outputs = agreement_outputs(shares(1))
    found = explanation(outputs | {"activities": np.zeros_like(outputs["activities"])}, manifest)
    expected = outputs["agreements"].mean(axis=(2, 3, 4))
    np.testing.assert_allclose(found.logit_change, expected, rtol=1e-3, atol=1e-6)


def test_entropy_counts_active_capsules_more(manifest):
    couplings = np.full((T, J, K, R, R), 1 / J)
    couplings[:, :, 0] = np.array([1, 0, 0])[:, None, None]  # those of the first type have decided
    outputs = agreement_outputs(couplings)
    outputs["activities"][0], outputs["activities"][1] = 0.75, 0.25
    np.testing.assert_allclose(explanation(outputs, manifest).entropy, 0.25, atol=1e-6)


def test_none_of_the_above_is_one_more_class():
    """What the classes do not get, it gets."""
    manifest = capsnet_manifest("none of the above, 5 iterations")
    assert manifest.parameters["none_of_the_above"]
    classes = len(manifest.class_names)
    couplings = np.full((T, classes, K, R, R), 1 / (classes + 1))
    outputs = {
        "couplings": couplings,
        "agreements": np.zeros_like(couplings),
        "capsules": np.ones((T, classes, D)),
        "activations": np.ones((T, classes)),
        "activities": np.ones((K, R, R)),
    }
    np.testing.assert_allclose(explanation(outputs, manifest).entropy, 1, atol=1e-6)


def test_changes_of_logits_are_means_by_activity_and_maxima(manifest):
    outputs = agreement_outputs(shares(2))
    found = explanation(outputs, manifest)
    agreements, activities = outputs["agreements"], outputs["activities"]
    expected = (agreements * activities).sum(axis=(2, 3, 4)) / activities.sum()
    np.testing.assert_allclose(found.logit_change, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(found.largest_logit_change, agreements.max(axis=(2, 3, 4)))


def em_outputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    layers = {
        f"conv_caps.{place}.{what}": rng.random((T, 2, 3, 3))
        for place in (0, 1)
        for what in ("activations", "distances")
    }
    entropies = {f"conv_caps.{place}.entropy": np.full(T, 0.5 + place / 4) for place in (0, 1)}
    outputs = {
        "assignments": shares(4),
        "distances": 7 * rng.random((T, J, K, R, R)),
        "capsules": rng.random((T, J, 16)),
        "activations": rng.random((T, J)),
        "activities": rng.random((K, R, R)),
    }
    return {name: values.astype(np.float32) for name, values in {**outputs, **layers, **entropies}.items()}


def test_of_em_routing_it_tells_assignments_distances_and_layers():
    manifest = manifest_of(MatrixCapsNetConfig(**TINY_MATRIX), (4, 4))
    outputs = em_outputs()
    found = explanation(outputs, manifest)
    assert found.routing == "em"
    assert found.logit_change is None
    np.testing.assert_allclose(
        found.heat.sum(axis=1), np.broadcast_to(outputs["activities"].sum(axis=0), (T, R, R)), rtol=1e-5
    )
    assert [layer.name for layer in found.layers] == ["conv_caps.0", "conv_caps.1"]
    assert [layer.entropy.tolist() for layer in found.layers] == [[0.5, 0.5], [0.75, 0.75]]


def test_votes_are_counted_by_their_distance_and_weighted_by_their_assignment():
    manifest = manifest_of(MatrixCapsNetConfig(**TINY_MATRIX), (4, 4))
    outputs = em_outputs()
    outputs["distances"][:] = 1.0
    outputs["distances"][0, 0, 0] = BINS  # of the first class half of the votes, and the last bin's edge
    outputs["assignments"][0, 0, 0], outputs["assignments"][0, 0, 1] = 0.2, 0.6
    found = explanation(outputs, manifest)
    assert found.distance_edges is not None
    assert found.distances is not None
    np.testing.assert_allclose(found.distance_edges, np.arange(BINS + 1))
    np.testing.assert_allclose(found.distances[0, 0, [1, -1]], [0.75, 0.25], rtol=1e-5)
    np.testing.assert_allclose(found.distances.sum(axis=2), 1, rtol=1e-5)
