"""What `capsnet-export optimize` does: write a bundle's faster graphs and compare them with its own."""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from export.contract.manifest import read_checked, read_manifest
from export.optimize.choice import MAX_ERROR, choose, largest_errors, open_forms
from export.optimize.measure import measure
from export.optimize.plan import Choice, Form
from export.optimize.rewrite import rewritten

SHOWN_SIZES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class FormReport:
    """One form of the encoder.

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
    """The forms, the plain one first, and which of those that are exact enough is the fastest for what."""

    forms: dict[Form, FormReport]
    choice: Choice


def optimize_bundle(bundle: Path, out: Path, threads: int) -> OptimizeReport:
    """Derive the faster forms of a bundle's encoder, write them and measure them on this machine.

    Args:
        bundle: its folder.
        out: where FORM.onnx are written; made if it is not there.
        threads: that a run may use.

    Raises:
        BundleError: the bundle is not what its manifest says.
        ValueError: no faster form of this encoder is known.
    """
    manifest = read_manifest(bundle)
    model = onnx.load_model_from_string(read_checked(bundle, manifest.graphs["encoder"]))
    forms = rewritten(model)
    if not forms:
        raise ValueError(f"{manifest.model}: its convolutions are too small to gain from a transform")
    out.mkdir(parents=True, exist_ok=True)
    files: dict[Form, Path] = {"plain": bundle / manifest.graphs["encoder"].file}
    for form, rewriting in forms.items():
        files[form] = out / f"{form}.onnx"
        onnx.save_model(rewriting, files[form])
    sessions = open_forms(files, threads)
    with np.load(io.BytesIO(read_checked(bundle, manifest.samples))) as samples:
        on_samples = largest_errors(sessions, samples["pixels"])
    on_noise = largest_errors(sessions)
    errors: dict[Form, float] = {form: max(on_samples[form], on_noise[form]) for form in on_samples}
    times = measure(sessions, SHOWN_SIZES).milliseconds
    reports = {
        form: FormReport(
            file, errors.get(form, 0.0), {size: 1000 * size / times[form][size] for size in SHOWN_SIZES}
        )
        for form, file in files.items()
    }
    exact = {form: found for form, found in times.items() if errors.get(form, 0.0) <= MAX_ERROR}
    return OptimizeReport(reports, choose(exact))


def as_table(report: OptimizeReport) -> list[str]:
    """Lines of text: images per second by images in a batch."""
    head = f"{'images/s in batches of':<24}" + "".join(f"{size:>7}" for size in SHOWN_SIZES)
    lines = [f"{head}   largest difference"]
    for form, found in report.forms.items():
        rates = "".join(f"{found.images_per_s[size]:>7.0f}" for size in SHOWN_SIZES)
        lines.append(f"{form:<24}{rates}" + ("" if form == "plain" else f"   {found.error:.1e}"))
    return lines
