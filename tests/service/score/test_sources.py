"""Where pictures come from: archives, Parquet files and lists, in order, whatever is in them."""

import errno
import glob
import io
import operator
import os
import struct
import subprocess
import sys
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from service.score.picture_stream import in_batches
from service.score.query import LoadedPicture, ScoreError, Skipped
from service.score.shards import find_shards
from service.score.sources import Sources

LIMIT = 2**20  # bytes of one file
NAMES = ["b/7.png", "a/8.jpg", "9.PNG"]


def content(name: str) -> bytes:
    """Stands for a picture: no source looks into one."""
    return f"the picture {name}".encode() * 50


def found(*paths: Path, limit: int = LIMIT, **options: str | None) -> list[LoadedPicture | Skipped]:
    sources = Sources([str(path) for path in paths], **options)
    return [picture for batch in in_batches(sources.pictures(), 4, limit) for picture in batch]


def names_in(*paths: Path, **options: str | None) -> list[str]:
    return [picture.name for picture in found(*paths, **options)]


def reasons(*paths: Path, limit: int = LIMIT) -> dict[str, str]:
    return {one.name: one.reason for one in found(*paths, limit=limit) if isinstance(one, Skipped)}


def write_tar(path: Path, mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:
        for name in NAMES:
            add_to_tar(archive, name, content(name))
    return path


def add_to_tar(archive: tarfile.TarFile, name: str, file: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(file)
    archive.addfile(member, io.BytesIO(file))


def write_zip(path: Path, compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name in NAMES:
            archive.writestr(name, content(name))
    return path


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# Archives


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("set.tar", lambda path: write_tar(path)),
        ("set.tar.gz", lambda path: write_tar(path, "w:gz")),
        ("set.tgz", lambda path: write_tar(path, "w:gz")),
        ("set.tar.bz2", lambda path: write_tar(path, "w:bz2")),
        ("SET.TAR.XZ", lambda path: write_tar(path, "w:xz")),
        ("set.zip", write_zip),
        ("stored.zip", lambda path: write_zip(path, zipfile.ZIP_STORED)),
    ],
)
def test_an_archive_gives_its_pictures_in_its_order(tmp_path, name, write):
    archive = write(tmp_path / name)
    assert found(archive) == [LoadedPicture(f"{archive}/{inner}", content(inner)) for inner in NAMES]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="from 3.14 on Python reads Zstandard")
def test_a_zstandard_archive_is_refused_with_what_to_do_before_others_are_read(tmp_path):
    (tmp_path / "set.tar.zst").touch()
    with pytest.raises(ScoreError, match="zstd -d"):
        Sources([str(write_tar(tmp_path / "set.tar")), str(tmp_path / "set.tar.zst")]).pictures()


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [("empty.tar", b"", "empty header"), ("no.tar.gz", b"no archive" * 60, "not a gzip file")],
)
def test_a_file_that_is_no_tar_archive_is_told_with_the_reason(tmp_path, name, content, told):
    (tmp_path / name).write_bytes(content)
    (reason,) = reasons(tmp_path / name).values()
    assert told in reason
    assert "\n" not in reason


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_other_members_and_hidden_ones_are_passed_over_as_in_folders(tmp_path, kind):
    names = ["a/", "notes.txt", "a/._7.png", ".cache/7.png", "a/7.png", "../../8.png", "/9.png"]
    path = tmp_path / f"set.{kind}"
    if kind == "tar":
        with tarfile.open(path, "w") as archive:
            for name in names:
                member = tarfile.TarInfo(name)
                member.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
                archive.addfile(member)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(name, b"")
    assert names_in(path) == [f"{path}/{name}" for name in ("a/7.png", "../../8.png", "/9.png")]


