"""The repository: what is on disk is served, and a new version takes over without losses."""

import asyncio
import shutil
import threading
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from service.errors import (
    ModelRequiredError,
    NotReadyError,
    OverloadedError,
    UnknownModelError,
)
from service.inference.loading import load_engine
from service.inference.providers import PROVIDERS, DeviceError
from service.models import scanner, version_loader
from service.models.repository import Repository
from service.observability.metrics import Metrics
from tests.support.live_service import settings_for
from tests.support.repositories import inference_threads, loaded, opened, run, states, usable
from tests.support.tiny_bundle import CLASSES, SIDE, encoder_model, write_bundle

needs_no_gpu = pytest.mark.skipif(
    PROVIDERS["cuda"] in ort.get_available_providers(), reason="this onnxruntime has the CUDA provider"
)


def test_the_newest_versions_are_loaded_and_the_newest_answers(tmp_path):
    async def scenario() -> None:
        for version in (1, 2, 10):
            write_bundle(tmp_path / "tiny" / str(version))
        async with opened(tmp_path) as repository:
            assert loaded(repository) == ["tiny/10", "tiny/2"]
            async with repository.use("tiny", None) as served:
                assert served.version == 10

    run(scenario())


@pytest.mark.parametrize(("model", "default"), [("other", "first"), (None, "other"), ("missing", "first")])
def test_a_model_that_the_first_scan_has_not_come_to_is_still_loading(tmp_path, monkeypatch, model, default):
    looked_on, check = threading.Event(), scanner.check_bundle

    def check_slowly(path: Path, name: str) -> None:
        if name == "other":
            looked_on.wait()
        check(path, name)

    async def scenario() -> None:
        for name in ("first", "other"):
            write_bundle(tmp_path / name / "1")
        monkeypatch.setattr(scanner, "check_bundle", check_slowly)
        repository = Repository(settings_for(tmp_path, default_model=default), Metrics())
        scan = asyncio.create_task(repository.first_scan())
        try:
            while not await usable(repository, "first"):
                await asyncio.sleep(0.01)
            with pytest.raises(NotReadyError, match="still loading"):
                async with repository.use(model, None):
                    pass
        finally:
            looked_on.set()
            await scan
        if model != "missing":
            async with repository.use(model, None) as served:
                assert served.name == "other"
        else:
            with pytest.raises(UnknownModelError, match="there are first, other"):
                async with repository.use(model, None):
                    pass
        await repository.close()

    run(scenario())


@pytest.mark.parametrize(
    ("settings", "warned"),
    [({"default_model": "tin"}, True), ({"default_model": "tiny"}, False), ({}, False)],
    ids=["misspelled", "right", "not set"],
)
def test_a_default_model_that_is_not_there_is_warned_of_once_if_somebody_has_set_it(
    tmp_path, caplog, settings, warned
):
    async def scenario() -> None:
        for name in ("tiny", "other"):
            write_bundle(tmp_path / name / "1")
        async with opened(tmp_path, **settings) as repository:
            await repository.scan()
        said = "CAPSNET_DEFAULT_MODEL is tin, and there is no such model; there are other, tiny"
        assert [line for line in caplog.messages if "DEFAULT_MODEL" in line] == [said] * warned

    run(scenario())


