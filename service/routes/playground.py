"""The playground: the page at `/`, and its files under `/playground/`.

The page asks the public API and nothing else, so it needs no key; what it asks for does.
"""

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

from service.http.accept import accepts_gzip

FOLDER = Path(__file__).parents[1] / "playground"
PAGE = "index.html"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".webp": "image/webp",
}
COMPRESSED = {".png", ".webp"}  # already
SOURCES = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' blob: data:",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}
HEADERS = {
    "Content-Security-Policy": "; ".join(f"{kind} {sources}" for kind, sources in SOURCES.items()),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Asked for again each time, mostly answered by 304: the modules of a page always fit each other.
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}

routes = APIRouter(include_in_schema=False)


@dataclass(frozen=True)
class File:
    """A file of the page.

    Attributes:
        content: as it is stored.
        compressed: by gzip; None if that is no smaller.
        media_type: for Content-Type.
        etag: of the content.
    """

    content: bytes
    compressed: bytes | None
    media_type: str
    etag: str


@cache
def files() -> dict[str, File]:
    """The files of the page by their paths, such as "scripts/app.js"; read once."""
    return {
        path.relative_to(FOLDER).as_posix(): _read(path)
        for path in sorted(FOLDER.rglob("*"))
        if path.suffix in MEDIA_TYPES
    }


@routes.get("/")
async def get_page(request: Request) -> Response:
    """The page; every address in it is relative, so that it works behind a prefix."""
    return _answer(files()[PAGE], request)


@routes.get("/playground/{path:path}")
async def get_file(path: str, request: Request) -> Response:
    """A file of the page."""
    file = files().get(path)
    if file is None:
        raise HTTPException(404)
    return _answer(file, request)


def _read(path: Path) -> File:
    content = path.read_bytes()
    compressed = None if path.suffix in COMPRESSED else gzip.compress(content, mtime=0)
    etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    return File(content, compressed, MEDIA_TYPES[path.suffix], etag)


def _answer(file: File, request: Request) -> Response:
    # Of equal meaning, not of equal bytes: one tag for the file and its compressed form is a weak one.
    headers = {**HEADERS, "ETag": f"W/{file.etag}"}
    known = request.headers.get("if-none-match", "")
    if file.etag in known or known.strip() == "*":
        return Response(status_code=304, headers=headers)
    if file.compressed and accepts_gzip(request):
        headers["Content-Encoding"] = "gzip"
        return Response(file.compressed, media_type=file.media_type, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