def test_links_and_devices_in_a_tar_archive_are_not_followed(tmp_path):
    path = tmp_path / "set.tar"
    with tarfile.open(path, "w") as archive:
        for name, kind in (("soft.png", tarfile.SYMTYPE), ("hard.png", tarfile.LNKTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
        member = tarfile.TarInfo("device.png")
        member.type = tarfile.CHRTYPE
        archive.addfile(member)
        add_to_tar(archive, "7.png", b"7")
    told = reasons(path)
    assert told == {
        f"{path}/soft.png": "is a link in the archive; only files are read",
        f"{path}/hard.png": "is a link in the archive; only files are read",
        f"{path}/device.png": "is a device in the archive; only files are read",
    }
    assert found(path)[-1] == LoadedPicture(f"{path}/7.png", b"7")


def test_links_encrypted_members_and_odd_compressions_in_a_zip_archive_are_skipped(tmp_path):
    path = tmp_path / "set.zip"
    with zipfile.ZipFile(path, "w") as archive:
        link = zipfile.ZipInfo("link.png")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("lzma.png", b"7", zipfile.ZIP_LZMA)
        archive.writestr("secret.png", b"7")
        archive.writestr("7.png", b"7")
    file = bytearray(path.read_bytes())
    entry = file.rindex(b"secret.png") - 46  # in the directory at the end
    file[entry + 8] |= 1  # the flag of encryption
    path.write_bytes(file)
    assert reasons(path) == {
        f"{path}/link.png": "is a link in the archive; only files are read",
        f"{path}/lzma.png": "uses a compression other than deflate, which is not read",
        f"{path}/secret.png": "is encrypted",
    }


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "tar.bz2", "tar.xz", "zip", "png"])
def test_a_file_over_the_limit_is_skipped_without_being_read(tmp_path, kind):
    path, huge = tmp_path / f"set.{kind}", bytes(40 * LIMIT)
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("huge.png", huge)
            archive.writestr("7.png", b"7")
    elif kind == "png":
        path.write_bytes(huge)
    else:
        with tarfile.open(path, f"w:{kind[4:]}") as archive:
            add_to_tar(archive, "huge.png", huge)
            add_to_tar(archive, "7.png", b"7")
    del huge
    told: list[LoadedPicture | Skipped] = []
    assert peak_bytes(lambda: told.extend(found(path))) < 10 * LIMIT  # of which xz takes 8 MiB
    assert isinstance(told[0], Skipped)
    assert f"has {40 * LIMIT} bytes" in told[0].reason
    assert [isinstance(one, LoadedPicture) for one in told[1:]] == ([] if kind == "png" else [True])


def test_a_zip_member_that_unpacks_to_more_than_it_announces_costs_no_memory(tmp_path):
    path = tmp_path / "set.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("huge.png", bytes(40 * LIMIT))
        archive.writestr("7.png", b"7")
    file = path.read_bytes().replace(struct.pack("<L", 40 * LIMIT), struct.pack("<L", 100))
    path.write_bytes(file)
    told: list[LoadedPicture | Skipped] = []
    assert peak_bytes(lambda: told.extend(found(path))) < LIMIT
    assert isinstance(told[0], Skipped)
    assert told[0].reason.startswith("cannot be unpacked: Bad CRC-32")
    assert told[1] == LoadedPicture(f"{path}/7.png", b"7")


def test_a_tar_header_that_announces_a_huge_name_costs_no_memory(tmp_path):
    path = tmp_path / "set.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        add_to_tar(archive, "7.png", b"7")
        name = tarfile.TarInfo("././@LongLink")
        name.type, name.size = tarfile.GNUTYPE_LONGNAME, 40 * LIMIT
        archive.addfile(name, io.BytesIO(bytes(40 * LIMIT)))
    told: list[LoadedPicture | Skipped] = []
    assert peak_bytes(lambda: told.extend(found(path))) < LIMIT
    assert told[0] == LoadedPicture(f"{path}/7.png", b"7")
    assert told[1:] == [
        Skipped(str(path), f"the archive cannot be read further: a header of {40 * LIMIT} bytes")
    ]


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("kind", ["tar", "tar.gz", "zip"])
def test_an_archive_cut_short_anywhere_is_reported_after_the_pictures_before_the_cut(tmp_path, kind, kept):
    path = tmp_path / f"set.{kind}"
    whole = write_zip(path) if kind == "zip" else write_tar(path, f"w:{kind[4:]}")
    pictures = found(whole)
    # A tar archive's end is padded with zeros: what counts are three times a header and two blocks.
    size = 3 * 512 * 3 if kind == "tar" else path.stat().st_size * 0.9
    os.truncate(path, int(size * kept))
    *before, last = found(path)
    there = [one for one in before if isinstance(one, LoadedPicture)]
    assert there == pictures[: len(there)]
    assert isinstance(last, Skipped)
    assert last.name == str(path)


