"""Weights of derived graphs: found in the graph without onnx, and mapped once for all sessions."""

import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from export.contract.graph_file import far_tensors
from export.contract.manifest import BundleError, Graph, Tensor
from export.optimize.choice import cpu_options
from export.optimize.derive import prepare
from service.inference.mapped_weights import MappedSession, map_weights
from service.inference.sessions import open_derived
from tests.support.tiny_bundle import make_model

PIXELS, IN, OUT = 16, 20_000, 32  # 80 KB of index, 2.5 MB of weights


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    """A graph as it is derived: weights that are read as they lie, and an index, in the file beside it."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Gather", ["pixels", "index"], ["chosen"], axis=1),
        helper.make_node("Unsqueeze", ["chosen", "one"], ["row"]),
        helper.make_node("Mul", ["row", "weights"], ["products"]),
        helper.make_node("ReduceSum", ["products", "two"], ["poses"], keepdims=0),
    ]
    constants = {
        "index": rng.integers(0, PIXELS, IN, np.int32),
        "one": np.array([1]),
        "two": np.array([2]),
        "weights": rng.normal(size=(1, OUT, IN)).astype(np.float32),
    }
    model = make_model(nodes, constants, {"pixels": (None, PIXELS)}, {"poses": (None, OUT)})
    return prepare(model, tmp_path_factory.mktemp("graphs") / "product.onnx")


def session(file: Path, weights: dict[str, ort.OrtValue]) -> ort.InferenceSession:
    return MappedSession(file, cpu_options(1, prepared=True), weights)


def test_what_onnx_says_of_tensors_in_other_files_is_read_from_the_bytes(file):
    found = {tensor.name: tensor for tensor in far_tensors(file.read_bytes(), file.name)}
    model = onnx.load(file, load_external_data=False)
    expected = [tensor for tensor in model.graph.initializer if tensor.data_location]
    assert expected
    assert found.keys() == {tensor.name for tensor in expected}
    for tensor in expected:
        where = {entry.key: entry.value for entry in tensor.external_data}
        one = found[tensor.name]
        assert (one.data_type, one.shape) == (tensor.data_type, tuple(tensor.dims))
        assert (one.file, one.offset) == (where["location"], int(where.get("offset", "0")))


def test_sizes_that_are_written_one_by_one_are_read_too():
    tensor = b"\x08\x03\x08\x04\x10\x01\x42\x01w\x70\x01\x6a\x0d\x0a\x08location\x12\x01f"
    graph = b"\x2a" + bytes([len(tensor)]) + tensor
    (found,) = far_tensors(b"\x3a" + bytes([len(graph)]) + graph, "graph")
    assert found.shape == (3, 4)


def test_a_session_of_mapped_weights_computes_what_one_of_its_own_does(file):
    pixels = np.random.default_rng(1).random((3, PIXELS), np.float32)
    own = ort.InferenceSession(file, cpu_options(1, prepared=True), providers=["CPUExecutionProvider"])
    found = session(file, map_weights(file)).run(None, {"pixels": pixels})
    np.testing.assert_array_equal(found[0], own.run(None, {"pixels": pixels})[0])


def test_weights_live_as_long_as_a_session_that_reads_them(file):
    pixels = np.random.default_rng(1).random((3, PIXELS), np.float32)
    opened = session(file, map_weights(file))
    before = opened.run(None, {"pixels": pixels})[0]
    other = [session(file, map_weights(file)) for _ in range(3)]
    del other
    np.testing.assert_array_equal(opened.run(None, {"pixels": pixels})[0], before)


def resident_bytes(file: Path) -> int:
    """Of a mapped file, counted once for every mapping, as the system does."""
    sizes: Counter[str] = Counter()
    name = ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if heading := re.match(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+\s*(.*)", line):
            name = heading[1]
        elif line.startswith("Rss:"):
            sizes[name] += 1024 * int(line.split()[1])
    return sizes[str(file)]


@pytest.mark.skipif(sys.platform != "linux", reason="what is mapped is read from /proc")
def test_several_sessions_hold_the_weights_in_memory_once(file):
    weights = map_weights(file)
    sessions = [session(file, weights) for _ in range(3)]
    for one in sessions:
        one.run(None, {"pixels": np.ones((1, PIXELS), np.float32)})
    stored = file.with_suffix(".weights")
    assert 4 * IN * OUT <= resident_bytes(stored) < 1.5 * stored.stat().st_size  # the index is mapped by each


def test_a_file_of_weights_that_is_too_short_is_an_error_that_names_the_graph(file, tmp_path):
    cut = tmp_path / file.name
    cut.write_bytes(file.read_bytes())
    stored = file.with_suffix(".weights")
    (tmp_path / stored.name).write_bytes(stored.read_bytes()[:1000])
    graph = Graph(
        file="encoder.onnx",
        sha256="0" * 64,
        inputs=(Tensor(name="pixels", shape=(None, PIXELS)),),
        outputs=(Tensor(name="poses", shape=(None, OUT)),),
    )
    with pytest.raises(BundleError, match=r"product\.onnx cannot be loaded"):
        open_derived(cut, graph, 1, map_weights)
