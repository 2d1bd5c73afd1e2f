"""The parity gate: PyTorch and ONNX Runtime must agree on real images before a bundle is published."""

# N images, J classes, C channels, H and W height and width

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import torch
from numpy.typing import NDArray

from export.graph import CapsuleNetwork, DecoderGraph, EncoderGraph
from export.to_onnx import Graphs, trace_encoder
from training.models.build import build

# Largest absolute difference allowed in any probability, pose element or pixel, by architecture. EM routing
# divides differences of votes by variances that may be 5e-4, and matrix capsules' poses have no bound.
TOLERANCE = {"capsnet": 1e-5, "matrix-capsnet": 1e-4}
IMAGES = 32  # that are compared
# None is the one that is traced. In matrix capsules the votes of 32 images may take gigabytes.
BATCH_SIZES = {"capsnet": (1, 3, IMAGES), "matrix-capsnet": (1, 3, 4)}
# By architecture, beside its own number. EM routing amplifies rounding from one iteration to the next, some
# tenfold in a trained network: with more than it was trained with PyTorch itself is far from the truth.
# Trained with 3 iterations, seven small networks differed by 8e-6 to 8e-5; one with 5 by 5e-4, too much.
ROUTING_ITERATIONS = {"capsnet": (1, 2, 3, 5), "matrix-capsnet": ()}


class ParityError(ValueError):
    """The graph's outputs differ from the model's by more than the tolerance."""


def check_parity(model: CapsuleNetwork, graphs: Graphs, images: NDArray[np.float32]) -> float:
    """Compare model and graphs at several batch sizes and numbers of routing iterations.

    Args:
        model: the trained model, on the CPU.
        graphs: what was traced from it; for the other numbers of iterations the encoder is traced anew.
        images: real ones, float32 [N, H, W, C], 0 to 1, at least IMAGES.

    Returns:
        The largest absolute difference seen, at most the architecture's TOLERANCE.

    Raises:
        ParityError: an output differs by more; says which one, at which batch size and iterations.
        ValueError: too few images.
    """
    if len(images) < IMAGES:
        raise ValueError(f"parity needs {IMAGES} images, got {len(images)}")
    worst, tolerance = 0.0, TOLERANCE[model.config.architecture]
    for iterations in iterations_compared(model):
        if iterations == model.config.routing_iterations:
            compared, traced = model, graphs
        else:
            compared = with_iterations(model, iterations)
            traced = Graphs(trace_encoder(compared), graphs.decoder)
        for output, size, error in _differences(compared, traced, images):
            if not error <= tolerance:
                raise ParityError(
                    f"{output} differs by {error:.2g} between PyTorch and ONNX Runtime at batch size {size} "
                    f"with {_described(iterations, model.config.routing_iterations)}; "
                    f"at most {tolerance:g} is allowed{_advice(model) if output != 'reconstruction' else ''}"
                )
            worst = max(worst, error)
    return worst


def _advice(model: CapsuleNetwork) -> str:
    """What makes a network of matrix capsules pass that does not."""
    config = model.config
    if config.architecture != "matrix-capsnet" or config.routing_iterations == 1:
        return ""
    softer = ", or with density_exponent = 0.25, which makes assignments softer"
    return (
        "; EM routing amplifies rounding in each iteration: train with fewer"
        f"{softer if config.density_exponent == 1 else ''}"
    )


def iterations_compared(model: CapsuleNetwork) -> tuple[int, ...]:
    """The numbers of routing iterations at which the gate compares: the model's own, and maybe others."""
    config = model.config
    return tuple(sorted({*ROUTING_ITERATIONS[config.architecture], config.routing_iterations}))


def _described(iterations: int, own: int) -> str:
    """The iterations compared; whoever has a network of three may wonder at another number."""
    compared = f"{iterations} routing iteration{'' if iterations == 1 else 's'}"
    return compared if iterations == own else f"{compared} (the network has {own})"


def with_iterations(model: CapsuleNetwork, iterations: int) -> CapsuleNetwork:
    """The same weights with another number of routing iterations."""
    other = build(replace(model.config, routing_iterations=iterations))
    assert isinstance(other, CapsuleNetwork)
    other.load_state_dict(model.state_dict())
    return other.eval()


def run_onnx(model: onnx.ModelProto, **feeds: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    """Outputs of a graph on ONNX Runtime's CPU provider, in order."""
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs: list[NDArray[np.float32]] = session.run(None, feeds)
    return outputs


@torch.no_grad()
def _differences(
    model: CapsuleNetwork, graphs: Graphs, images: NDArray[np.float32]
) -> Iterator[tuple[str, int, float]]:
    """Name of an output, batch size, largest absolute difference; in the largest batches of all images."""
    *others, largest = BATCH_SIZES[model.config.architecture]
    batches = [images[:size] for size in others]
    batches += [images[start : start + largest] for start in range(0, IMAGES, largest)]
    for pixels in batches:
        size = len(pixels)
        probabilities, poses = EncoderGraph(model)(torch.from_numpy(pixels))
        found = run_onnx(graphs.encoder, pixels=pixels)
        yield "probabilities", size, _largest(found[0], probabilities)
        yield "poses", size, _largest(found[1], poses)
        if model.decoder and graphs.decoder:
            mask = torch.nn.functional.one_hot(probabilities.argmax(dim=1), model.config.classes).float()
            drawn = DecoderGraph(model.decoder)(poses, mask)
            [reconstruction] = run_onnx(graphs.decoder, poses=poses.numpy(), mask=mask.numpy())
            yield "reconstruction", size, _largest(reconstruction, drawn)


def _largest(found: NDArray[np.float32], expected: torch.Tensor) -> float:
    """Largest absolute difference; NaN stays NaN, so that it fails the gate."""
    return float(np.abs(found - expected.numpy()).max())
