"""A run that is killed goes on: every row once, in order, whenever that was; and nothing is overwritten."""

import csv
import fcntl
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.score import main
from tests.support.live_service import live_service, settings_for
from tests.support.small_pictures import random_png
from tests.support.tiny_bundle import write_bundle

PROGRAM = [sys.executable, "-m", "service.score"]
PICTURES = 240
FEED_S = 0.002  # between two pictures


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_bundle(root / "tiny" / "1", seed=1)
    return root


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Pictures, of which every seventh is none."""
    folder = tmp_path_factory.mktemp("pictures")
    paths = [folder / f"{n:03}.png" for n in range(PICTURES)]
    for n, path in enumerate(paths):
        path.write_bytes(b"not a picture" if n % 7 == 3 else random_png(n))
    return paths


@pytest.fixture
def score(models: Path) -> Callable[..., int]:
    """The exit status of the command in this process."""

    def run(*arguments: object) -> int:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in (*arguments, "--local", "--models", models)])
        return ended.value.code

    return run


def rows_of(path: Path) -> object:
    """What must be the same: bytes, or of Parquet all rows."""
    return pq.read_table(path).to_pylist() if path.suffix == ".parquet" else path.read_bytes()


def errors_of(path: Path) -> bytes:
    return path.with_name(f"{path.name}.errors.jsonl").read_bytes()


def leftovers(path: Path) -> list[str]:
    """The files of a run beside its table."""
    return sorted(file.name.removeprefix(path.stem) for file in path.parent.glob(f"*{path.stem}*"))


# Killed


def run_slowly(arguments: list[str], paths: list[Path], fifo: Path, kill_at: float | None) -> int:
    """Run the command on a list that is written slowly, and kill it at a share of that time; the status.

    Shares above 1 are beyond the list's end; None lets it live.
    """
    with subprocess.Popen(
        [*PROGRAM, "--files-from", str(fifo), *arguments], stderr=subprocess.PIPE
    ) as running:
        with fifo.open("wb", buffering=0) as lines:  # returns when the process reads
            fcntl.fcntl(lines, fcntl.F_SETPIPE_SZ, 4096)
            for n, path in enumerate(paths):
                if kill_at is not None and n == int(kill_at * len(paths)):
                    running.kill()
                    break
                lines.write(os.fsencode(path) + b"\n")
                time.sleep(FEED_S)
        if kill_at is not None:
            time.sleep(max(0, kill_at - 1) * FEED_S * len(paths))
            running.kill()
        running.communicate()
    return running.returncode


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_run_killed_again_and_again_leaves_what_an_undisturbed_one_does(
    models, score, paths, tmp_path, suffix
):
    fifo, whole, out = tmp_path / "list", tmp_path / f"whole.{suffix}", tmp_path / f"out.{suffix}"
    os.mkfifo(fifo)
    assert score(*paths, "--out", whole, "--batch", 4, "--poses") == 1
    fixed = ["--local", "--models", str(models), "--batch", "4", "--poses"]
    arguments = [*fixed, "--out", str(out), "--resume"]
    rng = random.Random(suffix)
    for moment in (rng.uniform(0.5, 0.9), rng.uniform(1, 1.1)):
        assert run_slowly(arguments, paths, fifo, moment) in {-signal.SIGKILL, 1}
    assert run_slowly(arguments, paths, fifo, kill_at=None) == 1
    assert rows_of(out) == rows_of(whole)
    assert errors_of(out) == errors_of(whole)
    assert leftovers(out) == sorted([f".{suffix}", f".{suffix}.errors.jsonl", f".{suffix}.run.json"])


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_whatever_follows_the_last_commit_is_cut_off(score, paths, tmp_path, suffix):
    folder = paths[0].parent
    whole, out = tmp_path / f"whole.{suffix}", tmp_path / f"out.{suffix}"
    assert score(folder, "--out", whole, "--batch", 4) == 1
    stopped_after(100, score, paths, out)
    rows = out.with_name(f"{out.name}.rows.jsonl") if suffix == "parquet" else out
    for file in (rows, out.with_name(f"{out.name}.errors.jsonl")):
        with file.open("ab") as torn:
            torn.write(b'{"path": "a row that is')
    assert score(folder, "--out", out, "--batch", 4, "--resume") == 1
    assert rows_of(out) == rows_of(whole)
    assert errors_of(out) == errors_of(whole)


def stopped_after(pictures: int, score: Callable[..., int], paths: list[Path], out: Path) -> None:
    """Leave a run over the folder of the paths that was stopped after so many of them."""
    listed = out.with_name("list.txt")
    listed.write_text("".join(f"{path}\n" for path in paths[:pictures]))
    assert score("--files-from", listed, "--out", out, "--batch", 4) == 1
    record = json.loads(record_of(out).read_text())
    if out.suffix == ".parquet":
        rows = [json.dumps(as_line(row)) + "\n" for row in pq.read_table(out).to_pylist()]
        file = out.with_name(f"{out.name}.rows.jsonl")
        file.write_text("".join(rows))
        record["rows_bytes"] = file.stat().st_size
        out.unlink()
    record_of(out).write_text(json.dumps({**record, "finished": False}))


def as_line(row: dict[str, object]) -> dict[str, object]:
    """A row of Parquet as the line that it was made of."""
    best = {name: row[name] for name in ("path", "label", "probability", "confident", "blank")}
    return {**best, "classes": [{"label": name, "probability": row[name]} for name in ("0", "1", "2")]}


def record_of(out: Path) -> Path:
    return out.with_name(f"{out.name}.run.json")


# Resumed


def test_a_run_counts_the_pictures_of_all_its_parts(score, paths, tmp_path, capsys):
    out = tmp_path / "out.csv"
    stopped_after(100, score, paths, out)
    capsys.readouterr()
    assert score(paths[0].parent, "--out", out, "--resume") == 1
    bad = sum(n % 7 == 3 for n in range(PICTURES))
    summary, labels = capsys.readouterr().err.splitlines()
    assert f"{PICTURES - bad} scored with tiny/1, {bad} skipped" in summary
    assert f"{PICTURES - 100} in this run" in summary
    assert sum(int(part.split()[1]) for part in labels.split("labels: ")[1].split(", ")) == PICTURES - bad


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_finished_run_is_finished_without_a_model(score, paths, tmp_path, suffix):
    out = tmp_path / f"out.{suffix}"
    assert score(*paths[:3], "--out", out) == 0
    before = rows_of(out)
    command = [*PROGRAM, *map(str, paths[:3]), "--out", str(out), "--resume", "--url", "http://127.0.0.1:9"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, rows_of(out)) == (0, before)
    assert "3 scored with tiny/1, 0 skipped; 0 in this run" in ran.stderr


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--min-probability", "0.5"], "min_probability was None, now 0.5"),
        (["--top-k", "2", "--poses"], "top_k was None, now 2; poses was False, now True"),
        (["--version", "2"], "version was 1, now 2"),
        (["--model", "other"], "model was tiny, now other"),
    ],
)
def test_a_finished_run_is_not_finished_for_another_question(
    score, paths, tmp_path, capsys, suffix, options, told
):
    out = tmp_path / f"out.{suffix}"
    assert score(*paths[:3], "--out", out) == 0
    before = out.read_bytes()
    assert score(*paths[:3], "--out", out, "--resume", *options) == 2
    assert f"cannot be resumed: {told}; --overwrite starts over" in capsys.readouterr().err
    assert out.read_bytes() == before


def test_pictures_that_have_come_behind_the_others_are_added(score, paths, tmp_path):
    out, whole = tmp_path / "out.csv", tmp_path / "whole.csv"
    assert score(*paths[:3], "--out", out) == 0
    assert score(*paths[:10], "--out", out, "--resume") == 1
    assert score(*paths[:10], "--out", whole) == 1
    assert [line.split(b",")[:2] for line in out.read_bytes().splitlines()] == [
        line.split(b",")[:2] for line in whole.read_bytes().splitlines()
    ]


def test_a_finished_parquet_file_is_not_added_to(score, paths, tmp_path, capsys):
    out = tmp_path / "out.parquet"
    assert score(*paths[:3], "--out", out) == 0
    before = out.read_bytes()
    assert score(*paths[:5], "--out", out, "--resume") == 2
    assert "is finished with 3 pictures and cannot be extended" in capsys.readouterr().err
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (lambda paths: paths[:50], "100 pictures were done, and now there are only 50"),
        (lambda paths: paths[1:], "100 pictures were done, and now their names have changed"),
        (lambda paths: [paths[1], paths[0], *paths[2:]], "their names have changed"),
    ],
)
def test_other_pictures_than_those_that_were_done_are_refused(score, paths, tmp_path, capsys, now, told):
    out = tmp_path / "out.csv"
    stopped_after(100, score, paths, out)
    before = out.read_bytes()
    assert score(*now(paths), "--out", out, "--resume") == 2
    assert told in capsys.readouterr().err
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--poses"], "poses was False, now True"),
        (["--preprocess", "off", "--top-k", "1"], "top_k was None, now 1; preprocess was auto, now off"),
        (["--format", "jsonl"], "format was csv, now jsonl"),
        (["--version", "2"], "version was 1, now 2"),
        (["--min-probability", "0.5"], "min_probability was None, now 0.5"),
    ],
)
def test_another_question_than_the_run_was_begun_with_is_refused(
    models, score, paths, tmp_path, capsys, options, told
):
    out = tmp_path / "out.csv"
    stopped_after(100, score, paths, out)
    before = out.read_bytes()
    shutil.copytree(models, tmp_path / "models")
    write_bundle(tmp_path / "models" / "tiny" / "2", seed=2)
    resumed = [
        paths[0].parent,
        "--out",
        out,
        "--resume",
        *options,
        "--models",
        tmp_path / "models",
        "--local",
    ]
    with pytest.raises(SystemExit):
        main([str(argument) for argument in resumed])
    assert f"cannot be resumed: {told}" in capsys.readouterr().err
    assert out.read_bytes() == before


def test_a_run_keeps_to_its_version_when_a_newer_one_is_published(models, paths, tmp_path, score):
    out, whole = tmp_path / "out.csv", tmp_path / "whole.csv"
    assert score(*paths[:9], "--out", whole, "--batch", 4) == 1
    stopped_after(4, score, paths, out)
    shutil.copytree(models, tmp_path / "models")
    write_bundle(tmp_path / "models" / "tiny" / "2", seed=2)
    resumed = [*paths[:9], "--out", out, "--resume", "--batch", 4]
    with live_service(settings_for(tmp_path / "models")) as service, pytest.raises(SystemExit):
        main([str(argument) for argument in (*resumed, "--url", service.base_url)])
    assert json.loads(record_of(out).read_text())["spec"]["version"] == 1
    numbers = ("label", "probability", "0", "1", "2")
    with out.open() as rows, whole.open() as expected:
        for one, other in zip(csv.DictReader(rows), csv.DictReader(expected), strict=True):
            assert one["path"] == other["path"]
            for name in numbers:
                assert float(one[name]) == pytest.approx(float(other[name]))


def test_a_version_whose_weights_were_replaced_is_refused(models, score, paths, tmp_path, capsys):
    out = tmp_path / "out.csv"
    stopped_after(100, score, paths, out)
    write_bundle(tmp_path / "models" / "tiny" / "1", seed=5)
    resumed = [paths[0].parent, "--out", out, "--resume", "--local", "--models", tmp_path / "models"]
    with pytest.raises(SystemExit):
        main([str(argument) for argument in resumed])
    assert "cannot be resumed: digest was" in capsys.readouterr().err


# Files that exist already


@pytest.mark.parametrize("name", ["scores.csv", "scores.csv.errors.jsonl"])
def test_a_file_that_exists_is_not_overwritten_unless_asked_for(score, paths, tmp_path, capsys, name):
    (tmp_path / name).write_text("from yesterday")
    arguments = [*paths[:3], "--out", tmp_path / "scores.csv"]
    assert score(*arguments) == 2
    told = f"{tmp_path / name} exists already; --resume continues it, --overwrite starts over"
    assert told in capsys.readouterr().err
    assert (tmp_path / name).read_text() == "from yesterday"
    assert score(*arguments, "--resume") == 2
    assert f"cannot be resumed without {tmp_path / 'scores.csv.run.json'}" in capsys.readouterr().err
    assert (tmp_path / name).read_text() == "from yesterday"
    assert score(*arguments, "--overwrite") == 0
    assert leftovers(tmp_path / "scores.csv") == [".csv", ".csv.run.json"]
    assert len((tmp_path / "scores.csv").read_text().splitlines()) == 4


@pytest.mark.parametrize("option", ["--resume", "--overwrite"])
def test_tables_that_differ_in_their_suffix_alone_keep_each_its_errors(score, paths, tmp_path, option):
    runs = {"scores.csv": paths[:7], "scores.parquet": paths[7:14], "scores.jsonl": paths[14:21]}
    for name, some in runs.items():
        assert score(*some, "--out", tmp_path / name, option) == 1
    for name, some in runs.items():
        (error,) = errors_of(tmp_path / name).splitlines()
        assert json.loads(error)["path"] == str(some[3])


def test_rows_that_wait_to_become_parquet_are_not_overwritten_either(score, paths, tmp_path, capsys):
    out = tmp_path / "out.parquet"
    stopped_after(100, score, paths, out)
    assert score(*paths[:3], "--out", out) == 2
    assert "out.parquet.rows.jsonl exists already; --resume continues" in capsys.readouterr().err


def test_an_empty_file_is_nothing_to_protect(score, paths, tmp_path):
    (tmp_path / "scores.csv").touch()
    assert score(*paths[:3], "--out", tmp_path / "scores.csv") == 0


def test_a_table_shorter_than_its_record_tells_is_refused(score, paths, tmp_path, capsys):
    out = tmp_path / "out.csv"
    stopped_after(100, score, paths, out)
    os.truncate(out, 50)
    assert score(paths[0].parent, "--out", out, "--resume") == 2
    assert "it has 50 bytes, but" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_finished_table_that_is_gone_is_not_called_finished(score, paths, tmp_path, capsys, suffix):
    out = tmp_path / f"out.{suffix}"
    assert score(*paths[:3], "--out", out) == 0
    out.unlink()
    assert score(*paths[:3], "--out", out, "--resume") == 2
    assert f"{out} was finished, and is gone; --overwrite starts over" in capsys.readouterr().err
    assert score(*paths[:3], "--out", out, "--overwrite") == 0


def test_errors_go_on_in_the_file_that_they_were_begun_in(score, paths, tmp_path, capsys):
    """Another file of that name would be cut to the length of the errors so far."""
    out, notes = tmp_path / "out.csv", tmp_path / "notes.txt"
    notes.write_text("precious")
    assert score(*paths[:3], "--out", out) == 0
    assert score(*paths[:5], "--out", out, "--resume", "--errors", notes) == 2
    told = f"{out} was begun with its errors in {out}.errors.jsonl; name that file with --errors"
    assert told in capsys.readouterr().err
    assert notes.read_text() == "precious"
    assert score(*paths[:5], "--out", out, "--resume", "--errors", tmp_path / "out.csv.errors.jsonl") == 1


def test_errors_elsewhere_are_found_again_however_they_are_named(score, paths, tmp_path, capsys, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path / "link")
    name = os.fsdecode(b"f\xe9hler.jsonl")
    assert score(*paths[:5], "--out", tmp_path / "link" / "out.csv", "--errors", name) == 1
    assert score(*paths[:5], "--out", "out.csv", "--resume") == 2
    assert "name that file with --errors" in capsys.readouterr().err
    again = ["--out", "out.csv", "--resume", "--errors", tmp_path / "real" / name]
    assert score(*paths[:12], *again) == 1
    assert len((tmp_path / "real" / name).read_bytes().splitlines()) == 2
    (tmp_path / "real").rename(tmp_path / "moved")
    assert (
        score(*paths[:12], *again[:-1], tmp_path / "moved" / name, "--out", tmp_path / "moved" / "out.csv")
        == 1
    )


@pytest.mark.parametrize("option", ["--out", "--errors"])
def test_a_link_to_itself_is_told_in_one_line(score, paths, tmp_path, capsys, option):
    loop = tmp_path / "loop.csv"
    loop.symlink_to("loop.csv")
    others = [] if option == "--out" else ["--out", tmp_path / "out.csv"]
    assert score(paths[0], option, loop, *others) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "loop.csv: Too many levels of symbolic links" in line


def test_a_run_goes_on_under_another_name(score, paths, tmp_path):
    assert score(*paths[:5], "--out", tmp_path / "a.csv") == 1
    for file in tmp_path.iterdir():
        file.rename(tmp_path / file.name.replace("a.csv", "b.csv"))
    assert score(*paths[:12], "--out", tmp_path / "b.csv", "--resume") == 1
    assert len(errors_of(tmp_path / "b.csv").splitlines()) == 2


def test_a_table_may_have_a_name_that_is_not_utf8(score, paths, tmp_path):
    out = tmp_path / os.fsdecode(b"caf\xe9.csv")
    assert score(*paths[:5], "--out", out) == 1
    assert score(*paths[:12], "--out", out, "--resume") == 1


@pytest.mark.parametrize("option", ["--out", "--errors"])
def test_what_is_read_is_not_overwritten(score, paths, tmp_path, capsys, monkeypatch, option):
    monkeypatch.chdir(tmp_path)
    read = tmp_path / "set.parquet"
    pq.write_table(pa.table({"image": [paths[0].read_bytes()]}), read)
    before = read.read_bytes()
    others = [] if option == "--out" else ["--out", "out.csv"]
    assert score(read, option, "set.parquet", *others, "--overwrite") == 2
    assert "set.parquet would be read and overwritten" in capsys.readouterr().err
    assert read.read_bytes() == before
    (tmp_path / "list.csv").write_text(f"{paths[0]}\n")
    assert score("--files-from", "list.csv", option, tmp_path / "list.csv", *others, "--overwrite") == 2
    assert "list.csv would be read and overwritten" in capsys.readouterr().err
    assert (tmp_path / "list.csv").read_text() == f"{paths[0]}\n"


def test_a_record_that_is_none_is_refused(score, paths, tmp_path, capsys):
    out = tmp_path / "out.csv"
    stopped_after(100, score, paths, out)
    record_of(out).write_text("{}")
    assert score(paths[0].parent, "--out", out, "--resume") == 2
    assert "is no record of a run" in capsys.readouterr().err


def test_two_runs_do_not_write_one_table(score, paths, tmp_path, capsys):
    out = tmp_path / "out.csv"
    stopped_after(100, score, paths, out)
    with out.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert score(paths[0].parent, "--out", out, "--resume") == 2
    assert f"another process is writing {out}" in capsys.readouterr().err


def test_two_runs_do_not_write_one_file_of_errors(score, paths, tmp_path, capsys):
    errors = tmp_path / "errors.jsonl"
    errors.write_text("of another run")
    with errors.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert score(*paths[:5], "--out", tmp_path / "out.csv", "--errors", errors, "--overwrite") == 2
    assert f"another process is writing {errors}" in capsys.readouterr().err
    assert errors.read_text() == "of another run"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "exists already; --resume continues it"),
        (["--resume"], "another process has changed"),
        (["--overwrite"], "another process has changed"),
    ],
)
def test_a_table_that_is_written_while_another_run_begins_is_not_overwritten(
    models, score, paths, tmp_path, options, told
):
    fifo, out = tmp_path / "list", tmp_path / "out.csv"
    os.mkfifo(fifo)
    if "--overwrite" in options:
        assert score(*paths[:3], "--out", out) == 0
    command = [*PROGRAM, "--files-from", str(fifo), "--out", str(out), "--local", "--models", str(models)]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as late:
        with fifo.open("w") as lines:  # returns when the process reads, and has looked what there is
            assert score(*paths[:2], "--out", out, *options) == 0
            before = out.read_bytes()
            lines.write(f"{paths[0]}\n")
        _, said = late.communicate()
    assert (late.returncode, out.read_bytes()) == (2, before)
    assert told in said


def test_resume_needs_a_file(score, paths, capsys):
    for out in ("-", "/dev/null"):
        assert score(*paths[:3], "--out", out, "--format", "csv", "--resume") == 2
        assert "name it with --out FILE" in capsys.readouterr().err


def test_a_device_takes_rows_and_gets_no_record(score, paths):
    assert score(*paths[:3], "--out", "/dev/null", "--format", "csv") == 0
    assert not Path("/dev/null.run.json").exists()


# Full disks


def score_into(room: int, models: Path, out: Path, paths: list[Path]) -> subprocess.CompletedProcess[str]:
    """Run the command where no file can grow beyond so many bytes, as on a disk that becomes full."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    command = [*PROGRAM, *map(str, paths), "--local", "--models", str(models), "--batch", "4"]
    return subprocess.run(
        [*command, "--out", str(out)], preexec_fn=limit, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("suffix", "room", "full"),
    [
        ("csv", 3000, "out.csv"),
        ("jsonl", 3000, "out.jsonl"),
        ("parquet", 3000, "out.parquet.rows.jsonl"),
        ("csv", 1200, "out.csv.errors.jsonl"),
    ],
)
def test_a_full_disk_names_its_file_and_resume_goes_on(score, models, paths, tmp_path, suffix, room, full):
    some = [path for n, path in enumerate(paths) if n % 7 == 3] if "errors" in full else paths
    some = [paths[0], *some]
    whole, out = tmp_path / f"whole.{suffix}", tmp_path / f"out.{suffix}"
    assert score(*some, "--out", whole, "--batch", 4) == 1
    ran = score_into(room, models, out, some)
    told = f"{tmp_path / full}: File too large; the rows written so far stay; continue with --resume"
    assert (ran.returncode, ran.stderr) == (2, f"capsnet-score: {told}\n")
    assert score(*some, "--out", out, "--batch", 4, "--resume") == 1
    assert rows_of(out) == rows_of(whole)
    assert errors_of(out) == errors_of(whole)