def test_a_damaged_header_in_a_tar_archive_is_no_quiet_end(tmp_path):
    path = write_tar(tmp_path / "set.tar")
    file = bytearray(path.read_bytes())
    second = file.index(NAMES[1].encode())
    file[second] ^= 0xFF
    path.write_bytes(file)
    first, told = found(path)
    assert first == LoadedPicture(f"{path}/{NAMES[0]}", content(NAMES[0]))
    assert isinstance(told, Skipped)
    assert told.reason.startswith("the archive cannot be read further: bad checksum")


def test_a_member_of_negative_size_ends_a_tar_archive(tmp_path):
    path = tmp_path / "set.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        add_to_tar(archive, "7.png", b"7")
        member = tarfile.TarInfo("8.png")
        member.pax_headers = {"size": "-1536"}  # back to its own header
        archive.addfile(member)
    first, *_, last = found(path)
    assert first == LoadedPicture(f"{path}/7.png", b"7")
    assert last == Skipped(str(path), "the archive cannot be read further: a member of negative size")


def test_a_damaged_member_of_a_zip_archive_costs_no_other_its_row(tmp_path):
    path = write_zip(tmp_path / "set.zip", zipfile.ZIP_STORED)
    file = bytearray(path.read_bytes())
    file[file.index(content(NAMES[1]))] ^= 0xFF
    path.write_bytes(file)
    assert list(reasons(path)) == [f"{path}/{NAMES[1]}"]


# Parquet


def write_parquet(path: Path, **columns: object) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=3)
    return path


def test_a_parquet_file_gives_its_rows_called_by_their_number(tmp_path):
    path = write_parquet(
        tmp_path / "set.parquet", label=list(range(40)), picture=[b"%d" % n for n in range(40)]
    )
    assert found(path) == [LoadedPicture(f"{path}#{n}", b"%d" % n) for n in range(40)]


def test_hugging_faces_struct_of_bytes_and_path_is_read(tmp_path):
    cells = [
        {"bytes": b"0", "path": "cat/7.png"},
        {"bytes": b"1", "path": None},
        {"bytes": None, "path": "8.png"},
        None,
    ]
    path = write_parquet(tmp_path / "set.parquet", image=cells, label=[0, 0, 0, 0])
    nothing = "the row holds no bytes"
    assert found(path) == [
        LoadedPicture(f"{path}#0/cat/7.png", b"0"),
        LoadedPicture(f"{path}#1", b"1"),
        Skipped(f"{path}#2/8.png", nothing),
        Skipped(f"{path}#3", nothing),
    ]


def test_an_id_column_names_the_rows(tmp_path):
    path = write_parquet(tmp_path / "set.parquet", key=[17, None, 4], image=[b"0", b"1", b"2"])
    assert names_in(path, id_column="key") == ["17", f"{path}#1", "4"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()])
def test_names_of_rows_may_hold_bytes_that_are_no_text(tmp_path, kind):
    bytewise = pa.array([b"\xe9.png", b"8.png"])
    names = bytewise.cast(options=pc.CastOptions(kind, allow_invalid_utf8=True))
    pq.write_table(pa.table({"key": names, "image": [b"0", b"1"]}), tmp_path / "set.parquet")
    assert names_in(tmp_path / "set.parquet", image_column="image", id_column="key") == [
        "\udce9.png",
        "8.png",
    ]


@pytest.mark.parametrize("option", ["image_column", "id_column"])
def test_a_column_without_a_parquet_file_is_refused(tmp_path, option):
    (tmp_path / "7.png").write_bytes(b"0")
    with pytest.raises(ScoreError, match=f"--{option.replace('_', '-')} is for Parquet files"):
        found(tmp_path, **{option: "image"})


def test_pictures_are_no_names(tmp_path):
    path = write_parquet(tmp_path / "set.parquet", image=[b"0"], key=["a"])
    with pytest.raises(ScoreError, match="--id-column image is the column with the pictures"):
        found(path, id_column="image")


def test_a_row_without_a_name_is_called_by_its_number(tmp_path):
    path = write_parquet(tmp_path / "set.parquet", image=[b"0"] * 3, key=["a", "", None])
    assert names_in(path, id_column="key") == ["a", f"{path}#1", f"{path}#2"]


