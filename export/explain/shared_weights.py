"""Weights that one graph reads from another's file, so that a bundle holds them once.

ONNX calls it external data: a tensor names a file in its graph's folder and where in it its values are.
"""

import math

import onnx
from onnx import TensorProto, helper

MIN_BYTES = 1024  # smaller values stay in the graph


def share_weights(model: onnx.ModelProto, lender: bytes, file: str) -> onnx.ModelProto:
    """A graph that reads its float32 weights from another graph's file, where that has the same values.

    Args:
        model: the graph, its weights in it.
        lender: the bytes of the other graph's file.
        file: its name; both files are to be in the same folder.
    """
    shared = onnx.ModelProto()
    shared.CopyFrom(model)
    for tensor in shared.graph.initializer:
        values = tensor.raw_data
        if tensor.data_type != TensorProto.FLOAT or len(values) < MIN_BYTES:
            continue
        offset = lender.find(values)
        if offset >= 0:
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", file), ("offset", offset), ("length", len(values))):
                tensor.external_data.add(key=key, value=str(value))
    return shared


def hold_weights(content: bytes, lender: bytes) -> bytes:
    """The same graph in one file.

    Args:
        content: of a graph that reads weights from one other file.
        lender: the bytes of that file.
    """
    model = onnx.load_model_from_string(content)
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            where = {entry.key: entry.value for entry in tensor.external_data}
            offset = int(where.get("offset", 0))
            number = helper.tensor_dtype_to_np_dtype(tensor.data_type)
            size = number.itemsize * math.prod(tensor.dims)  # `length` may be left out, too
            tensor.raw_data = lender[offset : offset + size]
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
    return model.SerializeToString()
