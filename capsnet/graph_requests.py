"""The requests that run a model's graphs on arrays, in the binary form of the Open Inference Protocol."""

from collections.abc import Mapping, Sequence

import httpx
import numpy as np

from capsnet.answers import Encoded, Floats
from capsnet.errors import invalid_response
from capsnet.exchange import Exchange, Request
from capsnet.model_requests import default_model, graph_path
from capsnet.picture_requests import SameBundle
from capsnet.uploads import REQUEST_IMAGES
from capsnet.wire_format import HEADER_LENGTH, WireError, read_response, write_request

# N images, H rows, W columns, C channels, J classes, D numbers of a pose


def infer(pixels: Floats, model: str | None, version: int | None, max_bytes: int) -> Exchange[Encoded]:
    """The encoder's outputs for pixels [N, H, W, C]."""
    _check_floats("pixels", pixels, "[N, H, W, C]", 4)
    outputs = yield from _run_graph(
        "", {"pixels": pixels}, ("probabilities", "poses"), model, version, max_bytes
    )
    return Encoded(*outputs)


def decode(
    poses: Floats, mask: Floats, model: str | None, version: int | None, max_bytes: int
) -> Exchange[Floats]:
    """The decoder's output [N, H, W, C] for poses [N, J, D] and a mask [N, J]."""
    _check_floats("poses", poses, "[N, J, D]", 3)
    _check_floats("mask", mask, "[N, J]", 2)
    if poses.shape[:2] != mask.shape:
        raise ValueError(f"poses {list(poses.shape)} and mask {list(mask.shape)} must agree in N and J")
    inputs = {"poses": poses, "mask": mask}
    outputs = yield from _run_graph("-decoder", inputs, ("reconstruction",), model, version, max_bytes)
    return outputs[0]


def _run_graph(
    suffix: str,
    inputs: Mapping[str, Floats],
    names: Sequence[str],
    model: str | None,
    version: int | None,
    max_bytes: int,
) -> Exchange[list[Floats]]:
    """The named outputs of a graph; N in as many requests as necessary, all to one version."""
    model = model or (yield from default_model())
    count = len(next(iter(inputs.values())))
    image_bytes = sum(array[0].nbytes for array in inputs.values())
    step = max(1, min(REQUEST_IMAGES, max_bytes // image_bytes))
    pieces: list[list[Floats]] = []
    bundle = SameBundle()
    for start in range(0, count, step):
        message = write_request({name: array[start : start + step] for name, array in inputs.items()}, names)
        body = {"content": message.body, "headers": message.headers}
        response = yield Request("POST", f"{graph_path(model + suffix, version)}/infer", body=body)
        version, digest, outputs = _read_outputs(response, names, min(step, count - start))
        bundle.check(model, version, digest)
        pieces.append(outputs)
    return [np.concatenate(arrays) for arrays in zip(*pieces, strict=True)]


def _read_outputs(
    response: httpx.Response, names: Sequence[str], count: int
) -> tuple[int, str, list[Floats]]:
    """The version that answered, its bundle's digest, and the named outputs for `count` images."""
    try:
        header, outputs = read_response(response.content, response.headers.get(HEADER_LENGTH))
        arrays = [outputs[name] for name in names]
        version, digest = int(header["model_version"]), str(header["parameters"]["digest"])
    except (WireError, KeyError, TypeError, ValueError) as error:
        raise invalid_response(response, f"{type(error).__name__}: {error}") from error
    if any(array.shape[:1] != (count,) for array in arrays):
        shapes = {name: array.shape for name, array in outputs.items()}
        raise invalid_response(response, f"expected outputs for {count} images, got {shapes}")
    return version, digest, arrays


def _check_floats(name: str, array: Floats, shape: str, axes: int) -> None:
    if not isinstance(array, np.ndarray) or array.dtype != np.float32 or array.ndim != axes or not array.size:
        came = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
        raise ValueError(f"{name} must be a float32 array {shape} of at least one image, got {came}")
