"""ModelInferRequest and ModelInferResponse of the protocol's gRPC form, to and from arrays.

Inputs are raw bytes in `raw_input_contents`, one entry for each, or typed values in their `contents`. Outputs
are always raw bytes, as Triton's are.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelInferResponse

from capsnet.wire_format import (
    DATATYPES,
    UINT8_MAX,
    InferRequest,
    RequestedOutput,
    WireError,
    check_classes,
    check_shape,
    raw_bytes,
)
from service.errors import shown
from service.oip.models import Floats, OipModel, answer_arrays

CONTENTS = {"FP32": "fp32_contents", "UINT8": "uint_contents"}  # the field of typed values of a datatype
NO_SHARED_MEMORY = "shared memory is not supported; send the values in the request"


def read_infer_request(message: ModelInferRequest) -> InferRequest:
    """The request of a message; arrays are views of its raw bytes.

    Raises:
        WireError: it does not follow the protocol.
    """
    raw = message.raw_input_contents
    if not message.inputs:
        raise WireError("inputs must list one or more tensors, got none")
    if raw and len(raw) != len(message.inputs):
        raise WireError(
            f"raw_input_contents must have one entry for each of the {len(message.inputs)} inputs, or none; "
            f"got {len(raw)}"
        )
    inputs: dict[str, NDArray[Any]] = {}
    for index, given in enumerate(message.inputs):
        if given.name in inputs:
            raise WireError(f"inputs lists {shown(given.name)} twice")
        inputs[given.name] = _read_tensor(given, raw[index] if raw else None)
    return InferRequest(inputs, [_requested(given) for given in message.outputs], True, message.id or None)


def write_infer_response(
    model: OipModel, request: InferRequest, outputs: Mapping[str, Floats]
) -> ModelInferResponse:
    """The requested outputs."""
    answer = ModelInferResponse(
        model_name=model.name, model_version=str(model.loaded.version), id=request.id or ""
    )
    answer.parameters["digest"].string_param = model.loaded.digest
    for name, array in answer_arrays(model, request, outputs).items():
        datatype = "BYTES" if array.dtype == np.object_ else "FP32"
        answer.outputs.add(name=name, datatype=datatype, shape=array.shape)
        answer.raw_output_contents.append(bytes(raw_bytes(array)))
    return answer


def _read_tensor(given: ModelInferRequest.InferInputTensor, raw: bytes | None) -> NDArray[Any]:
    place = f"input {shown(given.name)}"
    if "shared_memory_region" in given.parameters:
        raise WireError(f"{place}: {NO_SHARED_MEMORY}")
    if given.datatype not in DATATYPES:
        raise WireError(f"{place}: datatype must be {' or '.join(DATATYPES)}, got {shown(given.datatype)}")
    shape = check_shape(list(given.shape), place)
    if raw is None:
        return _from_contents(given, shape, place)
    if given.HasField("contents"):
        raise WireError(f"{place}: has both contents and raw_input_contents; give one of them")
    kind = DATATYPES[given.datatype]
    needed = math.prod(shape) * kind.itemsize
    if len(raw) != needed:
        raise WireError(
            f"{place}: shape {list(shape)} of {given.datatype} takes {needed} bytes, "
            f"raw_input_contents has {len(raw)}"
        )
    return np.frombuffer(raw, kind).reshape(shape)


def _from_contents(
    given: ModelInferRequest.InferInputTensor, shape: tuple[int, ...], place: str
) -> NDArray[Any]:
    name, needed = CONTENTS[given.datatype], math.prod(shape)
    values = getattr(given.contents, name)
    if len(values) != needed:
        raise WireError(
            f"{place}: shape {list(shape)} of {given.datatype} takes {needed} values in {name} or as raw "
            f"bytes in raw_input_contents, got {len(values)}"
        )
    if given.datatype == "FP32":
        return np.fromiter(values, np.float32, needed).reshape(shape)
    levels = np.fromiter(values, np.uint32, needed)
    if levels.max() > UINT8_MAX:
        raise WireError(f"{place}: {name} of UINT8 must be from 0 to {UINT8_MAX}, got {levels.max()}")
    return levels.astype(np.uint8).reshape(shape)


def _requested(given: ModelInferRequest.InferRequestedOutputTensor) -> RequestedOutput:
    place = f"output {shown(given.name)}"
    if "shared_memory_region" in given.parameters:
        raise WireError(f"{place}: {NO_SHARED_MEMORY}")
    if "classification" not in given.parameters:
        return RequestedOutput(given.name)
    wanted = given.parameters["classification"]
    classes = getattr(wanted, wanted.WhichOneof("parameter_choice") or "", None)
    return RequestedOutput(given.name, classes=check_classes(classes, place))
