"""A loaded version explains by the rules of every other request, and frees what it opened for that."""

import asyncio
import gc
import threading
import weakref
from dataclasses import replace

import numpy as np
import pytest

from export.explain.shared_weights import hold_weights
from service.errors import DeadlineExceededError, NoExplainGraphError, OverloadedError
from service.inference.explain_session import MAX_BATCH
from service.models.loaded_model import start_model
from service.observability.metrics import Metrics
from tests.support.live_service import settings_for
from tests.support.paths import MODELS
from tests.support.repositories import loaded, opened, run
from tests.support.tiny_bundle import SIDE, run_model, write_bundle
from tests.support.tiny_explain import PARAMETERS, add_explain_graph, write_explained_bundle

IMAGES = np.random.default_rng(0).random((3, SIDE, SIDE, 1), np.float32)


def test_a_graph_that_is_added_while_the_service_runs_is_used_from_the_next_look_on(tmp_path):
    async def scenario() -> None:
        bundle = write_bundle(tmp_path / "tiny" / "1", parameters=PARAMETERS)
        async with opened(tmp_path) as repository:
            async with repository.use("tiny", None) as model:
                with pytest.raises(NoExplainGraphError, match="without explain"):
                    await model.explain(IMAGES)
                before = model.digest
            add_explain_graph(bundle)
            await repository.scan()
            assert loaded(repository) == ["tiny/1"]
            async with repository.use("tiny", None) as model:
                found = await model.explain(IMAGES)
                assert model.digest == before
        held = hold_weights((bundle / "explain.onnx").read_bytes(), (bundle / "encoder.onnx").read_bytes())
        for values, expected in zip(found.values(), run_model(held, pixels=IMAGES), strict=True):
            np.testing.assert_allclose(values, expected, atol=1e-6)

    run(scenario())


def test_images_to_explain_wait_in_the_queue_of_all(tmp_path):
    async def scenario() -> None:
        write_explained_bundle(tmp_path / "tiny" / "1")
        limits = dict.fromkeys(("queue_images", "max_images_per_request", "max_reconstructions"), 2)
        async with opened(tmp_path, **limits) as repository, repository.use("tiny", None) as model:
            with pytest.raises(OverloadedError):
                await model.explain(IMAGES)
            assert len((await model.explain(IMAGES[:2]))["couplings"]) == 2

    run(scenario())


def test_matrix_capsules_are_encoded_few_at_a_time_and_decoded_many(tmp_path):
    async def scenario() -> None:
        (tmp_path / "matrix-capsnet-toys").symlink_to(MODELS / "matrix-capsnet-toys")
        async with opened(tmp_path) as repository, repository.use("matrix-capsnet-toys", None) as model:
            largest = {graph.role: graph.max_batch for graph in model.graphs()}
            assert largest == {"encoder": 2, "decoder": 32, "explain": 2}

    run(scenario())


def test_of_matrix_capsules_on_a_gpu_few_are_explained_at_a_time(tmp_path):
    """The explain graph runs on the CPU, wherever the encoder does."""

    async def scenario() -> None:
        (tmp_path / "matrix-capsnet-toys").symlink_to(MODELS / "matrix-capsnet-toys")
        async with opened(tmp_path) as repository, repository.use("matrix-capsnet-toys", None) as model:
            engine = replace(model.engine, device="cuda", max_batch=64, decoder_max_batch=512)
            settings, metrics = settings_for(tmp_path), Metrics()
            other = start_model(model.name, model.version, model.bundle, engine, settings, metrics)
            assert (other.queues["encoder"].max_batch, other.queues["explain"].max_batch) == (64, 2)
            other.batcher.close()

    run(scenario())


def test_on_a_gpu_the_explain_graph_is_said_to_run_on_the_cpu(tmp_path):
    async def scenario() -> None:
        write_explained_bundle(tmp_path / "tiny" / "1")
        async with opened(tmp_path) as repository, repository.use("tiny", None) as model:
            model.engine = replace(model.engine, device="cuda")
            devices = {graph.role: graph.device for graph in model.graphs()}
            assert devices == {"encoder": "cuda", "decoder": "cuda", "explain": "cpu"}

    run(scenario())


def test_batches_to_explain_stay_small_however_large_those_of_the_encoder_are(tmp_path, monkeypatch):
    async def scenario() -> None:
        write_explained_bundle(tmp_path / "tiny" / "1")
        async with opened(tmp_path, max_batch=64) as repository, repository.use("tiny", None) as model:
            explainer, sizes = model.engine.explainer, []
            really = explainer.run
            monkeypatch.setattr(explainer, "run", lambda pixels: sizes.append(len(pixels)) or really(pixels))
            await asyncio.gather(*(model.explain(IMAGES) for _ in range(7)))
        assert sum(sizes) == 7 * len(IMAGES)
        assert max(sizes) <= MAX_BATCH

    run(scenario())


def test_an_explanation_that_takes_too_long_ends_at_the_deadline(tmp_path, monkeypatch):
    async def scenario() -> None:
        write_explained_bundle(tmp_path / "tiny" / "1")
        may_go_on = threading.Event()
        async with opened(tmp_path, deadline_ms=300) as repository, repository.use("tiny", None) as model:
            explainer = model.engine.explainer
            monkeypatch.setattr(explainer, "_open_again", may_go_on.wait)
            try:
                with pytest.raises(DeadlineExceededError):
                    await model.explain(IMAGES)
            finally:
                may_go_on.set()

    run(scenario())


def test_what_was_opened_to_explain_is_freed_with_the_version(tmp_path):
    async def scenario() -> None:
        write_explained_bundle(tmp_path / "tiny" / "1")
        async with opened(tmp_path) as repository:
            async with repository.use("tiny", None) as model:
                await model.explain(IMAGES)
                session = weakref.ref(model.engine.explainer._opened.session)
                assert session() is not None
            await repository.unload("tiny")
            await model.drain()
            del model
        async with asyncio.timeout(
            30
        ):  # a thread lets go of its last work a moment after its result is there
            while session():
                gc.collect()
                await asyncio.sleep(0.01)

    run(scenario())
