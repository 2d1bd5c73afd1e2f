"""The gate that an encoder in half precision has to pass: it names the classes that the plain one names."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from export.contract.samples import in_pieces
from export.optimize.half_precision import LARGEST_HALF, HalfPrecisionError
from export.optimize.half_rounding import LARGEST, rounded_by_arithmetic

# N images, H rows, W columns, C channels, J classes

Floats = NDArray[np.float32]

MAX_OTHER_DECISIONS = 2  # per 10,000 images
MAX_LENGTH_ERROR = 5e-3

GENERATED = 320  # images that are made of a bundle's samples
MIN_CLEAR = 256  # so many of them must be decided clearly
TIE = 1e-3  # of two probabilities no further apart float32 may name either, as by TOLERANCE of the service
MAX_SHIFT = 2  # pixels
MIN_CONTRAST = 0.5
NOISE = 0.1


@dataclass(frozen=True)
class Agreement:
    """How near a graph's answers come to those of the plain one.

    Attributes:
        images: how many were compared.
        other_decisions: images for which another class is named.
        length_error: largest absolute difference of a probability, which is a capsule's length.
    """

    images: int
    other_decisions: int
    length_error: float


def compare(expected: Floats, found: Floats, objects: int = 1) -> Agreement:
    """Compare probabilities [N, J] with those expected; NaN counts as an infinite error.

    Args:
        expected: of the plain graph.
        found: of the other.
        objects: in an image; so many classes are named, in any order.
    """
    error = np.abs(found - expected).max(initial=0)
    others = int((_named(found, objects) != _named(expected, objects)).any(axis=1).sum())
    return Agreement(len(expected), others, float(np.nan_to_num(error, nan=np.inf)))


def check_agreement(agreement: Agreement) -> None:
    """The gate itself.

    Of fewer than 10,000 images as many may differ in their class as that part of 10,000 allows, rounded down:
    of a few hundred none.

    Raises:
        HalfPrecisionError: too many images have another class, or a length is too far off.
    """
    allowed = MAX_OTHER_DECISIONS * agreement.images // 10_000
    if agreement.other_decisions > allowed or not agreement.length_error <= MAX_LENGTH_ERROR:
        raise HalfPrecisionError(
            f"half precision changes the class of {agreement.other_decisions} of {agreement.images} images "
            f"(at most {allowed} may) and lengths by up to {agreement.length_error:.2g} "
            f"(at most {MAX_LENGTH_ERROR:g}); keep to float32"
        )


def check_half(
    model: onnx.ModelProto, half: onnx.ModelProto, images: Floats, objects: int = 1, batch: int = 64
) -> Agreement:
    """Run both encoders on the CPU over a test set and put the second through the gate.

    The second rounds to float16 as a GPU does (`half_rounding`), and like one sums in float32.

    Args:
        model: the plain encoder.
        half: what `half_precision` made of it.
        images: the test set, float32 [N, H, W, C], 0 to 1.
        objects: in an image.
        batch: images per run.

    Raises:
        HalfPrecisionError: it does not pass, or float16 cannot hold a value on the way.
    """
    options, cpu = ort.SessionOptions(), ["CPUExecutionProvider"]
    plain = ort.InferenceSession(model.SerializeToString(), options, cpu)
    # Rounding stays as it is written; onnxruntime 1.31 also crashes when it changes the layout of this graph.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    rounded = ort.InferenceSession(rounded_by_arithmetic(half).SerializeToString(), options, cpu)

    def run_rounded(pixels: Floats) -> list[Floats]:
        probabilities, largest = rounded.run(["probabilities", LARGEST], {"pixels": pixels})
        if not largest <= LARGEST_HALF:  # also when it is NaN
            raise HalfPrecisionError(
                f"a value between two operators reaches {largest:g}; float16 ends at {LARGEST_HALF:g}, "
                "so this model has to stay in float32"
            )
        return [probabilities]

    [expected] = in_pieces(lambda part: plain.run(["probabilities"], {"pixels": part}), batch, images)
    [found] = in_pieces(run_rounded, batch, images)
    agreement = compare(expected, found, objects)
    check_agreement(agreement)
    return agreement


def check_generated(
    plain: Callable[[Floats], Floats], half: Callable[[Floats], Floats], samples: Floats, objects: int = 1
) -> Agreement:
    """Put an encoder through the gate with images made of a bundle's samples, where there is no test set.

    Args:
        plain: pixels [N, H, W, C] to probabilities [N, J], in float32.
        half: the same in half precision.
        samples: pixels of the samples.
        objects: in an image.

    Returns:
        What was found on the images that float32 decides clearly; elsewhere either answer is as good.

    Raises:
        HalfPrecisionError: it does not pass, or too few images are decided clearly.
    """
    images = variations(samples, GENERATED)
    expected, found = plain(images), half(images)
    is_clear = _margins(expected, objects) > TIE
    if is_clear.sum() < MIN_CLEAR:
        raise HalfPrecisionError(
            f"float32 decides {is_clear.sum()} of {GENERATED} generated images by more than {TIE:g}; "
            f"at least {MIN_CLEAR} are needed to compare half precision with it"
        )
    agreement = compare(expected[is_clear], found[is_clear], objects)
    check_agreement(agreement)
    return agreement


def variations(samples: Floats, count: int) -> Floats:
    """`count` images, the same every time: samples [N, H, W, C] in turn, shifted, paler and with noise."""
    rng = np.random.default_rng(0)
    shifts = rng.integers(-MAX_SHIFT, MAX_SHIFT, (count, 2), endpoint=True)
    images = np.stack([np.roll(samples[n % len(samples)], shift, (0, 1)) for n, shift in enumerate(shifts)])
    images = images * rng.uniform(MIN_CONTRAST, 1, (count, 1, 1, 1)) + rng.normal(0, NOISE, images.shape)
    return images.clip(0, 1).astype(np.float32)


def _named(probabilities: Floats, objects: int) -> NDArray[np.intp]:
    """The most probable classes of each image, [N, objects], by number."""
    best = np.argsort(-probabilities, axis=1, kind="stable")[:, :objects]
    return np.sort(best, axis=1)


def _margins(probabilities: Floats, objects: int) -> Floats:
    """By how much the last class that is named is more probable than the first that is not, [N]."""
    ordered = np.sort(probabilities, axis=1)[:, ::-1]
    if ordered.shape[1] <= objects:  # every class is named
        return np.full(len(ordered), np.inf, np.float32)
    margins: Floats = ordered[:, objects - 1] - ordered[:, objects]
    return margins
