"""capsnet-score --ray on a cluster of this machine: the rows of --local, whichever process or node dies."""

import argparse
import errno
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from service.score import main, part_folder
from service.score.part_folder import PartFacts, PartFolder, PartsRecord
from service.score.query import Query
from service.score.run import run_spec
from service.score.shard_scorer import Job, choose_model, score_shard
from service.score.shards import find_shards
from tests.support.live_service import free_port, wait_until
from tests.support.small_pictures import random_png, to_png
from tests.support.tiny_bundle import write_bundle

PROGRAM = [sys.executable, "-m", "service.score"]
PICTURES = 60
PART = 4
OPTIONS = {
    "top_k": None,
    "preprocess": "auto",
    "poses": False,
    "min_probability": None,
    "image_column": None,
    "id_column": None,
}
START_S = 120
OTHER_SPEC = {
    "model": "tiny",
    "version": 1,
    "digest": "d",
    "top_k": None,
    "preprocess": "auto",
    "poses": True,
    "min_probability": None,
    "format": "parquet",
    "image_column": None,
    "id_column": None,
    "views": 1,
}
CLUSTER = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
print(cluster.address, flush=True)
for line in sys.stdin:
    cluster.remove_node(nodes.pop(), allow_graceful=False)
    print("removed", flush=True)
cluster.shutdown()
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_bundle(root / "tiny" / "1", seed=1)
    return root


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of large pictures, each of which takes a while, a small one and a broken one."""
    folder = tmp_path_factory.mktemp("pictures")
    large = np.full((3000, 4000), 240, np.uint8)
    large[1000:2200, 1500:1800] = 20
    content = to_png(large, compress_level=1)
    for n in range(PICTURES):
        (folder / f"{n:03}.png").write_bytes(content)
    (folder / "017.png").write_bytes(random_png(17))
    (folder / "031.png").write_bytes(b"not a picture")
    return folder


@pytest.fixture(scope="module")
def local(models, pictures, tmp_path_factory) -> Path:
    """The table of --local."""
    out = tmp_path_factory.mktemp("local") / "scores.parquet"
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in (pictures, "--local", "--models", models, "--out", out, "--poses")])
    assert ended.value.code == 1
    return out


@contextmanager
def two_nodes() -> Iterator[tuple[str, Callable[[], None]]]:
    """The address of a cluster of two nodes with a core each, and what kills one of them."""
    pipe = subprocess.PIPE
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    with subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        stdin=pipe,
        stdout=pipe,
        text=True,
        env=environment,
        start_new_session=True,
    ) as running:
        try:
            address = next(line for line in running.stdout if line.startswith("127.") or line[0].isdigit())

            def kill() -> None:
                running.stdin.write("\n")
                running.stdin.flush()
                assert "removed\n" in running.stdout

            yield address.strip(), kill
        finally:
            running.stdin.close()
            try:
                running.wait(60)
            finally:
                if running.poll() is None:
                    os.killpg(running.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster whose nodes live."""
    with two_nodes() as (address, _):
        yield address


def command(models: Path, pictures: Path, out: Path, *more: object) -> list[str]:
    fixed = ["--ray", "--models", models, "--out", out, "--poses", "--part-size", PART]
    return [*PROGRAM, str(pictures), *map(str, (*fixed, *more))]


def started(arguments: list[str], address: str, **settings: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "RAY_ADDRESS": address, **settings}
    return subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE, text=True)


def parts(out: Path) -> list[Path]:
    return sorted(out.glob("part-*.parquet"))


def rows(out: Path) -> list[dict[str, object]]:
    return [row for path in parts(out) for row in pq.read_table(path).to_pylist()]


