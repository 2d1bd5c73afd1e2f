"""The OpenAPI document: what FastAPI finds in the routes, and the bodies that routes read themselves."""

from collections.abc import Collection
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from service.errors import PROBLEM_JSON
from service.oip.schemas import IndexBody, InferBody, LoadBody
from service.routes.schemas import Problem, ReconstructRequest

REFERENCE = "#/components/schemas/{model}"
FILE = {"type": "string", "format": "binary"}
PROBLEM: dict[str, Any] = {
    "description": "What was expected and what came",
    "content": {PROBLEM_JSON: {"schema": {"$ref": REFERENCE.format(model="Problem")}}},
}
PROBLEMS: dict[int | str, dict[str, Any]] = {"4XX": PROBLEM, "5XX": PROBLEM}
UNREADY: dict[int | str, dict[str, Any]] = {503: PROBLEM}
JSON_OR_PNG: dict[str, Any] = {"application/json": {}, "image/png": {"schema": FILE}}


def _json_field(name: str) -> dict[str, Any]:
    """A field of the form that holds JSON as text."""
    described = ReconstructRequest.model_fields[name].description or "as in the JSON body"
    return {"type": "string", "description": f"JSON; {described}"}


CLASSIFY_BODY: dict[str, Any] = {
    "requestBody": {
        "description": "A model of two views takes consecutive files as pairs, the left view first, or an "
        "array [N, H, W, 2].",
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["images"],
                    "properties": {"images": {"type": "array", "items": FILE, "minItems": 1}},
                    "additionalProperties": False,
                }
            },
            "image/*": {"schema": FILE},
            "application/octet-stream": {"schema": FILE},
            "application/x-npy": {"schema": FILE},
        },
    }
}
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


KEYS: dict[str, Any] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


def require_keys(document: dict[str, Any], open_paths: Collection[str]) -> None:
    """Say in the document that every operation needs a key, but for those of the open paths."""
    document["components"]["securitySchemes"] = KEYS
    document["security"] = [{name: []} for name in KEYS]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if path in open_paths:
                operation["security"] = []
            else:
                operation["responses"].setdefault("401", PROBLEM)


def build_document(app: FastAPI) -> dict[str, Any]:
    """The document of the app's routes, with the models that only hand-written bodies name."""
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for model in (Problem, ReconstructRequest, InferBody, IndexBody, LoadBody):
        schema = model.model_json_schema(ref_template=REFERENCE)
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema
    return document
