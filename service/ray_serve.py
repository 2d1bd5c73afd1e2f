"""The service as a deployment of Ray Serve: `serve run service.ray_serve:build models=/srv/models`.

Each replica is the application of capsnet-serve with models of its own. See docs/serving/ray-serve.md.
"""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, PositiveInt
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import NotReadyError, problem_of

try:
    from ray import serve
    from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"service.ray_serve needs {error.name or 'ray[serve]'}: pip install -e '.[cpu,ray]'", name=error.name
    ) from None

if TYPE_CHECKING:
    from service.models.repository import Repository
    from service.state import Service

QUEUED_PER_REPLICA = 16  # images; up to so many are one batch, more are divided between threads
QUEUED = "queued_images"
LOST = "the replica that had this request ended before it answered; send it again"


class Arguments(BaseModel, extra="forbid"):
    """What `serve run` and the `args` of a Serve configuration may give.

    Attributes:
        models: folders of bundles, as for capsnet-serve; None: CAPSNET_MODELS of the node.
        device: as for capsnet-serve; None: CAPSNET_DEVICE of the node.
        cpus: cores that a replica reserves, and its threads for inference.
        gpus: GPUs that a replica reserves.
        min_replicas: that are there without any load.
        max_replicas: that are there at most.
        release: any text; another one than before replaces all replicas, one after the other.
    """

    models: str | None = None
    device: str | None = None
    cpus: PositiveInt = 2
    gpus: float = 0
    min_replicas: PositiveInt = 1
    max_replicas: PositiveInt = 4
    release: str = ""


def build(args: Arguments) -> serve.Application:
    """The application that `serve run` and `serve deploy` start.

    Raises:
        ValueError: fewer replicas at most than at least.
    """
    scaling = AutoscalingConfig(
        min_replicas=args.min_replicas,
        max_replicas=args.max_replicas,
        policy=AutoscalingPolicy(policy_function="service.ray_serve:replicas_for_queue"),
    )
    resources = {"num_cpus": args.cpus, "num_gpus": args.gpus}
    deployment = Capsnet.options(  # type: ignore[attr-defined]  # the decorator makes a Deployment of it
        autoscaling_config=scaling, ray_actor_options=resources
    )
    settings = {"models": args.models, "device": args.device, "threads": args.cpus}
    application: serve.Application = deployment.bind(settings, args.release)
    return application


def replicas_for_queue(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """How many replicas there should be: one for every QUEUED_PER_REPLICA images that wait in all of them.

    Ray keeps the number between the limits, and waits before it follows.
    """
    queued = sum((context.aggregated_metrics or {}).get(QUEUED, {}).values())
    return math.ceil(queued / QUEUED_PER_REPLICA), {}


@serve.deployment(
    name="capsnet",
    max_ongoing_requests=1000,  # the replica itself knows when it is overloaded
    health_check_period_s=5,
    graceful_shutdown_timeout_s=40,  # longer than CAPSNET_DEADLINE_MS is by default
)
@serve.ingress()
class Capsnet:
    """A replica: it gets requests once its models are loaded, and is replaced once its inference is dead.

    Args:
        overrides: of settings; the others come from the environment of the node.
        release: what was given to `build`.
    """

    def __init__(self, overrides: dict[str, Any], release: str) -> None:
        self._overrides = overrides
        self._release = release
        self._loaded = asyncio.Event()
        self._repository: Repository | None = None
        self._service: Service | None = None
        self._open = ExitStack()

    def __serve_build_asgi_app__(self) -> ASGIApp:
        # Imported here, so that the proxies of Ray, which import this module, load no models' runtime.
        from service.app import create_app
        from service.observability.logs import logging_to_stderr
        from service.settings import check_key_variable, read_settings

        # Ray has the port.
        settings = read_settings(**self._overrides).model_copy(update={"metrics_port": None})
        check_key_variable(settings)
        self._open.enter_context(logging_to_stderr(settings.log_format, settings.log_level))
        app = create_app(settings, on_loaded=self._has_loaded, beside=self._starting)

        async def with_state(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "lifespan":  # uvicorn hands on the lifespan's state, Ray does not
                scope["state"] = {"service": self._service}
            await app(scope, receive, send)

        return with_state

    def _has_loaded(self, repository: "Repository") -> None:
        self._repository = repository
        self._loaded.set()

    @asynccontextmanager
    async def _starting(self, service: "Service") -> AsyncIterator[None]:
        """Part of the start of the application, which is over once its models are loaded."""
        await self._loaded.wait()
        if self._repository and self._repository.failure:
            raise RuntimeError(str(self._repository.failure))
        self._service = service
        try:
            yield
        finally:
            self._open.close()

    async def check_health(self) -> None:
        """Ray replaces a replica for which this raises several times.

        Raises:
            InferenceStoppedError: only a new process helps.
        """
        if self._service:
            await self._service.models.check_alive()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Images that wait in this replica, to be decoded or for a batch."""
        if not (self._service and self._repository):
            return {QUEUED: 0}
        waiting = sum(model.batcher.waiting_images for model in self._repository.loaded())
        return {QUEUED: waiting + self._service.pool.images}


def proxy_middleware() -> list[Middleware]:
    """What Ray's proxies put around requests: RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH names it."""
    return [Middleware(AnswerForTheLost)]


class AnswerForTheLost:
    """Answers requests whose replica has died with 503; Ray would answer 500 without a problem type."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        await self._app(scope, receive, watched)
        if not started:
            await problem_of(NotReadyError(LOST))(scope, receive, send)