def test_the_only_model_needs_no_name_and_several_need_one_or_a_default(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        async with opened(tmp_path) as repository, opened(tmp_path, default_model="absent") as other:
            for one in (repository, other):
                async with one.use(None, None) as served:
                    assert served.name == "tiny"
        write_bundle(tmp_path / "other" / "1")
        async with opened(tmp_path) as repository:
            with pytest.raises(ModelRequiredError, match="other, tiny"):
                async with repository.use(None, None):
                    pass
        async with (
            opened(tmp_path, default_model="other") as repository,
            repository.use(None, None) as served,
        ):
            assert served.name == "other"

    run(scenario())


@needs_no_gpu
def test_an_explicit_device_that_is_not_available_is_a_failure_though_nothing_is_loaded_yet(tmp_path):
    async def scenario() -> None:
        for model in ("first", "second"):
            write_bundle(tmp_path / model / "1")
        async with opened(tmp_path, device="cuda") as repository:
            assert "CUDAExecutionProvider" in str(repository.failure)

    run(scenario())


@pytest.mark.parametrize("name", ["../tiny", "tiny/1", "tiny/../tiny", "/", ".", ""])
def test_a_name_in_a_request_is_never_a_path(tmp_path, name):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        async with opened(tmp_path) as repository:
            with pytest.raises(UnknownModelError, match="tiny"):
                async with repository.use(name, None):
                    pass

    run(scenario())


def test_a_new_version_is_found_and_the_one_too_many_is_dropped(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        write_bundle(tmp_path / "tiny" / "2")
        async with opened(tmp_path) as repository:
            oldest = next(one for one in repository.ready() if one.version == 1)
            write_bundle(tmp_path / "tiny" / "3")
            await repository.scan()
            assert loaded(repository) == ["tiny/2", "tiny/3"]
            async with repository.use("tiny", None) as served:
                assert served.version == 3
            while oldest.batcher.answering:
                await asyncio.sleep(0.001)

    run(scenario())


def test_a_version_in_use_is_dropped_only_after_its_request(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        pixels = np.zeros((1, SIDE, SIDE, 1), np.float32)
        async with opened(tmp_path, versions_kept=1) as repository:
            async with repository.use("tiny", None) as served:
                write_bundle(tmp_path / "tiny" / "2")
                await repository.scan()
                assert loaded(repository) == ["tiny/2"]
                await asyncio.sleep(0.05)
                assert (await served.encode(pixels))[0].shape == (1, 3)
            while served.batcher.answering:
                await asyncio.sleep(0.001)
            with pytest.raises(OverloadedError):
                await served.encode(pixels)

    run(scenario())


def test_removing_a_version_brings_back_the_one_before(tmp_path):
    async def scenario() -> None:
        for version in (1, 2, 3):
            write_bundle(tmp_path / "tiny" / str(version))
        async with opened(tmp_path) as repository:
            shutil.rmtree(tmp_path / "tiny" / "3")
            await repository.scan()
            assert loaded(repository) == ["tiny/1", "tiny/2"]

    run(scenario())


def test_a_republished_version_is_loaded_anew(tmp_path):
    async def scenario() -> None:
        pixels = np.random.default_rng(0).random((1, SIDE, SIDE, 1), np.float32)
        folder = write_bundle(tmp_path / "tiny" / "1", seed=1)
        async with opened(tmp_path) as repository:
            async with repository.use("tiny", 1) as old:
                before, _ = await old.encode(pixels)
            shutil.rmtree(folder)
            write_bundle(folder, seed=2)
            await repository.scan()
            async with repository.use("tiny", 1) as new:
                after, _ = await new.encode(pixels)
            assert np.abs(after - before).max() > 1e-3
            while old.batcher.answering:
                await asyncio.sleep(0.001)

    run(scenario())


def test_a_bundle_that_fails_at_a_black_image_keeps_none_from_the_others(tmp_path):
    write_bundle(tmp_path / "tiny" / "1")
    black = encoder_model(np.random.default_rng(0), len(CLASSES), 4)
    place = [node.op_type for node in black.graph.node].index("Tanh")
    black.graph.node[place].input[0] = "dimmed"
    for node in reversed(
        [
            helper.make_node("ReduceMax", ["pixels"], ["light"], keepdims=0),
            helper.make_node("Mul", ["light", "many"], ["more"]),
            helper.make_node("Min", ["more", "one"], ["lit"]),
            helper.make_node("Sub", ["one", "lit"], ["dark"]),
            helper.make_node("Mul", ["dark", "many"], ["far"]),
            helper.make_node("Cast", ["far"], ["index"], to=TensorProto.INT64),
            helper.make_node("Gather", ["only", "index"], ["factor"]),  # there is no place but 0
            helper.make_node("Mul", ["raw", "factor"], ["dimmed"]),
        ]
    ):
        black.graph.node.insert(place, node)
    for name, values in {
        "many": np.float32(1000),
        "one": np.float32(1),
        "only": np.ones(1, np.float32),
    }.items():
        black.graph.initializer.append(numpy_helper.from_array(np.asarray(values), name))
    write_bundle(tmp_path / "other" / "1", decoder=False, encoder=black)

    async def scenario() -> None:
        async with opened(tmp_path) as repository:
            for name in ("other", "tiny"):
                async with repository.use(name, None):
                    pass
            assert loaded(repository) == ["other/1", "tiny/1"]

    run(scenario())


def test_what_is_replaced_is_closed_even_if_the_device_fails_at_the_next_version(tmp_path, monkeypatch):
    def load(path, *others):
        if path.name == "1":
            raise DeviceError("memory on the device is not available")
        return load_engine(path, *others)

    async def scenario() -> None:
        for version in (1, 2):
            write_bundle(tmp_path / "tiny" / str(version), seed=1)
        async with opened(tmp_path) as repository:
            async with repository.use("tiny", 2) as old:
                pass
            monkeypatch.setattr(version_loader, "load_engine", load)
            for version in (1, 2):
                shutil.rmtree(tmp_path / "tiny" / str(version))
                write_bundle(tmp_path / "tiny" / str(version), seed=2)
            with pytest.raises(NotReadyError, match="memory on the device"):
                await repository.scan()
            async with repository.use("tiny", 2) as new:
                assert new is not old
            async with asyncio.timeout(60):
                while old.batcher.answering:
                    await asyncio.sleep(0.001)
            monkeypatch.undo()

    run(scenario())


def test_an_unchanged_version_is_not_loaded_again(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        async with opened(tmp_path) as repository:
            (before,) = repository.ready()
            await repository.scan()
            assert repository.ready() == [before]

    run(scenario())


def test_a_loaded_version_serves_on_until_what_replaces_it_is_whole(tmp_path):
    async def scenario() -> None:
        folder = write_bundle(tmp_path / "tiny" / "1")
        async with opened(tmp_path) as repository:
            (before,) = repository.ready()
            whole = (folder / "encoder.onnx").read_bytes()
            (folder / "encoder.onnx").write_bytes(whole[:100])
            await repository.scan()
            assert repository.ready() == [before]
            assert states(repository, "tiny") == {1: "loaded"}
            (folder / "encoder.onnx").write_bytes(whole)
            await repository.scan()
            (after,) = repository.ready()
            assert after is not before

    run(scenario())


def test_removing_the_last_version_leaves_a_failure_that_says_so_until_there_is_another(tmp_path):
    async def scenario() -> None:
        folder = write_bundle(tmp_path / "tiny" / "1")
        async with opened(tmp_path) as repository:
            shutil.rmtree(folder)
            await repository.scan()
            with pytest.raises(NotReadyError, match="no bundle"):
                repository.ready()
            with pytest.raises(NotReadyError, match="no bundle"):
                async with repository.use(None, None):
                    pass
            write_bundle(folder)
            await repository.scan()
            assert repository.failure is None
            assert loaded(repository) == ["tiny/1"]

    run(scenario())


def test_until_the_first_scan_is_over_nobody_is_told_that_there_are_no_models(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        repository = Repository(settings_for(tmp_path), Metrics())
        with pytest.raises(NotReadyError, match="still loading"):
            repository.names()
        with pytest.raises(NotReadyError, match="still loading"):
            repository.describe("tiny", manifests=True)
        await repository.first_scan()
        assert repository.names() == ["tiny"]
        await repository.close()

    run(scenario())


def test_watching_finds_what_is_published_while_running(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        async with opened(tmp_path, rescan_s=0.01) as repository:
            watching = asyncio.create_task(repository.watch())
            aside = write_bundle(tmp_path / "aside" / "tiny" / ".2.tmp")
            aside.rename(tmp_path / "tiny" / "2")
            async with asyncio.timeout(60):
                while loaded(repository) != ["tiny/1", "tiny/2"]:
                    await asyncio.sleep(0.01)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    run(scenario())


class FaultyMetrics(Metrics):
    """They fail when they are told of the first loaded version, as nothing that we know of does."""

    def __init__(self) -> None:
        super().__init__()
        self.has_failed = False

    def reloaded(self, model: str) -> None:
        super().reloaded(model)
        if not self.has_failed:
            self.has_failed = True
            raise ZeroDivisionError("no fault of a bundle's")


def test_a_fault_of_ours_ends_neither_the_first_look_nor_the_later_ones(tmp_path, caplog):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        metrics = FaultyMetrics()
        repository = Repository(settings_for(tmp_path, rescan_s=0.01), metrics)
        await repository.first_scan()
        assert "ZeroDivisionError" in str(repository.failure)
        watching = asyncio.create_task(repository.watch())
        async with asyncio.timeout(60):
            while not repository.loaded():
                await asyncio.sleep(0.01)
        assert repository.failure is None
        metrics.has_failed = False
        write_bundle(tmp_path / "aside" / "tiny" / "2").rename(tmp_path / "tiny" / "2")
        async with asyncio.timeout(60):
            while loaded(repository) != ["tiny/1", "tiny/2"]:
                await asyncio.sleep(0.01)
        assert metrics.has_failed
        assert not watching.done()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await repository.close()

    run(scenario())
    assert any(record.exc_info for record in caplog.records)  # with the place where it happened


def test_a_model_without_its_threads_is_refused_and_leaves_nothing_behind(tmp_path, monkeypatch):
    started = []

    def start(thread: threading.Thread, start=threading.Thread.start) -> None:
        if thread.name.startswith("inference-tiny/1"):
            if started:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        start(thread)

    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        before = inference_threads()
        metrics = Metrics()
        repository = Repository(settings_for(tmp_path, threads=2), metrics)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            await repository.scan()
        assert inference_threads() == before
        assert "can't start new thread" in repository._bundles.refusal("tiny")
        assert 'capsnet_reloads_total{model="tiny"} 0.0' in metrics.scrape().decode()
        assert "capsnet_compute_seconds_count{" not in metrics.scrape().decode()
        await repository.scan()  # it may have passed
        assert loaded(repository)
        await repository.close()

    run(scenario())


def test_closing_leaves_no_thread_behind(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        before = inference_threads()  # of services that other tests keep
        async with opened(tmp_path):
            assert len(inference_threads()) > len(before)
        assert inference_threads() == before

    run(scenario())
