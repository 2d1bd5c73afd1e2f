"""Which version answers a request that names none."""

import asyncio
import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from service.errors import NotReadyError, NotWritableError, RefusedModelError, UnknownModelError
from service.models import traffic
from service.models.repository import Repository
from service.models.scanner import Bundles
from service.models.traffic import (
    FILE,
    Traffic,
    UnreadableTraffic,
    choose,
    choose_for_many,
    loading_order,
    order_for_many,
    read_traffic,
    write_traffic,
)
from service.models.version_loader import VersionLoader
from tests.support.repositories import loaded, opened, run, states
from tests.support.tiny_bundle import replace_file, write_bundle

PINNED = Traffic(pinned=2)
CANARY = Traffic(canary=3, share=0.25)
BOTH = Traffic(pinned=1, canary=3, share=0.25)


def drawing(number: float):
    return lambda: number


def write(models: Path, text: str) -> None:
    (models / "tiny" / FILE).write_text(text)


async def answering(repository: Repository, version: int | None = None) -> int:
    async with repository.use("tiny", version) as served:
        return served.version


@pytest.mark.parametrize(
    ("rule", "draw", "chosen"),
    [
        (None, 0.0, 3),
        (PINNED, 0.0, 2),
        (CANARY, 0.24, 3),
        (CANARY, 0.25, 2),
        (BOTH, 0.24, 3),
        (BOTH, 0.25, 1),
        (Traffic(canary=1, share=0.5), 0.9, 3),
        (Traffic(canary=3, share=0.0), 0.0, 2),
        (Traffic(canary=3, share=1.0), 0.999, 3),
        (UnreadableTraffic("broken"), 0.0, None),
        (Traffic(pinned=9), 0.0, None),
        (Traffic(canary=9, share=1.0), 0.0, 3),
        (Traffic(pinned=9, canary=3, share=0.25), 0.24, 3),
    ],
)
def test_the_rule_and_one_draw_choose_among_what_is_loaded(rule, draw, chosen):
    assert choose(rule, {1, 2, 3}, drawing(draw)) == chosen


def test_a_canary_that_is_alone_answers_everything_and_nothing_answers_where_nothing_is_loaded():
    assert choose(CANARY, {3}, drawing(0.9)) == 3
    assert [choose(rule, {}, drawing(0.0)) for rule in (None, PINNED, CANARY)] == [None] * 3


def test_draws_follow_the_share():
    traffic.random.seed(0)
    answers = [choose(CANARY, {2, 3}) for _ in range(4000)]
    assert 0.2 < answers.count(3) / 4000 < 0.3


@pytest.mark.parametrize(
    ("rule", "order"),
    [
        (None, [3, 2, 1]),
        (PINNED, [2]),
        (Traffic(pinned=9), []),
        (Traffic(canary=3, share=0.4), [2, 1, 3]),
        (Traffic(canary=1, share=0.6), [1, 3, 2]),
        (Traffic(pinned=1, canary=3, share=0.25), [1]),
        (Traffic(pinned=1, canary=3, share=1.0), [3, 1]),
    ],
)
def test_images_that_belong_together_get_the_version_that_answers_most_requests(rule, order):
    assert order_for_many(rule, (1, 2, 3)) == order
    assert choose_for_many(rule, {1, 2, 3}) == (order[0] if order else None)


def test_a_pinned_version_is_loaded_first_and_a_canary_last():
    assert loading_order(None, {1, 2, 3}) == [3, 2, 1]
    assert loading_order(PINNED, {1, 2, 3}) == [2, 3, 1]
    assert loading_order(BOTH, {1, 2, 3, 4}) == [1, 4, 2, 3]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"pinned": 0},
        {"pinned": True},
        {"pinned": 1.5},
        {"pinned": 10**9},
        {"canary": 2},
        {"share": 0.5},
        {"pinned": 1, "share": 0.5},
        {"pinned": 2, "canary": 2, "share": 0.5},
        {"canary": 2, "share": 1.01},
        {"canary": 2, "share": -0.01},
        {"canary": 2, "share": float("nan")},
        {"pinned": 1, "version": 2},
    ],
)
def test_what_is_no_rule_is_refused(given):
    with pytest.raises(ValidationError):
        Traffic.model_validate(given)


