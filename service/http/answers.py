"""Answers as JSON from arrays."""

from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import Response


def json_response(answer: dict[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """The answer as JSON: float32 in as few digits as give back the same float32."""
    content = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(content, media_type="application/json", headers=headers)
