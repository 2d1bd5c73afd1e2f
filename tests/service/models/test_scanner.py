"""The scanner: every bundle on disk is found, what is broken is named, and nothing else is touched."""

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from export.contract.manifest import Manifest, Role
from service.errors import NotReadyError, UnknownModelError
from service.inference import loading
from service.inference.loading import check_bundle, load_engine
from service.models import scanner, version_loader
from service.models.scanner import find_bundles
from tests.support.repositories import loaded, opened, run, states
from tests.support.tiny_bundle import write_bundle

needs_permissions = pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")


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


@pytest.mark.parametrize("place", ["odd", "tiny/2"])
def test_an_entry_that_may_not_be_looked_at_costs_itself_alone(tmp_path, caplog, place):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        (tmp_path / place).symlink_to("x" * 300)  # too long to be looked up, by root, too
        async with opened(tmp_path) as repository:
            assert loaded(repository) == ["tiny/1"]
        assert not [line for line in caplog.messages if line.startswith("skipped")]  # at every scan

    run(scenario())


def test_a_bundle_that_goes_while_it_is_looked_at_is_refused(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        async with opened(tmp_path) as repository:
            found = {1: tmp_path / "tiny" / "1", 2: tmp_path / "tiny" / "2"}
            await repository._bundles._check_versions("tiny", found, again=False, named=())
            await repository._update("tiny")
            assert states(repository, "tiny") == {2: "refused", 1: "loaded"}

    run(scenario())


def test_of_a_model_not_loaded_yet_the_newest_version_that_may_be_served_is_described(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "other" / "1")
        for version in (1, 2, 3):
            folder = write_bundle(tmp_path / "tiny" / str(version))
            if version > 1:
                (folder / "encoder.onnx").write_bytes(b"no graph")
        async with opened(tmp_path, default_model="other", versions_kept=1) as repository:
            for _ in range(2):
                described = repository.describe("tiny", manifests=True)["versions"]
                assert [version["state"] for version in described] == ["refused", "refused", "available"]
                assert [version["default"] for version in described] == [False, False, True]
                assert described[-1]["manifest"]["model"] == "tiny"
                await repository.scan()

    run(scenario())


def test_a_version_that_was_loaded_during_a_slow_scan_stays_loaded(tmp_path, monkeypatch):
    """The scan has listed the folders before the version was there."""
    reading, go_on = threading.Event(), threading.Event()
    check = scanner.check_bundle

    def slow_check(path: Path, model: str):
        if path.parent.name == "slow":
            reading.set()
            assert go_on.wait(60)
        return check(path, model)

    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        async with opened(tmp_path, versions_kept=1) as repository:
            monkeypatch.setattr(scanner, "check_bundle", slow_check)
            write_bundle(tmp_path / "slow" / "1")
            scan = asyncio.create_task(repository.scan())
            await asyncio.to_thread(reading.wait, 60)
            write_bundle(tmp_path / "tiny" / "2")
            await repository.load("tiny")
            go_on.set()
            await scan
            assert loaded(repository) == ["tiny/2"]

    run(scenario())


@pytest.mark.parametrize("name", ["../outside", "x" * 300, "a\0b", "unknown"])
def test_a_name_that_no_model_has_is_no_path_and_leaves_nothing(tmp_path, caplog, name):
    async def scenario() -> None:
        write_bundle(tmp_path / "models" / "tiny" / "1")
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside" / "traffic.json").write_text("{")
        async with opened(tmp_path / "models") as repository:
            with pytest.raises(UnknownModelError, match="no model"):
                await repository.load(name)
            assert not repository._bundles.traffic
            assert [record for record in caplog.records if record.levelname != "INFO"] == []

    run(scenario())


def test_a_scan_looks_into_each_folder_twice_however_many_there_are(tmp_path, monkeypatch):
    async def scenario() -> None:
        for number in range(8):
            write_bundle(tmp_path / f"tiny{number}" / "1")
        async with opened(tmp_path) as repository:
            listed: list[Path] = []
            iterdir = Path.iterdir
            monkeypatch.setattr(Path, "iterdir", lambda path: (listed.append(path), iterdir(path))[1])
            await repository.scan()
            folders = [path for path in listed if path == tmp_path or path.parent == tmp_path]
            assert len(folders) <= 1 + 2 * 8

    run(scenario())


def test_versions_that_are_gone_are_waited_for_once(tmp_path, monkeypatch):
    waited: list[float] = []

    async def note(seconds: float) -> None:
        waited.append(seconds)

    async def scenario() -> None:
        for number in range(4):
            write_bundle(tmp_path / f"tiny{number}" / "1")
        async with opened(tmp_path) as repository:
            for number in range(3):
                shutil.rmtree(tmp_path / f"tiny{number}" / "1")
            monkeypatch.setattr(scanner.asyncio, "sleep", note)
            await repository.scan()
            assert waited == [scanner.RESCAN_MISSING_S]
            assert repository.names() == ["tiny3"]

    run(scenario())


def test_a_model_is_not_taken_down_by_a_load_while_its_folder_is_away(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "models" / "tiny" / "1")
        async with opened(tmp_path / "models") as repository:
            (tmp_path / "models").rename(tmp_path / "away")
            with pytest.raises(NotReadyError, match="what is on disk of 'tiny' cannot be looked at"):
                await repository.load("tiny")
            assert loaded(repository) == ["tiny/1"]

    run(scenario())


def test_what_nobody_thought_of_costs_its_version_alone(tmp_path, monkeypatch):
    read_graphs = loading._read_graphs

    def read(bundle: Path, manifest: Manifest) -> dict[Role, bytes]:
        if bundle.name == "2":
            raise ZeroDivisionError("division by zero")
        return read_graphs(bundle, manifest)

    monkeypatch.setattr(loading, "_read_graphs", read)

    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        write_bundle(tmp_path / "tiny" / "2")
        async with opened(tmp_path) as repository:
            assert states(repository, "tiny") == {2: "refused", 1: "loaded"}
            refused = repository.describe("tiny", manifests=False)["versions"][0]
            assert refused["reason"].startswith("ZeroDivisionError: division by zero")

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


def test_a_folder_that_is_not_there_yet_is_told_once(tmp_path, caplog):
    async def scenario() -> None:
        write_bundle(tmp_path / "a" / "tiny" / "1")
        async with opened(f"{tmp_path / 'a'}{os.pathsep}{tmp_path / 'b'}") as repository:
            await repository.scan()
            write_bundle(tmp_path / "b" / "tiny" / "2")
            await repository.scan()
            assert loaded(repository) == ["tiny/1", "tiny/2"]
        told = [line for line in caplog.messages if line.startswith("there is no folder")]
        assert told == [
            f"there is no folder {tmp_path / 'b'} (CAPSNET_MODELS); its bundles are served once it is"
        ]

    run(scenario())


def test_a_folder_that_cannot_be_listed_is_told_once_until_it_can_be(tmp_path, caplog):
    async def scenario() -> None:
        write_bundle(tmp_path / "a" / "tiny" / "1")
        folder = tmp_path / "b"
        folder.symlink_to("x" * 300)  # too long to be looked up, by root, too
        async with opened(f"{tmp_path / 'a'}{os.pathsep}{folder}") as repository:
            await repository.scan()
            assert caplog.text.count(f"skipped {folder}") == 1
            folder.unlink()
            await repository.scan()
            folder.symlink_to("x" * 300)
            await repository.scan()
            assert caplog.text.count(f"skipped {folder}") == 2

    run(scenario())


def test_a_path_list_is_served_as_one(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "a" / "tiny" / "1")
        write_bundle(tmp_path / "b" / "tiny" / "2")
        async with opened(f"{tmp_path / 'a'}{os.pathsep}{tmp_path / 'b'}") as repository:
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


def test_a_bundle_that_could_not_be_read_is_tried_again_at_each_look_and_logged_once(
    tmp_path, monkeypatch, caplog
):
    def check_but_one(bundle: Path, model: str) -> Manifest:
        if bundle.name == "2":
            raise OSError(errno.EIO, "Input/output error")
        return check_bundle(bundle, model)

    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        write_bundle(tmp_path / "tiny" / "2")
        monkeypatch.setattr(scanner, "check_bundle", check_but_one)
        async with opened(tmp_path) as repository:
            await repository.scan()
            await repository.scan()
            assert states(repository, "tiny") == {2: "refused", 1: "loaded"}
            assert caplog.text.count("refused tiny/2") == 1
            monkeypatch.setattr(scanner, "check_bundle", check_bundle)
            await repository.scan()
            assert states(repository, "tiny") == {2: "loaded", 1: "loaded"}

    run(scenario())


def test_a_folder_that_is_away_while_it_is_loaded_is_tried_again_when_it_is_back(tmp_path, monkeypatch):
    def load_while_away(bundle: Path, *arguments: object) -> object:
        if bundle.name == "2":
            bundle.rename(tmp_path / "away")
        return load_engine(bundle, *arguments)

    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        async with opened(tmp_path) as repository:
            folder = write_bundle(tmp_path / "tiny" / "2")
            monkeypatch.setattr(version_loader, "load_engine", load_while_away)
            await repository.scan()
            assert states(repository, "tiny") == {2: "refused", 1: "loaded"}
            monkeypatch.setattr(version_loader, "load_engine", load_engine)
            (tmp_path / "away").rename(folder)
            await repository.scan()
            assert states(repository, "tiny") == {2: "loaded", 1: "loaded"}

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


@pytest.mark.parametrize("call", ["iterdir", "stat"])
def test_a_folder_that_cannot_be_read_for_a_while_loses_nothing(tmp_path, monkeypatch, call):
    def fail_for_one(path: Path, **options: bool) -> object:
        if path.name == "tiny":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return working(path, **options)

    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        async with opened(tmp_path) as repository:
            before = repository.ready()
            with monkeypatch.context() as faulty:
                faulty.setattr(Path, call, fail_for_one)
                write_bundle(tmp_path / "other" / "1")
                await repository.scan()
                await repository.load("tiny")
            assert repository.ready() == before
            assert states(repository, "other") == {1: "available"}
            shutil.rmtree(tmp_path / "tiny")
            await repository.scan()
            assert "tiny/1" not in loaded(repository)

    working = getattr(Path, call)
    run(scenario())


def test_a_model_that_is_loaded_while_the_folder_of_models_cannot_be_listed_stays(tmp_path, monkeypatch):
    def fail_for_one(path: Path) -> Iterator[Path]:
        if path == tmp_path:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return working(path)

    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        async with opened(tmp_path) as repository:
            before = repository.ready()
            monkeypatch.setattr(Path, "iterdir", fail_for_one)
            await repository.load("tiny")
            assert repository.ready() == before

    working = Path.iterdir
    run(scenario())
