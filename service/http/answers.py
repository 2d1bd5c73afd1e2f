"""Answers: JSON from arrays, and whether a client would rather have a picture, or takes gzip."""

import re
from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import Request, Response

VARY = {"Vary": "Accept"}
QUALITY = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?")  # RFC 9110, 12.4.2


def prefers_png(request: Request) -> bool:
    """Whether the Accept header of a request rates PNG above JSON."""
    return rates_png_higher(", ".join(request.headers.getlist("accept")))


def rates_png_higher(accept: str) -> bool:
    """Whether an Accept header names image/png or image/*, and rates it above application/json."""
    ratings = dict(_rating(part) for part in accept.split(","))
    png = ratings.get("image/png", ratings.get("image/*", 0))
    return png > ratings.get("application/json", ratings.get("application/*", 0))


def accepts_gzip(request: Request) -> bool:
    """Whether the Accept-Encoding header of a request rates gzip, or else any coding, above 0."""
    ratings = dict(_rating(part) for part in ", ".join(request.headers.getlist("accept-encoding")).split(","))
    return ratings.get("gzip", ratings.get("*", 0)) > 0


def json_response(answer: dict[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """The answer as JSON: float32 in as few digits as give back the same float32."""
    return _Json(orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY), headers=headers)


class _Json(Response):
    """JSON that is encoded already."""

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """As Starlette makes them for any content, in fewer steps."""
        length = str(len(self.body)).encode()
        self.raw_headers = [(b"content-length", length), (b"content-type", b"application/json")]
        for name, value in (headers or {}).items():
            self.headers[name] = value


def _rating(part: str) -> tuple[str, float]:
    """("image/png", 0.9) of `image/png;q=0.9`."""
    kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
    quality = next((p[2:] for p in parameters if p.startswith("q=")), "1")
    return kind, float(quality) if QUALITY.fullmatch(quality) else 0.0