def test_names_of_rows_may_be_categories(tmp_path):
    names = pa.array(["a", "b", None, "a"]).dictionary_encode()
    pq.write_table(pa.table({"key": names, "image": [b"0"] * 4}), tmp_path / "set.parquet")
    path = tmp_path / "set.parquet"
    assert names_in(path, id_column="key") == ["a", "b", f"{path}#2", "a"]


def test_of_several_binary_columns_one_must_be_chosen(tmp_path):
    path = write_parquet(tmp_path / "set.parquet", left=[b"l"], right=[b"r"], label=["x"])
    with pytest.raises(
        ScoreError, match="left, right could all hold pictures; choose one with --image-column"
    ):
        found(path)
    assert found(path, image_column="right") == [LoadedPicture(f"{path}#0", b"r")]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"image_column": "picture"}, "has no column 'picture'; there are image, label"),
        ({"image_column": "label"}, "the column 'label' is string; pictures are binary"),
        ({"id_column": "key"}, "has no column 'key'; there are image, label"),
    ],
)
def test_a_column_that_cannot_be_had_is_told_with_those_there_are(tmp_path, options, told):
    path = write_parquet(tmp_path / "set.parquet", image=[b"0"], label=["x"])
    with pytest.raises(ScoreError, match=told):
        found(path, **options)


def test_a_column_that_cannot_be_had_is_told_before_other_files_are_read(tmp_path):
    first = write_parquet(tmp_path / "1.parquet", image=[b"0"])
    last = write_parquet(tmp_path / "2.parquet", label=["x"])
    with pytest.raises(ScoreError, match=r"2\.parquet: no column can hold pictures"):
        Sources([str(first), str(last)]).pictures()


def test_a_parquet_file_whose_name_is_not_utf8_is_told_like_a_damaged_one(tmp_path):
    path = tmp_path / os.fsdecode(b"caf\xe9.parquet")
    write_parquet(tmp_path / "1.parquet", image=[b"0"]).rename(path)
    assert list(reasons(path)) == [str(path)]


def test_the_only_column_with_pictures_may_not_share_its_name(tmp_path):
    both = pa.table([pa.array([b"0"]), pa.array(["x"])], names=["image", "image"])
    pq.write_table(both, tmp_path / "set.parquet")
    with pytest.raises(ScoreError, match=r"set\.parquet has 2 columns 'image'"):
        found(tmp_path / "set.parquet")


@pytest.mark.parametrize("option", ["image_column", "id_column"])
def test_a_column_whose_name_comes_twice_cannot_be_named(tmp_path, option):
    columns = [pa.array([b"0"]), pa.array([b"1"]), pa.array([b"2"])]
    pq.write_table(pa.table(columns, names=["image", "twice", "twice"]), tmp_path / "set.parquet")
    options = {"image_column": "image", option: "twice"}
    with pytest.raises(ScoreError, match=r"set\.parquet has 2 columns 'twice'"):
        found(tmp_path / "set.parquet", **options)


def test_a_parquet_file_without_pictures_is_told_with_its_columns(tmp_path):
    path = write_parquet(tmp_path / "set.parquet", label=["x"])
    with pytest.raises(ScoreError, match="no column can hold pictures; there are label"):
        found(path)


def test_a_damaged_parquet_file_costs_no_other_source_its_rows(tmp_path):
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and nothing more")
    good = write_parquet(tmp_path / "good.parquet", image=[b"0"])
    told, picture = found(tmp_path / "bad.parquet", good)
    assert isinstance(told, Skipped)
    assert told.name == str(tmp_path / "bad.parquet")
    assert picture == LoadedPicture(f"{good}#0", b"0")


# Not getrusage, which tells of a child what its parent used.
READ_AND_TELL_GROWTH = """
import re, sys
from service.score.parquet import in_parquet
from pathlib import Path
def most(): return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
before = most()
assert sum(len(picture.read(2**20)) for picture in in_parquet(Path(sys.argv[1]), None, None)) == 2**27
print(most() - before)
"""