def test_a_parquet_file_for_which_there_is_no_room_is_written_by_resume(score, models, paths, tmp_path):
    out = tmp_path / "out.parquet"
    ran = score_into(1200, models, out, paths[:3])
    told = f"{out}: File too large; the rows written so far stay; continue with --resume"
    assert (ran.returncode, ran.stderr) == (2, f"capsnet-score: {told}\n")
    assert not list(tmp_path.glob(".*.partial")), "it takes none of the room that is left"
    assert score(*paths[:3], "--out", out, "--resume") == 0
    assert pq.read_table(out)["path"].to_pylist() == [str(path) for path in paths[:3]]


def test_a_disk_that_is_full_at_the_start_names_the_record(models, paths, tmp_path):
    ran = score_into(100, models, tmp_path / "out.csv", paths[:3])
    told = f"{tmp_path / 'out.csv.run.json'}: File too large"
    assert (ran.returncode, ran.stderr) == (2, f"capsnet-score: {told}\n")


@pytest.mark.parametrize(("out", "told"), [("/dev/full", "/dev/full"), ("-", "stdout")])
def test_a_full_device_is_named_and_cannot_be_resumed(models, paths, out, told):
    command = [*PROGRAM, str(paths[0]), "--local", "--models", str(models), "--format", "csv", "--out", out]
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (2, f"capsnet-score: {told}: No space left on device\n")


