"""The methods of the protocol's gRPC form; each does what a route under /v2 does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from google.protobuf.json_format import ParseDict
from tritonclient.grpc import service_pb2 as oip

from capsnet.wire_format import Arrays, InferRequest, WireError
from service.errors import (
    InferenceStoppedError,
    MalformedBodyError,
    NotReadyError,
    RefusedModelError,
    UnknownModelError,
)
from service.oip import repository
from service.oip.grpc_calls import INLINE_BYTES, PATH, Call, Method, UnknownMethodError
from service.oip.grpc_tensors import NO_SHARED_MEMORY, read_infer_request, write_infer_response
from service.oip.model_config import describe_config
from service.oip.models import OipModel, check_request, describe, describe_server, use_model, wanted_outputs
from service.oip.statistics import statistics
from service.state import Service

# Up to so much it takes less time than handing it to a thread.
INLINE_TYPED_BYTES = 8 * 2**10
INLINE_TEXTS = 1024


async def server_live(service: Service, _: Any, __: Call) -> bytes:
    """As /v2/health/live; false where that is 503."""
    try:
        await service.models.check_alive()
    except InferenceStoppedError:
        return _bytes(oip.ServerLiveResponse(live=False))
    return _bytes(oip.ServerLiveResponse(live=True))


async def server_ready(service: Service, _: Any, __: Call) -> bytes:
    """As /v2/health/ready; false where that is 503."""
    try:
        await service.models.ready()
    except NotReadyError:
        return _bytes(oip.ServerReadyResponse(ready=False))
    return _bytes(oip.ServerReadyResponse(ready=True))


async def model_ready(service: Service, asked: Any, _: Call) -> bytes:
    """Loads a model that loads on first use, as long as it takes; false where the route under /v2 refuses."""
    try:
        async with use_model(service.models, asked.name, asked.version or None) as model:
            await model.check_answering()
    except (UnknownModelError, RefusedModelError, NotReadyError):
        return _bytes(oip.ModelReadyResponse(ready=False))
    return _bytes(oip.ModelReadyResponse(ready=True))


async def server_metadata(service: Service, _: Any, __: Call) -> bytes:
    """The server's name, version and extensions of the protocol."""
    return _bytes(oip.ServerMetadataResponse(**describe_server(service.settings)))


async def model_metadata(service: Service, asked: Any, _: Call) -> bytes:
    """Names, shapes and datatypes as in the graph."""
    async with (
        _until_deadline(service),
        use_model(service.models, asked.name, asked.version or None) as model,
    ):
        return _bytes(ParseDict(await describe(model, service.models), oip.ModelMetadataResponse()))


async def model_config(service: Service, asked: Any, _: Call) -> bytes:
    """Triton's configuration of a model."""
    async with (
        _until_deadline(service),
        use_model(service.models, asked.name, asked.version or None) as model,
    ):
        config = {"config": await describe_config(model, service.models, service.settings)}
        return _bytes(ParseDict(config, oip.ModelConfigResponse()))


async def model_statistics(service: Service, asked: Any, _: Call) -> bytes:
    """What each graph has done since its version was loaded."""
    found = await statistics(service.models, asked.name, asked.version)
    return _bytes(ParseDict(found, oip.ModelStatisticsResponse()))


async def repository_index(service: Service, asked: Any, _: Call) -> bytes:
    """Every version on disk and its state."""
    listed = await repository.list_versions(service.models, only_ready=asked.ready)
    return _bytes(ParseDict({"models": listed}, oip.RepositoryIndexResponse()))


async def repository_model_load(service: Service, asked: Any, _: Call) -> bytes:
    """Load a model, or load it again."""
    await repository.load(service.models, asked.model_name, asked.parameters)
    return _bytes(oip.RepositoryModelLoadResponse())


async def repository_model_unload(service: Service, asked: Any, _: Call) -> bytes:
    """Stop serving a model."""
    await service.models.unload(asked.model_name)
    return _bytes(oip.RepositoryModelUnloadResponse())


