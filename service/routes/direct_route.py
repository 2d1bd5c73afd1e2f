"""Routes that FastAPI documents and Starlette calls."""

from collections.abc import Awaitable, Callable
from typing import Any, get_type_hints

from fastapi.routing import APIRoute, APIRouter
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from service.errors import InvalidFieldError, invalid_field, shown

# The endpoint of a quick route: the request, its checked query, and the service that the lifespan made.
Endpoint = Callable[[Request, Any, Any], Awaitable[Response]]


class DirectRoute(APIRoute):
    """A route whose endpoint takes the request alone and gives a Response.

    FastAPI reads it for the OpenAPI document. Its own way to the endpoint, which solves dependencies and
    checks types for every request, takes longer than decoding a small picture; this one calls. And as an
    argument of a function that two paths share, FastAPI would look for a path's parameter in the query.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for this path."""
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)
            return
        response = await self.answer(Request(scope, receive, send))
        await response(scope, receive, send)

    async def answer(self, request: Request) -> Response:
        """What the endpoint gives."""
        response: Response = await self.endpoint(request)
        return response


class QuickRoute(DirectRoute):
    """A direct route whose endpoint takes the request, a checked query model and the service."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self._call: Endpoint = endpoint
        self._query: type[BaseModel] = get_type_hints(endpoint)["query"]
        self._no_query = self._query()

    async def answer(self, request: Request) -> Response:
        """What the endpoint gives for the query.

        Raises:
            InvalidFieldError: see `read_query`.
        """
        query = read_query(self._query, request) if request.scope["query_string"] else self._no_query
        return await self._call(request, query, request.scope["state"]["service"])


def read_query(model: type[BaseModel], request: Request) -> BaseModel:
    """The query as the model has it.

    Raises:
        InvalidFieldError: a parameter is unknown, wrong, or given twice: half of it would be ignored.
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


def answer_head(routes: APIRouter) -> None:
    """Let every route of these that answers GET answer HEAD, too, as RFC 9110, 9.1, demands.

    A twin of the route answers both, so that a 405 lists both; the route itself stays for the documentation,
    which would have one operation twice. The server leaves the body of an answer to HEAD away.
    """
    described = [route for route in routes.routes if isinstance(route, APIRoute)]
    for route in described:
        if "GET" in (route.methods or ()):
            routes.add_api_route(
                route.path,
                route.endpoint,
                methods=["GET", "HEAD"],
                include_in_schema=False,
                response_class=route.response_class,
                response_model=None,
                route_class_override=type(route),
            )
    routes.routes.sort(key=_answers_head, reverse=True)  # twins first; stable


def _answers_head(route: BaseRoute) -> bool:
    return isinstance(route, APIRoute) and "HEAD" in (route.methods or ())
