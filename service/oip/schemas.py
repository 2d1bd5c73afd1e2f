"""Schemas of the Open Inference Protocol's messages, for the OpenAPI document.

They only describe. `capsnet.wire_format` reads and writes the messages: checking their numbers with pydantic
would take longer than running the model.
"""

from typing import Any, Literal

from pydantic import BaseModel, Field

from service.http.openapi import REFERENCE


class ServerMetadata(BaseModel):
    """Answer of /v2."""

    name: str
    version: str
    extensions: list[str] = Field(description="model_repository only where an admin key is set")


class Live(BaseModel):
    """Answer of /v2/health/live."""

    live: Literal[True]


class Ready(BaseModel):
    """Answer of /v2/health/ready."""

    ready: Literal[True]


class ModelReady(BaseModel):
    """Answer of /v2/models/{name}/ready."""

    name: str
    ready: Literal[True]


class TensorMetadata(BaseModel):
    """An input or output of a graph."""

    name: str
    datatype: Literal["FP32"]
    shape: list[int] = Field(description="-1 is the batch axis")


class ModelMetadata(BaseModel):
    """Answer of /v2/models/{name}."""

    name: str
    versions: list[str] = Field(description="versions that are served")
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class InferInput(BaseModel):
    """An input of the graph."""

    name: str = Field(examples=["pixels"])
    shape: list[int] = Field(description="with the batch axis", examples=[[1, 28, 28, 1]])
    datatype: Literal["FP32", "UINT8"] = Field(description="UINT8 of pixels alone: 0 to 255, divided by 255")
    data: list[Any] | None = Field(
        default=None, description="numbers, flat and row-major or nested as the shape is"
    )
    parameters: dict[str, Any] | None = Field(
        default=None, description="binary_data_size: bytes of the values after the JSON, instead of data"
    )


class InferOutput(BaseModel):
    """A requested output."""

    name: str = Field(examples=["probabilities"])
    parameters: dict[str, Any] | None = Field(
        default=None,
        description="binary_data: the values as raw bytes; classification: the k best classes as "
        "`score:index:label` instead of the values, of probabilities only",
    )


class InferBody(BaseModel):
    """Body of /v2/models/{name}/infer."""

    id: str | None = Field(default=None, description="repeated in the answer")
    parameters: dict[str, Any] | None = Field(
        default=None, description="binary_data_output: every output as raw bytes; others are ignored"
    )
    inputs: list[InferInput] = Field(min_length=1)
    outputs: list[InferOutput] | None = Field(default=None, description="default: all of them")


class OutputTensor(BaseModel):
    """An output of the graph."""

    name: str
    shape: list[int]
    datatype: Literal["FP32", "BYTES"] = Field(description="BYTES for classification")
    data: list[float] | list[str] | None = Field(default=None, description="flat and row-major")
    parameters: dict[str, int] | None = Field(
        default=None, description="binary_data_size, if the values follow the JSON"
    )


class InferAnswer(BaseModel):
    """Answer of /v2/models/{name}/infer."""

    model_name: str
    model_version: str
    parameters: dict[str, str] = Field(description="digest: of the bundle that answered, as /classify has it")
    id: str | None = None
    outputs: list[OutputTensor]


class IndexBody(BaseModel):
    """Body of /v2/repository/index; optional."""

    ready: bool = Field(default=False, description="only versions that are loaded")


class IndexedVersion(BaseModel):
    """A version of a bundle, in the answer of /v2/repository/index."""

    name: str
    version: str
    state: Literal["READY", "UNAVAILABLE", "LOADING"]
    reason: str = Field(
        description="why it is unavailable; of a ready one, why its files, which have changed, would not be"
    )


class LoadBody(BaseModel):
    """Body of load and unload; optional."""

    parameters: dict[str, Any] | None = Field(
        default=None, description="a config or files that would replace the bundle's are refused"
    )


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """The operation's optional JSON body, which the route reads itself."""
    schema = {"$ref": REFERENCE.format(model=model.__name__)}
    return {"requestBody": {"content": {"application/json": {"schema": schema}}}}


def _in_path(name: str, description: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": {"type": "string"},
    }


NAME_PARAMETER = _in_path(
    "name", "the model's name for its encoder, `<model>-decoder` and `<model>-explain` for the other graphs"
)
MODEL_IN_PATH: dict[str, Any] = {"parameters": [NAME_PARAMETER]}
VERSION_IN_PATH: dict[str, Any] = {
    "parameters": [NAME_PARAMETER, _in_path("version", "a positive integer")],
}
HEADER_LENGTH_PARAMETER: dict[str, Any] = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "description": "bytes of JSON at the start of a body in the binary form; without it, all of it is JSON",
    "schema": {"type": "integer", "minimum": 1},
}
BINARY: dict[str, Any] = {
    "schema": {
        "type": "string",
        "format": "binary",
        "description": "JSON of Inference-Header-Content-Length bytes, then raw values, little-endian",
    }
}
JSON_OR_BINARY: dict[str, Any] = {"application/json": {}, "application/octet-stream": BINARY}
INFER_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": REFERENCE.format(model="InferBody")}},
            "application/octet-stream": BINARY,
        },
    },
}


def infer_operation(path: dict[str, Any]) -> dict[str, Any]:
    """The parameters of the path, the header and the body of an infer route."""
    return {"parameters": [*path["parameters"], HEADER_LENGTH_PARAMETER], **INFER_BODY}
