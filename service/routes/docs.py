"""The documentation page; it works without internet, since the service has its assets."""

import gzip
from functools import cache
from pathlib import Path
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.exceptions import HTTPException

from service.http.accept import accepts_gzip

FOLDER = Path(__file__).parent / "swagger_ui"
ASSETS = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}
CAPSULE = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
    '<rect x="4" y="1" width="8" height="14" rx="4" fill="#2f6f4f"/>'
    '<rect x="4" y="1" width="8" height="7" rx="4" fill="#8fd0ae"/></svg>'
)

routes = APIRouter(include_in_schema=False)


@routes.get("/docs")
async def get_docs() -> Response:
    """The page; every address in it is relative, so that it works behind a prefix."""
    return get_swagger_ui_html(
        openapi_url="openapi.json",
        title="capsnet",
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url=f"data:image/svg+xml,{quote(CAPSULE)}",
        swagger_ui_parameters={"validatorUrl": None},  # else the page asks a server on the internet
    )


@routes.get("/docs/{asset}")
def get_asset(asset: str, request: Request) -> Response:  # not async: FastAPI runs it in a thread
    """A file of the page: compressed, as it is stored, if the client accepts that."""
    if asset not in ASSETS:
        raise HTTPException(404)
    headers = {"Cache-Control": "public, max-age=86400", "Vary": "Accept-Encoding"}
    if accepts_gzip(request):
        headers["Content-Encoding"] = "gzip"
        return Response(read_compressed(asset), media_type=ASSETS[asset], headers=headers)
    return Response(read_plain(asset), media_type=ASSETS[asset], headers=headers)


@cache
def read_compressed(asset: str) -> bytes:
    """The file as it is stored; read once."""
    return (FOLDER / f"{asset}.gz").read_bytes()


@cache
def read_plain(asset: str) -> bytes:
    """The file itself; decompressed once."""
    return gzip.decompress(read_compressed(asset))