def errors(out: Path) -> list[dict[str, str]]:
    files = sorted((out / "_errors").glob("*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def check_whole(out: Path, local: Path) -> None:
    """The folder holds what --local wrote, and nothing that a killed process left."""
    assert rows(out) == pq.read_table(local).to_pylist()
    assert pq.read_table(out).num_rows == PICTURES - 1  # readers of folders leave out the other files
    told = local.with_name(f"{local.name}.errors.jsonl").read_text().splitlines()
    assert errors(out) == [json.loads(line) for line in told]
    assert {path.name for path in out.iterdir()} == {
        *(f"part-{n:06}.parquet" for n in range(PICTURES // PART)),
        "_errors",
        "_run.json",
    }


def test_a_node_that_dies_under_load_costs_no_row(models, pictures, local, tmp_path):
    out = tmp_path / "scores"
    with (
        two_nodes() as (address, kill_node),
        started(command(models, pictures, out), address) as running,
    ):
        # Both nodes are at work: each has a part that it has begun.
        wait_until(lambda: len(parts(out)) >= 2 and len(list(out.glob(".part-*"))) == 2, START_S)
        kill_node()
        done = len(parts(out))
        _, told = running.communicate(timeout=START_S)
    assert done < PICTURES // PART
    assert running.returncode == 1, told
    assert f"{PICTURES - 1} scored with tiny/1, 1 skipped ({out}/_errors has the reasons)" in told
    check_whole(out, local)


@pytest.mark.long
def test_a_killed_run_goes_on_with_the_parts_that_are_missing(models, pictures, local, cluster, tmp_path):
    out = tmp_path / "scores"
    with started(command(models, pictures, out), cluster) as running:
        wait_until(lambda: len(parts(out)) >= 3, START_S)
        running.kill()
        running.communicate()
    wait_until(lambda: is_quiet(out))
    before = {path: path.stat().st_mtime_ns for path in parts(out)}
    assert 3 <= len(before) < PICTURES // PART
    torn = parts(out)[1]
    torn.write_bytes(torn.read_bytes()[:-20])  # as after a power failure
    del before[torn]
    refused = subprocess.run(command(models, pictures, out), capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert f"{out} exists already; --resume continues it, --overwrite starts over" in refused.stderr

    with started(command(models, pictures, out, "--resume"), cluster) as running:
        _, told = running.communicate(timeout=START_S)
    assert running.returncode == 1, told
    check_whole(out, local)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert f"{PICTURES - sum(rows_of(path) for path in before)} in this run" in told

    # A finished run needs no cluster.
    with started(command(models, pictures, out, "--resume"), "127.0.0.1:9") as running:
        _, told = running.communicate(timeout=START_S)
    assert running.returncode == 1, told
    assert "0 in this run" in told


def rows_of(part: Path) -> int:
    """Pictures of a part, with and without a row."""
    assert pq.read_metadata(part).num_rows in {PART - 1, PART}
    return PART


def is_quiet(out: Path) -> bool:
    """Whether the processes of a killed run have stopped, too."""
    before = len(parts(out))
    time.sleep(2)
    return len(parts(out)) == before


def test_pairs_are_scored_as_local_does_and_an_odd_number_is_an_error(models, cluster, tmp_path):
    write_bundle(tmp_path / "models" / "stereo" / "1", channels=2)
    for n in range(6):
        path = tmp_path / "pairs" / f"{n // 4}" / f"{n}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random_png(n))
    local, out = tmp_path / "local.parquet", tmp_path / "scores"
    fixed = [*PROGRAM, str(tmp_path / "pairs"), "--models", str(tmp_path / "models")]
    subprocess.run([*fixed, "--local", "--out", str(local)], check=True, stderr=subprocess.DEVNULL)
    ray = [*fixed, "--ray", "--part-size", "3", "--out", str(out)]
    with started(ray, cluster) as running:
        _, told = running.communicate(timeout=START_S)
    assert "3 scored with stereo/1" in told
    assert [pq.read_metadata(part).num_rows for part in parts(out)] == [2, 1]
    assert rows(out) == pq.read_table(local).to_pylist()
    (tmp_path / "pairs" / "1" / "9.png").write_bytes(random_png(9))
    with started([*ray[:-1], str(tmp_path / "odd")], cluster) as running:
        _, told = running.communicate(timeout=START_S)
    assert running.returncode == 2
    assert "pairs/1 has 3, an odd number" in told
    assert not (tmp_path / "odd").exists()


def test_what_cannot_be_written_is_refused_before_an_older_table_goes(pictures, cluster, tmp_path):
    write_bundle(tmp_path / "models" / "tiny" / "1", classes=("0", "label", "2"))
    out = tmp_path / "scores"
    PartFolder(str(out), "out").begin(
        PartsRecord(run="older", spec=OTHER_SPEC, part_size=PART, parts=15, names_sha256="0")
    )
    (out / "part-000000.parquet").write_bytes(b"of an older run")
    with started(command(tmp_path / "models", pictures, out, "--overwrite"), cluster) as running:
        _, told = running.communicate(timeout=START_S)
    assert running.returncode == 2
    assert "does not allow: use --local and .jsonl\n" in told
    assert (out / "part-000000.parquet").exists()


def test_sigterm_ends_a_run_as_ctrl_c_does(models, pictures, cluster, tmp_path):
    out = tmp_path / "scores"
    with started(command(models, pictures, out), cluster) as running:
        wait_until(lambda: len(parts(out)) >= 1, START_S)
        running.terminate()
        _, told = running.communicate(timeout=START_S)
    assert running.returncode == 130, told
    assert told.rstrip().endswith("interrupted; the rows written so far stay; continue with --resume")
    assert "SIGTERM" not in told


def test_settings_of_the_command_reach_all_processes(models, pictures, cluster, tmp_path):
    arguments = command(models, pictures, tmp_path / "scores")
    with started(arguments, cluster, CAPSNET_MAX_PIXELS="1000000") as running:
        _, told = running.communicate(timeout=START_S)
    assert f"1 scored with tiny/1, {PICTURES - 1} skipped" in told
    reasons = [one["reason"] for one in errors(tmp_path / "scores")]
    assert sum("at most 1000000 are read" in reason for reason in reasons) == PICTURES - 2


# One process


@pytest.fixture
def job(models) -> Job:
    query = Query("tiny", 1, None, "auto", poses=False)
    return Job(str(models), query, 4, concurrency=2, threads=1, image_column=None, id_column=None)


def shard_row(name: Path) -> dict[str, object]:
    (shard,) = find_shards([str(name)], 100, None, None)
    return {"part": 7, "shard": pickle.dumps(shard)}


def test_a_process_that_has_another_bundle_writes_nothing(job, tmp_path):
    (tmp_path / "1.png").write_bytes(random_png(1))
    model = choose_model(job)
    folder = PartFolder(str(tmp_path / "out"), "out")
    other = replace(model, digest="00000000")
    made = score_shard(shard_row(tmp_path / "1.png"), job, other, folder)
    assert "tiny/1 is another bundle on a node" in made["fault"]
    assert not (tmp_path / "out").exists()


def test_a_process_that_cannot_load_the_model_says_why(job, tmp_path):
    told = choose_model(replace(job, models=str(tmp_path)))
    assert f"no bundle <model>/<version>/ in {tmp_path}" in told


def test_a_part_that_is_written_again_is_the_same_and_takes_old_errors_away(job, tmp_path):
    picture, errors = tmp_path / "1.png", tmp_path / "out" / "_errors" / "000007.jsonl"
    picture.write_bytes(b"not yet a picture")
    errors.parent.mkdir(parents=True)
    folder, model, shard = (
        PartFolder(str(tmp_path / "out"), "out"),
        choose_model(job),
        shard_row(picture),
    )
    assert score_shard(shard, job, model, folder)["skipped"] == 1
    assert errors.exists()
    assert folder.done() == {7: PartFacts({}, 1)}
    picture.write_bytes(random_png(1))
    for _ in range(2):
        made = score_shard(shard, job, model, folder)
        assert made["fault"] == ""
        assert folder.done() == {7: PartFacts(json.loads(made["labels"]), 0)}
        assert not errors.exists()
        (row,) = pq.read_table(tmp_path / "out" / "part-000007.parquet").to_pylist()
        assert row["path"] == str(picture)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["_errors", "part-000007.parquet"]


def test_a_part_that_cannot_be_written_leaves_nothing_on_a_full_disk(job, tmp_path, monkeypatch):
    def fill(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "1.png").write_bytes(random_png(1))
    folder, model = PartFolder(str(tmp_path / "out"), "out"), choose_model(job)
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(part_folder, "make_table", fill)
    assert "No space left" in score_shard(shard_row(tmp_path / "1.png"), job, model, folder)["fault"]
    assert list((tmp_path / "out").iterdir()) == []


def test_a_part_of_another_run_in_the_folder_is_not_counted_and_takes_no_place(job, tmp_path):
    (tmp_path / "1.png").write_bytes(random_png(1))
    model, shard = choose_model(job), shard_row(tmp_path / "1.png")
    former, folder = (PartFolder(str(tmp_path / "out"), "out", run=run) for run in ("former", "present"))
    spec = run_spec(argparse.Namespace(**OPTIONS), model, "parquet")
    record = PartsRecord(run="former", spec=spec, part_size=100, parts=8, names_sha256="0")
    former.begin(record)
    assert score_shard(shard, job, model, former)["fault"] == ""
    assert list(former.done()) == [7]
    assert folder.done() == {}  # of a process that was slower than --overwrite
    folder.begin(record.model_copy(update={"run": "present"}))
    assert score_shard(shard, job, model, former)["fault"] == "another command has begun a new run in out"
    assert sorted(path.name for path in (tmp_path / "out").glob("part*")) == []
    assert score_shard(shard, job, model, folder)["fault"] == ""
    assert list(folder.done()) == [7]
    folder.finish()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["_run.json", "part-000007.parquet"]


def test_a_part_that_another_command_of_the_run_has_tidied_up_counts(job, tmp_path, monkeypatch):
    (tmp_path / "1.png").write_bytes(random_png(1))
    model, shard = choose_model(job), shard_row(tmp_path / "1.png")
    folder = PartFolder(str(tmp_path / "out"), "out", run="the-run")
    (tmp_path / "out").mkdir()
    expected = score_shard(shard, job, model, folder)

    def tidy_up(folder: PartFolder) -> bool:
        folder.finish()
        return False

    monkeypatch.setattr(PartFolder, "is_taken", tidy_up)  # just before the part gets its name
    assert score_shard(shard, job, model, folder) == expected


# Refused before Ray starts


@pytest.fixture
def finished(models, pictures, tmp_path) -> Path:
    """A run that has been begun, as its record says."""
    out = tmp_path / "scores"
    out.mkdir()
    record = {"run": "a-run", "spec": OTHER_SPEC, "part_size": PART, "parts": 15, "names_sha256": "0"}
    (out / "_run.json").write_text(json.dumps(record))
    return out


def refused(capsys, *arguments: object) -> str:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--local"], "--ray does not go with --local"),
        (["--url", "http://x", "--errors", "e"], "--ray does not go with --url and --errors"),
        (["--files-from", "list"], "--ray does not go with --files-from"),
        (["--out", "-"], "--ray writes a folder of Parquet files"),
        (["--out", "scores.csv"], "--ray writes a folder of Parquet files"),
        (["--format", "csv"], "--ray writes a folder of Parquet files"),
    ],
)
def test_options_that_do_not_fit_are_refused(pictures, tmp_path, capsys, options, told):
    assert told in refused(capsys, pictures, "--ray", "--out", tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "exists already; --resume continues it"),
        (["--resume"], "cannot be resumed: the pictures have changed"),
        (["--resume", "--part-size", "5"], "cannot be resumed: --part-size was 4, now 5"),
        (["--resume", "--top-k", "1"], "cannot be resumed: top_k was None, now 1"),
    ],
)
def test_a_run_that_is_not_the_same_is_not_resumed(finished, pictures, capsys, options, told):
    before = (finished / "_run.json").read_bytes()
    more = ["--poses", "--part-size", PART, *options]
    assert told in refused(capsys, pictures, "--ray", "--out", finished, *more)
    assert (finished / "_run.json").read_bytes() == before


@pytest.mark.parametrize("existing", [[], ["--resume"], ["--overwrite"]])
def test_a_folder_of_something_else_is_never_written_to(pictures, tmp_path, capsys, existing):
    (tmp_path / "part-000000.parquet").write_bytes(b"of somebody else")
    told = refused(capsys, pictures, "--ray", "--out", tmp_path, *existing)
    assert "is not empty and holds no run of capsnet-score" in told
    assert [path.name for path in tmp_path.iterdir()] == ["part-000000.parquet"]


def test_a_record_that_is_none_is_refused(finished, pictures, capsys):
    (finished / "_run.json").write_text("{}")
    assert "is no record of a run" in refused(capsys, pictures, "--ray", "--out", finished, "--resume")


def test_a_folder_that_is_a_file_is_refused(pictures, tmp_path, capsys):
    (tmp_path / "out").touch()
    assert "is a file; --ray writes a folder" in refused(capsys, pictures, "--ray", "--out", tmp_path / "out")


def test_a_cluster_that_does_not_answer_is_told_at_once(models, pictures, tmp_path, capsys, monkeypatch):
    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    told = refused(capsys, pictures, "--ray", "--out", tmp_path / "out", "--models", models)
    assert f"no Ray cluster answers at RAY_ADDRESS={address}: Connection refused" in told
    assert not (tmp_path / "out").exists()


def test_an_address_that_is_none_is_told(models, pictures, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "nowhere")
    told = refused(capsys, pictures, "--ray", "--out", tmp_path / "out", "--models", models)
    assert "no Ray cluster can be used: " in told


def test_a_gpu_is_refused(pictures, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CAPSNET_DEVICE", "cuda")
    told = refused(capsys, pictures, "--ray", "--out", tmp_path / "out")
    assert "--ray runs on processors, but CAPSNET_DEVICE is cuda" in told


@pytest.mark.parametrize("missing", ["ray", "onnxruntime"])
def test_without_a_package_the_extras_are_named(pictures, tmp_path, missing):
    arguments = [str(pictures), "--ray", "--out", str(tmp_path / "out")]
    code = f"import sys; sys.modules['{missing}'] = None; from service.score import main; main({arguments})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr == f"capsnet-score: --ray needs {missing}: pip install -e '.[cpu,ray]'\n"
