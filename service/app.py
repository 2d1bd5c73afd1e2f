"""The application: its middleware, its routes, and the state that the lifespan makes for them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from export.contract.package_version import package_version
from service import errors
from service.http.auth import OPEN, KeyCheck
from service.http.direct_route import DirectRoutes, nobody_reads
from service.http.key_use import KeyUse
from service.http.keys import Keys, read_again_at_hangup
from service.http.limits import BodyLimit, BodyMemory
from service.http.metrics_port import MetricsPort
from service.http.openapi import build_document, require_keys
from service.http.picture_pool import PicturePool
from service.http.request_log import RequestLog
from service.models.local_models import run_models
from service.models.repository import Repository
from service.observability.request_metrics import RequestMetrics
from service.observability.tracing import Tracer, make_tracer
from service.oip import repository as oip_repository
from service.oip import rest as oip_rest
from service.oip.schemas import IndexBody, InferBody, LoadBody
from service.routes import (
    classify,
    docs,
    explain,
    health,
    metrics,
    models,
    playground,
    reconstruct,
    segment,
)
from service.routes.schemas import ReconstructRequest
from service.settings import Settings
from service.state import Service, State
from service.workers.place import EngineAddress
from service.workers.remote_models import reach_models

DESCRIPTION = "Capsule networks: class probabilities, pose vectors and reconstructions of pictures."
TAGS = [
    {"name": "Pictures", "description": "Classify pictures, take them apart, and reconstruct them."},
    {"name": "Models", "description": "Which models and versions are served, and why others are not."},
    {"name": "Operations", "description": "Health, readiness and metrics, for orchestrators and Prometheus."},
    {
        "name": "Open Inference Protocol",
        "description": "The graphs themselves, tensors in and out, for clients of KServe and Triton.",
    },
    {
        "name": "Administration",
        "description": "Load and unload models while the service runs. Needs the admin key.",
    },
]
EXPOSED_HEADERS = (  # to pages of others
    "X-Request-ID",
    "Retry-After",
    "Server-Timing",
    "Inference-Header-Content-Length",
)


def create_app(
    settings: Settings,
    on_loaded: Callable[[Repository], None] | None = None,
    on_stopped: Callable[[str], None] | None = None,
    engine: EngineAddress | None = None,
    beside: Callable[[Service], AbstractAsyncContextManager[None]] | None = None,
    keys: Keys | None = None,
    key_use: KeyUse | None = None,
) -> FastAPI:
    """The application; models load in the background, and /readyz says when they have.

    Args:
        settings: deployment facts.
        on_loaded: called once the first scan has finished; the repository's `failure` says whether
            anything can be served.
        on_stopped: called with the reason once an inference thread has died, and only a new process helps.
        engine: the process that has the models; None: this one has them. With it, the application starts once
            the models are loaded, and calls neither of the two.
        beside: another port of the same service, which is open as long as the service runs.
        keys: those that open it; None: they are read now.
        key_use: what each key has sent to all processes; None: this one is alone.

    Raises:
        SettingsError: the keys cannot be read.
    """
    request_metrics = RequestMetrics()
    tracer = make_tracer() if settings.tracing else None
    bodies = BodyMemory(settings.uploads_bytes)
    keys, key_use = keys or Keys(settings), key_use or KeyUse()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[State]:
        read_again_at_hangup(keys)  # before anything waits for models
        waiting = settings.decode_queue_share if engine else settings.queue_images
        pool = PicturePool(settings.decode_threads, waiting)
        opened = reach_models(engine) if engine else run_models(settings, on_loaded, on_stopped)
        async with opened as models:
            service = Service(settings, models, pool, request_metrics, bodies, keys, key_use, tracer)
            try:
                async with beside(service) if beside else nullcontext():
                    yield {"service": service}
            finally:
                pool.shutdown()
                if tracer:
                    await asyncio.to_thread(tracer.close)

    app = _Application(
        title="capsnet",
        version=package_version(),
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # ours work without internet
        redoc_url=None,
        redirect_slashes=False,  # it would send bodies, and keys, to whatever the Host header names
    )
    _add_error_handlers(app)
    _add_routes(app)
    entry: ASGIApp = DirectRoutes(app.entry, app.routes)
    entry = BodyLimit(entry, settings.max_body_bytes, bodies, settings.receive_ms)
    if keys.are_needed:
        entry = KeyCheck(entry, keys, key_use)
    if settings.metrics_port is not None:
        entry = MetricsPort(entry, settings.metrics_port)
    app.entry = _with_middleware(entry, settings, request_metrics, tracer)
    document = build_document(app, [ReconstructRequest, InferBody, IndexBody, LoadBody], TAGS)
    if keys.are_needed:
        require_keys(document, OPEN)
    app.openapi = lambda: document  # type: ignore[method-assign]  # FastAPI's documented way to extend it
    return app


class _Application(FastAPI):
    """FastAPI, of which requests for direct routes pass by the most part.

    Attributes:
        entry: takes every request; FastAPI itself, until something is put around it.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.entry: ASGIApp = super().__call__

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.entry(scope, receive, send)


def _with_middleware(
    app: ASGIApp, settings: Settings, request_metrics: RequestMetrics, tracer: Tracer | None
) -> ASGIApp:
    """The application with what every request goes through first."""
    if settings.origins:  # around the keys: preflights bring none, and a page may read a 401
        app = CORSMiddleware(
            app,
            allow_origins=settings.origins,
            allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=["*"],
            expose_headers=EXPOSED_HEADERS,
        )
    return RequestLog(app, metrics=request_metrics, tracer=tracer)


def _add_routes(app: FastAPI) -> None:
    pictures = (classify, reconstruct, segment, explain)
    # Directly: routes that FastAPI includes are found by a longer way.
    app.router.routes[:0] = [route for module in pictures for route in module.routes.routes]
    for module in (models, health, metrics, oip_rest, oip_repository, docs, playground):
        app.include_router(module.routes)


def _add_error_handlers(app: FastAPI) -> None:
    """Every error leaves as problem+json."""

    @app.exception_handler(errors.ServiceError)
    async def _ours(_: Request, error: errors.ServiceError) -> Response:
        return errors.problem_of(error)

    @app.exception_handler(HTTPException)
    async def _framework(request: Request, error: HTTPException) -> Response:
        path, headers = errors.shown(request.url.path), dict(error.headers or {})
        if "Allow" in headers:  # Starlette has the methods in a set
            allowed = set(headers["Allow"].split(", "))
            headers["Allow"] = ", ".join(sorted(allowed | {"HEAD"} if "GET" in allowed else allowed))
        detail = f"{request.method} {path}: {error.detail}"
        if error.status_code == 404:
            detail = f"there is nothing at {path}; /docs lists what there is"
        if error.status_code == 405:
            detail = f"{path} answers {headers.get('Allow', 'other methods')}, not {request.method}"
        return errors.framework_problem(error.status_code, detail, headers)

    @app.exception_handler(ClientDisconnect)
    async def _gone(_: Request, __: ClientDisconnect) -> Response:
        return nobody_reads()

    @app.exception_handler(Exception)
    async def _fault(_: Request, __: Exception) -> Response:  # the request log has it, too
        return errors.internal_error()
