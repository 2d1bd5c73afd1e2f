"""Routes that FastAPI documents and Starlette calls."""

from collections.abc import Callable, Iterable
from typing import Any, get_type_hints

from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import (
    InvalidFieldError,
    ServiceError,
    internal_error,
    invalid_field,
    problem_of,
    shown,
)


class DirectRoute(APIRoute):
    """A route whose endpoint takes the request, and a model of the query if it names one as `query`.

    FastAPI reads it for the OpenAPI document. FastAPI's own way to the endpoint, which solves dependencies
    and checks types for every request, takes longer than decoding a small picture; this one only calls.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self._query: type[BaseModel] | None = get_type_hints(endpoint).get("query")
        self._no_query = self._query() if self._query else None

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for this path."""
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)
            return
        response = await self.answer(Request(scope, receive, send))
        await response(scope, receive, send)

    async def answer(self, request: Request) -> Response:
        """The endpoint's answer.

        Raises:
            InvalidFieldError: a query parameter is unknown, wrong or given twice.
        """
        response: Response
        if self._query is None:
            response = await self.endpoint(request)
        elif request.scope["query_string"]:
            response = await self.endpoint(request, read_query(self._query, request))
        else:
            response = await self.endpoint(request, self._no_query)
        return response


class DirectRoutes:
    """ASGI application that calls direct routes without parameters in their paths itself.

    All other requests, and other methods on these paths, go on to FastAPI, whose layers take as long as
    decoding a small picture.

    Args:
        app: FastAPI with the routes.
        routes: all of its own; those of routers that it includes are not among them.
    """

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute]) -> None:
        self._app = app
        self._routes = {
            (method, route.path): route
            for route in routes
            if isinstance(route, DirectRoute) and not route.param_convertors
            for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] == "http" and scope["method"] == "HEAD":
            await self._answer_head(scope, receive, send)
            return
        route = self._routes.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route  # the log and the metrics name it
        try:
            response = await route.answer(Request(scope, receive, send))
        except ServiceError as error:
            response = problem_of(error)
        except ClientDisconnect:
            response = nobody_reads()
        except Exception:  # as FastAPI does: here a page of another origin may read the answer, too
            await internal_error()(scope, receive, send)
            raise
        await response(scope, receive, send)

    async def _answer_head(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As GET, since FastAPI's routes of GET refuse HEAD (RFC 9110, 9.1). The server drops the body."""
        as_get = {**scope, "method": "GET"}
        try:
            await self._app(as_get, receive, send)
        finally:
            scope["route"] = as_get.get("route")  # the log and the metrics name it


def nobody_reads() -> Response:
    """The answer to a client that is gone."""
    return Response(status_code=400)


def read_query(model: type[BaseModel], request: Request) -> BaseModel:
    """The checked query.

    Raises:
        InvalidFieldError: a parameter is unknown, wrong, or given twice: one of the two would be ignored.
    """
    given: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in given:
            raise InvalidFieldError(f"the query parameter {shown(name)} is given twice")
        given[name] = value
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise invalid_field(error.errors(), "the query") from None
