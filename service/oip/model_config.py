"""Triton's model configuration extension: a graph as the ModelConfig that Triton would show for it.

https://github.com/triton-inference-server/common/blob/main/protobuf/model_config.proto
"""

from typing import Any

from export.contract.manifest import Tensor
from service.errors import NotReadyError
from service.models.interface import LoadedGraph, Models
from service.oip.models import MAX_EXPLAINED, PLATFORM, OipModel
from service.settings import Settings


async def describe_config(model: OipModel, models: Models, settings: Settings) -> dict[str, Any]:
    """The fields of ModelConfig, by the names of its JSON form; those left out have Triton's defaults.

    `max_batch_size` is the maximum of images in one request; larger requests than `preferred_batch_size` are
    run in several batches.

    Raises:
        NotReadyError: the version was taken down meanwhile.
    """
    loaded = await _loaded(model, models)
    most = settings.queue_images
    return {
        "name": model.name,
        "platform": PLATFORM,
        "backend": "onnxruntime",
        "version_policy": {"latest": {"num_versions": settings.versions_kept}},
        "max_batch_size": min(most, MAX_EXPLAINED) if model.role == "explain" else most,
        "input": [_describe(tensor) for tensor in model.graph.inputs],
        "output": [_describe(tensor) for tensor in model.graph.outputs],
        "instance_group": [
            {"kind": "KIND_CPU" if loaded.device == "cpu" else "KIND_GPU", "count": loaded.parallel_batches}
        ],
        "default_model_filename": model.graph.file,
        "dynamic_batching": {"preferred_batch_size": [loaded.max_batch]},
    }


async def _loaded(model: OipModel, models: Models) -> LoadedGraph:
    wanted = (model.loaded.name, model.loaded.version, model.role)
    for graph in await models.graphs():
        if (graph.model, graph.version, graph.role) == wanted:
            return graph
    raise NotReadyError("the versions that serve are changing; try again")


def _describe(tensor: Tensor) -> dict[str, Any]:
    """Without the batch axis, which `max_batch_size` stands for."""
    return {"name": tensor.name, "data_type": "TYPE_FP32", "dims": list(tensor.shape[1:])}
