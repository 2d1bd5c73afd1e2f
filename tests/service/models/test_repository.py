"""The repository: what is on disk is served, what is broken is named, and nothing else is touched."""

import asyncio
import os
import shutil
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.contract.manifest import read_manifest
from service.errors import (
    ModelRequiredError,
    NotReadyError,
    OverloadedError,
    RefusedModelError,
    UnknownModelError,
)
from service.models import scanner
from service.models.repository import NAMED_S, Repository
from service.models.scanner import find_bundles
from service.observability.metrics import Metrics
from tests.support.live_service import settings_for
from tests.support.tiny_bundle import SIDE, replace_file, rewrite_manifest, write_bundle

needs_permissions = pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")


@asynccontextmanager
async def opened(models: Path | str, **changes: object) -> AsyncIterator[Repository]:
    repository = Repository(settings_for(Path(models), **changes), Metrics())
    try:
        await repository.first_scan()
        yield repository
    finally:
        await repository.close()


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def loaded(repository: Repository) -> list[str]:
    return sorted(one.full_name for one in repository.ready())


async def usable(repository: Repository, model: str) -> bool:
    try:
        async with repository.use(model, None):
            return True
    except NotReadyError:
        return False


def states(repository: Repository, model: str) -> dict[int, str]:
    described = repository.describe(model, manifests=False)["versions"]
    return {version["version"]: version["state"] for version in described}


def test_the_newest_versions_are_loaded_and_the_newest_answers(tmp_path):
    async def scenario() -> None:
        for version in (1, 2, 10):
            write_bundle(tmp_path / "tiny" / str(version))
        async with opened(tmp_path) as repository:
            assert loaded(repository) == ["tiny/10", "tiny/2"]
            async with repository.use("tiny", None) as served:
                assert served.version == 10

    run(scenario())


def test_a_broken_bundle_is_refused_with_its_reason_and_the_others_serve(tmp_path):
    async def scenario() -> None:
        for version in (1, 2, 3):
            write_bundle(tmp_path / "tiny" / str(version))
        (tmp_path / "tiny" / "3" / "encoder.onnx").write_bytes(b"no graph")
        write_bundle(tmp_path / "other" / "1")
        async with opened(tmp_path, default_model="tiny") as repository:
            assert loaded(repository) == ["tiny/1", "tiny/2"]
            newest = repository.describe("tiny", manifests=False)["versions"][0]
            assert (newest["version"], newest["state"]) == (3, "refused")
            assert "sha256" in newest["reason"]
            assert str(tmp_path) not in newest["reason"]
            assert states(repository, "tiny") == {3: "refused", 2: "loaded", 1: "loaded"}

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


def test_with_nothing_but_broken_bundles_the_failure_says_why(tmp_path):
    async def scenario() -> None:
        (write_bundle(tmp_path / "tiny" / "1") / "manifest.json").unlink()
        async with opened(tmp_path) as repository:
            assert "manifest.json" in str(repository.failure)
            with pytest.raises(NotReadyError, match=r"manifest\.json"):
                repository.ready()

    run(scenario())


def test_without_bundles_the_failure_names_the_folders(tmp_path):
    async def scenario() -> None:
        async with opened(tmp_path / "missing") as repository:
            assert str(tmp_path / "missing") in str(repository.failure)
            with pytest.raises(NotReadyError):
                async with repository.use(None, None):
                    pass

    run(scenario())


