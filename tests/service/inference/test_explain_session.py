"""The explain graph of a loaded bundle: opened when it is needed, from files that are still the same."""

import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from export.contract.manifest import BundleError, read_manifest
from service.errors import NoExplainGraphError
from service.inference import loading
from service.inference.engine import Engine
from service.inference.loading import check_bundle, load_engine
from service.inference.providers import EngineOptions
from tests.support.tiny_bundle import SIDE, replace_file, rewrite_manifest, write_bundle
from tests.support.tiny_explain import write_explained_bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_explained_bundle(tmp_path / "tiny" / "1")


def load(bundle: Path) -> Engine:
    return load_engine(bundle, "tiny", EngineOptions("cpu", 32, bundle.parent / "cache"))


def pixels(count: int = 2) -> np.ndarray:
    return np.random.default_rng(0).random((count, SIDE, SIDE, 1), np.float32)


def named(engine: Engine, images: np.ndarray) -> dict[str, np.ndarray]:
    assert engine.explainer
    return dict(zip(engine.explainer.names, engine.explain(images), strict=True))


@pytest.mark.parametrize("count", [1, 3, 32])
def test_its_answer_is_the_encoders(bundle, count):
    engine, images = load(bundle), pixels(count)
    found = named(engine, images)
    for name, expected in zip(("probabilities", "poses"), engine.encode(images), strict=True):
        np.testing.assert_allclose(found[name], expected, atol=1e-6)
    np.testing.assert_allclose(found["capsules"][:, -1], found["poses"], atol=1e-6)
    for tensor in read_manifest(bundle).graphs["explain"].outputs:
        assert found[tensor.name].shape == (count, *tensor.shape[1:])


def test_where_it_cannot_be_opened_the_engine_is_closed(bundle, monkeypatch):
    def gone(*_):
        raise FileNotFoundError("encoder.onnx")

    closed = []
    monkeypatch.setattr(loading, "ExplainSession", gone)
    monkeypatch.setattr(Engine, "close", lambda engine: closed.append(engine))
    with pytest.raises(FileNotFoundError):
        load(bundle)
    assert len(closed) == 1


def test_it_is_not_opened_before_it_is_needed(bundle):
    engine = load(bundle)
    engine.encode(pixels())
    assert engine.explainer
    assert engine.explainer._opened is None
    engine.explain(pixels())
    assert engine.explainer._opened


def explain_graph(bundle: Path) -> onnx.ModelProto:
    return onnx.load(bundle / "explain.onnx", load_external_data=False)


def initial(graph: onnx.ModelProto, name: str) -> onnx.TensorProto:
    [found] = [tensor for tensor in graph.graph.initializer if tensor.name == name]
    return found


def fill(name: str, value: float) -> Callable[[onnx.ModelProto], None]:
    """Give a constant of the graph this value everywhere."""

    def change(graph: onnx.ModelProto) -> None:
        tensor = initial(graph, name)
        tensor.CopyFrom(numpy_helper.from_array(np.full(tensor.dims, value, np.float32), name))

    return change


def remove_an_output(graph: onnx.ModelProto) -> None:
    graph.graph.output.pop()


def pick_numbers_beyond_the_last(graph: onnx.ModelProto) -> None:
    """Which ONNX Runtime notices when it runs."""
    [sigmoid] = [node for node in graph.graph.node if node.op_type == "Sigmoid"]
    count = initial(graph, "explain/activity_weights").dims[1]
    graph.graph.initializer.append(numpy_helper.from_array(np.full(count, count), "beyond"))
    place = list(graph.graph.node).index(sigmoid)
    graph.graph.node.insert(
        place, helper.make_node("Gather", [sigmoid.input[0], "beyond"], ["picked"], axis=1)
    )
    sigmoid.input[0] = "picked"


