"""The graphs of a bundle as models of the Open Inference Protocol: inputs, outputs and runs.

The encoder answers to the model's name, the decoder to `<model>-decoder` and the explain graph to
`<model>-explain`.
"""

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from capsnet.wire_format import (
    UINT8_MAX,
    Arrays,
    InferRequest,
    Labels,
    Message,
    RequestedOutput,
    write_message,
)
from export.contract.manifest import VERSION, Graph, Role, Tensor
from export.contract.package_version import package_version
from service.errors import (
    InvalidFieldError,
    NotReadyError,
    TooManyPicturesError,
    UnknownModelError,
    WrongArrayError,
    shown,
)
from service.inference.predictions import rank_classes
from service.models.index_entry import SERVABLE
from service.models.interface import MAX_POSE_VALUE, Models, ServedModel
from service.settings import Settings

# N images or poses, J classes

Floats = NDArray[np.float32]

SUFFIXES: dict[Role, str] = {"decoder": "-decoder", "explain": "-explain"}
MAX_EXPLAINED = 8  # images of a request to the explain graph, which gives up to megabytes for each
PLATFORM = "onnxruntime_onnx"
UINT8_INPUT = "pixels"  # which may also come as integers from 0 to 255
# A perturbed pose may leave the range of the encoder's, as in /reconstruct.
RANGES = {"pixels": (0.0, 1.0), "mask": (0.0, 1.0), "poses": (-MAX_POSE_VALUE, MAX_POSE_VALUE)}


@dataclass(frozen=True)
class OipModel:
    """A graph of a loaded version, under the name that the protocol knows it by."""

    name: str
    role: Role
    loaded: ServedModel

    @property
    def graph(self) -> Graph:
        """The inputs and outputs, from the manifest."""
        return self.loaded.manifest.graphs[self.role]

    async def check_answering(self) -> None:
        """Its inference threads are alive and not stuck.

        Raises:
            NotReadyError: one is not.
        """
        if not await self.loaded.is_answering():
            raise NotReadyError(f"an inference thread of {self.name} does not answer")

    async def run(self, inputs: Mapping[str, Floats]) -> Mapping[str, Floats]:
        """Checked inputs [N, ...] to all outputs [N, ...], by name."""
        if self.role == "encoder":
            probabilities, poses = await self.loaded.encode(inputs["pixels"])
            return {"probabilities": probabilities, "poses": poses}
        if self.role == "explain":
            return await self.loaded.explain(inputs["pixels"])
        return {"reconstruction": await self.loaded.decode(inputs["poses"], inputs["mask"])}


@asynccontextmanager
async def use_model(models: Models, name: str, version: str | None = None) -> AsyncIterator[OipModel]:
    """The model of a request's path, kept loaded while the request needs it.

    Raises:
        UnknownModelError: no such model or version is served, or it has no such graph.
        NotReadyError: nothing is loaded yet.
    """
    if version is not None and not VERSION.fullmatch(version):
        raise UnknownModelError(f"versions of {shown(name)} are positive integers, got {shown(version)}")
    bundle, role = await bundle_and_role(name, models)
    async with models.use(bundle, int(version) if version else None) as loaded:
        if role not in loaded.manifest.graphs:
            raise no_such_graph(name, bundle, loaded.version, role)
        yield OipModel(name, role, loaded)


async def bundle_and_role(name: str, models: Models) -> tuple[str, Role]:
    """The bundle that a name means, and which of its graphs.

    A bundle that is itself called `<model>-decoder` keeps its name.
    """
    for role, suffix in SUFFIXES.items():
        if name.endswith(suffix) and name not in await models.names():
            return name.removesuffix(suffix), role
    return name, "encoder"


def no_such_graph(name: str, bundle: str, version: int, role: Role) -> UnknownModelError:
    """The error for a name that means a graph which a bundle does not have."""
    what = "explain graph" if role == "explain" else role
    return UnknownModelError(f"there is no {name}: {bundle}/{version} has no {what}")


def describe_server(settings: Settings, *extensions: str) -> dict[str, Any]:
    """Name, version and extensions of the protocol; those of one transport are handed in."""
    listed = [*extensions, "classification", "model_configuration", "statistics"]
    if settings.has_administration:
        listed.append("model_repository")
    return {"name": "capsnet", "version": package_version(), "extensions": listed}


async def describe(model: OipModel, models: Models) -> dict[str, Any]:
    """The protocol's metadata of a model; -1 is the batch axis.

    Versions are the bundle's: an earlier one may lack this decoder or explain graph.
    """
    versions = [
        str(entry.version)
        for entry in await models.index()
        if entry.name == model.loaded.name and entry.state in SERVABLE
    ]
    return {
        "name": model.name,
        "versions": versions,
        "platform": PLATFORM,
        "inputs": [_describe_tensor(tensor) for tensor in model.graph.inputs],
        "outputs": [_describe_tensor(tensor) for tensor in model.graph.outputs],
    }


