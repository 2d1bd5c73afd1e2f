"""The Open Inference Protocol, version 2, over REST: health, metadata and inference.

With Triton's extensions for binary tensors and for classification, so that `tritonclient` and other clients
of KServe or Triton work unchanged. `capsnet.wire_format` is the wire format; `service.oip.models` maps the
names of the protocol to bundles.
"""

from fastapi import APIRouter, Request, Response

from capsnet.wire_format import HEADER_LENGTH, Arrays, InferRequest, WireError, read_request
from service.errors import MalformedBodyError
from service.http.answers import json_response
from service.http.compression import CODINGS, compress, decompress
from service.http.direct_route import DirectRoute
from service.http.openapi import PROBLEMS, UNREADY
from service.http.request_log import log_fields
from service.observability.timings import end_part
from service.oip.extension_schemas import ModelConfig, ModelsStatistics
from service.oip.model_config import describe_config
from service.oip.models import (
    OipModel,
    check_request,
    describe,
    describe_server,
    use_model,
    wanted_outputs,
    write_answer,
)
from service.oip.schemas import (
    JSON_OR_BINARY,
    MODEL_IN_PATH,
    VERSION_IN_PATH,
    InferAnswer,
    Live,
    ModelMetadata,
    ModelReady,
    Ready,
    ServerMetadata,
    infer_operation,
)
from service.oip.statistics import statistics
from service.state import Service, service_of

# Up to these sizes the work takes at most 0.3 ms; handing it to a thread takes a third of that.
INLINE_JSON_BYTES = 8 * 2**10
INLINE_BODY_BYTES = 2**20
INLINE_VALUES = 1024  # of an answer, as text

MODEL = "/v2/models/{name}"
VERSION = "/v2/models/{name}/versions/{version}"


routes = APIRouter(tags=["Open Inference Protocol"], route_class=DirectRoute)


@routes.get("/v2", summary="Name, version and extensions", responses={200: {"model": ServerMetadata}})
async def get_server(request: Request) -> Response:
    """The server's name, version and extensions of the protocol."""
    service = service_of(request)
    return json_response(describe_server(service.settings, "binary_tensor_data"))


@routes.get("/v2/health/live", summary="The process is alive", responses={200: {"model": Live}, **UNREADY})
async def get_live(request: Request) -> Response:
    """As /healthz: 503 once an inference thread has died and only a new process helps."""
    service = service_of(request)
    await service.models.check_alive()
    return json_response({"live": True})


@routes.get(
    "/v2/health/ready", summary="Requests will be answered", responses={200: {"model": Ready}, **UNREADY}
)
async def get_ready(request: Request) -> Response:
    """As /readyz: 503 with the reason until requests can be answered, and while a thread is stuck."""
    service = service_of(request)
    await service.models.ready()
    return json_response({"ready": True})


@routes.get(
    "/v2/models/stats",
    summary="What every loaded graph has done",
    responses={200: {"model": ModelsStatistics}, **PROBLEMS},
)
@routes.get(
    f"{MODEL}/stats",
    summary="What a model has done, all versions",
    responses={200: {"model": ModelsStatistics}, **PROBLEMS},
    openapi_extra=MODEL_IN_PATH,
)
@routes.get(
    f"{VERSION}/stats",
    summary="What a version has done",
    responses={200: {"model": ModelsStatistics}, **PROBLEMS},
    openapi_extra=VERSION_IN_PATH,
)
async def get_statistics(request: Request) -> Response:
    """Triton's statistics of each graph since its version was loaded, requests of other routes included."""
    service = service_of(request)
    return json_response(await statistics(service.models, **request.path_params))


@routes.get(
    f"{MODEL}/config",
    summary="Triton's configuration of a model",
    responses={200: {"model": ModelConfig}, **PROBLEMS},
    openapi_extra=MODEL_IN_PATH,
)
@routes.get(
    f"{VERSION}/config",
    summary="Triton's configuration of a version",
    responses={200: {"model": ModelConfig}, **PROBLEMS},
    openapi_extra=VERSION_IN_PATH,
)
async def get_config(request: Request) -> Response:
    """The fields of Triton's ModelConfig that say something here; loads a model that loads on first use."""
    service = service_of(request)
    async with (
        service.while_wanted(request),
        use_model(service.models, **request.path_params) as model,
    ):
        return json_response(await describe_config(model, service.models, service.settings))


@routes.get(
    MODEL,
    summary="Inputs, outputs and versions of a model",
    responses={200: {"model": ModelMetadata}, **PROBLEMS},
    openapi_extra=MODEL_IN_PATH,
)
@routes.get(
    VERSION,
    summary="Inputs and outputs of a version",
    responses={200: {"model": ModelMetadata}, **PROBLEMS},
    openapi_extra=VERSION_IN_PATH,
)
async def get_model(request: Request) -> Response:
    """Names, shapes and datatypes as in the graph; loads a model that loads on first use."""
    service = service_of(request)
    async with (
        service.while_wanted(request),
        use_model(service.models, **request.path_params) as model,
    ):
        return json_response(await describe(model, service.models))


