from onnx import TensorProto, helper

from export.optimize.value_shape import shape_of


def test_a_size_that_is_a_name_or_not_stated_is_none_and_0_is_a_size():
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, None, 0])
    assert shape_of(value) == (None, 3, None, 0)
