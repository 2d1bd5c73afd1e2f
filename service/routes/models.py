"""/models: which versions are served, and why others are not."""

from contextlib import suppress

from fastapi import APIRouter, Request, Response

from service.errors import UnknownModelError
from service.http.answers import json_response
from service.http.openapi import PROBLEMS
from service.routes.schemas import ModelAnswer, ModelsAnswer
from service.state import service_of

routes = APIRouter(tags=["Models"])


@routes.get(
    "/models", summary="All models and their versions", responses={200: {"model": ModelsAnswer}, **PROBLEMS}
)
async def get_models(request: Request) -> Response:
    """Which versions are loaded, which are refused and why; without the manifests."""
    models = service_of(request).models
    listed = []
    for name in await models.names():
        with suppress(UnknownModelError):  # it has vanished meanwhile
            listed.append(await models.describe(name, manifests=False))
    return json_response({"models": listed})


@routes.get(
    "/models/{name}", summary="One model, with manifests", responses={200: {"model": ModelAnswer}, **PROBLEMS}
)
async def get_model(name: str, request: Request) -> Response:
    """The versions of a model, newest first, each with its manifest."""
    return json_response(await service_of(request).models.describe(name, manifests=True))
