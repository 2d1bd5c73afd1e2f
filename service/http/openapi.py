"""The OpenAPI document: what FastAPI finds in the routes, and what routes read and check themselves."""

from collections.abc import Collection, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, Field

from service.errors import PROBLEM_JSON

REFERENCE = "#/components/schemas/{model}"
FILE = {"type": "string", "format": "binary"}
PROBLEM: dict[str, Any] = {
    "description": "What was expected and what came",
    "content": {PROBLEM_JSON: {"schema": {"$ref": REFERENCE.format(model="Problem")}}},
}
PROBLEMS: dict[int | str, dict[str, Any]] = {"4XX": PROBLEM, "5XX": PROBLEM}
UNREADY: dict[int | str, dict[str, Any]] = {503: PROBLEM}
JSON_OR_PNG: dict[str, Any] = {"application/json": {}, "image/png": {"schema": FILE}}


class Problem(BaseModel):
    """RFC 9457: what went wrong, what was expected and what came."""

    type: str = Field(examples=["/problems/invalid-field"])
    title: str
    status: int
    detail: str
    error: str = Field(description="the detail again, under its name in the Open Inference Protocol")


KEYS: dict[str, Any] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


def require_keys(document: dict[str, Any], open_paths: Collection[str]) -> None:
    """Say in the document that every operation needs a key, whose limits hold, except the open paths."""
    document["components"]["securitySchemes"] = KEYS
    document["security"] = [{name: []} for name in KEYS]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if path in open_paths:
                operation["security"] = []
            else:
                operation["responses"].setdefault("401", PROBLEM)
                operation["responses"].setdefault("429", PROBLEM)


def build_document(
    app: FastAPI, models: Sequence[type[BaseModel]], tags: Sequence[dict[str, str]]
) -> dict[str, Any]:
    """The document of the app's routes.

    Args:
        app: has the routes.
        models: of bodies that routes describe themselves and refer to by name.
        tags: the groups of routes, in their order, each with `name` and `description`.
    """
    document = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        tags=list(tags),
    )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    described: list[type[BaseModel]] = [Problem, *models]
    for model in described:
        schema = model.model_json_schema(ref_template=REFERENCE)
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema
    for operations in document["paths"].values():
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                parameter["schema"] = _without_null(_readable(parameter["schema"]))
    readable: dict[str, Any] = _readable(document)
    return readable


def _readable(schema: Any) -> Any:
    """The same schema in the form that pages show best.

    Without the titles that pydantic makes of field names, and with `type: [integer, null]` instead of
    a choice between two schemas.
    """
    if isinstance(schema, list):
        return [_readable(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    readable = {name: _readable(value) for name, value in schema.items()}
    is_field = "properties" not in readable and readable.keys() & {"type", "anyOf", "$ref"}
    if is_field and isinstance(readable.get("title"), str):
        del readable["title"]
    match readable.get("anyOf"):
        case [{"type": str(kind)} as first, {"type": "null"}]:
            del readable["anyOf"]
            readable = {**first, **readable, "type": [kind, "null"]}
    return readable


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a parameter, which cannot be null."""
    match schema.get("type"):
        case [kind, "null"]:
            return {**schema, "type": kind}
    return schema
