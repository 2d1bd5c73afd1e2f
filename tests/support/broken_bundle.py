"""Files of a bundle that its manifest describes rightly, and that the service refuses nevertheless."""

from io import BytesIO
from pathlib import Path

import numpy as np
import onnx


def without_images(bundle: Path) -> bytes:
    """Its samples, with none in them."""
    return samples_with(bundle, lambda array: array[:0])


def samples_with(bundle: Path, change, *names: str) -> bytes:
    """Its samples, of which these arrays are changed, or all."""
    with np.load(bundle / "samples.npz") as held:
        arrays = {name: change(held[name]) if name in names or not names else held[name] for name in held}
    content = BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def of_unknown_operator(bundle: Path, role: str = "encoder") -> bytes:
    """Its graph, with an operator that no runtime has."""
    model = onnx.load(bundle / f"{role}.onnx")
    model.graph.node[-1].op_type = "Nonsense"
    return model.SerializeToString()
