"""Scratch memory: sessions share it, and give it back when asked to."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from export.optimize.choice import cpu_options
from service.inference.arena import IDENTITY, share_arena, shrink_arena
from tests.service.inference.test_memory import needs_glibc, resident_bytes
from tests.support.tiny_bundle import make_model

WIDE = 2**16  # numbers of scratch for an image
IMAGES = 256
SCRATCH_BYTES = 4 * WIDE * IMAGES  # 64 MiB for each of two tensors


def wide_session() -> ort.InferenceSession:
    """A graph that makes much of little on its way."""
    nodes = [
        helper.make_node("Mul", ["pixels", "ones"], ["wide"]),
        helper.make_node("Sqrt", ["wide"], ["roots"]),
        helper.make_node("ReduceSum", ["roots", "last"], ["sums"], keepdims=1),
    ]
    constants = {"ones": np.ones((1, WIDE), np.float32), "last": np.array([1])}
    model = make_model(nodes, constants, {"pixels": (None, 1)}, {"sums": (None, 1)})
    options = cpu_options(1)
    share_arena(options)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


@needs_glibc
def test_the_scratch_memory_of_a_large_batch_is_given_back():
    # In a process of its own: beside this memory may lie what a session of another test still uses.
    with ProcessPoolExecutor(1, get_context("spawn")) as alone:
        assert alone.submit(given_back_bytes).result() > 0.9 * SCRATCH_BYTES


def given_back_bytes() -> int:
    """What the process has less after a large batch, once the arena is told to give back what it can."""
    session = wide_session()
    session.run(None, {"pixels": np.ones((IMAGES, 1), np.float32)})
    before = resident_bytes()
    shrink_arena()
    return before - resident_bytes()


@needs_glibc
def test_sessions_use_the_same_scratch_memory_one_after_the_other():
    pixels = np.ones((IMAGES, 1), np.float32)
    sessions = [wide_session() for _ in range(4)]
    sessions[0].run(None, {"pixels": pixels})
    before = resident_bytes()
    for session in sessions[1:]:
        session.run(None, {"pixels": pixels})
    assert resident_bytes() - before < SCRATCH_BYTES
    shrink_arena()


def test_the_graph_that_shrinks_is_what_it_says():
    of_one = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", of_one[:1], of_one[1:])
    assert onnx.load_from_string(IDENTITY) == helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10
    )
