"""KServe's model repository extension: an operator lists, loads and unloads models. Needs the admin key.

`/traffic` is no part of the protocol: it says which version answers requests that name none.
"""

from collections.abc import Iterable
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from service.errors import InvalidFieldError, shown
from service.http.auth import check_admin_key
from service.http.bodies import check_fields, parse_json, read_body
from service.http.openapi import PROBLEMS
from service.models.index_entry import IndexEntry
from service.models.interface import Models
from service.models.traffic import Traffic
from service.oip.schemas import IndexBody, IndexedVersion, LoadBody, json_body
from service.state import Service, service_of

JSON_BLANKS = b" \t\r\n"  # RFC 8259; Python's strip() knows others
STATES = {"loaded": "READY", "loading": "LOADING"}  # every other is UNAVAILABLE

routes = APIRouter(prefix="/v2/repository", tags=["Administration"])


@routes.post(
    "/index",
    summary="Every version on disk and its state",
    responses={200: {"model": list[IndexedVersion]}, **PROBLEMS},
    openapi_extra=json_body(IndexBody),
)
async def post_index(request: Request) -> Response:
    """Bundles by name; encoder and decoder of a bundle are loaded and unloaded together."""
    service = await _as_admin(request)
    only_ready = (await _fields(request)).get("ready", False)
    if not isinstance(only_ready, bool):
        raise InvalidFieldError(f"ready must be true or false, got {shown(only_ready)}")
    listed = await list_versions(service.models, only_ready=only_ready)
    return Response(orjson.dumps(listed), media_type="application/json")


@routes.post(
    "/models/{name}/load",
    summary="Load a model, or load it again",
    response_class=Response,
    responses=PROBLEMS,
    openapi_extra=json_body(LoadBody),
)
async def post_load(name: str, request: Request) -> Response:
    """Answers when its versions serve; one that was unloaded serves again."""
    service = await _as_admin(request)
    await load(service.models, name, await _parameters(request))
    return Response()


@routes.post(
    "/models/{name}/unload",
    summary="Stop serving a model",
    response_class=Response,
    responses=PROBLEMS,
    openapi_extra=json_body(LoadBody),
)
async def post_unload(name: str, request: Request) -> Response:
    """Requests that have begun are answered; the model stays unloaded until it is loaded again."""
    service = await _as_admin(request)
    await _parameters(request)
    await service.models.unload(name)
    return Response()


@routes.api_route("/models/{name}/traffic", methods=["PUT", "DELETE"], include_in_schema=False)
async def change_traffic(name: str, request: Request) -> Response:
    """Both of the routes below, so that a 405 lists both methods."""
    return await (put_traffic if request.method == "PUT" else delete_traffic)(name, request)


@routes.put(
    "/models/{name}/traffic",
    summary="Pin a version, or give one a share of the requests",
    responses={200: {"model": Traffic}, **PROBLEMS},
    openapi_extra=json_body(Traffic),
)
async def put_traffic(name: str, request: Request) -> Response:
    """For requests that name no version, in all processes, and after a restart, until it is changed.

    Answers once no request is answered by the rule before.
    """
    service = await _as_admin(request)
    rule = check_fields(Traffic, await _fields(request), "the body")
    await service.models.set_traffic(name, rule)
    return Response(orjson.dumps(rule.model_dump(exclude_none=True)), media_type="application/json")


@routes.delete(
    "/models/{name}/traffic",
    summary="Let the newest version answer again",
    status_code=204,
    response_class=Response,
    responses=PROBLEMS,
)
async def delete_traffic(name: str, request: Request) -> Response:
    """Removes what was put; where nothing was, nothing changes."""
    service = await _as_admin(request)
    await service.models.set_traffic(name, None)
    return Response(status_code=204)


async def list_versions(models: Models, *, only_ready: bool) -> list[dict[str, str]]:
    """Every version on disk and its state, or those that are loaded.

    Raises:
        NotReadyError: the first scan has not finished.
    """
    entries = await models.index()
    return [_describe(entry) for entry in entries if entry.state == "loaded" or not only_ready]


async def load(models: Models, name: str, parameters: Iterable[str]) -> None:
    """Load a model, or load it again; raises what `Models.load` raises.

    Args:
        models: loads it.
        name: of the bundle.
        parameters: the names of those that the request has.

    Raises:
        InvalidFieldError: a configuration or files that would replace the bundle's.
    """
    for parameter in parameters:
        if parameter == "config" or parameter.startswith("file:"):
            raise InvalidFieldError(f"a bundle is served as it was published; got {shown(parameter)}")
    await models.load(name)


def _describe(entry: IndexEntry) -> dict[str, str]:
    reason = "loads on first use" if entry.state == "available" else entry.reason
    state = STATES.get(entry.state, "UNAVAILABLE")
    return {"name": entry.name, "version": str(entry.version), "state": state, "reason": reason}


async def _as_admin(request: Request) -> Service:
    service = service_of(request)
    check_admin_key(request.scope["headers"], service.keys)
    return service


async def _parameters(request: Request) -> dict[str, Any]:
    """The parameters of a body that may be empty."""
    parameters = (await _fields(request)).get("parameters")
    if not isinstance(parameters, dict | None):
        raise InvalidFieldError(f"parameters must be an object, got {shown(parameters)}")
    return parameters or {}


def _takes_any_kind(kind: str, path: str) -> None:
    """Bodies count as JSON whatever their Content-Type says."""


async def _fields(request: Request) -> dict[str, Any]:
    """The JSON object of a body that may be empty."""
    body = (await read_body(request, _takes_any_kind)).content
    given = parse_json(body, "the body") if body.strip(JSON_BLANKS) else {}
    if not isinstance(given, dict):
        raise InvalidFieldError(f"the body must be a JSON object, got {shown(given)}")
    return given
