"""Models that load with their first request, that an operator takes down, or that requests name."""

import asyncio
import gc
import shutil
from pathlib import Path

import pytest

from service.errors import (
    NotReadyError,
    RefusedModelError,
    UnknownModelError,
)
from service.inference.engine import Engine
from service.inference.loading import load_engine
from service.inference.providers import EngineOptions
from service.models import remembered, version_loader
from service.models.remembered import Remembered
from service.models.repository import Repository
from service.models.version_loader import VersionLoader
from service.observability.metrics import Metrics
from tests.support.live_service import settings_for
from tests.support.repositories import inference_threads, loaded, opened, run, states
from tests.support.tiny_bundle import replace_file, write_bundle


def test_a_model_other_than_the_default_is_loaded_when_it_is_first_asked_for(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        write_bundle(tmp_path / "other" / "1")
        async with opened(tmp_path, default_model="tiny") as repository:
            assert states(repository, "other") == {1: "available"}
            (version,) = repository.describe("other", manifests=True)["versions"]
            assert version["manifest"]["class_names"] == ["0", "1", "2"]
            async with repository.use("other", None) as one, repository.use("other", 1) as same:
                assert one is same
            assert loaded(repository) == ["other/1", "tiny/1"]
            write_bundle(tmp_path / "other" / "2")
            await repository.scan()
            assert states(repository, "other") == {2: "loaded", 1: "loaded"}

    run(scenario())


def test_many_first_requests_load_a_model_once_and_one_that_leaves_stops_nobody(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        write_bundle(tmp_path / "other" / "1")
        async with opened(tmp_path, default_model="tiny") as repository:

            async def ask() -> object:
                async with repository.use("other", None) as served:
                    return served

            tasks = [asyncio.create_task(ask()) for _ in range(5)]
            await asyncio.sleep(0)
            tasks[0].cancel()
            answers = await asyncio.gather(*tasks[1:])
            assert len(set(map(id, answers))) == 1

    run(scenario())


def test_a_model_that_breaks_only_when_loaded_says_so_to_who_asked(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        replace_file(write_bundle(tmp_path / "other" / "1"), "samples", b"no archive")
        async with opened(tmp_path, default_model="tiny") as repository:
            with pytest.raises(RefusedModelError, match="samples"):
                async with repository.use("other", None):
                    pass
            assert states(repository, "other") == {1: "refused"}
            assert loaded(repository) == ["tiny/1"]

    run(scenario())


def test_a_model_taken_down_stays_down_until_it_is_loaded_again(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        async with opened(tmp_path) as repository:
            await repository.unload("tiny")
            await repository.scan()
            assert states(repository, "tiny") == {1: "unloaded"}
            with pytest.raises(UnknownModelError, match="taken down"):
                async with repository.use("tiny", None):
                    pass
            with pytest.raises(NotReadyError, match="taken down"):
                repository.ready()
            await repository.load("tiny")
            assert loaded(repository) == ["tiny/1"]
            with pytest.raises(UnknownModelError, match="absent"):
                await repository.load("absent")

    run(scenario())


def test_a_model_that_is_taken_down_and_then_gone_is_not_one_of_several(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        async with opened(tmp_path) as repository:
            await repository.unload("tiny")
            shutil.rmtree(tmp_path / "tiny")
            await repository.scan()
            with pytest.raises(NotReadyError, match="no bundle"):
                async with repository.use(None, None):
                    pass

    run(scenario())


def test_a_model_taken_down_while_another_is_being_loaded_stays_down(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "first" / "1")
        write_bundle(tmp_path / "second" / "1")
        async with opened(tmp_path) as repository:
            for model in ("first", "second"):
                await repository.load(model)
            async with repository._inventory.changing["first"]:
                scanning = asyncio.create_task(repository.scan())
                await the_queue_for(repository, "first")
                await repository.unload("second")
            await scanning
            assert states(repository, "second") == {1: "unloaded"}
            assert loaded(repository) == ["first/1"]

    run(scenario())


def test_a_model_is_taken_down_even_if_nobody_waits_for_that_any_more(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        async with opened(tmp_path) as repository:
            async with repository._inventory.changing["tiny"]:
                unloading = asyncio.create_task(repository.unload("tiny"))
                await the_queue_for(repository, "tiny")
                unloading.cancel()
                await asyncio.wait([unloading])
                assert loaded(repository) == ["tiny/1"]
            while repository.loaded():
                await asyncio.sleep(0.001)

    run(scenario())


def test_many_models_that_are_loaded_at_once_leave_threads_to_others(tmp_path, monkeypatch):
    loading, most = [], []

    def load(path: Path, model: str, options: EngineOptions) -> Engine:
        loading.append(model)
        most.append(len(loading))
        try:
            return load_engine(path, model, options)
        finally:
            loading.remove(model)

    async def scenario() -> None:
        names = [f"model-{number}" for number in range(6)]
        for name in names:
            write_bundle(tmp_path / name / "1")
        async with opened(tmp_path) as repository:
            await asyncio.gather(*map(repository.load, names))
            assert len(loaded(repository)) == 6

    monkeypatch.setattr(version_loader, "usable_cpus", lambda: 2)
    monkeypatch.setattr(version_loader, "load_engine", load)
    run(scenario())
    assert max(most) == 2


def test_a_model_taken_down_while_a_first_request_waits_for_it_stays_down(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        write_bundle(tmp_path / "other" / "1")
        async with opened(tmp_path, default_model="tiny") as repository:

            async def ask() -> None:
                async with repository.use("other", None):
                    pass

            async with repository._inventory.changing["other"]:
                asking = asyncio.create_task(ask())
                await the_queue_for(repository, "other")
                unloading = asyncio.create_task(repository.unload("other"))
                await asyncio.sleep(0)
            await unloading
            with pytest.raises(UnknownModelError, match="taken down by an operator"):
                await asking
            assert states(repository, "other") == {1: "unloaded"}
            assert not [name for name in inference_threads() if "other" in name]

    run(scenario())


def test_a_model_taken_down_while_it_is_being_loaded_stays_down(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        for version in (1, 2):
            write_bundle(tmp_path / "other" / str(version))
        async with opened(tmp_path, default_model="tiny") as repository:
            loading = asyncio.create_task(repository.load("other"))
            while states(repository, "other")[2] != "loading":
                await asyncio.sleep(0)
            await repository.unload("other")
            assert states(repository, "other") == {2: "unloaded", 1: "unloaded"}
            with pytest.raises(UnknownModelError, match="taken down by an operator"):
                await loading
            async with asyncio.timeout(60):
                while [name for name in inference_threads() if "other" in name]:
                    await asyncio.sleep(0.01)

    run(scenario())


def test_a_load_that_nobody_waits_for_any_more_leaves_no_version_behind(tmp_path):
    """gRPC cancels a call at its client's deadline."""

    async def scenario() -> None:
        for version in (1, 2):
            write_bundle(tmp_path / "tiny" / str(version))
        async with opened(tmp_path, versions_kept=2) as repository:
            before = repository.loaded()
            for version in (1, 2):
                shutil.rmtree(tmp_path / "tiny" / str(version))
                write_bundle(tmp_path / "tiny" / str(version), seed=version)
            loading = asyncio.create_task(repository.load("tiny"))
            while len({*before} & {*repository.loaded()}) == 2:  # one is replaced, the other is not yet
                await asyncio.sleep(0)
            loading.cancel()
            async with asyncio.timeout(60):
                while {*before} & {*repository.loaded()} or any(one.batcher.answering for one in before):
                    await asyncio.sleep(0.01)

    run(scenario())


def test_a_load_that_fails_after_its_caller_has_left_is_logged(tmp_path, monkeypatch, caplog):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        async with opened(tmp_path) as repository:

            async def fail(*_: object, **__: object) -> None:
                await asyncio.sleep(0.05)
                raise NotReadyError("the device is gone")

            monkeypatch.setattr(repository._loader, "load", fail)
            loading = asyncio.create_task(repository.load("tiny"))
            while not repository._updates:
                await asyncio.sleep(0)
            loading.cancel()
            async with asyncio.timeout(60):
                while repository._updates:
                    await asyncio.sleep(0.01)
        gc.collect()  # of a task whose error nobody has read, asyncio complains then

    run(scenario())
    [record] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert (record.name, record.getMessage()) == ("service.models.repository", "changing tiny failed")


async def the_queue_for(repository: Repository, model: str) -> None:
    """Until somebody waits for the lock on a model, which the test holds."""
    async with asyncio.timeout(60):
        while not repository._inventory.changing[model]._waiters:
            await asyncio.sleep(0.001)


def test_it_is_ready_when_its_default_is_refused_or_taken_down_and_another_loads_when_asked_for(tmp_path):
    async def scenario() -> None:
        tiny, other = tmp_path / "tiny" / "1", tmp_path / "other" / "1"
        (write_bundle(tiny) / "encoder.onnx").write_bytes(b"no graph")
        write_bundle(other)
        async with opened(tmp_path, default_model="tiny") as repository:
            assert repository.failure is None
            assert repository.ready() == []
            async with repository.use("other", None):
                pass
        shutil.rmtree(tiny)
        write_bundle(tiny)
        async with opened(tmp_path, default_model="tiny") as repository:
            await repository.unload("tiny")
            assert repository.ready() == []
            async with repository.use("other", None):
                assert loaded(repository) == ["other/1"]

    run(scenario())


def test_it_is_not_ready_before_its_default_is_loaded_though_another_could_be_asked_for(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        write_bundle(tmp_path / "other" / "1")
        repository = Repository(settings_for(tmp_path, default_model="tiny"), Metrics())
        scanning = asyncio.create_task(repository.first_scan())
        while not repository.loaded():
            with pytest.raises(NotReadyError, match="still loading"):
                repository.ready()
            await asyncio.sleep(0)
        assert loaded(repository) == ["tiny/1"]
        await scanning
        await repository.close()

    run(scenario())


def test_taking_down_the_last_model_is_known_at_once(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        async with opened(tmp_path) as repository:
            await repository.unload("tiny")
            with pytest.raises(NotReadyError, match="taken down by an operator: tiny"):
                repository.ready()

    run(scenario())


def test_versions_beyond_those_kept_are_superseded_and_say_so(tmp_path):
    async def scenario() -> None:
        for version in (1, 2, 3, 4):
            write_bundle(tmp_path / "tiny" / str(version))
        (tmp_path / "tiny" / "3" / "encoder.onnx").write_bytes(b"no graph")
        write_bundle(tmp_path / "other" / "1")
        write_bundle(tmp_path / "other" / "2")
        async with opened(tmp_path, default_model="tiny", versions_kept=2) as repository:
            assert states(repository, "tiny") == {4: "loaded", 3: "refused", 2: "loaded", 1: "superseded"}
            assert states(repository, "other") == {2: "available", 1: "available"}
            oldest = repository.describe("tiny", manifests=False)["versions"][-1]
            assert "CAPSNET_VERSIONS_KEPT=2" in oldest["reason"]
            with pytest.raises(UnknownModelError, match=r"superseded: .* available: 2, 4"):
                async with repository.use("tiny", 1):
                    pass

    run(scenario())


def test_a_version_that_requests_name_stays_loaded_until_none_has_named_it_for_long(tmp_path, monkeypatch):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        async with opened(tmp_path, versions_kept=1) as repository:
            async with repository.use("tiny", 1) as named:
                pass
            for version in (2, 3):
                write_bundle(tmp_path / "tiny" / str(version))
                await repository.scan()
            assert states(repository, "tiny") == {3: "loaded", 2: "superseded", 1: "loaded"}
            async with repository.use("tiny", 1) as still:
                assert still is named
            async with repository.use("tiny", None) as newest:
                assert newest.version == 3
            monkeypatch.setattr(remembered, "NAMED_S", 0)
            await repository.scan()
            assert states(repository, "tiny") == {3: "loaded", 2: "superseded", 1: "superseded"}

    run(scenario())


def test_a_version_that_another_process_knows_to_be_named_is_waited_for(tmp_path, monkeypatch):
    for version in (1, 2):
        write_bundle(tmp_path / "tiny" / str(version))
    known = Remembered()
    known.name("tiny", 1)
    load, may_go_on = VersionLoader.load, asyncio.Event()

    async def slow_load(self, model, version, *arguments, **options):
        if version == 1:
            await may_go_on.wait()
        return await load(self, model, version, *arguments, **options)

    monkeypatch.setattr(VersionLoader, "load", slow_load)

    async def scenario() -> None:
        repository = Repository(settings_for(tmp_path, versions_kept=1), Metrics(), known)
        scanning = asyncio.create_task(repository.first_scan())
        while not repository.loaded():
            await asyncio.sleep(0.005)
        assert states(repository, "tiny") == {2: "loaded", 1: "loading"}
        asking = asyncio.create_task(repository.load_to_use("tiny", 1))
        await asyncio.sleep(0.05)
        assert not asking.done()
        may_go_on.set()
        assert (await asking).version == 1
        await scanning
        await repository.close()

    run(scenario())


@pytest.mark.parametrize("replaced", [False, True])
def test_a_version_that_requests_name_stays_loaded_when_it_is_loaded_anew(tmp_path, replaced):
    async def scenario() -> None:
        folder = write_bundle(tmp_path / "tiny" / "1", seed=1)
        async with opened(tmp_path, versions_kept=1) as repository:
            async with repository.use("tiny", 1) as named:
                pass
            write_bundle(tmp_path / "tiny" / "2")
            if replaced:
                shutil.rmtree(folder)
                write_bundle(folder, seed=3)
            else:
                await repository.reload(named)
            for _ in range(2):
                await repository.scan()
                assert states(repository, "tiny") == {2: "loaded", 1: "loaded"}
            async with repository.use("tiny", 1) as fresh:
                assert fresh is not named

    run(scenario())


def test_a_version_that_is_listed_as_available_answers_though_others_are_loaded(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        async with opened(tmp_path) as repository:
            write_bundle(tmp_path / "tiny" / "2")
            await repository._bundles.scan()
            assert states(repository, "tiny") == {2: "available", 1: "loaded"}
            async with repository.use("tiny", 2) as served:
                assert served.version == 2

    run(scenario())


def test_an_operator_may_have_a_refused_version_tried_again_though_its_files_are_the_same(tmp_path):
    async def scenario() -> None:
        folder = write_bundle(tmp_path / "tiny" / "1")
        async with opened(tmp_path) as repository:
            (served,) = repository.loaded()
            await repository._bundles.refuse("tiny", 1, served.bundle, RuntimeError("out of memory"))
            await repository.scan()
            assert [entry.is_refused for entry in repository.index()] == [True]
            await repository.load("tiny")
            assert [entry.is_refused for entry in repository.index()] == [False]
            (folder / "encoder.onnx").unlink()
            await repository.scan()
            assert [entry.is_refused for entry in repository.index()] == [True]

    run(scenario())
