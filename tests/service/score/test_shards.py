"""Shards: together the pictures of --local, in the same order; no pair is cut; each can be read alone."""

import os
import pickle
import zipfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.score.picture_stream import Picture, PictureReadError
from service.score.query import ScoreError
from service.score.shards import FileShard, RowShard, Shard, find_shards, shown_place
from service.score.sources import Sources
from tests.support.small_pictures import random_png

LIMIT = 2**20


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pictures in a folder and its subfolders, among other files; it is in the working directory."""
    names = ("b.png", "a.jpg", "c/2.png", "c/1.png", "c/d/0.png", "c.d/9.png", "z.PNG")
    for name in (*names, ".hidden.png", ".git/x.png", "notes.txt", "old.zip"):
        path = tmp_path / "pictures" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    monkeypatch.chdir(tmp_path)
    return tmp_path / "pictures"


def write_parquet(path: Path, rows: int, group: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    images = pa.array([random_png(n) for n in range(rows)], pa.binary())
    pq.write_table(pa.table({"image": images}), path, row_group_size=group)
    return path


def shards(*arguments: object, size: int = 3, **columns: str | None) -> list[Shard]:
    found = find_shards(
        [str(argument) for argument in arguments], size, columns.get("image"), columns.get("ids")
    )
    return pickle.loads(pickle.dumps(found))  # as another process gets them


def pictures(found: list[Shard]) -> Iterator[Picture]:
    for shard in found:
        yield from shard.pictures(None, None)


def read(found: Iterator[Picture]) -> list[tuple[str, bytes, str | None]]:
    return [(one.name, one.read(LIMIT), one.source) for one in found]


def test_the_shards_of_a_folder_are_the_pictures_of_local_in_its_order(folder):
    for argument in ("pictures", "pictures/", folder, "./pictures/../pictures", "."):
        expected = read(iter(Sources([str(argument)]).pictures()))
        assert read(pictures(shards(argument))) == expected
        assert len(expected) == 7


def test_another_process_needs_no_working_directory(folder, tmp_path, monkeypatch):
    found = shards("pictures", "pictures/b.png")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    names = [name for name, content, _ in read(pictures(found))]
    assert names[0] == "pictures/a.jpg"
    assert len(names) == 8


def test_files_and_patterns_are_named_as_in_local_and_share_shards(folder, monkeypatch):
    monkeypatch.chdir(folder)
    for arguments in (["b.png", "c/1.png", "a.jpg"], ["c/*.png", "*.png"], [str(folder / "notes.txt")]):
        assert read(pictures(shards(*arguments))) == read(iter(Sources(arguments).pictures()))
    assert [shard.rows for shard in shards("*.png", "c/*.png", size=9)] == [1, 2]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_no_pair_is_cut(tmp_path, size):
    counts = {"a": 4, "b": 1, "c": 1, "d": 7, "e": 2}
    for name, count in counts.items():
        for n in range(count):
            path = tmp_path / name / f"{n}.png"
            path.parent.mkdir(exist_ok=True)
            path.touch()
    found = shards(tmp_path, size=size)
    assert sum(shard.rows for shard in found) == sum(counts.values())
    seen = dict.fromkeys(counts, 0)
    for shard in found:
        assert shard.rows <= size + 1
        for source, together in groupby(
            shard.pictures(None, None), lambda picture: Path(picture.source).name
        ):
            assert seen[source] % 2 == 0
            seen[source] += len(list(together))


@pytest.mark.parametrize(
    ("rows", "group", "cut"),
    [(0, 4, []), (1, 4, [1]), (12, 4, [4, 4, 4]), (13, 3, [6, 6, 1]), (13, 2, [4, 4, 4, 1]), (7, 100, [7])],
)
def test_the_shards_of_a_parquet_file_are_its_rows(tmp_path, rows, group, cut):
    path = write_parquet(tmp_path / "set.parquet", rows, group)
    (tmp_path / "1.png").write_bytes(b"1")
    found = [shard for shard in shards(path, tmp_path / "1.png", size=4) if isinstance(shard, RowShard)]
    assert [shard.rows for shard in found] == cut
    expected = Sources([str(path)]).pictures() if rows else ()
    assert read(pictures(found)) == read(iter(expected))
    assert all(shard.first_row % 2 == 0 for shard in found)


def test_parquet_files_in_a_folder_count(tmp_path):
    write_parquet(tmp_path / "set" / "a" / "0.parquet", 5, 2)
    write_parquet(tmp_path / "set" / "1.pq", 2, 2)
    (tmp_path / "set" / "0.png").write_bytes(b"0")
    found = shards(tmp_path / "set", size=100)
    assert [(type(shard), shard.rows) for shard in found] == [(FileShard, 1), (RowShard, 2), (RowShard, 5)]


def test_a_file_that_is_no_parquet_is_reported_like_a_picture(tmp_path):
    (tmp_path / "set.parquet").write_bytes(b"nothing of the kind")
    ((picture,),) = [list(shard.pictures(None, None)) for shard in shards(tmp_path / "set.parquet")]
    with pytest.raises(PictureReadError, match="the Parquet file cannot be read"):
        picture.read(LIMIT)


def test_a_file_that_could_not_be_cut_is_reported_though_it_can_be_read_later(tmp_path):
    path = tmp_path / "set.parquet"
    path.write_bytes(b"half of it, as a share gave it")
    [shard] = shards(path)
    write_parquet(path, 3, 3)
    [picture] = shard.pictures(None, None)
    with pytest.raises(PictureReadError, match="the Parquet file cannot be read"):
        picture.read(LIMIT)


def test_addresses_are_read_and_name_their_rows(folder, tmp_path):
    write_parquet(tmp_path / "set.parquet", 3, 3)
    found = shards(f"file://{folder}/", f"file://{folder}/b.png", f"file://{tmp_path}/set.parquet")
    named = read(pictures(found))
    assert named[0] == (f"file://{folder}/a.jpg", b"a.jpg", f"file://{folder}")
    assert named[7] == (f"file://{folder}/b.png", b"b.png", f"file://{folder}")
    assert [name for name, *_ in named[8:]] == [f"file://{tmp_path}/set.parquet#{n}" for n in range(3)]


def test_names_in_addresses_may_hold_what_addresses_do_not(tmp_path):
    folder = tmp_path / "my set"
    write_parquet(folder / "100 %.parquet", 2, 2)
    (folder / "a%20b?#.png").write_bytes(b"0")
    address = f"file://{quote(str(folder))}"
    shown = [f"{address}/a%20b?#.png", *(f"{address}/100 %.parquet#{n}" for n in range(2))]
    assert sorted(name for name, *_ in read(pictures(shards(address)))) == sorted(shown)
    named = [f"{address}/{quote(name)}" for name in ("a%20b?#.png", "100 %.parquet")]
    assert [name for name, *_ in read(pictures(shards(*named)))] == shown


def test_the_options_of_an_address_are_not_shown():
    assert shown_place("s3://bucket/a?region=x&secret_key=y") == "s3://bucket/a"
    assert shown_place("what?.png") == "what?.png"


def test_a_file_that_is_too_large_or_gone_is_reported_like_a_picture(folder):
    (shard,) = shards("pictures/b.png")
    (picture,) = shard.pictures(None, None)
    with pytest.raises(PictureReadError, match="has 5 bytes"):
        picture.read(4)
    (folder / "b.png").unlink()
    with pytest.raises(OSError, match=r"b\.png"):
        picture.read(LIMIT)


def test_row_names_tell_whether_the_pictures_are_the_same(folder, tmp_path):
    before = [list(shard.row_names) for shard in shards("pictures")]
    assert [list(shard.row_names) for shard in shards("pictures")] == before
    (folder / "c" / "3.png").touch()
    assert [list(shard.row_names) for shard in shards("pictures")] != before


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("none", "no such file or folder"),
        ("file:///none", "no such file or folder"),
        ("gopher://pictures", "cannot be opened"),
        ("pictures/old.zip", "--ray reads pictures, folders and Parquet files"),
        ("empty", "no picture"),
        ("plain.parquet", "no column can hold pictures"),
    ],
)
def test_what_cannot_be_scored_is_told_before_anything_starts(folder, tmp_path, argument, told):
    (tmp_path / "empty").mkdir()
    with zipfile.ZipFile(folder / "old.zip", "w"):
        pass
    pq.write_table(pa.table({"number": [1]}), tmp_path / "plain.parquet")
    with pytest.raises(ScoreError, match=told):
        shards(argument)


def test_a_missing_column_of_names_is_told_before_anything_starts(tmp_path):
    path = write_parquet(tmp_path / "set.parquet", 2, 2)
    with pytest.raises(ScoreError, match="has no column 'id'"):
        shards(path, ids="id")


def test_links_to_folders_are_not_followed_and_links_that_lead_nowhere_are_told(folder):
    (folder / "c" / "up").symlink_to("..")
    (folder / "y.png").symlink_to("none")
    local = iter(Sources(["pictures"]).pictures())
    assert [one.name for one in pictures(shards("pictures"))] == [one.name for one in local]
    *_, lost, last = pictures(shards("pictures"))
    assert (lost.name, last.name) == ("pictures/y.png", "pictures/z.PNG")
    with pytest.raises(FileNotFoundError):
        lost.read(LIMIT)


def test_names_that_are_not_utf8_are_read(folder):
    name = os.fsdecode(b"caf\xe9.png")
    (folder / name).write_bytes(b"coffee")
    assert (f"pictures/{name}", b"coffee", "pictures") in read(pictures(shards("pictures")))
    (folder / os.fsdecode(b"caf\xe9.parquet")).write_bytes(b"none")
    assert sum(shard.rows for shard in shards("pictures")) == 9


@pytest.mark.parametrize("as_address", [False, True])
def test_the_table_of_a_run_within_its_own_pictures_is_none_of_them(folder, as_address):
    place = f"file://{folder}" if as_address else "pictures"
    before = [one.name for one in pictures(shards(place))]
    write_parquet(folder / "c" / "scores" / "part-000000.parquet", 3, 3)
    assert [one.name for one in pictures(shards(place))] != before
    (folder / "c" / "scores" / "_run.json").touch()
    assert [one.name for one in pictures(shards(place))] == before
