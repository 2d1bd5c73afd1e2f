"""The body of /reconstruct: JSON, or a form."""

import binascii
from base64 import b64decode
from typing import Any

from fastapi import Request

from service.errors import InvalidFieldError, MalformedBodyError, UnsupportedBodyError, shown
from service.http.bodies import (
    Body,
    check_fields,
    parse_json,
    parse_parts,
    read_body,
    require_content,
)
from service.http.multipart import MULTIPART, Part, Upload
from service.http.openapi import FILE, REFERENCE
from service.observability.timings import end_part
from service.routes.schemas import ReconstructFields, ReconstructRequest
from service.state import Service

JSON_FIELDS = {"pose", "version", "perturbations", "sweep"}  # in a form, which has only text
SPACE = b" \t\r\n"


def _json_field(name: str) -> dict[str, Any]:
    """A field of the form that holds JSON as text."""
    described = ReconstructRequest.model_fields[name].description or "as in the JSON body"
    return {"type": "string", "description": f"JSON; {described}"}


RECONSTRUCT_EXAMPLES: dict[str, Any] = {
    "one picture, three dimensions swept": {
        "value": {"image": "<base64 file>", "sweep": {"dimensions": [0, 1, 2], "step": 0.05}}
    },
    "a pair of views, one number of the pose changed": {
        "value": {
            "image": ["<base64 left file>", "<base64 right file>"],
            "perturbations": [{"dimension": 15, "delta": 0.5}],
        }
    },
    "a pose of 4 x 4, row by row": {
        "value": {"pose": [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1], "label": "car"}
    },
}
RECONSTRUCT_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"$ref": REFERENCE.format(model="ReconstructRequest")},
                "examples": RECONSTRUCT_EXAMPLES,
            },
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "image": {
                            "oneOf": [FILE, {"type": "array", "items": FILE, "minItems": 2, "maxItems": 2}],
                            "description": "one file, or two for a model of two views, the left one first",
                        },
                        "label": {"type": "string"},
                        "model": {"type": "string"},
                        "version": {"type": "integer", "minimum": 1},
                        "pose": _json_field("pose"),
                        "perturbations": _json_field("perturbations"),
                        "sweep": _json_field("sweep"),
                    },
                    "additionalProperties": False,
                }
            },
        },
    }
}


async def read_reconstruct_body(request: Request) -> Body:
    """The whole /reconstruct body.

    Raises:
        ServiceError: the body is invalid; the message says what was expected and what came.
    """
    return await read_body(request, _check_kind)


def _check_kind(kind: str, path: str) -> None:
    if kind not in {"application/json", "", MULTIPART}:
        raise UnsupportedBodyError(f"{path} takes application/json or {MULTIPART}; got {shown(kind)}")


async def parse_fields(body: Body, service: Service) -> tuple[ReconstructFields, list[Upload]]:
    """The fields of a /reconstruct body, and the picture's file, two of a pair, or none.

    Raises:
        ServiceError: the body is invalid; the message says what was expected and what came.
    """
    if body.kind == MULTIPART:
        parts = await parse_parts(body, service.settings.max_images_per_request, service.pool)
        parsed = await service.pool.run(_reconstruct_form, parts)
    else:
        require_content(body)
        parsed = await service.pool.run(_reconstruct_json, body.content)
    end_part("parse")
    return parsed


def _reconstruct_form(parts: list[Part]) -> tuple[ReconstructFields, list[Upload]]:
    fields: dict[str, Any] = {}
    pictures: list[Upload] = []
    for name, value in parts:
        if name not in ReconstructRequest.model_fields:
            known = ", ".join(ReconstructRequest.model_fields)
            raise InvalidFieldError(f"unknown field {shown(name)}; the fields are {known}")
        if name in fields:
            raise InvalidFieldError(f"the field {name} is given twice")
        if name == "image":
            if isinstance(value, str):
                raise InvalidFieldError("the field image must be a file")
            pictures.append(value)
            continue
        if isinstance(value, Upload):
            raise InvalidFieldError(f"the field {name} must be text, not a file")
        fields[name] = parse_json(value, f"the field {name}") if name in JSON_FIELDS else value
    checked = check_fields(ReconstructFields, fields, "the form")
    has_picture, has_pose = bool(pictures), checked.pose is not None
    if has_picture == has_pose:  # both, or neither
        raise InvalidFieldError("give either image (a file) or pose and label")
    return checked, pictures


def _reconstruct_json(body: bytes) -> tuple[ReconstructFields, list[Upload]]:
    given = parse_json(body, "the body")
    if not isinstance(given, dict):
        raise InvalidFieldError(f"the body must be a JSON object, got {shown(given)}")
    checked = check_fields(ReconstructRequest, given, "the body")
    if checked.image is None:
        return checked, []
    files = [checked.image] if isinstance(checked.image, str) else checked.image
    return checked, [Upload(None, _from_base64(file)) for file in files]


def _from_base64(file: str) -> bytes:
    try:
        # Line breaks are how base64 commands write it.
        return b64decode(file.encode().translate(None, SPACE), validate=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedBodyError(f"image must be the base64 of a picture's file: {error}") from None