@routes.get(
    f"{MODEL}/ready",
    summary="A model will answer",
    responses={200: {"model": ModelReady}, **PROBLEMS},
    openapi_extra=MODEL_IN_PATH,
)
@routes.get(
    f"{VERSION}/ready",
    summary="A version will answer",
    responses={200: {"model": ModelReady}, **PROBLEMS},
    openapi_extra=VERSION_IN_PATH,
)
async def get_model_ready(request: Request) -> Response:
    """Loads a model that loads on first use, so that a client can wait for it here, whatever the deadline."""
    service = service_of(request)
    async with (
        service.while_connected(request),
        use_model(service.models, **request.path_params) as model,
    ):
        await model.check_answering()
        return json_response({"name": model.name, "ready": True})


@routes.post(
    f"{MODEL}/infer",
    summary="Run a graph of the version that answers: the newest, or that of the traffic rule",
    responses={200: {"model": InferAnswer, "content": JSON_OR_BINARY}, **PROBLEMS},
    openapi_extra=infer_operation(MODEL_IN_PATH),
)
@routes.post(
    f"{VERSION}/infer",
    summary="Run a graph of a version",
    responses={200: {"model": InferAnswer, "content": JSON_OR_BINARY}, **PROBLEMS},
    openapi_extra=infer_operation(VERSION_IN_PATH),
)
async def post_infer(request: Request) -> Response:
    """Tensors in, tensors out; as JSON, or as raw bytes after a JSON header."""
    service = service_of(request)
    body = await request.body()  # no version is kept loaded by a slow sender
    end_part("receive")
    async with (
        service.while_wanted(request),
        use_model(service.models, **request.path_params) as model,
    ):
        content = await _decompressed(request, body, service)
        with service.bodies.holding(max(0, len(content) - len(body)), len(content)):
            asked, inputs = await _read(request, content, model, service)
            end_part("parse")
            images = len(next(iter(inputs.values())))
            log_fields(request, model=f"{model.name}/{model.loaded.version}", images=images)
            outputs = await model.run(inputs)
            return await _answer(request, asked, model, outputs, service)


async def _decompressed(request: Request, body: bytes, service: Service) -> bytes:
    """The content of a body.

    Raises:
        ServiceError: it cannot be decompressed, is too large then, or the service is overloaded.
    """
    coding = ", ".join(request.headers.getlist("content-encoding") or ["identity"]).strip().lower()
    if coding == "identity":
        return body
    with service.pool.room_for(1):
        return await service.pool.run(decompress, body, coding, service.settings.max_body_bytes)


async def _read(
    request: Request, content: bytes, model: OipModel, service: Service
) -> tuple[InferRequest, Arrays]:
    """The request of a body, and its inputs, checked; a large one is read on a thread.

    Raises:
        ServiceError: the request is invalid, or the service is overloaded.
    """
    header_length = request.headers.get(HEADER_LENGTH)

    def read() -> tuple[InferRequest, Arrays]:
        if not content:
            raise MalformedBodyError("the body is empty; expected an inference request of the protocol")
        try:
            asked = read_request(content, header_length)
        except WireError as error:
            raise MalformedBodyError(str(error)) from None
        return asked, check_request(model, asked, service.settings.queue_images)

    if _reads_inline(content, header_length):
        return read()
    with service.pool.room_for(1):
        return await service.pool.run(read)


async def _answer(
    request: Request, asked: InferRequest, model: OipModel, outputs: Arrays, service: Service
) -> Response:
    """The answer in the requested form; large JSON and compressed answers are written on a thread."""
    coding = request.headers.get("accept-encoding", "")

    def write() -> Response:
        message = write_answer(model, asked, outputs)
        # Most HTTP libraries offer a list of codings by themselves. Compressing for them would take
        # milliseconds and gain little: floats hardly compress. A single one is a user's choice, or Go's.
        if coding in CODINGS:
            headers = {**message.headers, "Content-Encoding": coding}
            return Response(compress(message.body, coding), headers=headers)
        return Response(message.body, headers=message.headers)

    texts = sum(
        outputs[wanted.name].size
        for wanted in wanted_outputs(model, asked)
        if wanted.classes or not wanted.binary
    )
    if texts <= INLINE_VALUES and coding not in CODINGS:
        return write()
    return await service.pool.run(write)


def _reads_inline(body: bytes, header_length: str | None) -> bool:
    """Whether a body has so little JSON and so few values that it is read on the event loop."""
    if header_length is None:
        return len(body) <= INLINE_JSON_BYTES
    return len(header_length) < 5 and len(body) <= INLINE_BODY_BYTES  # JSON of up to 9,999 bytes
