"""What `capsnet-export optimize` does: write a bundle's faster graphs and compare them with its own."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import onnx
from google.protobuf.message import DecodeError

from export.contract.architecture import CPU_BATCH, CapsNetArchitecture, stated_architecture
from export.contract.atomic_file import write_atomically
from export.contract.graph_file import check_self_contained
from export.contract.interface import check_contract
from export.contract.manifest import BundleError, Manifest, read_checked, read_manifest
from export.contract.samples import read_samples
from export.optimize.choice import MAX_ERROR, choose, largest_errors, open_variants
from export.optimize.encoder import NotOptimizableError
from export.optimize.measure import measure
from export.optimize.plan import Choice, Variant
from export.optimize.rewrite import rewritten
from export.optimize.sample_check import check_samples

SHOWN_SIZES = (1, 2, 4, 8, 16, 32)


class NothingFasterError(ValueError):
    """No faster variant of an encoder is known."""


@dataclass(frozen=True)
class VariantReport:
    """One variant of the encoder.

    Attributes:
        file: where it is.
        error: largest difference of an output from the plain graph's, on the bundle's samples and on noise.
        images_per_s: by images in a batch.
    """

    file: Path
    error: float
    images_per_s: dict[int, float]


@dataclass(frozen=True)
class OptimizeReport:
    """The variants, the plain one first, and which of those that are exact enough is the fastest for what."""

    variants: dict[Variant, VariantReport]
    choice: Choice


def optimize_bundle(bundle: Path, out: Path, threads: int) -> OptimizeReport:
    """Derive the faster variants of a bundle's encoder, write them and measure them on this machine.

    Args:
        bundle: its folder.
        out: where VARIANT.onnx are written; made if it is not there. Those of an earlier time and half.onnx
            are removed.
        threads: that a run may use.

    Raises:
        BundleError: the bundle is not what its manifest says.
        NothingFasterError: no faster variant of this encoder is known.
    """
    manifest = read_manifest(bundle)
    check_contract(manifest)
    encoder = read_checked(bundle, manifest.graphs["encoder"])
    check_self_contained(encoder, manifest.graphs["encoder"].file)
    samples = read_samples(read_checked(bundle, manifest.samples), manifest)
    try:
        model = onnx.load_model_from_string(encoder)
    except DecodeError as error:
        raise BundleError(f"{bundle}: the encoder is no ONNX graph: {error}") from None
    check_samples({"encoder": encoder}, manifest.architecture, samples)
    for name in ({*get_args(Variant)} - {"plain"}) | {"half"}:  # of another version, perhaps
        (out / f"{name}.onnx").unlink(missing_ok=True)
    architecture = stated_architecture(manifest)
    if architecture is None:
        raise NothingFasterError(
            f"{manifest.model}: its manifest states no architecture that has faster graphs"
        )
    if isinstance(architecture, CapsNetArchitecture):
        _check_classes(architecture, manifest)
    try:
        variants = rewritten(model, architecture)
    except NotOptimizableError as error:
        raise NothingFasterError(f"{manifest.model}: {error}") from error
    if not variants:
        raise NothingFasterError(f"{manifest.model}: no convolution is large enough to gain from a transform")
    out.mkdir(parents=True, exist_ok=True)
    files: dict[Variant, Path] = {"plain": bundle / manifest.graphs["encoder"].file}
    for variant, rewriting in variants.items():
        files[variant] = out / f"{variant}.onnx"
        write_atomically(files[variant], rewriting.SerializeToString())
    sessions = open_variants(files, threads)
    largest_batch = CPU_BATCH[manifest.architecture]
    sizes = [size for size in SHOWN_SIZES if size <= largest_batch]
    on_samples = largest_errors(sessions, samples["pixels"], at_once=largest_batch)
    on_noise = largest_errors(sessions, at_once=largest_batch)
    errors: dict[Variant, float] = {
        variant: max(on_samples[variant], on_noise[variant]) for variant in on_samples
    }
    times = measure(sessions, sizes).milliseconds
    reports = {
        variant: VariantReport(
            file, errors.get(variant, 0.0), {size: 1000 * size / times[variant][size] for size in sizes}
        )
        for variant, file in files.items()
    }
    largest_error = MAX_ERROR[manifest.architecture]
    exact = {variant: found for variant, found in times.items() if errors.get(variant, 0.0) <= largest_error}
    return OptimizeReport(reports, choose(exact))


def _check_classes(architecture: CapsNetArchitecture, manifest: Manifest) -> None:
    """The architecture has the classes and poses of the encoder, which `check_contract` has compared."""
    stated = architecture.classes, architecture.class_dim
    found = len(manifest.class_names), math.prod(manifest.pose_shape)
    if stated != found:
        raise BundleError(
            f"manifest: parameters state {stated[0]} classes with poses of {stated[1]} numbers; the encoder "
            f"has {found[0]} with {found[1]}"
        )


def as_table(report: OptimizeReport) -> list[str]:
    """Lines of text: images per second by images in a batch."""
    sizes = report.variants["plain"].images_per_s
    head = f"{'images/s in batches of':<24}" + "".join(f"{size:>7}" for size in sizes)
    lines = [f"{head}   largest difference"]
    for variant, found in report.variants.items():
        rates = "".join(f"{found.images_per_s[size]:>7.0f}" for size in sizes)
        lines.append(f"{variant:<24}{rates}" + ("" if variant == "plain" else f"   {found.error:.1e}"))
    return lines
