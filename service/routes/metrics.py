"""/metrics: what Prometheus scrapes."""

import asyncio
from contextlib import suppress

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from service.errors import NotReadyError
from service.state import service_of

TEXT = {"text/plain": {"schema": {"type": "string"}}}

routes = APIRouter(tags=["Operations"])


@routes.get(
    "/metrics", summary="Prometheus metrics", response_class=Response, responses={200: {"content": TEXT}}
)
async def get_metrics(request: Request) -> Response:
    """Requests, queues, batches, models and the process, in Prometheus' text format; needs no key."""
    service = service_of(request)
    of_models = b""
    with suppress(NotReadyError):  # while the engine process starts, requests are counted all the same
        of_models = await service.models.metrics()
    of_requests = await asyncio.to_thread(service.metrics.scrape)
    return Response(of_requests + of_models, media_type=CONTENT_TYPE_PLAIN_0_0_4)
