"""Answers: JSON from arrays, and whether a client would rather have a picture, or takes gzip."""

import re
from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import Request, Response

VARY = {"Vary": "Accept"}
QUALITY = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?")  # RFC 9110, 12.4.2


def prefers_png(request: Request) -> bool:
    """Whether the Accept header of a request rates image/png above application/json."""
    return rates_png_higher(", ".join(request.headers.getlist("accept")))


def rates_png_higher(accept: str) -> bool:
    """Whether an Accept header rates image/png above application/json, or as high and more precisely."""
    ratings = dict(_rating(part) for part in accept.split(","))
    png, json = (_best_match(ratings, kind) for kind in ("image/png", "application/json"))
    return png[0] > 0 and png > json


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


def _best_match(ratings: Mapping[str, float], kind: str) -> tuple[float, int]:
    """The quality of the most precise range that covers a media type, and how precise it is (0: none)."""
    ranges = [kind, f"{kind.split('/')[0]}/*", "*/*"]
    return next(((ratings[r], 3 - place) for place, r in enumerate(ranges) if r in ratings), (0.0, 0))


def _rating(part: str) -> tuple[str, float]:
    """("image/png", 0.9) of `image/png;q=0.9`."""
    kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
    quality = next((p[2:] for p in parameters if p.startswith("q=")), "1")
    return kind, float(quality) if QUALITY.fullmatch(quality) else 0.0
