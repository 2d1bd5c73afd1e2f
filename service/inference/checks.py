"""Checks of its samples that a bundle must pass before it serves."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from export.contract.manifest import BundleError
from export.contract.one_line import first_line
from export.contract.processors import usable_cpus
from export.contract.samples import check_values, in_pieces
from service.inference.engine import Engine
from service.inference.explain_session import ExplainSession
from service.inference.providers import PROVIDERS, sample_tolerances
from service.inference.sessions import Session, create_session

# N images, H rows, W columns, C channels

Floats = NDArray[np.float32]

EXPLAINED_SAMPLES = 2  # the votes of all of them would take a tenth of a second, and much memory


def check_samples(engine: Engine, samples: Mapping[str, Floats]) -> None:
    """Run the bundle's samples; this also warms the engine up.

    Raises:
        BundleError: an output is not what samples.npz says; names it, and the largest difference.
    """
    tolerances = sample_tolerances(engine.device, engine.precision)
    names = ["probabilities", "poses"]
    try:
        found = [
            named
            for encoder in engine.encoder.all
            for named in zip(names, _encoded(encoder, engine.max_batch, samples["pixels"]), strict=True)
        ]
        if engine.decoder is not None:
            decoded = in_pieces(engine.decode, engine.decoder_max_batch, samples["poses"], samples["mask"])
            found += zip(["reconstruction"], decoded, strict=True)
    except Exception as error:  # ONNX Runtime's errors share no base class
        raise BundleError(f"samples: the graphs fail on them: {first_line(error)}") from error
    for name, values in found:
        check_values(name, values, samples[name], engine.device, tolerances[name])


def _encoded(encoder: Session, at_once: int, pixels: Floats) -> list[Floats]:
    """Probabilities and poses of all samples."""
    return in_pieces(lambda some: encoder.run(["probabilities", "poses"], {"pixels": some}), at_once, pixels)


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
        check_values(f"{name} of the explain graph", values, expected, "cpu", tolerances[of])


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
    # Late: they import onnx, which a service on a CPU need not keep in memory.
    from export.optimize.half_gate import check_generated
    from export.optimize.half_precision import HalfPrecisionError

    manifest, on_cpu = engine.manifest, [(PROVIDERS["cpu"], dict[str, str]())]
    plain = create_session(encoder, manifest.graphs["encoder"], "cpu", on_cpu, usable_cpus())

    def in_float32(images: Floats) -> Floats:
        return _encoded(plain, engine.max_batch, images)[0]

    def in_half(images: Floats) -> Floats:
        return in_pieces(engine.encode, engine.max_batch, images)[0]

    try:
        check_generated(in_float32, in_half, pixels, manifest.objects_per_image)
    except HalfPrecisionError as error:
        raise BundleError(f"samples: {error}") from error
