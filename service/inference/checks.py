"""Checks that a bundle must pass before it serves: of its manifest and of its samples."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from export.contract.explain_outputs import explain_outputs
from export.contract.manifest import BundleError, Manifest
from export.contract.one_line import first_line
from service.inference.engine import Engine
from service.inference.explain_session import ExplainSession
from service.inference.half_encoder import check_classes
from service.inference.providers import PROVIDERS, UsedDevice, sample_tolerances
from service.inference.sessions import create_session
from service.processors import usable_cpus

# N images, H rows, W columns, C channels

Floats = NDArray[np.float32]

EXPLAINED_SAMPLES = 2  # the votes of all of them would take a tenth of a second, and much memory


def check_contract(manifest: Manifest) -> None:
    """The manifest describes graphs that this service can run.

    Raises:
        BundleError: it describes others; names the graph and the tensor.
    """
    facts, classes = manifest.preprocessing, len(manifest.class_names)
    picture = (None, facts.height, facts.width, facts.channels)
    poses = (None, classes, math.prod(manifest.pose_shape))
    answer = {"probabilities": (None, classes), "poses": poses}
    shown = explain_outputs(manifest) if "explain" in manifest.graphs else {}
    expected: Mapping[str, tuple[Mapping[str, object], Mapping[str, object]]] = {
        "encoder": ({"pixels": picture}, answer),
        "explain": ({"pixels": picture}, answer | {name: (None, *shape) for name, shape in shown.items()}),
        "decoder": ({"poses": poses, "mask": (None, classes)}, {"reconstruction": picture}),
    }
    for role, graph in manifest.graphs.items():
        found = tuple({t.name: t.shape for t in tensors} for tensors in (graph.inputs, graph.outputs))
        if found != expected[role]:
            raise BundleError(
                f"manifest: the {role} has {found}; with these classes it needs {expected[role]}"
            )


def check_samples(engine: Engine, samples: Mapping[str, Floats]) -> None:
    """Run the bundle's samples; this also warms the engine up.

    Raises:
        BundleError: an output is not what samples.npz says; names it, and the largest difference.
    """
    tolerances = sample_tolerances(engine.device, engine.precision)
    names, pixels = ["probabilities", "poses"], {"pixels": samples["pixels"]}
    try:
        found = [
            named
            for encoder in engine.encoder.all
            for named in zip(names, encoder.run(names, pixels), strict=True)
        ]
        if engine.has_decoder:
            found += zip(["reconstruction"], engine.decode(samples["poses"], samples["mask"]), strict=True)
    except Exception as error:  # ONNX Runtime's errors share no base class
        raise BundleError(f"samples: the graphs fail on them: {first_line(error)}") from error
    for name, values in found:
        _check_values(name, values, samples[name], engine.device, tolerances[name])


def check_explainer(explainer: ExplainSession, encoder: bytes, samples: Mapping[str, Floats]) -> None:
    """Run the explain graph on the first of the bundle's samples; its last iteration gives their answer.

    Args:
        explainer: not open, and not open afterwards.
        encoder: the plain graph.
        samples: of the bundle.

    Raises:
        BundleError: the graph cannot be loaded or run, or an output is wrong; names it.
    """
    found = explainer.run_once(encoder, samples["pixels"][:EXPLAINED_SAMPLES])
    for name, values in found.items():
        if not np.isfinite(values).all():
            raise BundleError(f"samples: {name} of the explain graph is not finite")
    last = {"activations": "probabilities", "capsules": "poses"}
    answers = {name: (found[name], name) for name in ("probabilities", "poses")}
    answers |= {f"the last of {name}": (found[name][:, -1], of) for name, of in last.items()}
    tolerances = sample_tolerances("cpu", "float32")
    for name, (values, of) in answers.items():
        expected = samples[of][:EXPLAINED_SAMPLES]
        _check_values(f"{name} of the explain graph", values, expected, "cpu", tolerances[of])


def check_half(engine: Engine, encoder: bytes, pixels: Floats) -> None:
    """Check that an encoder in half precision names the same classes as the plain one.

    Args:
        engine: opened with the encoder.
        encoder: the plain graph.
        pixels: of the samples, [N, H, W, C].

    Raises:
        BundleError: it does not, on an image made from the samples.
    """
    if engine.precision != "half":
        return
    manifest, on_cpu = engine.manifest, [(PROVIDERS["cpu"], dict[str, str]())]
    plain = create_session(encoder, manifest.graphs["encoder"], "cpu", on_cpu, usable_cpus())
    check_classes(
        lambda images: engine.encode(images)[0],
        lambda images: plain.run(["probabilities"], {"pixels": images})[0],
        pixels,
        manifest.objects_per_image,
        engine.max_batch,
    )


def _check_values(name: str, values: Floats, expected: Floats, device: UsedDevice, tolerance: float) -> None:
    if values.shape != expected.shape:
        raise BundleError(f"samples: {name} is {values.shape}, expected {expected.shape}")
    difference = float(np.abs(values - expected).max())
    if not difference <= tolerance:  # also when it is NaN
        raise BundleError(
            f"samples: {name} differs by {difference:.3g} on {device}; at most {tolerance:g} is allowed"
        )