def check_request(model: OipModel, request: InferRequest, max_images: int) -> Arrays:
    """The inputs of a request that the model can answer, float32 by name; pixels of UINT8 divided by 255.

    Raises:
        WrongArrayError: an input that the model does not take, or of another datatype, shape or range.
        TooManyPicturesError: N is over `max_images`.
        InvalidFieldError: an output that the model does not have.
    """
    graph, given = model.graph, request.inputs
    _check_names(model, given, graph.inputs)
    for tensor in graph.inputs:
        _check_shape(tensor, given[tensor.name])
    counts = {name: len(array) for name, array in given.items()}
    if len(set(counts.values())) > 1:
        raise WrongArrayError(f"all inputs must have the same batch axis, got {counts}")
    images = max(counts.values())
    if images > max_images:
        raise TooManyPicturesError(
            f"a request may have {max_images} images (CAPSNET_QUEUE_IMAGES), got {images}"
        )
    if model.role == "explain" and images > MAX_EXPLAINED:
        raise TooManyPicturesError(f"a request to {model.name} may have {MAX_EXPLAINED} images, got {images}")
    inputs = {name: _as_floats(name, array) for name, array in given.items()}
    for name, array in inputs.items():
        _check_range(name, array)
    _check_outputs(model, request.outputs)
    return inputs


def answer_arrays(
    model: OipModel, request: InferRequest, outputs: Mapping[str, Floats]
) -> dict[str, Floats | Labels]:
    """The requested outputs by name: values [N, ...], or the best classes as text [N, k]."""
    return {
        wanted.name: _classify(model, outputs[wanted.name], wanted.classes)
        if wanted.classes
        else outputs[wanted.name]
        for wanted in wanted_outputs(model, request)
    }


def write_answer(model: OipModel, request: InferRequest, outputs: Mapping[str, Floats]) -> Message:
    """The requested outputs, in the requested form."""
    arrays = answer_arrays(model, request, outputs)
    binary = {wanted.name for wanted in wanted_outputs(model, request) if wanted.binary}
    header: dict[str, Any] = {
        "model_name": model.name,
        "model_version": str(model.loaded.version),
        "parameters": {"digest": model.loaded.digest},
    }
    if request.id is not None:
        header["id"] = request.id
    return write_message(header, "outputs", arrays, binary)


def wanted_outputs(model: OipModel, request: InferRequest) -> list[RequestedOutput]:
    """The requested outputs, each with its form; all of them if the request names none."""
    requested = request.outputs or [RequestedOutput(tensor.name) for tensor in model.graph.outputs]
    return [
        RequestedOutput(output.name, request.binary, output.classes) if output.binary is None else output
        for output in requested
    ]


def _describe_tensor(tensor: Tensor) -> dict[str, Any]:
    shape = [-1 if size is None else size for size in tensor.shape]
    return {"name": tensor.name, "datatype": "FP32", "shape": shape}


def _as_floats(name: str, array: Floats | NDArray[np.uint8]) -> Floats:
    """float32; integers are scaled as those of a picture."""
    if array.dtype != np.uint8:
        return cast(Floats, array)
    if name != UINT8_INPUT:
        raise WrongArrayError(f"input {name} must be FP32, got UINT8")
    return np.divide(array, np.float32(UINT8_MAX), dtype=np.float32)


def _check_names(model: OipModel, inputs: Mapping[str, Any], tensors: Collection[Tensor]) -> None:
    expected = {tensor.name for tensor in tensors}
    if inputs.keys() != expected:
        came = ", ".join(shown(name) for name in list(inputs)[:5])
        raise WrongArrayError(f"{model.name} takes the inputs {', '.join(sorted(expected))}; got {came}")


def _check_shape(tensor: Tensor, array: NDArray[Any]) -> None:
    if array.ndim != len(tensor.shape) or array.shape[1:] != tensor.shape[1:]:
        expected = ["N", *tensor.shape[1:]]
        raise WrongArrayError(
            f"input {tensor.name} has shape {list(array.shape)}; expected [{', '.join(map(str, expected))}]"
        )


def _check_range(name: str, array: Floats) -> None:
    lowest, highest = RANGES[name]
    low, high = float(array.min()), float(array.max())  # NaN if any value is
    if not (low >= lowest and high <= highest):
        raise WrongArrayError(
            f"input {name} must be within {lowest:g} to {highest:g}, got {low:g} to {high:g}"
            + ("; send 0 to 255 as UINT8" if name == UINT8_INPUT else "")
        )


def _check_outputs(model: OipModel, outputs: Collection[RequestedOutput]) -> None:
    known = [tensor.name for tensor in model.graph.outputs]
    names = [output.name for output in outputs]
    for output in outputs:
        if output.name not in known:
            raise InvalidFieldError(f"{model.name} gives {', '.join(known)}; got {shown(output.name)}")
        if output.classes and output.name != "probabilities":
            raise InvalidFieldError(f"classification is available for probabilities, not for {output.name}")
    if len(set(names)) < len(names):
        raise InvalidFieldError(f"outputs lists a name twice: {', '.join(names[:5])}")


def _classify(model: OipModel, probabilities: Floats, classes: int) -> NDArray[np.object_]:
    """Probabilities [N, J] to the best k of each as "score:index:label", [N, k]; k is J at most."""
    labels = model.loaded.manifest.class_names
    best = rank_classes(probabilities, classes)
    scores = np.take_along_axis(probabilities, best, axis=1)
    texts = [
        [f"{score:.6f}:{index}:{labels[index]}" for score, index in zip(*pair, strict=True)]
        for pair in zip(scores.tolist(), best.tolist(), strict=True)
    ]
    return np.array(texts, np.object_)
