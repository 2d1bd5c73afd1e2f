"""What a client takes: a picture rather than JSON, or gzip (RFC 9110, 12.5)."""

import re
from collections.abc import Mapping

from fastapi import Request

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


def _best_match(ratings: Mapping[str, float], kind: str) -> tuple[float, int]:
    """The quality of the most precise range that covers a media type, and how precise it is (0: none)."""
    ranges = [kind, f"{kind.split('/')[0]}/*", "*/*"]
    return next(((ratings[r], 3 - place) for place, r in enumerate(ranges) if r in ratings), (0.0, 0))


def _rating(part: str) -> tuple[str, float]:
    """("image/png", 0.9) of `image/png;q=0.9`."""
    kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
    quality = next((p[2:] for p in parameters if p.startswith("q=")), "1")
    return kind, float(quality) if QUALITY.fullmatch(quality) else 0.0
