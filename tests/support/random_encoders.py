"""Encoders with random weights, exported as trained ones are; among them every option and number.

An export takes seconds, so there are few, each made once; what only differs in weights gets them afterwards.
"""

from dataclasses import asdict
from functools import cache

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import numpy_helper

from export.contract.architecture import CapsNetArchitecture
from export.graph import EncoderGraph
from export.optimize.encoder import Encoder, read_encoder
from export.optimize.toom_cook_1d import Convolution
from export.to_onnx import TRACED_BATCH, to_onnx
from tests.support.exported_once import exported_once
from training.config import CapsNetConfig, StemConvolution
from training.models.capsnet import CapsNet
from training.models.capsules import ClassCapsules, PrimaryCapsules
from training.models.convolution import Convolution as TrainedConvolution

SMALL = {
    "conv_channels": 5,
    "primary_types": 3,
    "primary_dim": 6,
    "classes": 4,
    "class_dim": 5,
    "decoder_hidden": (),
}
PRIORS, NONE, BIAS = {"learned_priors": True}, {"none_of_the_above": True}, {"capsule_bias": True}
COLOR = {"image_channels": 3, "standardize_per_image": True}
CONFIGURATIONS = {
    "the paper's": {},
    "everything": {"image_size": 25, "routing_iterations": 2, **COLOR, **PRIORS, **NONE, **BIAS},
    "none of the above, 5 iterations": {"image_size": 31, "routing_iterations": 5, **NONE},
    "1 iteration": {"image_size": 21, "routing_iterations": 1, **NONE, **BIAS},
    "a stem": {
        "image_size": 25,
        "stem": (StemConvolution(4, 3, stride=2), StemConvolution(6, 2)),
        "kernel": 4,
        **COLOR,
    },
    # So many that it does not compute their softmax either.
    "many priors": {"conv_channels": 2, "primary_types": 64, "primary_dim": 2, **PRIORS, **NONE},
}


@cache
def random_encoder(name: str) -> onnx.ModelProto:
    """The encoder of that configuration; not to be changed."""
    torch.manual_seed(0)
    model = CapsNet(CapsNetConfig(**(SMALL | CONFIGURATIONS[name])))
    config = model.config
    shape = config.image_size, config.image_size, config.image_channels
    return exported_once(f"capsnet, {name}", lambda: exported(model, shape))


def architecture_of(config: CapsNetConfig) -> CapsNetArchitecture:
    """As the manifest of its bundle states it."""
    return CapsNetArchitecture.model_validate(asdict(config))


def encoder_parts(name: str, changes=None) -> Encoder:
    """The parts of the encoder of that configuration, with changed weights (`with_weights`)."""
    model = with_weights(random_encoder(name), changes or {})
    return read_encoder(model, architecture_of(CapsNetConfig(**(SMALL | CONFIGURATIONS[name]))))


def oblong_parts() -> Encoder:
    """The parts of the oblong encoder."""
    model = oblong_encoder()
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}

    def convolution(path, strides, size):
        return Convolution(weights[f"{path}.weight"], weights[f"{path}.bias"], strides, size)

    return Encoder(
        model=model,
        prologue=[model.graph.node[0]],
        convolutions={
            "conv1": convolution("conv1", (2, 1), (27, 23)),
            "primary_caps/conv": convolution("primary_caps.conv", (1, 3), (12, 19)),
        },
        votes=weights["class_caps.weight"],
        poses=(4, 5),
        iterations=2,
        bias=weights["class_caps.routing.bias"],
    )


@cache
def oblong_encoder() -> onnx.ModelProto:
    """No CapsNet of the configuration: oblong pictures, kernels and strides of all kinds."""
    torch.manual_seed(0)
    model = CapsNet(CapsNetConfig(**SMALL))
    model.conv1 = TrainedConvolution(2, 5, 5)
    model.conv1.stride = (2, 1)
    model.primary_caps = PrimaryCapsules(5, 3, 6)
    model.primary_caps.conv = torch.nn.Conv2d(5, 18, (4, 6), (1, 3))
    model.class_caps = ClassCapsules(3 * 9 * 5, 6, 4, 5, iterations=2, bias=True)
    return exported_once("capsnet, oblong", lambda: exported(model, (27, 23, 2)))


def exported(model: CapsNet, shape: tuple[int, int, int]) -> onnx.ModelProto:
    """The encoder for images of this shape, [H, W, C], with weights that all matter to the output."""
    routing, scales = model.class_caps.routing, {}
    for convolution, gain in ((model.conv1, 2.0), (model.primary_caps.conv, 0.5)):
        scales |= {convolution.weight: gain / convolution.weight[0].numel() ** 0.5, convolution.bias: 0.2}
    scales |= {model.class_caps.weight: 0.5, routing.priors: 1.0, routing.bias: 0.5}
    for parameter, scale in scales.items():
        if parameter is not None:
            torch.nn.init.normal_(parameter, std=scale)
    return to_onnx(EncoderGraph(model.eval()), (torch.rand(TRACED_BATCH, *shape),))


def with_weights(model: onnx.ModelProto, changes) -> onnx.ModelProto:
    """A copy of a graph; `changes` are functions of the arrays, by the names of the weights."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    weights = {tensor.name: tensor for tensor in changed.graph.initializer}
    for name, change in changes.items():
        values = np.asarray(change(numpy_helper.to_array(weights[name])), np.float32)
        weights[name].CopyFrom(numpy_helper.from_array(values, name))
    return changed


def pictures(model: onnx.ModelProto, count: int, seed: int = 0):
    """Random ones as the graph takes them."""
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim][1:]
    return np.random.default_rng(seed).random((count, *shape), np.float32)


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    """On one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
