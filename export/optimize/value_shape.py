"""The shape of a graph's value, as its file states it."""

import onnx


def shape_of(value: onnx.ValueInfoProto) -> tuple[int | None, ...]:
    """Its sizes; None where the file states none, as of the batch."""
    sizes = value.type.tensor_type.shape.dim
    return tuple(size.dim_value if size.HasField("dim_value") else None for size in sizes)
