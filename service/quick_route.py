"""Routes that FastAPI documents and Starlette calls."""

from collections.abc import Awaitable, Callable
from typing import Any, get_type_hints

from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.errors import InvalidFieldError, invalid_field, shown

# The endpoint of a quick route: the request, its checked query, and the service that the lifespan made.
Endpoint = Callable[[Request, Any, Any], Awaitable[Response]]


class QuickRoute(APIRoute):
    """A route whose endpoint takes the request, a query model and the service, and gives a Response.

    FastAPI reads the signature for the OpenAPI document. Its own way to the endpoint, which solves
    dependencies and checks types for every request, takes longer than decoding a small picture; this one
    checks the query and calls.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self._call: Endpoint = endpoint
        self._query: type[BaseModel] = get_type_hints(endpoint)["query"]
        self._no_query = self._query()

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for this path."""
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)
            return
        request = Request(scope, receive, send)
        query = read_query(self._query, request) if scope["query_string"] else self._no_query
        response = await self._call(request, query, scope["state"]["service"])
        await response(scope, receive, send)


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
