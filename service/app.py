"""The HTTP application: routes of a few lines, and the state that the lifespan makes for them."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version as installed_version
from typing import Annotated, Any, TypedDict

import orjson
from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import RedirectResponse

from service import errors
from service.http import auth
from service.http.bodies import (
    check_classify,
    check_reconstruct,
    decode_images,
    read_classify,
    read_reconstruct,
)
from service.http.limits import BodyLimit
from service.http.picture_pool import PicturePool
from service.http.png import to_png_grid
from service.models.background import release_memory_after_work, stop_when_inference_is_dead
from service.models.remeasuring import remeasure_graphs
from service.models.repository import Repository
from service.observability.metrics import Metrics
from service.observability.metrics import routes as metrics_routes
from service.oip import repository, rest
from service.routes import classify, docs, reconstruct, segment
from service.routes.direct_route import QuickRoute, answer_head
from service.routes.openapi import (
    CLASSIFY_BODY,
    JSON_OR_PNG,
    PROBLEMS,
    RECONSTRUCT_BODY,
    UNREADY,
    build_document,
    require_keys,
)
from service.routes.schemas import (
    ClassifyAnswer,
    ClassifyQuery,
    Health,
    ModelAnswer,
    ModelsAnswer,
    Readiness,
    ReconstructAnswer,
    ReconstructQuery,
    SegmentAnswer,
    SegmentQuery,
)
from service.settings import Settings
from service.state import Service

DESCRIPTION = "Capsule networks: class probabilities, pose vectors and reconstructions of pictures."

VARY = {"Vary": "Accept"}
QUALITY = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?")  # RFC 9110, 12.4.2

log = logging.getLogger(__name__)
routes = APIRouter()
quick_routes = APIRouter(route_class=QuickRoute)


class State(TypedDict):
    """What every request carries."""

    service: Service


# Async, because FastAPI runs other dependencies in a thread, at a cost above that of the work.
async def the_service(request: Request) -> Service:
    """The running service, from the lifespan's state."""
    service: Service = request.state.service
    return service


ServiceHere = Annotated[Service, Depends(the_service)]


@quick_routes.post(
    "/classify",
    summary="Class probabilities and poses of images",
    response_class=Response,
    responses={200: {"model": ClassifyAnswer}, **PROBLEMS},
    openapi_extra=CLASSIFY_BODY,
)
async def post_classify(
    request: Request, query: Annotated[ClassifyQuery, Query()], service: ServiceHere
) -> Response:
    """Multipart with one or many files in `images`, one raw image file, or a .npy array.

    A picture of exactly the model's size is taken as one of its data set's: it is not moved, and only
    inverted if three quarters of its border are light and the model is for light on dark. A picture of
    another size goes through the model's own rule.

    A model of two views takes files in pairs, the left view first, and gives one result for each pair.
    """
    body = await read_classify(request)  # no version is kept loaded by a slow sender
    async with service.while_wanted(request):
        asked = await check_classify(body, service)
        async with service.repository.use(query.model, query.version) as served:
            classify.check_query(query, served)
            images = await decode_images(asked, served.engine.manifest, query.preprocess, service)
            auth.note(request, model=f"{served.model}/{served.version}", images=len(images.pixels))
            return json_response(await classify.classify(served, images, query, service))


@quick_routes.post(
    "/reconstruct",
    summary="Pictures decoded from poses",
    response_class=Response,
    responses={200: {"model": ReconstructAnswer, "content": JSON_OR_PNG}, **PROBLEMS},
    openapi_extra=RECONSTRUCT_BODY,
)
async def post_reconstruct(
    request: Request, query: Annotated[ReconstructQuery, Query()], service: ServiceHere
) -> Response:
    """A pose decoded plain, perturbed or swept; as JSON, or as one PNG grid for `Accept: image/png`.

    The two views of a model that has two stand side by side in every picture.
    """
    body = await read_reconstruct(request)
    async with service.while_wanted(request):
        fields, files = await check_reconstruct(body, service)
        async with service.repository.use(*reconstruct.chosen_version(fields, query)) as served:
            auth.note(request, model=f"{served.model}/{served.version}")
            made = await reconstruct.reconstruct(served, fields, files, query.preprocess, service)
            if prefers_png(", ".join(request.headers.getlist("accept"))):
                grid = await service.in_pool(to_png_grid, made.pictures, made.columns)
                return Response(grid, media_type="image/png", headers=VARY)
            return json_response(await service.in_pool(reconstruct.json_answer, served, made), VARY)


@quick_routes.post(
    "/segment",
    summary="Overlapping objects taken apart",
    response_class=Response,
    responses={200: {"model": SegmentAnswer, "content": JSON_OR_PNG}, **PROBLEMS},
    openapi_extra=CLASSIFY_BODY,
)
async def post_segment(
    request: Request, query: Annotated[SegmentQuery, Query()], service: ServiceHere
) -> Response:
    """The k longest capsules decoded one at a time; for `Accept: image/png` the overlays side by side."""
    body = await read_classify(request)
    async with service.while_wanted(request):
        asked = await check_classify(body, service)
        async with service.repository.use(query.model, query.version) as served:
            k = segment.object_count(query, served)
            images = await decode_images(asked, served.engine.manifest, query.preprocess, service)
            auth.note(request, model=f"{served.model}/{served.version}", images=len(images.pixels))
            made = await segment.segment(served, images, k, query.min_probability, service)
            if prefers_png(", ".join(request.headers.getlist("accept"))):
                overlays = await service.in_pool(segment.png_answer, made)
                return Response(overlays, media_type="image/png", headers=VARY)
            return json_response(await service.in_pool(segment.json_answer, served, made), VARY)


