import time

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from pydantic import ValidationError

from export.optimize.choice import choose, cpu_options, largest_errors
from export.optimize.plan import FILE, PLAIN, Choice, read_plan


def scaling(factor: float, options: ort.SessionOptions | None = None) -> ort.InferenceSession:
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
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def test_threads_that_have_nothing_to_do_use_no_processor_time():
    """By default they spin for tens of milliseconds after a run."""
    session = scaling(2, cpu_options(2))
    used = []
    for _ in range(5):  # something else in this process may be at work now and then
        session.run(None, {"pixels": np.ones((200_000, 2, 3, 1), np.float32)})
        began = time.process_time()
        time.sleep(0.1)
        used.append(time.process_time() - began)
    assert min(used) < 0.01


def test_the_fastest_for_one_image_and_the_fastest_for_many_are_chosen():
    times = {
        "plain": {1: 4.0, 4: 14.0, 16: 50.0},
        "toom_cook_1d": {1: 3.0, 4: 10.0, 16: 40.0},
        "toom_cook_2d": {1: 6.0, 4: 11.0, 16: 17.0},
    }
    assert str(choose(times)) == "toom_cook_1d to 4 images, then toom_cook_2d"


def test_the_small_variant_ends_where_the_large_one_becomes_faster():
    times = {"plain": {1: 4.0, 4: 14.0, 16: 50.0}, "toom_cook_2d": {1: 6.0, 4: 13.0, 16: 17.0}}
    assert str(choose(times)) == "plain to 1 image, then toom_cook_2d"


def test_a_variant_that_is_slower_throughout_is_not_chosen():
    times = {"plain": {1: 4.0, 4: 14.0}, "toom_cook_1d": {1: 5.0, 4: 15.0}}
    assert str(choose(times)) == "plain"


def test_three_variants_may_each_have_their_range():
    times = {
        "plain": {1: 2.0, 2: 5.0, 4: 10.0, 16: 40.0},
        "toom_cook_1d": {1: 2.5, 2: 3.0, 4: 6.0, 16: 30.0},
        "toom_cook_2d": {1: 6.0, 2: 6.0, 4: 7.0, 16: 10.0},
    }
    choice = choose(times)
    assert str(choice) == "plain to 1 image, toom_cook_1d to 4 images, then toom_cook_2d"
    assert [choice.variant(images) for images in (1, 2, 4, 5, 64)] == [
        "plain",
        "toom_cook_1d",
        "toom_cook_1d",
        "toom_cook_2d",
        "toom_cook_2d",
    ]


def test_a_variant_that_gains_hardly_anything_is_not_worth_its_memory():
    times = {"plain": {1: 1.0, 4: 4.0}, "toom_cook_1d": {1: 1.02, 4: 3.98}}
    assert str(choose(times)) == "plain"


def test_variants_and_borders_have_to_fit_each_other():
    for variants, borders in (((), ()), (("plain",), (1,)), (("plain", "toom_cook_1d", "plain"), (4, 4))):
        with pytest.raises(ValidationError):
            Choice(variants=variants, borders=borders)


def test_an_error_is_the_largest_difference_from_the_plain_variant():
    pixels = np.full((2, 2, 3, 1), 0.5, np.float32)
    errors = largest_errors({"plain": scaling(1), "toom_cook_1d": scaling(1.5)}, pixels)
    assert errors == {"toom_cook_1d": pytest.approx(0.25)}


class Answers:
    """A session that gives these outputs."""

    def __init__(self, *outputs: float):
        self.outputs = [np.array([output], np.float32) for output in outputs]

    def run(self, *_) -> list[np.ndarray]:
        return self.outputs


def test_what_is_not_a_number_is_an_infinite_error():
    assert largest_errors({"plain": scaling(1), "toom_cook_2d": scaling(np.nan)}) == {"toom_cook_2d": np.inf}


def test_a_plan_can_keep_an_infinite_error(tmp_path):
    """Else every start would take the plan for a damaged one and derive it again."""
    plan = PLAIN.model_copy(update={"errors": {"toom_cook_2d": np.inf}})
    (tmp_path / FILE).write_text(plan.model_dump_json())
    assert read_plan(tmp_path) == plan


def test_nor_may_a_later_output_be_none():
    sessions = {"plain": Answers(1, 2), "toom_cook_1d": Answers(1.5, np.nan)}
    assert largest_errors(sessions, np.zeros((1, 2, 2, 1), np.float32)) == {"toom_cook_1d": np.inf}