async def model_infer(service: Service, message: Any, call: Call) -> bytes:
    """Run a graph."""
    async with (
        _until_deadline(service),
        use_model(service.models, message.model_name, message.model_version or None) as model,
    ):
        asked, inputs = await _read(service, message, model, call.bytes_in)
        call.timings.end("parse")
        images = len(next(iter(inputs.values())))
        call.noted.update(model=f"{model.name}/{model.loaded.version}", images=images)
        return await _write(service, model, asked, await model.run(inputs))


async def no_such_method(_: Service, __: Any, call: Call) -> bytes:
    """The error for any other name."""
    raise UnknownMethodError(f"there is no method {call.path.removeprefix(PATH)}")


async def no_streams(_: Service, __: Any, ___: Call) -> bytes:
    """The error for ModelStreamInfer."""
    raise UnknownMethodError("ModelStreamInfer is not supported; send each request to ModelInfer")


async def no_shared_memory(_: Service, __: Any, ___: Call) -> bytes:
    """The error for Triton's shared memory."""
    raise UnknownMethodError(NO_SHARED_MEMORY)


METHODS = (
    Method("ServerLive", None, server_live, is_probe=True),
    Method("ServerReady", None, server_ready, is_probe=True),
    Method("ModelReady", oip.ModelReadyRequest, model_ready),
    Method("ServerMetadata", oip.ServerMetadataRequest, server_metadata),
    Method("ModelMetadata", oip.ModelMetadataRequest, model_metadata),
    Method("ModelInfer", oip.ModelInferRequest, model_infer),
    Method("ModelConfig", oip.ModelConfigRequest, model_config),
    Method("ModelStatistics", oip.ModelStatisticsRequest, model_statistics),
    Method("RepositoryIndex", oip.RepositoryIndexRequest, repository_index, is_administration=True),
    Method(
        "RepositoryModelLoad", oip.RepositoryModelLoadRequest, repository_model_load, is_administration=True
    ),
    Method(
        "RepositoryModelUnload",
        oip.RepositoryModelUnloadRequest,
        repository_model_unload,
        is_administration=True,
    ),
    Method("ModelStreamInfer", None, no_streams),
    *(
        Method(f"{kind}SharedMemory{what}", None, no_shared_memory)
        for kind in ("System", "Cuda")
        for what in ("Status", "Register", "Unregister")
    ),
)
UNKNOWN = Method("", None, no_such_method, is_known=False)


@asynccontextmanager
async def _until_deadline(service: Service) -> AsyncIterator[None]:
    """Work on an answer for CAPSNET_DEADLINE_MS; gRPC itself cancels a call that its client gives up.

    Raises:
        DeadlineExceededError: it took longer.
    """
    try:
        async with asyncio.timeout(service.settings.deadline_ms / 1000) as deadline:
            yield
    except TimeoutError as error:
        if not deadline.expired():
            raise
        raise service.too_late(error.__cause__) from None


async def _read(service: Service, message: Any, model: OipModel, size: int) -> tuple[InferRequest, Arrays]:
    """The request of a message of this size, and its inputs, checked; a large one is read on a thread.

    Raises:
        ServiceError: the request is invalid, or the service is overloaded.
    """

    def read() -> tuple[InferRequest, Arrays]:
        try:
            asked = read_infer_request(message)
        except WireError as error:
            raise MalformedBodyError(str(error)) from None
        return asked, check_request(model, asked, service.settings.queue_images)

    if size <= (INLINE_BYTES if message.raw_input_contents else INLINE_TYPED_BYTES):
        return read()
    with service.pool.room_for(1):
        return await service.pool.run(read)


async def _write(service: Service, model: OipModel, asked: InferRequest, outputs: Arrays) -> bytes:
    """The answer; a large one is written on a thread."""

    def write() -> bytes:
        return _bytes(write_infer_response(model, asked, outputs))

    wanted = wanted_outputs(model, asked)
    texts = sum(outputs[one.name].size for one in wanted if one.classes)
    if texts <= INLINE_TEXTS and sum(outputs[one.name].nbytes for one in wanted) <= INLINE_BYTES:
        return write()
    return await service.pool.run(write)


def _bytes(message: Any) -> bytes:
    written: bytes = message.SerializeToString()
    return written