def test_a_rule_is_written_where_one_is_or_where_the_versions_are(tmp_path):
    folders = [tmp_path / "image" / "tiny", tmp_path / "volume" / "tiny"]
    folders[1].mkdir(parents=True)
    write_traffic(folders, PINNED)
    assert [path.name for path in folders[1].iterdir()] == [FILE]
    assert read_traffic(folders) == PINNED
    write_traffic(folders[:1], CANARY)
    assert read_traffic(folders) == CANARY
    write_traffic(folders, BOTH)
    assert (read_traffic(folders), read_traffic(folders[1:])) == (BOTH, PINNED)
    write_traffic(folders, None)
    assert read_traffic(folders) is None


def test_a_rule_is_on_the_disk_before_it_takes_its_place(tmp_path, monkeypatch):
    fsync, replaced_at_sync = os.fsync, []

    def sync(descriptor: int) -> None:
        replaced_at_sync.append((tmp_path / FILE).exists())
        assert os.fstat(descriptor).st_size > 0  # after a power failure, all of it is there
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    write_traffic([tmp_path], PINNED)
    assert replaced_at_sync == [False]
    assert read_traffic([tmp_path]) == PINNED


def test_two_services_may_write_a_rule_at_once(tmp_path, monkeypatch):
    fsync = os.fsync

    def write_meanwhile(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        write_traffic([tmp_path], CANARY)

    monkeypatch.setattr(os, "fsync", write_meanwhile)
    write_traffic([tmp_path], PINNED)
    assert read_traffic([tmp_path]) == PINNED
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_a_rule_that_cannot_be_removed_everywhere_still_holds(tmp_path):
    folders = [tmp_path / "image" / "tiny", tmp_path / "volume" / "tiny"]
    write_traffic(folders[:1], PINNED)
    (folders[1] / FILE).mkdir(parents=True)  # as one that must not be removed
    with pytest.raises(OSError, match="volume"):
        write_traffic(folders, None)
    assert read_traffic(folders) == PINNED


def test_where_the_folder_of_the_versions_cannot_be_written_another_one_is(tmp_path):
    (tmp_path / "image").write_text("no folder")  # a folder of root's would not keep root from writing
    folders = [tmp_path / "image" / "tiny", tmp_path / "volume" / "tiny"]
    write_traffic(folders, PINNED)
    assert read_traffic(folders) == PINNED
    with pytest.raises(OSError, match="image"):
        write_traffic(folders[:1], PINNED)


def test_a_pinned_version_answers_however_many_newer_ones_are_published(tmp_path):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        async with opened(tmp_path, versions_kept=1) as repository:
            await repository.set_traffic("tiny", Traffic(pinned=1))
            for version in (2, 3):
                write_bundle(tmp_path / "tiny" / str(version))
                await repository.scan()
                assert await answering(repository) == 1
            assert states(repository, "tiny") == {3: "loaded", 2: "superseded", 1: "loaded"}
            assert await answering(repository, 3) == 3
            assert repository.describe("tiny", manifests=False)["traffic"] == {"pinned": 1}
            await repository.set_traffic("tiny", None)
            assert await answering(repository) == 3
            assert "traffic" not in repository.describe("tiny", manifests=False)

    run(scenario())


def test_an_old_version_is_loaded_before_it_is_pinned(tmp_path, monkeypatch):
    async def scenario() -> None:
        for version in (1, 2, 3):
            write_bundle(tmp_path / "tiny" / str(version))
        async with opened(tmp_path, versions_kept=1) as repository:
            assert loaded(repository) == ["tiny/3"]
            seen: list[tuple[list[str], int]] = []

            def note() -> None:
                loaded_now = {one.version: one for one in repository.loaded()}
                seen.append((sorted(loaded_now), choose(repository.traffic.get("tiny"), loaded_now)))

            repository.on_change = note
            await repository.set_traffic("tiny", Traffic(pinned=1))
            assert await answering(repository) == 1
            assert {answered for _, answered in seen} == {1}  # and never None: what is pinned is loaded

    run(scenario())


def test_a_rule_outlives_the_service_and_holds_from_the_first_version_on(tmp_path):
    async def scenario() -> None:
        for version in (1, 2):
            write_bundle(tmp_path / "tiny" / str(version))
        async with opened(tmp_path) as repository:
            await repository.set_traffic("tiny", Traffic(pinned=1))
        async with opened(tmp_path, default_model="other") as repository:
            first = await asyncio.gather(*(answering(repository) for _ in range(5)))
            assert first == [1] * 5
            assert states(repository, "tiny") == {2: "loaded", 1: "loaded"}

    run(scenario())


def test_a_canary_gets_its_share_and_names_still_count(tmp_path, monkeypatch):
    async def scenario() -> None:
        for version in (1, 2):
            write_bundle(tmp_path / "tiny" / str(version))
        async with opened(tmp_path) as repository:
            await repository.set_traffic("tiny", Traffic(canary=2, share=0.5))
            traffic.random.seed(0)
            assert {await answering(repository) for _ in range(50)} == {1, 2}
            assert await answering(repository, 1) == 1

    run(scenario())


def test_a_rule_that_somebody_else_writes_holds_after_the_next_look(tmp_path):
    async def scenario() -> None:
        for version in (1, 2):
            write_bundle(tmp_path / "tiny" / str(version))
        async with opened(tmp_path) as repository:
            write(tmp_path, '{"pinned": 1}')
            await repository.scan()
            assert await answering(repository) == 1
            (tmp_path / "tiny" / FILE).unlink()
            await repository.scan()
            assert await answering(repository) == 2

    run(scenario())


@pytest.mark.parametrize("text", ["", "{", '{"pinned": 0}', '{"canary": 2, "share": NaN}', '["pinned"]'])
def test_a_broken_file_changes_nothing_and_is_logged_once(tmp_path, caplog, text):
    async def scenario() -> None:
        for version in (1, 2):
            write_bundle(tmp_path / "tiny" / str(version))
        async with opened(tmp_path) as repository:
            await repository.set_traffic("tiny", Traffic(pinned=1))
            write(tmp_path, text)
            for _ in range(2):
                await repository.scan()
                assert await answering(repository) == 1
            assert caplog.text.count("the traffic of tiny stays as it was") == 1
            assert FILE in caplog.text
            described = repository.describe("tiny", manifests=False)
            assert described["traffic"] == {"pinned": 1}
            assert FILE in described["traffic_error"]
            assert "until a restart, requests go as they did before" in described["traffic_error"]
            write(tmp_path, '{"pinned": 2}')
            await repository.scan()
            assert "traffic_error" not in repository.describe("tiny", manifests=False)

    run(scenario())


@pytest.mark.parametrize("text", ["", "{", '{"pinned": 0}'])
def test_with_a_file_that_is_broken_at_the_start_no_version_answers_until_it_is_mended(
    tmp_path, caplog, text
):
    async def scenario() -> None:
        for version in (1, 2):
            write_bundle(tmp_path / "tiny" / str(version))
        write(tmp_path, text)
        async with opened(tmp_path) as repository:
            for _ in range(2):
                with pytest.raises(NotReadyError, match=rf"cannot be read; .*{FILE}"):
                    await answering(repository)
                assert await answering(repository, 1) == 1
                await repository.scan()
            assert caplog.text.count("no version of tiny answers requests that name none") == 1
            assert FILE in repository.describe("tiny", manifests=False)["traffic_error"]
            write(tmp_path, '{"pinned": 1}')
            await repository.scan()
            assert await answering(repository) == 1
            assert "traffic_error" not in repository.describe("tiny", manifests=False)

    run(scenario())


@pytest.mark.parametrize(("rule", "answers"), [(Traffic(pinned=1), 1), (None, 2)])
def test_a_rule_that_is_set_replaces_a_file_that_is_broken_at_the_start(tmp_path, rule, answers):
    async def scenario() -> None:
        for version in (1, 2):
            write_bundle(tmp_path / "tiny" / str(version))
        write(tmp_path, "{")
        async with opened(tmp_path) as repository:
            await repository.set_traffic("tiny", rule)
            assert await answering(repository) == answers
        assert read_traffic([tmp_path / "tiny"]) == rule

    run(scenario())


def test_a_rule_that_cannot_hold_leaves_a_broken_file_broken(tmp_path):
    async def scenario() -> None:
        for version in (1, 2):
            write_bundle(tmp_path / "tiny" / str(version))
        replace_file(tmp_path / "tiny" / "1", "samples", b"no archive")  # noticed when it is loaded
        write(tmp_path, "{")
        async with opened(tmp_path, versions_kept=1) as repository:
            with pytest.raises(RefusedModelError, match="samples"):
                await repository.set_traffic("tiny", Traffic(canary=1, share=0.1))
            for _ in range(2):
                with pytest.raises(NotReadyError, match="cannot be read"):
                    await answering(repository)
                await repository.scan()
        async with opened(tmp_path, versions_kept=1) as repository:
            with pytest.raises(NotReadyError, match="cannot be read"):
                await answering(repository)

    run(scenario())


def test_a_rule_on_disk_that_pins_what_cannot_be_loaded_does_not_hold_and_says_so(tmp_path, caplog):
    async def scenario() -> None:
        write_bundle(tmp_path / "tiny" / "1")
        async with opened(tmp_path) as repository:
            write(tmp_path, '{"pinned": 77}')
            for _ in range(2):
                await repository.scan()
            assert await answering(repository) == 1
            described = repository.describe("tiny", manifests=False)
            assert described["traffic"] == {"pinned": 77}
            assert described["traffic_error"].startswith(
                "requests to tiny that name no version still go to the newest: tiny has no loaded version 77"
            )
            warnings = [line for line in caplog.messages if "still go to the newest" in line]
            assert len(warnings) == 1  # though it was scanned twice
            assert not any("go to version 77" in line for line in caplog.messages)
            write_bundle(tmp_path / "tiny" / "77")
            await repository.scan()
            assert await answering(repository) == 77
            assert "traffic_error" not in repository.describe("tiny", manifests=False)

    run(scenario())


def test_a_rule_that_does_not_hold_leaves_the_version_that_the_one_before_pins(tmp_path):
    async def scenario() -> None:
        for version in ("1", "2", "3"):
            write_bundle(tmp_path / "tiny" / version)
        async with opened(tmp_path, versions_kept=1) as repository:
            await repository.set_traffic("tiny", Traffic(pinned=1))
            assert states(repository, "tiny") == {3: "loaded", 2: "superseded", 1: "loaded"}
            write(tmp_path, '{"pinned": 77}')
            for _ in range(2):
                await repository.scan()
                assert await answering(repository) == 1
            write(tmp_path, '{"pinned": 2}')
            await repository.scan()
            assert await answering(repository) == 2
            assert loaded(repository) == ["tiny/2", "tiny/3"]

    run(scenario())


def test_a_pinned_version_that_is_gone_is_an_error_and_no_other_one_answers(tmp_path):
    async def scenario() -> None:
        for version in (1, 2):
            write_bundle(tmp_path / "tiny" / str(version))
        async with opened(tmp_path) as repository:
            await repository.set_traffic("tiny", Traffic(pinned=1))
            (tmp_path / "tiny" / "1").rename(tmp_path / "aside")
            await repository.scan()
            with pytest.raises(NotReadyError, match=r"pinned to version 1: .* available: 2"):
                await answering(repository)
            assert await answering(repository, 2) == 2
            (tmp_path / "aside").rename(tmp_path / "tiny" / "1")
            await repository.scan()
            assert await answering(repository) == 1

    run(scenario())


def test_a_rule_that_cannot_hold_is_refused_and_the_one_before_stays(tmp_path):
    async def scenario() -> None:
        for version in (1, 2, 3):
            write_bundle(tmp_path / "tiny" / str(version))
        replace_file(tmp_path / "tiny" / "2", "samples", b"no archive")  # noticed when it is loaded
        async with opened(tmp_path, versions_kept=1) as repository:
            await repository.set_traffic("tiny", Traffic(pinned=1))
            for rule, error, why in (
                (Traffic(pinned=9), UnknownModelError, "no version 9; available: 1, 2, 3$"),
                (Traffic(canary=9, share=0.1), UnknownModelError, "no version 9"),
                (Traffic(pinned=2), RefusedModelError, "samples"),
                (Traffic(pinned=1, canary=2, share=0.1), RefusedModelError, "samples"),
                (Traffic(pinned=8), UnknownModelError, "no version 8; available: 1, 3$"),
            ):
                with pytest.raises(error, match=why):
                    await repository.set_traffic("tiny", rule)
                assert read_traffic([tmp_path / "tiny"]) == Traffic(pinned=1)
                assert await answering(repository) == 1
            with pytest.raises(UnknownModelError, match="no model 'none'"):
                await repository.set_traffic("none", PINNED)

    run(scenario())


def test_a_file_with_a_version_that_cannot_be_loaded_leaves_the_service_as_it_is(tmp_path):
    async def scenario() -> None:
        for version in (1, 2):
            write_bundle(tmp_path / "tiny" / str(version))
        replace_file(tmp_path / "tiny" / "1", "samples", b"no archive")
        async with opened(tmp_path, versions_kept=1) as repository:
            write(tmp_path, '{"pinned": 1}')
            await repository.scan()
            assert await answering(repository) == 2
        async with opened(tmp_path, versions_kept=1) as repository:
            with pytest.raises(NotReadyError, match="pinned to version 1"):
                await answering(repository)

    run(scenario())


def test_a_folder_that_cannot_be_written_is_an_error_that_says_so(tmp_path, monkeypatch):
    async def scenario() -> None:
        for version in (1, 2):
            write_bundle(tmp_path / "tiny" / str(version))
        async with opened(tmp_path) as repository:
            (tmp_path / "tiny" / FILE).mkdir()  # in the place of the file; root may write into any folder
            with pytest.raises(NotWritableError, match=FILE):
                await repository.set_traffic("tiny", Traffic(pinned=1))
            assert await answering(repository) == 2
            assert sorted(path.name for path in (tmp_path / "tiny").iterdir()) == ["1", "2", FILE]

    run(scenario())


def test_of_two_rules_at_a_time_the_later_one_stands(tmp_path):
    async def scenario() -> None:
        for version in (1, 2, 3):
            write_bundle(tmp_path / "tiny" / str(version))
        async with opened(tmp_path, versions_kept=1) as repository:
            async with repository._inventory.changing["tiny"]:  # as while a new version is loaded
                rules = [
                    asyncio.create_task(repository.set_traffic("tiny", Traffic(pinned=v))) for v in (2, 1)
                ]
                await asyncio.sleep(0.2)
            await asyncio.gather(*rules)
            assert read_traffic([tmp_path / "tiny"]) == Traffic(pinned=1)
            assert await answering(repository) == 1

    run(scenario())


def test_a_rule_that_cannot_hold_is_refused_for_its_reason_though_the_model_is_taken_down_meanwhile(
    tmp_path, monkeypatch
):
    async def scenario() -> None:
        for version in (1, 2):
            write_bundle(tmp_path / "tiny" / str(version))
        replace_file(tmp_path / "tiny" / "1", "samples", b"no archive")  # noticed when it is loaded
        async with opened(tmp_path, versions_kept=1) as repository:
            rules = []
            write_rule = Bundles.set_traffic

            async def set_traffic(bundles, model, rule):
                rules.append(rule)
                await write_rule(bundles, model, rule)
                if len(rules) == 2:  # the rule before is back
                    await repository.unload(model)

            monkeypatch.setattr(Bundles, "set_traffic", set_traffic)
            with pytest.raises(RefusedModelError, match="samples"):
                await repository.set_traffic("tiny", Traffic(pinned=1))
            assert not repository.loaded()

    run(scenario())


@pytest.mark.parametrize("sound", [True, False], ids=["another one is sound", "none is"])
def test_a_version_that_cannot_be_loaded_is_not_pinned_before_the_first_request_either(tmp_path, sound):
    async def scenario() -> None:
        write_bundle(tmp_path / "other" / "1")
        for version in (1, 2):
            folder = write_bundle(tmp_path / "tiny" / str(version))
            if version == 2 or not sound:
                replace_file(folder, "samples", b"no archive")  # noticed when it is loaded
        async with opened(tmp_path, default_model="other") as repository:
            assert states(repository, "tiny") == {2: "available", 1: "available"}
            with pytest.raises(RefusedModelError, match="samples"):
                await repository.set_traffic("tiny", Traffic(pinned=2))
            assert not (tmp_path / "tiny" / FILE).exists()
            assert "traffic" not in repository.describe("tiny", manifests=False)
            if sound:
                assert await answering(repository) == 1
                await repository.set_traffic("tiny", Traffic(pinned=1))
                assert repository.describe("tiny", manifests=False)["traffic"] == {"pinned": 1}
            else:
                assert loaded(repository) == ["other/1"]

    run(scenario())


def test_a_rule_is_taken_back_where_the_device_is_away(tmp_path, monkeypatch):
    async def no_device(*_, **__):
        raise NotReadyError("there is no CUDA device")

    async def scenario() -> None:
        write_bundle(tmp_path / "other" / "1")
        write_bundle(tmp_path / "tiny" / "1")
        async with opened(tmp_path, default_model="other") as repository:
            with monkeypatch.context() as patch:
                patch.setattr(VersionLoader, "load", no_device)
                with pytest.raises(NotReadyError, match="no CUDA device"):
                    await repository.set_traffic("tiny", Traffic(pinned=1))
            assert not (tmp_path / "tiny" / FILE).exists()
            await repository.set_traffic("tiny", Traffic(pinned=1))
            assert await answering(repository) == 1

    run(scenario())


def test_a_model_taken_down_while_it_is_pinned_answers_by_the_rule_once_it_is_loaded_again(tmp_path):
    async def scenario() -> None:
        for version in (1, 2, 3):
            write_bundle(tmp_path / "tiny" / str(version))
        async with opened(tmp_path, versions_kept=1) as repository:
            pinning = asyncio.create_task(repository.set_traffic("tiny", Traffic(pinned=1)))
            while states(repository, "tiny")[1] != "loading":
                await asyncio.sleep(0)
            await repository.unload("tiny")
            await pinning
            await repository.load("tiny")
            assert await answering(repository) == 1

    run(scenario())