def test_a_dangling_link_costs_its_version_alone(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        encoder = write_bundle(tmp_path / "tiny" / "2") / "encoder.onnx"
        encoder.unlink()
        encoder.symlink_to("nowhere")
        async with opened(tmp_path) as repository:
            assert states(repository, "tiny") == {2: "refused", 1: "loaded"}
            refused = repository.describe("tiny", manifests=False)["versions"][0]
            assert "encoder.onnx" in refused["reason"]
            write_bundle(tmp_path / "tiny" / "3")
            await repository.scan()
            assert loaded(repository) == ["tiny/1", "tiny/3"]

    run(scenario())


@needs_permissions
@pytest.mark.parametrize("folder", ["tiny/2", "other"])
def test_an_unreadable_folder_costs_itself_alone(tmp_path, folder):
    async def scenario() -> None:
        for bundle in ("tiny/1", "tiny/2", "other/1"):
            write_bundle(tmp_path / bundle)
        (tmp_path / folder).chmod(0)
        try:
            async with opened(tmp_path) as repository:
                assert "tiny/1" in loaded(repository)
                assert len(loaded(repository)) == 2
        finally:
            (tmp_path / folder).chmod(0o755)

    run(scenario())


def test_a_bundle_that_goes_while_it_is_looked_at_is_refused(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        async with opened(tmp_path) as repository:
            found = {1: tmp_path / "tiny" / "1", 2: tmp_path / "tiny" / "2"}
            await repository._bundles.look_at("tiny", found)
            await repository._update("tiny")
            assert states(repository, "tiny") == {2: "refused", 1: "loaded"}

    run(scenario())


def test_what_nobody_thought_of_costs_its_version_alone(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        samples = read_manifest(write_bundle(tmp_path / "tiny" / "2")).samples
        rewrite_manifest(tmp_path / "tiny" / "2", samples=samples.model_copy(update={"file": "\0"}))
        async with opened(tmp_path) as repository:
            assert states(repository, "tiny") == {2: "refused", 1: "loaded"}
            refused = repository.describe("tiny", manifests=False)["versions"][0]
            assert refused["reason"].startswith("ValueError: embedded null byte")

    run(scenario())


def test_folders_that_are_no_versions_are_passed_over(tmp_path):
    for name in ("0", "01", "-1", "1.5", "v2", ".3.tmp", "latest", "1e3", "٣", "9" * 20):
        (tmp_path / "tiny" / name).mkdir(parents=True)
    for name in (".hidden", "lost+found", "Upper", "a b"):
        (tmp_path / name / "1").mkdir(parents=True)
    (tmp_path / "tiny" / "7").write_text("a file")
    (tmp_path / "tiny" / "12").mkdir()
    assert find_bundles((tmp_path,)) == {"tiny": {12: tmp_path / "tiny" / "12"}}


def test_versions_of_several_folders_are_merged_and_the_earlier_folder_wins(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (
        first / "tiny" / "1",
        second / "tiny" / "1",
        second / "tiny" / "2",
        second / "other" / "1",
    ):
        folder.mkdir(parents=True)
    found = find_bundles((tmp_path / "missing", first, second))
    assert found["tiny"] == {1: first / "tiny" / "1", 2: second / "tiny" / "2"}
    assert found["other"] == {1: second / "other" / "1"}


def test_a_path_list_is_served_as_one(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "a" / "tiny" / "1")
        write_bundle(tmp_path / "b" / "tiny" / "2")
        async with opened(f"{tmp_path / 'a'}{os.pathsep}{tmp_path / 'b'}") as repository:
            assert loaded(repository) == ["tiny/1", "tiny/2"]

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


def test_a_refused_bundle_is_tried_again_when_its_files_change(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        manifest = (write_bundle(tmp_path / "tiny" / "2") / "manifest.json").read_bytes()
        (tmp_path / "tiny" / "2" / "manifest.json").unlink()
        async with opened(tmp_path) as repository:
            assert states(repository, "tiny") == {2: "refused", 1: "loaded"}
            (tmp_path / "tiny" / "2" / "manifest.json").write_bytes(manifest)
            await repository.scan()
            assert states(repository, "tiny") == {2: "loaded", 1: "loaded"}

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


def test_a_version_replaced_by_files_of_the_same_size_and_time_is_loaded_anew(tmp_path):
    async def scenario() -> None:
        folder = write_bundle(tmp_path / "models" / "tiny" / "1", seed=1)
        other = write_bundle(tmp_path / "tiny" / "1", seed=2)
        for one in (folder, other):
            for file in one.iterdir():
                os.utime(file, (1, 1))
        assert sizes(folder) == sizes(other)
        async with opened(tmp_path / "models") as repository:
            (before,) = repository.ready()
            folder.rename(tmp_path / "away")
            other.rename(folder)
            await repository.scan()
            (after,) = repository.ready()
            assert after is not before

    run(scenario())


def sizes(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in folder.iterdir()}


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


def test_a_folder_of_models_that_is_away_for_a_while_keeps_what_was_loaded_from_it(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "a" / "tiny" / "1")
        write_bundle(tmp_path / "b" / "other" / "1")
        async with opened(f"{tmp_path / 'a'}{os.pathsep}{tmp_path / 'b'}") as repository:
            before = repository.ready()
            (tmp_path / "b").rename(tmp_path / "away")
            with pytest.raises(OSError, match=str(tmp_path / "b")):
                await repository.scan()
            assert repository.ready() == before
            (tmp_path / "away").rename(tmp_path / "b")
            await repository.scan()
            assert repository.ready() == before

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
            async with asyncio.timeout(10):
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

    def reloaded(self, model: str, version: int) -> None:
        super().reloaded(model, version)
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
        async with asyncio.timeout(10):
            while not repository.loaded():
                await asyncio.sleep(0.01)
        assert repository.failure is None
        metrics.has_failed = False
        write_bundle(tmp_path / "aside" / "tiny" / "2").rename(tmp_path / "tiny" / "2")
        async with asyncio.timeout(10):
            while loaded(repository) != ["tiny/1", "tiny/2"]:
                await asyncio.sleep(0.01)
        assert metrics.has_failed
        assert not watching.done()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await repository.close()

    run(scenario())
    assert any(record.exc_info for record in caplog.records)  # with the place where it happened


def test_closing_leaves_no_thread_behind(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        async with opened(tmp_path):
            assert inference_threads()
        assert not inference_threads()

    run(scenario())


def inference_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("inference-")]


def test_a_model_other_than_the_default_is_loaded_when_it_is_first_asked_for(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        write_bundle(tmp_path / "other" / "1")
        async with opened(tmp_path, default_model="tiny") as repository:
            assert states(repository, "other") == {1: "available"}
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
            async with asyncio.timeout(10):
                while [name for name in inference_threads() if "other" in name]:
                    await asyncio.sleep(0.01)

    run(scenario())


async def the_queue_for(repository: Repository, model: str) -> None:
    """Until somebody waits for the lock on a model, which the test holds."""
    async with asyncio.timeout(10):
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
            with pytest.raises(UnknownModelError, match=r"superseded: .* there are 2, 4"):
                async with repository.use("tiny", 1):
                    pass

    run(scenario())


def test_a_version_that_requests_name_stays_loaded_until_none_has_named_it_for_long(tmp_path):
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
            named.last_named_s -= NAMED_S
            await repository.scan()
            assert states(repository, "tiny") == {3: "loaded", 2: "superseded", 1: "superseded"}

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
            await repository._bundles.look()
            assert states(repository, "tiny") == {2: "available", 1: "loaded"}
            async with repository.use("tiny", 2) as served:
                assert served.version == 2

    run(scenario())


def test_an_operator_may_have_a_refused_version_tried_again_though_its_files_are_the_same(tmp_path):
    async def scenario() -> None:
        folder = write_bundle(tmp_path / "tiny" / "1")
        async with opened(tmp_path) as repository:
            (served,) = repository.loaded()
            repository._bundles.refuse("tiny", 1, served.bundle, OSError("too many open files"))
            await repository.scan()
            assert [entry.is_refused for entry in repository.index()] == [True]
            await repository.load("tiny")
            assert [entry.is_refused for entry in repository.index()] == [False]
            (folder / "encoder.onnx").unlink()
            await repository.scan()
            assert [entry.is_refused for entry in repository.index()] == [True]

    run(scenario())