def read_other_weights(graph: onnx.ModelProto) -> None:
    [tensor] = [tensor for tensor in graph.graph.initializer if tensor.external_data]
    [offset] = [entry for entry in tensor.external_data if entry.key == "offset"]
    offset.value = "4"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (fill("explain/growth", 0.9), "samples: the last of activations of the explain graph differs by"),
        (fill("explain/agreement_weights", np.nan), "samples: couplings of the explain graph is not finite"),
        (read_other_weights, "samples: probabilities of the explain graph "),
        (remove_an_output, r"explain\.onnx has the outputs"),
        (pick_numbers_beyond_the_last, r"samples: explain\.onnx fails on them"),
        (lambda graph: graph.graph.node.pop(), r"explain\.onnx cannot be loaded: "),
    ],
)
def test_a_graph_that_does_not_give_the_samples_answer_is_refused_when_it_is_loaded(bundle, change, message):
    graph = explain_graph(bundle)
    change(graph)
    replace_file(bundle, "explain", graph.SerializeToString())
    with pytest.raises(BundleError, match=message):
        load(bundle)


def test_threads_that_come_at_once_open_it_once(bundle, monkeypatch):
    engine = load(bundle)
    assert engine.explainer
    opened, really = [], engine.explainer._open_again
    monkeypatch.setattr(engine.explainer, "_open_again", lambda: opened.append(1) or really())
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: engine.explain(pixels())[0], range(8)))
    assert len(opened) == 1
    for answer in answers:
        np.testing.assert_array_equal(answer, answers[0])


def test_a_bundle_without_the_graph_has_no_session(tmp_path):
    engine = load(write_bundle(tmp_path / "tiny" / "1"))
    assert engine.explainer is None


def replace_the_encoder(bundle: Path) -> None:
    other = write_bundle(bundle.parent.parent / "other" / "1", seed=9)
    (other / "encoder.onnx").replace(bundle / "encoder.onnx")


@pytest.mark.parametrize("change", [replace_the_encoder, shutil.rmtree])
def test_it_explains_the_answers_of_the_encoder_that_serves_though_its_file_is_gone(bundle, change):
    """Until the new bundle is loaded, or if it is refused."""
    engine, images = load(bundle), pixels()
    change(bundle)
    np.testing.assert_allclose(named(engine, images)["poses"], engine.encode(images)[1], atol=1e-6)


def test_weights_that_have_been_written_over_explain_nothing(bundle):
    """They are those of another answer."""
    engine = load(bundle)
    other = write_bundle(bundle.parent.parent / "other" / "1", seed=9)
    shutil.copyfile(other / "encoder.onnx", bundle / "encoder.onnx")
    why = "explain.onnx of tiny cannot be loaded any more: encoder.onnx has been written over since"
    for _ in range(2):
        with pytest.raises(NoExplainGraphError, match=re.escape(why)):
            engine.explain(pixels())
    engine.encode(pixels())


def test_no_file_stays_open(bundle):
    def is_open() -> bool:
        file = (bundle / "encoder.onnx").resolve()
        return file in {path.resolve() for path in Path("/proc/self/fd").iterdir()}

    engine = load(bundle)
    assert is_open()
    engine.explain(pixels())
    assert not is_open()
    engine = load(bundle)
    del engine
    assert not is_open()


def test_a_graph_that_is_open_needs_no_files(bundle):
    engine = load(bundle)
    before = engine.explain(pixels())
    shutil.rmtree(bundle)
    for found, expected in zip(engine.explain(pixels()), before, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_graph_that_reads_other_files_is_refused(bundle):
    content = (bundle / "explain.onnx").read_bytes().replace(b"encoder.onnx", b"decoder.onnx")
    replace_file(bundle, "explain", content)
    for look in (load, lambda path: check_bundle(path, "tiny")):
        with pytest.raises(BundleError, match=r"explain\.onnx keeps tensors elsewhere than in encoder\.onnx"):
            look(bundle)


def test_a_manifest_that_lists_other_outputs_is_refused(bundle):
    manifest = read_manifest(bundle)
    explain = manifest.graphs["explain"]
    fewer = explain.model_copy(update={"outputs": explain.outputs[:-1]})
    rewrite_manifest(bundle, graphs={**manifest.graphs, "explain": fewer})
    with pytest.raises(BundleError, match=r"manifest: the explain has .*; with these classes it needs"):
        load(bundle)


def test_an_encoder_that_borrows_weights_is_refused(bundle):
    replace_file(bundle, "encoder", (bundle / "explain.onnx").read_bytes())
    with pytest.raises(BundleError, match=r"encoder\.onnx keeps tensors in other files"):
        load(bundle)
