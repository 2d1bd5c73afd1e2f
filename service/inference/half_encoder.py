"""An encoder in half precision, derived when its bundle is loaded."""

from export.contract.manifest import BundleError, Manifest


def halved(encoder: bytes, manifest: Manifest) -> bytes:
    """The encoder's graph in half precision.

    Raises:
        BundleError: it is not a graph, or one that must stay in float32; says why.
    """
    from export.optimize import half_precision  # late: a service on a CPU need not keep onnx in memory

    try:
        return half_precision.halved(encoder, manifest.architecture)
    except half_precision.HalfPrecisionError as error:
        raise BundleError(f"{manifest.graphs['encoder'].file}: {error}") from error