# Memory

# Not getrusage, which tells of a child what its parent used.
SCORE_AND_TELL_MEMORY = """
import re
from service.score import main
try:
    main()
finally:
    print(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
"""


def test_memory_does_not_grow_with_the_number_of_pictures(models, tmp_path):
    most_kib = []
    for count in (1_000, 18_000):
        sources = map(str, many_pictures(tmp_path, count))
        out = tmp_path / f"{count}.jsonl"
        arguments = [*sources, "--out", str(out), "--batch", "256", "--local", "--models", str(models)]
        command = [sys.executable, "-c", SCORE_AND_TELL_MEMORY, *arguments]
        most_kib.append(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
        with out.open() as rows:
            assert sum(1 for _ in rows) == count + count // 10
    few, many = most_kib
    assert many - few < 10 * 2**10  # the pictures and rows of the one are 25 MiB more than of the other


def many_pictures(place: Path, count: int) -> tuple[Path, Path]:
    """A tar archive with so many copies of one picture, and a folder with a tenth of them."""
    file, archive, folder = random_png(0), place / f"{count}.tar", place / str(count)
    with tarfile.open(archive, "w") as members:
        for n in range(count):
            member = tarfile.TarInfo(f"{n:06}.png")
            member.size = len(file)
            members.addfile(member, BytesIO(file))
    folder.mkdir()
    first = folder / "first.png"
    first.write_bytes(file)
    for n in range(1, count // 10):
        (folder / f"{n:06}.png").hardlink_to(first)
    return archive, folder