@routes.get("/models", summary="What is loaded, or refused and why", responses={200: {"model": ModelsAnswer}})
async def get_models(service: ServiceHere) -> Response:
    """Every model and its versions, without the manifests."""
    repository = service.repository
    listed = [repository.describe(name, manifests=False) for name in repository.names()]
    return json_response({"models": listed})


@routes.get(
    "/models/{name}", summary="One model, with manifests", responses={200: {"model": ModelAnswer}, **PROBLEMS}
)
async def get_model(name: str, service: ServiceHere) -> Response:
    """The versions of a model, newest first, each with its manifest."""
    return json_response(service.repository.describe(name, manifests=True))


@routes.get("/healthz", summary="The process is alive", responses={200: {"model": Health}, **UNREADY})
async def get_health(service: ServiceHere) -> Response:
    """503 once inference threads have died too often and only a new process helps; /readyz says more."""
    service.repository.check_alive()
    return json_response({"status": "ok"})


@routes.get("/readyz", summary="Requests will be answered", responses={200: {"model": Readiness}, **UNREADY})
async def get_readiness(service: ServiceHere) -> Response:
    """503 with the reason until a model is loaded and warmed, and while an inference thread is stuck."""
    loaded = service.repository.ready()
    devices = ", ".join(sorted({served.engine.device for served in loaded}))
    names = sorted(f"{served.model}/{served.version}" for served in loaded)
    return json_response({"status": "ready", "device": devices, "models": names})


@routes.get("/", include_in_schema=False)
async def get_root() -> Response:
    """People who open the bare address find the documentation."""
    return RedirectResponse("docs")


answer_head(routes)


def create_app(
    settings: Settings,
    on_loaded: Callable[[Repository], None] | None = None,
    on_stopped: Callable[[str], None] | None = None,
) -> FastAPI:
    """The application; models load in the background, and /readyz says when they have.

    Args:
        settings: deployment facts.
        on_loaded: called once the first look at the disk is over; the repository's `failure` says whether
            anything can be served.
        on_stopped: called with the reason once inference threads are left dead, and only a new process helps.
    """
    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[State]:
        pool = PicturePool(settings.decode_threads)
        repository = Repository(settings, metrics)
        metrics.watch(repository)
        tasks = [
            asyncio.create_task(_keep_loaded(repository, on_loaded)),
            asyncio.create_task(remeasure_graphs(repository)),
            asyncio.create_task(release_memory_after_work(repository)),
        ]
        if on_stopped:
            tasks.append(asyncio.create_task(stop_when_inference_is_dead(repository, on_stopped)))
        try:
            yield {"service": Service(settings, repository, pool, metrics)}
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await repository.close()
            pool.shutdown()

    app = FastAPI(
        title="capsnet",
        version=installed_version("capsnet"),
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # ours work without internet
        redoc_url=None,
    )
    app.add_middleware(
        BodyLimit,
        max_bytes=settings.max_body_bytes,
        max_held_bytes=settings.uploads_bytes,
        receive_ms=settings.receive_ms,
    )
    auth.guard(app, settings, metrics)
    _add_error_handlers(app)
    app.router.routes[:0] = quick_routes.routes  # first; what FastAPI includes it finds by a longer way
    app.include_router(routes)
    app.include_router(rest.routes)
    app.include_router(repository.routes)
    app.include_router(docs.routes)
    app.include_router(metrics_routes)
    document = build_document(app)
    if settings.accepted_keys:
        require_keys(document, auth.OPEN)
    app.openapi = lambda: document  # type: ignore[method-assign]  # FastAPI's documented way to extend it
    return app


def prefers_png(accept: str) -> bool:
    """Whether an Accept header names image/png, and rates it above application/json."""
    ratings = dict(_rating(part) for part in accept.split(","))
    return ratings.get("image/png", 0) > ratings.get("application/json", 0)


def json_response(answer: dict[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """The answer as JSON: float32 in as few digits as give back the same float32."""
    content = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(content, media_type="application/json", headers=headers)


async def _keep_loaded(repository: Repository, on_loaded: Callable[[Repository], None] | None) -> None:
    try:
        await repository.first_scan()
        if on_loaded:
            on_loaded(repository)
        elif repository.failure:
            log.error("not ready: %s", repository.failure)
        await repository.watch()
    except Exception as error:  # nobody awaits this task before the end: say so now
        log.exception("looking for bundles has stopped; what is loaded serves on")
        repository.stopped = f"looking for bundles has stopped: {type(error).__name__}; restart the service"
        raise


def _rating(part: str) -> tuple[str, float]:
    """("image/png", 0.9) of `image/png;q=0.9`."""
    kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
    quality = next((p[2:] for p in parameters if p.startswith("q=")), "1")
    return kind, float(quality) if QUALITY.fullmatch(quality) else 0.0


def _add_error_handlers(app: FastAPI) -> None:
    """Every error leaves as problem+json."""

    @app.exception_handler(errors.ServiceError)
    async def _ours(_: Request, error: errors.ServiceError) -> Response:
        return errors.problem(error.status, error.slug, error.title, str(error), error.headers)

    @app.exception_handler(HTTPException)
    async def _framework(request: Request, error: HTTPException) -> Response:
        path, headers = errors.shown(request.url.path), error.headers or {}
        detail = f"{request.method} {path}: {error.detail}"
        if error.status_code == 404:
            detail = f"there is nothing at {path}; /docs lists what there is"
        if error.status_code == 405:
            detail = f"{path} answers {headers.get('Allow', 'other methods')}, not {request.method}"
        return errors.framework_problem(error.status_code, detail, headers)

    @app.exception_handler(ClientDisconnect)
    async def _gone(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=400)  # nobody is there to read it
