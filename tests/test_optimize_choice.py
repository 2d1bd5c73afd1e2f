import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from export.optimize.choice import choose, largest_errors, measure
from export.optimize.plan import FILE, PLAIN, read_plan


def scaling(factor: float) -> ort.InferenceSession:
    """A graph that multiplies pictures of 2 x 3 with one channel."""
    shape = ["batch", 2, 3, 1]
    graph = helper.make_graph(
        [helper.make_node("Mul", ["pixels", "factor"], ["probabilities"])],
        "scaling",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.float32(factor), "factor")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def test_the_fastest_for_one_image_and_the_fastest_for_many_are_chosen():
    times = {
        "plain": {1: 4.0, 4: 14.0, 16: 50.0},
        "one_axis": {1: 3.0, 4: 10.0, 16: 40.0},
        "both_axes": {1: 6.0, 4: 11.0, 16: 17.0},
    }
    assert str(choose(times)) == "one_axis to 4 images, then both_axes"


def test_the_small_form_ends_where_the_large_one_becomes_faster():
    times = {"plain": {1: 4.0, 4: 14.0, 16: 50.0}, "both_axes": {1: 6.0, 4: 13.0, 16: 17.0}}
    assert str(choose(times)) == "plain to 1 image, then both_axes"


def test_a_form_that_is_slower_throughout_is_not_chosen():
    times = {"plain": {1: 4.0, 4: 14.0}, "one_axis": {1: 5.0, 4: 15.0}}
    assert str(choose(times)) == "plain"


def test_each_form_is_timed_at_each_size():
    times = measure({"plain": scaling(1), "one_axis": scaling(2)}, [1, 3])
    assert {form: sorted(found) for form, found in times.items()} == {"plain": [1, 3], "one_axis": [1, 3]}
    assert all(value > 0 for found in times.values() for value in found.values())


def test_an_error_is_the_largest_difference_from_the_plain_form():
    pixels = np.full((2, 2, 3, 1), 0.5, np.float32)
    errors = largest_errors({"plain": scaling(1), "one_axis": scaling(1.5)}, pixels)
    assert errors == {"one_axis": pytest.approx(0.25)}


def test_what_is_not_a_number_is_an_infinite_error():
    assert largest_errors({"plain": scaling(1), "both_axes": scaling(np.nan)}) == {"both_axes": np.inf}


def test_a_plan_can_keep_an_infinite_error(tmp_path):
    """Else every start would take the plan for a damaged one and derive it again."""
    plan = PLAIN.model_copy(update={"errors": {"both_axes": np.inf}})
    (tmp_path / FILE).write_text(plan.model_dump_json())
    assert read_plan(tmp_path) == plan
