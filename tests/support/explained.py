"""Explain graphs of networks with random weights, and the manifests that they need."""

from dataclasses import asdict
from functools import cache

import numpy as np
import onnx
import onnxruntime as ort
import torch

from export.contract.manifest import Manifest, Preprocessing
from export.graph import EncoderGraph, pose_shape
from export.to_onnx import TRACED_BATCH, to_onnx
from tests.support.exported_once import exported_once
from tests.support.random_encoders import CONFIGURATIONS, SMALL
from training.config import CapsNetConfig, MatrixCapsNetConfig
from training.models.build import build
from training.models.calibration import calibrate
from training.models.matrix_capsnet import MatrixCapsNet

TINY_MATRIX = {
    "architecture": "matrix-capsnet",
    "image_size": 24,
    "conv_channels": 4,
    "primary_types": 2,
    "conv_caps_types": (3, 4),
}
MATRIX_CONFIGURATIONS = {
    # Its larger network's children.
    "the paper's": {"image_size": 32, "primary_types": 32},
    "1 iteration": {"routing_iterations": 1},
    "vectors": {"vector_poses": True, "routing_iterations": 2, "coordinate_addition": False},
    "2 iterations, a softer density": {"routing_iterations": 2, "density_exponent": 0.3},
    "official, calibrated": {"official_routing": True, "activation_logit_sd": 1.0, "routing_iterations": 2},
    "mixing proportions, vectors": {
        "mixing_proportions": True,
        "vector_poses": True,
        "image_size": 27,
        "routing_iterations": 2,
    },
}


def manifest_of(config: CapsNetConfig | MatrixCapsNetConfig, poses: tuple[int, ...]) -> Manifest:
    """What the manifest of such a network says of its architecture."""
    return Manifest.model_construct(
        architecture="matrix-capsnet" if isinstance(config, MatrixCapsNetConfig) else "capsnet",
        parameters=asdict(config),
        class_names=tuple(map(str, range(config.classes))),
        pose_shape=poses,
        preprocessing=Preprocessing.model_construct(height=config.image_size, width=config.image_size),
    )


def capsnet_manifest(name: str) -> Manifest:
    """That of the random encoder of this name."""
    config = CapsNetConfig(**(SMALL | CONFIGURATIONS[name]))
    return manifest_of(config, (config.class_dim,))


@cache
def matrix_network(name: str) -> tuple[MatrixCapsNet, onnx.ModelProto, Manifest]:
    """One of matrix capsules, its encoder and its manifest; not to be changed."""
    torch.manual_seed(0)
    model = build(MatrixCapsNetConfig(**(TINY_MATRIX | MATRIX_CONFIGURATIONS[name]))).eval()
    assert isinstance(model, MatrixCapsNet)
    size = model.config.image_size
    for path, parameter in model.named_parameters():
        if "beta" in path:
            torch.nn.init.normal_(parameter, std=0.1 if "beta_u" in path else 1e-3)
    calibrate(model, torch.rand(8, 2, size, size))
    pixels = torch.rand(TRACED_BATCH, size, size, 2)
    encoder = exported_once(f"matrix capsules, {name}", lambda: to_onnx(EncoderGraph(model), (pixels,)))
    return model, encoder, manifest_of(model.config, pose_shape(model))


def run_named(model: onnx.ModelProto | bytes, **feeds: np.ndarray) -> dict[str, np.ndarray]:
    """A graph's outputs by name, on the CPU."""
    content = model if isinstance(model, bytes) else model.SerializeToString()
    session = ort.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))
