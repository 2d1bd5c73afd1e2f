"""Direct routes, which pass FastAPI by."""

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Request, Response
from starlette.requests import ClientDisconnect

from service.errors import InvalidFieldError
from service.http.direct_route import DirectRoute, DirectRoutes
from service.routes import classify, explain, reconstruct, segment
from tests.support.raw_http import connected, read_to_end

routes = APIRouter(route_class=DirectRoute)


@routes.post("/echo")
async def post_echo(request: Request) -> Response:
    return Response(await request.body())


@routes.post("/wrong")
async def post_wrong(_: Request) -> Response:
    raise InvalidFieldError("k must be 1 to 10, got 11")


@routes.post("/gone")
async def post_gone(_: Request) -> Response:
    raise ClientDisconnect


@routes.post("/of/{name}")
async def post_of(request: Request) -> Response:
    return Response(request.path_params["name"])


class Behind:
    """FastAPI with the routes; counts the requests that reach it."""

    def __init__(self) -> None:
        self.requests = 0
        self._app = FastAPI()
        self._app.router.routes[:0] = routes.routes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.requests += 1
        await self._app(scope, receive, send)


def ask(behind: Behind, method: str, path: str, body: bytes = b"") -> httpx.Response:
    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(DirectRoutes(behind, routes.routes))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, content=body)

    return asyncio.run(asked())


def test_a_direct_route_answers_without_fastapi():
    behind = Behind()
    assert ask(behind, "POST", "/echo", b"hello").content == b"hello"
    assert behind.requests == 0


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/echo", 405),
        ("HEAD", "/echo", 405),
        ("HEAD", "/nothing", 404),
        ("POST", "/echo/", 307),
        ("POST", "/nothing", 404),
        ("POST", "/of/seven", 200),
    ],
)
def test_every_other_request_goes_to_fastapi(method, path, status):
    behind = Behind()
    assert ask(behind, method, path).status_code == status
    assert behind.requests == 1


def test_an_error_in_a_direct_route_is_its_problem():
    answer = ask(Behind(), "POST", "/wrong")
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-field")
    assert answer.json()["detail"] == "k must be 1 to 10, got 11"


def test_a_client_that_is_gone_is_no_fault():
    assert ask(Behind(), "POST", "/gone").status_code == 400


@pytest.mark.parametrize("module", [classify, explain, reconstruct, segment])
def test_the_routes_of_pictures_are_direct(module):
    assert all(
        isinstance(route, DirectRoute) and not route.param_convertors for route in module.routes.routes
    )


PAGES = ("/", "/playground/scripts/app.js", "/docs", "/docs/swagger-ui.css", "/openapi.json")  # undocumented


def test_every_route_that_answers_get_answers_head_without_a_body(patient):
    documented = patient.get("/openapi.json").json()["paths"]
    paths = [path.format(name="tiny", version=1) for path, methods in documented.items() if "get" in methods]
    for path in (*PAGES, *paths):
        with connected(patient) as connection:
            connection.sendall(f"HEAD {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n".encode())
            head, _, body = read_to_end(connection).partition(b"\r\n\r\n")
        page = patient.get(path)
        assert int(head.split()[1]) == page.status_code == 200, path
        assert f"content-type: {page.headers['content-type']}\r\n".encode() in head + b"\r\n", path
        assert body == b"", path