def test_a_large_row_group_is_not_read_at_once(tmp_path):
    path = tmp_path / "set.parquet"
    cells = pa.table({"image": [bytes([n % 251]) * 2**16 for n in range(2**11)]})
    # As large values should be written: the pages of a row group are the least that can be read.
    pq.write_table(cells, path, use_dictionary=False, compression="none", write_batch_size=8)
    command = [sys.executable, "-c", READ_AND_TELL_GROWTH, str(path)]
    grown_kib = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert grown_kib < 48 * 2**10  # of 128 MiB


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    path = write_parquet(tmp_path / "set.parquet", image=[b"0"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "service.score.parquet", raising=False)
    with pytest.raises(ScoreError, match=r"pip install -e '\.\[parquet\]'"):
        found(path)


# Lists, and several sources


def test_a_list_gives_files_folders_and_archives_in_its_order(tmp_path):
    for name in ("one/2.png", "one/1.png", "caf\udce9.png"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"picture")
    archive = write_zip(tmp_path / "set.zip")
    gone = tmp_path / "gone.png"
    lines = [tmp_path / "caf\udce9.png", gone, tmp_path / "one", archive]
    listed = tmp_path / "list.txt"
    listed.write_bytes(b"\r\n".join(os.fsencode(line) for line in lines) + b"\n\n")
    assert names_in(files_from=str(listed)) == [
        str(lines[0]),
        str(gone),
        str(tmp_path / "one" / "1.png"),
        str(tmp_path / "one" / "2.png"),
        *(f"{archive}/{name}" for name in NAMES),
    ]
    assert reasons(archive) == {}


def test_what_may_not_be_looked_at_costs_its_own_row_alone(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "7.png").write_bytes(b"picture")
    (folder / "8.png").symlink_to("x" * 300)  # too long to be looked up, by root, too
    (tmp_path / "list.txt").write_text(f"{folder}\n{folder / ('y' * 300)}.png\n{folder / '7.png'}\n")
    read = found(files_from=str(tmp_path / "list.txt"))
    assert [isinstance(one, LoadedPicture) for one in read] == [True, False, False, True]
    assert [one.reason for one in read[1:3]] == ["File name too long"] * 2


def test_paths_that_end_in_nul_are_told_to_be_lines(tmp_path):
    (tmp_path / "list.txt").write_bytes(b"one.png\0two.png\0")
    with pytest.raises(ScoreError, match=r"list\.txt holds a NUL byte; expected one path per line"):
        found(files_from=str(tmp_path / "list.txt"))


def test_a_list_that_is_not_there_is_told_before_anything_is_done(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.txt"):
        Sources([], files_from=str(tmp_path / "none.txt")).pictures()


def test_patterns_find_archives_and_parquet_files(tmp_path):
    write_tar(tmp_path / "2.tar")
    write_parquet(tmp_path / "1.parquet", image=[b"0"])
    (tmp_path / "notes.txt").touch()
    expected = [f"{tmp_path}/1.parquet#0", *(f"{tmp_path}/2.tar/{name}" for name in NAMES)]
    assert names_in(tmp_path / "*") == expected
    assert not Sources([str(tmp_path / "*")]).are_countable(), "counting them would read them"
    (tmp_path / "digit.png").touch()
    assert Sources([str(tmp_path / "d*")]).are_countable()


def test_a_batch_holds_no_more_than_a_request_may(tmp_path):
    with tarfile.open(tmp_path / "set.tar", "w") as archive:
        for n in range(7):
            add_to_tar(archive, f"{n}.png", bytes(10 * 2**20))
    batches = in_batches(Sources([str(tmp_path / "set.tar")]).pictures(), 32, 32 * 2**20)
    assert [len(batch) for batch in batches] == [2, 2, 2, 1]


# Folders and patterns


@pytest.fixture
def linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two pictures, and links to folders, a file, a pipe and nothing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in" / "sub").mkdir(parents=True)
    for name in ("1.png", "sub/2.png"):
        (tmp_path / "in" / name).write_bytes(content(name))
    os.mkfifo(tmp_path / "pipe")
    for name, target in {
        "sub/up": "..",
        "alias": "sub",
        "3.png": "sub/2.png",
        "4.png": "../pipe",
        "5.png": "none",
        "6.png": "sub",
    }.items():
        (tmp_path / "in" / name).symlink_to(target)
    return tmp_path / "in"


@pytest.mark.parametrize("place", ["in", "in/**/*.png", "in/**", "**/*.png", "*/**/*.png"])
def test_links_to_folders_are_not_followed_where_they_are_not_named(linked, place):
    names = [one.name for one in found(place) if isinstance(one, LoadedPicture)]
    assert names == ["in/1.png", "in/3.png", "in/sub/2.png"]


def test_a_link_that_leads_nowhere_is_told_and_one_to_a_pipe_never_read(linked):
    assert list(reasons("in")) == ["in/5.png"]


def test_a_link_that_is_named_is_followed(linked):
    assert names_in("in/alias") == ["in/alias/2.png"]
    assert names_in("in/alias/*.png") == ["in/alias/2.png"]
    assert "in/alias/2.png" in names_in("in/*/2.png")


def test_a_pattern_of_any_folders_matches_what_it_does_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("0.png", "a/1.png", "a/b/2.png", "a/.c/3.png", "a/b/[d]/4.png", "a/b/x/b/5.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for pattern in ("**/*.png", "a/**/*.png", "a/**/b/*.png", "**/b/**/*.png", f"{tmp_path}/**/?.png", "**"):
        matches = set(glob.glob(pattern, recursive=True))  # noqa: PTH207  # what it is compared with
        expected = sorted(path for path in map(Path, matches) if path.suffix == ".png")
        assert names_in(pattern) == [str(path) for path in expected]
        assert expected


def test_a_folder_that_a_pattern_of_any_folders_cannot_look_into_is_told(tmp_path, monkeypatch):
    for name in ("a/1.png", "b/2.png"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    scan = os.scandir

    def refuse_a(path):  # as the file system does; root may read all
        if Path(path) == tmp_path / "a":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse_a)
    assert names_in(tmp_path / "**" / "*.png") == [f"{tmp_path}/a", f"{tmp_path}/b/2.png"]
    assert reasons(tmp_path / "**" / "*.png") == {f"{tmp_path}/a": "Permission denied"}
    with pytest.raises(ScoreError, match="Permission denied"):
        find_shards([f"{tmp_path}/**/*.png"], 10, None, None)


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """A picture in more folders than Python's functions may be nested; its path."""
    above = list(accumulate(["d"] * 1100, operator.truediv, initial=tmp_path))[1:]
    for folder in above:
        folder.mkdir()
    picture = above[-1] / "7.png"
    picture.touch()
    yield picture
    picture.unlink()
    for folder in reversed(above):
        folder.rmdir()


@pytest.mark.parametrize("pattern", ["", "**/*.png"])
def test_folders_may_be_nested_deeper_than_functions(deep, tmp_path, pattern):
    assert names_in(tmp_path / pattern) == [str(deep)]
    [shard] = find_shards([str(tmp_path / pattern)], 10, None, None)
    assert list(shard.row_names) == [str(deep)]


def test_a_list_may_begin_with_a_byte_order_mark(tmp_path):
    picture = tmp_path / "1.png"
    picture.write_bytes(b"1")
    (tmp_path / "list.txt").write_text(f"{picture}\n{picture}\n", encoding="utf-8-sig")
    assert names_in(files_from=str(tmp_path / "list.txt")) == [str(picture)] * 2


def test_a_device_without_an_end_is_read_to_the_limit_and_no_further():
    [endless] = found(Path("/dev/zero"))
    assert isinstance(endless, Skipped)
    assert endless.reason == f"has no size and more than {LIMIT} bytes (CAPSNET_MAX_BODY_BYTES)"


def test_a_pipe_that_is_named_is_a_picture(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen([sys.executable, "-c", f"open({str(pipe)!r}, 'wb').write(b'a picture')"]):
        [picture] = found(pipe)
    assert isinstance(picture, LoadedPicture)
    assert picture.content == b"a picture"


def test_only_of_an_empty_folder_it_is_said_how_to_score_archives_in_it(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "list.txt").touch()
    with zipfile.ZipFile(tmp_path / "none.zip", "w"):
        pass
    advice = "; to score archives and Parquet files in a folder, name them, as in 'set/*.tar'"
    for sources, advised in (
        (Sources([str(tmp_path / "folder")]), True),
        (Sources([str(tmp_path / "none.zip")]), False),
        (Sources([], files_from=str(tmp_path / "list.txt")), False),
    ):
        with pytest.raises(ScoreError, match="no picture") as caught:
            sources.pictures()
        assert str(caught.value).endswith(advice) == advised
