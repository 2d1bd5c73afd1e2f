"""The encoder of a published bundle of matrix capsules as a PyTorch network, to look into it.

A graph holds most weights under their own names. Export computes with the others: betas are multiplied by
their units, and the shared matrices of the class capsules are repeated for each position.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import Tensor

from export.contract.manifest import newest_version, read_checked, read_manifest
from training.config import MatrixCapsNetConfig
from training.models.build import build
from training.models.matrix_capsnet import MatrixCapsNet
from training.models.matrix_capsules import POSE, MatrixCapsules

Array = NDArray[np.float32]
CAPSULE_LAYERS = ("conv_caps.0", "conv_caps.1", "class_caps")
COMPUTED = tuple(f"{layer}." for layer in CAPSULE_LAYERS)  # `_computed_with` finds those not in the graph


def read_encoder(path: Path, config: MatrixCapsNetConfig) -> MatrixCapsNet:
    """The network of a bundle, in evaluation mode.

    Args:
        path: of the bundle, or of its model, whose newest version is taken.
        config: of the network, without a decoder.

    Raises:
        BundleError: the graph is missing, or not the one that the manifest describes.
        ValueError: a weight cannot be found in the graph.
    """
    bundle = newest_version(path)
    graph = onnx.load_model_from_string(read_checked(bundle, read_manifest(bundle).graphs["encoder"])).graph
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    model = build(config).eval()
    assert isinstance(model, MatrixCapsNet)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        for name in weights:
            if name in held:
                weights[name] = torch.from_numpy(held[name].copy())
        for prefix in CAPSULE_LAYERS:
            layer = model.get_submodule(prefix)
            assert isinstance(layer, MatrixCapsules)
            weights |= _computed_with(graph, held, prefix, layer)
    except (StopIteration, ValueError):  # there is none, or another number than expected
        raise ValueError(f"{bundle}: its graph does not hold all weights: inspect its run") from None
    if missing := [name for name in weights if name not in held and not name.startswith(COMPUTED)]:
        raise ValueError(f"{bundle}: its graph does not hold {', '.join(missing)}: inspect its run")
    model.load_state_dict(weights)
    return model


def _computed_with(
    graph: onnx.GraphProto, held: dict[str, Array], prefix: str, layer: MatrixCapsules
) -> dict[str, Tensor]:
    """The weights of a layer that the graph does not hold as they are."""
    place, routing = prefix.replace(".", "/"), layer.routing
    found: dict[str, Array] = {}
    if f"{prefix}.weight" not in held:
        matrices = next(
            value
            for value in _constants(graph, held, f"{place}/votes/", "Einsum", "MatMul")
            if value.ndim == 5
        )
        found["weight"] = matrices[: len(layer.weight)]
    if not routing.mixing_proportions:
        of_first = "log_activations_1/" if routing.iterations > 1 else "log_"  # not that of iteration 10
        activate = f"{place}/routing/{of_first}"
        [cost] = _constants(graph, held, activate, "Add")
        [budget] = _constants(graph, held, activate, "Sub")
        found["routing.beta_u"] = cost / np.float32(POSE)
        if routing.calibrated:
            *_, first = _constants(graph, held, activate, "Mul", numbers=True)  # after 1/2 comes lambda
            found["routing.final_inverse_temperature"] = first / np.float32(routing.share_of_final(0))
            found["routing.budget_offset"] = budget  # with the part of beta_a
            found["routing.beta_a"] = np.zeros_like(budget)
        else:
            found["routing.beta_a"] = budget / np.float32(routing.constants.activation_cost)
    return {f"{prefix}.{name}": torch.from_numpy(np.array(value)) for name, value in found.items()}


def _constants(
    graph: onnx.GraphProto, held: dict[str, Array], place: str, *operators: str, numbers: bool = False
) -> Iterator[Array]:
    """The arrays that the operators there compute with, or the single numbers."""
    for node in graph.node:
        if node.op_type in operators and node.output[0].startswith(place):
            yield from (
                held[name] for name in node.input if name in held and (held[name].ndim == 0) == numbers
            )
