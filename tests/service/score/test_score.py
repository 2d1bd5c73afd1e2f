"""capsnet-score: rows are what /classify answers, in order, and bad files cost nothing but themselves."""

import asyncio
import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from capsnet.in_order import in_order
from export.contract.manifest import read_manifest
from service.inference.loading import load_engine
from service.inference.providers import EngineOptions
from service.score import main, run
from service.score.http_scorer import open_service
from service.score.local_scorer import LocalScorer
from service.score.picture_stream import Picture, PictureReadError, PictureStream, in_batches
from service.score.query import (
    Batch,
    ChosenModel,
    LoadedPicture,
    Outcome,
    Query,
    Row,
    ScoredClass,
    ScoreError,
    Skipped,
)
from service.score.sources import in_folder
from service.score.table import Columns, Csv
from tests.support.live_service import live_service, settings_for, wait_until
from tests.support.small_pictures import random_png
from tests.support.tables import read_csv
from tests.support.tiny_bundle import CLASSES, write_bundle

QUERY = Query(None, None, None, "auto", poses=False)
PYTHON = [sys.executable, "-W", "error"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_bundle(root / "tiny" / "1", seed=1)
    write_bundle(root / "tiny" / "2", seed=2)
    return root


@pytest.fixture(scope="module")
def service(models: Path) -> Iterator[httpx.Client]:
    with live_service(settings_for(models, max_batch=4)) as client:
        yield client


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten pictures in a folder and its subfolders: nine of the model's size, and a pen's stroke on paper."""
    folder = tmp_path_factory.mktemp("digits")
    for index in range(9):
        write_picture(folder / f"{index % 3}" / f"{index}.png", seed=index)
    paper = np.full((60, 60), 240, np.uint8)
    paper[20:45, 30:36] = 20
    Image.fromarray(paper).save(folder / "photograph.jpg")
    return folder


def write_picture(path: Path, *, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(random_png(seed))


def score(*arguments: object) -> int:
    """The exit status of the command in this process."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code


def classified(service: httpx.Client, path: Path, **query: object) -> dict[str, object]:
    answer = service.post("/classify", params=query, files={"images": path.read_bytes()})
    return answer.raise_for_status().json()["results"][0]


@contextmanager
def in_front_of(service: httpx.Client, refuse: Callable[[int], int | None]) -> Iterator[str]:
    """A proxy that may answer the n-th POST with a status of its own and Retry-After: 0; gives its URL.

    Its 500 is the service's own; 599 is a 500 without a problem, as of a proxy that has lost its service.
    """
    posts = iter(range(1, 1000))

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self):
            self.forward(b"")

        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            if status := refuse(next(posts)):
                problem = b'{"type": "/problems/internal-error"}' if status == 500 else b""
                self.answer(500 if status == 599 else status, problem, {"Retry-After": "0"})
            else:
                self.forward(body)

        def forward(self, body: bytes):
            kind = {"content-type": self.headers.get("content-type", "")}
            answer = service.request(self.command, self.path, content=body, headers=kind)
            self.answer(answer.status_code, answer.content, {})

        def answer(self, status: int, body: bytes, headers: dict[str, str]):
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


# Rows


def test_csv_rows_are_what_classify_answers_in_the_order_of_the_names(service, digits, tmp_path):
    assert score(digits, "--out", tmp_path / "scores.csv", "--url", service.base_url, "--batch", 3) == 0
    rows = read_csv(tmp_path / "scores.csv")
    assert [row["path"] for row in rows] == [str(path) for path in sorted(digits.rglob("*.*"))]
    for row in rows:
        result = classified(service, Path(row["path"]))
        assert list(row) == ["path", "label", "probability", "confident", "blank", *CLASSES]
        assert row["label"] == result["label"]
        assert float(row["probability"]) == pytest.approx(result["classes"][0]["probability"], abs=1e-6)
        expected = {c["label"]: c["probability"] for c in result["classes"]}
        assert {name: float(row[name]) for name in CLASSES} == pytest.approx(expected, abs=1e-6)


def test_json_lines_hold_the_classes_by_falling_probability(service, digits, tmp_path):
    assert score(digits, "--out", tmp_path / "scores.jsonl", "--url", service.base_url) == 0
    rows = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert len(rows) == 10
    for row in rows:
        best = row["classes"][0]
        assert list(row) == ["path", "label", "probability", "confident", "blank", "classes"]
        assert (row["label"], row["probability"]) == (best["label"], best["probability"])
        assert {c["label"] for c in row["classes"]} == set(CLASSES)
        assert row["classes"] == sorted(row["classes"], key=lambda c: -c["probability"])


@pytest.mark.parametrize("options", [[], ["--top-k", "2"], ["--preprocess", "off"], ["--version", "1"]])
def test_in_process_and_over_http_the_rows_are_the_same(service, models, digits, tmp_path, options):
    remote, local = tmp_path / "remote.csv", tmp_path / "local.csv"
    assert score(digits, "--out", remote, "--url", service.base_url, *options) == 0
    assert score(digits, "--out", local, "--local", "--models", models, *options) == 0
    numbers = ["probability", *CLASSES]
    for one, other in zip(read_csv(remote), read_csv(local), strict=True):
        assert (one["path"], one["label"]) == (other["path"], other["label"])
        for name in numbers:
            assert (one[name] == "") == (other[name] == "")
            assert float(one[name] or 0) == pytest.approx(float(other[name] or 0), abs=1e-6)


def test_the_newest_version_answers_unless_another_is_asked_for(service, digits, tmp_path):
    picture = digits / "0" / "0.png"
    for options, version in (([], 2), (["--model", "tiny", "--version", "1"], 1)):
        out = tmp_path / f"{version}.csv"
        assert score(picture, "--out", out, "--url", service.base_url, *options) == 0
        (row,) = read_csv(out)
        expected = classified(service, picture, version=version)["classes"][0]["probability"]
        assert float(row["probability"]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("rule", "version"),
    [({"pinned": 1}, 1), ({"canary": 3, "share": 0.2}, 2), ({"canary": 1, "share": 0.9}, 1)],
)
def test_a_run_uses_the_version_that_the_operators_rule_names(rule, version, digits, tmp_path, capsys):
    for number in (1, 2, 3):
        write_bundle(tmp_path / "models" / "tiny" / str(number), seed=number)
    (tmp_path / "models" / "tiny" / "traffic.json").write_text(json.dumps(rule))
    with live_service(settings_for(tmp_path / "models")) as service:
        assert score(digits, "--url", service.base_url) == 0
        assert f"scored with tiny/{version}," in capsys.readouterr().err
    assert score(digits, "--local", "--models", tmp_path / "models") == 0
    assert f"scored with tiny/{version}," in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ('{"pinned": 9}', "tiny is pinned to version 9, which is not there; available: 1"),
        ("{", "traffic.json: Invalid JSON"),
    ],
)
def test_in_process_no_other_version_stands_in_for_a_pinned_one(rule, why, digits, tmp_path, capsys):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    (tmp_path / "models" / "tiny" / "traffic.json").write_text(rule)
    local = (digits, "--local", "--models", tmp_path / "models")
    assert score(*local) == 2
    assert why in capsys.readouterr().err
    assert score(*local, "--version", 1) == 0


def test_preprocess_off_reaches_the_model(service, digits, tmp_path):
    picture = digits / "photograph.jpg"
    score(picture, "--out", tmp_path / "a.csv", "--url", service.base_url, "--preprocess", "off")
    (row,) = read_csv(tmp_path / "a.csv")
    plain, ruled = (classified(service, picture, preprocess=rule)["classes"] for rule in ("off", "auto"))
    assert float(row["probability"]) == pytest.approx(plain[0]["probability"], abs=1e-6)
    assert plain != ruled


def test_top_k_leaves_the_cells_of_the_other_classes_empty(service, digits, tmp_path):
    assert score(digits, "--out", tmp_path / "a.csv", "--url", service.base_url, "--top-k", 1) == 0
    for row in read_csv(tmp_path / "a.csv"):
        assert {name: row[name] for name in CLASSES if row[name]} == {row["label"]: row["probability"]}


def test_a_run_keeps_its_version_though_newer_ones_than_are_kept_are_published(tmp_path):
    models = tmp_path / "models"
    write_bundle(models / "tiny" / "1", seed=1)
    write_picture(tmp_path / "7.png", seed=7)
    picture = LoadedPicture("7.png", (tmp_path / "7.png").read_bytes())

    async def scenario(service: httpx.Client) -> list[Outcome]:
        async with open_service(str(service.base_url), QUERY, retry_timeout_s=1) as scorer:
            for version in (2, 3):
                write_bundle(models / "tiny" / str(version), seed=version)
            wait_until(lambda: service.get("/readyz").json()["models"] == ["tiny/1", "tiny/3"])
            return await scorer.score([picture])

    with live_service(settings_for(models, versions_kept=1, rescan_s=0.02)) as service:
        [row] = asyncio.run(scenario(service))
        expected = classified(service, tmp_path / "7.png", version=1)
    assert row.classes[0].probability == pytest.approx(expected["classes"][0]["probability"], abs=1e-6)


def digest_of(service: httpx.Client) -> str | None:
    """Of the newest version of `tiny`; None while none is loaded."""
    return service.get("/models/tiny").json()["versions"][0].get("digest")


def test_weights_that_are_replaced_under_the_version_of_a_run_end_it_and_both_digests_are_named(tmp_path):
    models = tmp_path / "models"
    write_bundle(models / "tiny" / "1", seed=1)
    first = read_manifest(models / "tiny" / "1").digest
    write_picture(tmp_path / "7.png", seed=7)
    picture = LoadedPicture("7.png", (tmp_path / "7.png").read_bytes())

    async def scenario(service: httpx.Client) -> str:
        async with open_service(str(service.base_url), QUERY, retry_timeout_s=1) as scorer:
            assert isinstance((await scorer.score([picture]))[0], Row)
            replaced = write_bundle(tmp_path / "aside" / "tiny" / "1", seed=2)
            shutil.rmtree(models / "tiny" / "1")
            replaced.rename(models / "tiny" / "1")
            wait_until(lambda: digest_of(service) not in {first, None})
            with pytest.raises(ScoreError) as ended:
                await scorer.score([picture])
            return str(ended.value)

    with live_service(settings_for(models, rescan_s=0.02)) as service:
        told = asyncio.run(scenario(service))
    second = read_manifest(models / "tiny" / "1").digest
    assert f"tiny/1 had the digest {first} and now has {second}" in told
    assert told.startswith("The bundle has changed: ")


@pytest.mark.parametrize("options", [[], ["--min-probability", "0.55"]])
def test_rows_say_whether_they_are_confident_and_whether_the_picture_is_blank(tmp_path, digits, options):
    models, out = tmp_path / "models", tmp_path / "a"
    write_bundle(models / "tiny" / "1", seed=1, min_probability=0.5)
    Image.new("L", (60, 60), 240).save(tmp_path / "page.png")
    asked = [digits, tmp_path / "page.png", *options]
    assert score(*asked, "--out", f"{out}.csv", "--local", "--models", models) == 0
    with live_service(settings_for(models)) as service:
        assert score(*asked, "--out", f"{out}.jsonl", "--url", service.base_url) == 0
        assert score(*asked, "--out", f"{out}.parquet", "--url", service.base_url) == 0
    cells = read_csv(Path(f"{out}.csv"))
    lines = [json.loads(line) for line in Path(f"{out}.jsonl").read_text().splitlines()]
    least = 0.55 if options else 0.5
    assert {line["confident"] for line in lines} == {True, False}
    for row, line, stored in zip(cells, lines, pq.read_table(f"{out}.parquet").to_pylist(), strict=True):
        is_page = line["path"].endswith("page.png")
        assert line["blank"] is is_page
        assert line["confident"] is (line["probability"] >= least and not is_page)
        assert (row["confident"], row["blank"]) == tuple(
            json.dumps(line[name]) for name in ("confident", "blank")
        )
        assert (stored["confident"], stored["blank"]) == (line["confident"], line["blank"])


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t"])
def test_in_csv_a_name_that_a_spreadsheet_would_compute_is_defused(models, tmp_path, monkeypatch, start):
    monkeypatch.chdir(tmp_path)
    name = f"{start}cmd|' calc'!A1.png"
    write_picture(tmp_path / name, seed=1)
    (tmp_path / "list.txt").write_text(f"{name}\n")
    local = ["--files-from", "list.txt", "--local", "--models", models]
    assert score(*local, "--out", "a.csv") == score(*local, "--out", "a.jsonl") == 0
    [row] = read_csv(tmp_path / "a.csv")
    assert row["path"] == f"'{name}"
    assert json.loads((tmp_path / "a.jsonl").read_text())["path"] == name


def test_in_csv_the_name_of_a_class_that_a_spreadsheet_would_compute_is_defused():
    table = Csv(Columns(["=1+1", "b"], poses=True))
    assert table.header() == b"path,label,probability,confident,blank,'=1+1,b,'=1+1_pose,b_pose\n"
    row = Row("a.png", [ScoredClass("=1+1", 0.5, [-0.1])], None, False)
    assert table.lines([row]) == b"a.png,'=1+1,0.5,,false,0.5,,[-0.1],\n"


def test_in_csv_a_carriage_return_in_a_name_ends_no_row():
    table = Csv(Columns(["a"], poses=False))
    names = ["x\r=1+1.png", "7.png", "y\r\n8.png"]
    text = b"".join(table.lines([Row(name, [ScoredClass("a", 0.5, [])], None, False)]) for name in names)
    assert [row[0] for row in csv.reader(StringIO(text.decode(), newline=""))] == names


def test_stdout_holds_only_rows(models, digits, capsys):
    assert score(digits / "0", "--local", "--models", models) == 0
    header, *rows, rest = capsys.readouterr().out.split("\n")
    assert (header, rest) == ("path,label,probability,confident,blank,0,1,2", "")
    assert [row.split(",")[0] for row in rows] == [str(digits / "0" / f"{n}.png") for n in (0, 3, 6)]
    assert not any("\r" in row for row in rows)


def test_a_name_that_is_no_text_is_written_as_its_bytes(service, digits, tmp_path):
    name = os.fsencode(tmp_path) + b'/caf\xe9, "7"\n.png'
    shutil.copy(digits / "0" / "0.png", name)
    for out in ("a.csv", "a.jsonl"):
        assert score(os.fsdecode(name), "--out", tmp_path / out, "--url", service.base_url) == 0
    with (tmp_path / "a.csv").open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        assert [os.fsencode(row["path"]) for row in csv.DictReader(file)] == [name]
    line = (tmp_path / "a.jsonl").read_text(encoding="utf-8", errors="surrogateescape")
    assert os.fsencode(json.loads(line)["path"]) == name


# Poses and Parquet


@pytest.mark.parametrize("where", ["remote", "local"])
def test_poses_are_those_that_classify_answers(service, models, digits, tmp_path, where):
    reached = ["--url", service.base_url] if where == "remote" else ["--local", "--models", models]
    out = tmp_path / "a.jsonl"
    assert score(digits, "--out", out, "--poses", *reached) == 0
    for row in map(json.loads, out.read_text().splitlines()):
        expected = classified(service, Path(row["path"]))["classes"]
        assert [c["label"] for c in row["classes"]] == [c["label"] for c in expected]
        for one, other in zip(row["classes"], expected, strict=True):
            assert one["pose"] == pytest.approx(other["pose"], abs=1e-6)
            assert all(len(str(abs(number))) <= 16 for number in one["pose"])  # float32 has no more digits


def test_csv_has_a_column_of_each_classs_pose_beside_those_of_its_probability(models, digits, tmp_path):
    local = ["--local", "--models", models, "--poses", "--top-k", 2]
    assert score(digits, "--out", tmp_path / "a.csv", *local) == 0
    assert score(digits, "--out", tmp_path / "a.jsonl", *local) == 0
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    for row, line in zip(read_csv(tmp_path / "a.csv"), lines, strict=True):
        assert list(row) == [
            "path",
            "label",
            "probability",
            "confident",
            "blank",
            *CLASSES,
            "0_pose",
            "1_pose",
            "2_pose",
        ]
        poses = {c["label"]: c["pose"] for c in line["classes"]}
        assert {name: json.loads(row[f"{name}_pose"]) for name in CLASSES if row[f"{name}_pose"]} == poses


@pytest.mark.parametrize("options", [[], ["--poses"], ["--top-k", "2", "--poses"]])
def test_parquet_holds_what_csv_does(models, digits, tmp_path, options):
    local = ["--local", "--models", models, *options]
    assert score(digits, "--out", tmp_path / "a.csv", *local) == 0
    assert score(digits, "--out", tmp_path / "a.parquet", *local) == 0
    rows = read_csv(tmp_path / "a.csv")
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.column_names == list(rows[0])
    assert table.num_rows == len(rows) == 10
    for row, found in zip(rows, table.to_pylist(), strict=True):
        assert (found.pop("path"), found.pop("label")) == (row.pop("path"), row.pop("label"))
        expected = {name: json.loads(cell) if cell else None for name, cell in row.items()}
        assert found == {name: as_float32(value) for name, value in expected.items()}


def as_float32(value: float | list[float] | None) -> object:
    return None if value is None else np.asarray(value, np.float32).tolist()


def test_a_class_named_like_a_column_is_refused_before_a_parquet_file_is_begun(digits, tmp_path, capsys):
    write_bundle(tmp_path / "models" / "tiny" / "1", classes=("label", "one", "two"))
    local = ["--local", "--models", tmp_path / "models"]
    assert score(digits, "--out", tmp_path / "a.parquet", *local) == 2
    assert "a class is named label" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["models"]
    assert score(digits, "--out", tmp_path / "a.jsonl", *local) == 0


def test_parquet_writes_a_name_that_is_no_text_with_escapes(models, digits, tmp_path):
    name = os.fsencode(tmp_path) + b"/caf\xe9.png"
    shutil.copy(digits / "0" / "0.png", name)
    out = tmp_path / "a.parquet"
    assert score(os.fsdecode(name), "--out", out, "--local", "--models", models) == 0
    assert pq.read_table(out)["path"].to_pylist() == [f"{tmp_path}/caf\\xe9.png"]


def test_parquet_is_not_written_to_stdout(models, digits, capsys):
    assert score(digits, "--format", "parquet", "--local", "--models", models) == 2
    assert "Parquet can only be written to a file" in capsys.readouterr().err


def test_without_pyarrow_parquet_is_refused_before_anything_is_scored(digits, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "service.score.parquet", raising=False)
    assert score(digits, "--out", tmp_path / "a.parquet", "--url", "http://127.0.0.1:9") == 2
    assert "pip install -e '.[parquet]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("out", "errors"),
    [
        ("a.csv", "a.csv"),
        ("a.csv", "../here/a.csv"),
        ("a.csv", "link.csv"),
        ("a.csv", "a.csv.run.json"),
        ("a.parquet", "a.parquet.rows.jsonl"),
        ("a.csv", "/dev/null"),
    ],
)
def test_errors_need_a_file_of_their_own(models, digits, tmp_path, capsys, monkeypatch, out, errors):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "link.csv").symlink_to("a.csv")
    monkeypatch.chdir(tmp_path / "here")
    assert score(digits, "--out", out, "--errors", errors, "--local", "--models", models) == 2
    assert f"--errors must name a file of its own, got {errors}" in capsys.readouterr().err


def test_archives_and_parquet_files_are_scored_like_the_files_in_them(models, digits, tmp_path):
    files = sorted(digits.rglob("*.*"))
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        for file in files:
            archive.write(file, file.name)
    pictures = [{"bytes": file.read_bytes(), "path": file.name} for file in files]
    pq.write_table(pa.table({"image": pictures}), tmp_path / "set.parquet")
    tables = {}
    for source in (digits, tmp_path / "set.zip", tmp_path / "set.parquet"):
        assert score(source, "--out", tmp_path / "a.csv", "--overwrite", "--local", "--models", models) == 0
        tables[source.suffix] = [list(row.values()) for row in read_csv(tmp_path / "a.csv")]
    inner = [f"{tmp_path}/set.zip/{file.name}" for file in files]
    assert [row[0] for row in tables[".zip"]] == inner
    assert [row[0].rpartition("#")[2] for row in tables[".parquet"]] == [
        f"{n}/{file.name}" for n, file in enumerate(files)
    ]
    for row in zip(*tables.values(), strict=True):
        assert row[0][1:] == row[1][1:] == row[2][1:]


# Broken versions


@pytest.fixture
def newest_broken(tmp_path) -> Path:
    """Versions 1 to 3 of a model, of which only 1 can be used."""
    for version in (1, 2, 3):
        write_bundle(tmp_path / "models" / "tiny" / str(version), seed=version)
    (tmp_path / "models" / "tiny" / "2" / "manifest.json").unlink()
    (tmp_path / "models" / "tiny" / "3" / "encoder.onnx").write_bytes(b"cut short")
    return tmp_path / "models"


def test_in_process_the_newest_version_that_can_be_used_answers(newest_broken, digits, tmp_path):
    program = [*PYTHON, "-m", "service.score", str(digits), "--local", "--models", str(newest_broken)]
    ran = subprocess.run(program, capture_output=True, text=True, check=False)
    assert ran.returncode == 0
    third, second, summary, _ = ran.stderr.splitlines()
    assert third.startswith("capsnet-score: tiny/3 cannot be used: ")
    assert third.endswith("; falling back to tiny/2")
    assert second.startswith("capsnet-score: tiny/2 cannot be used: ")
    assert second.endswith("; falling back to tiny/1")
    assert summary.startswith("capsnet-score: 10 scored with tiny/1, 0 skipped; ")
    with live_service(settings_for(newest_broken)) as service:
        assert score(digits, "--out", tmp_path / "a.csv", "--url", service.base_url) == 0
    assert list(csv.DictReader(StringIO(ran.stdout))) == read_csv(tmp_path / "a.csv")


def test_a_broken_version_that_is_asked_for_is_not_replaced_by_another(newest_broken, digits, capsys):
    with live_service(settings_for(newest_broken)) as service:
        places = {
            "tiny/3 cannot be used: ": ["--local", "--models", newest_broken],
            "the service answered ": ["--url", service.base_url],
        }
        for start, place in places.items():
            assert score(digits, *place, "--version", 3) == 2
            captured = capsys.readouterr()
            (line,) = captured.err.splitlines()
            assert line.startswith(f"capsnet-score: {start}")
            assert "encoder.onnx" in line
            assert captured.out == ""


# Bad files


@pytest.mark.parametrize("where", ["remote", "local"])
def test_bad_files_are_named_and_cost_no_other_file_its_row(service, models, digits, tmp_path, capsys, where):
    folder = tmp_path / "some"
    shutil.copytree(digits, folder)
    (folder / "0" / "empty.png").touch()
    (folder / "1" / "text.jpg").write_text("not a picture")
    (folder / "2" / "gone.png").symlink_to("nowhere")
    reached = ["--url", service.base_url] if where == "remote" else ["--local", "--models", models]
    assert score(folder, "--out", tmp_path / "a.csv", *reached) == 1
    good = sorted(folder / path.relative_to(digits) for path in digits.rglob("*.*"))
    assert [row["path"] for row in read_csv(tmp_path / "a.csv")] == [str(path) for path in good]
    errors = [json.loads(line) for line in (tmp_path / "a.csv.errors.jsonl").read_text().splitlines()]
    bad = [str(folder / name) for name in ("0/empty.png", "1/text.jpg", "2/gone.png")]
    assert [error["path"] for error in errors] == bad
    empty, text, gone = (error["reason"] for error in errors)
    assert empty.startswith("expected a PNG")
    assert text.startswith("expected a PNG")
    assert gone == "No such file or directory"
    summary, labels = capsys.readouterr().err.splitlines()
    errors_file = f"({tmp_path / 'a.csv.errors.jsonl'} has the reasons)"
    assert summary.startswith(
        f"capsnet-score: 10 scored with tiny/2, 3 skipped {errors_file}; 13 in this run"
    )
    counts = Counter(row["label"] for row in read_csv(tmp_path / "a.csv"))
    assert labels == "capsnet-score: labels: " + ", ".join(
        f"{label} {n}" for label, n in counts.most_common()
    )


def test_when_rows_go_to_stdout_bad_files_are_told_on_stderr_or_where_errors_says(
    models, digits, tmp_path, capsys
):
    bad = tmp_path / "text.jpg"
    bad.write_text("not a picture")
    arguments = [digits, bad, "--local", "--models", models]
    assert score(*arguments) == 1
    assert capsys.readouterr().err.startswith(f"capsnet-score: skipped {bad}: expected a PNG")
    assert score(*arguments, "--errors", tmp_path / "bad.jsonl") == 1
    assert "skipped /" not in capsys.readouterr().err
    assert json.loads((tmp_path / "bad.jsonl").read_text())["path"] == str(bad)


def test_in_process_a_picture_that_fails_unexpectedly_is_skipped(models, digits):
    engine = load_engine(models / "tiny" / "1", "tiny", EngineOptions("cpu", 32, models / "cache"))
    facts = engine.manifest.preprocessing.model_copy(update={"channels": 4})  # which nothing can make
    engine = replace(engine, manifest=engine.manifest.model_copy(update={"preprocessing": facts}))
    chosen, query = ChosenModel("tiny", 1, CLASSES, "", 1), QUERY
    picture = LoadedPicture("0.png", (digits / "0" / "0.png").read_bytes())
    (outcome,) = asyncio.run(LocalScorer(engine, chosen, query, 50_000_000).score([picture]))
    assert isinstance(outcome, Skipped)
    assert outcome.reason.startswith("cannot be processed: ValueError: ")


def test_when_no_picture_can_be_scored_the_status_is_2(service, tmp_path):
    (tmp_path / "7.png").write_text("not a picture")
    assert score(tmp_path, "--out", tmp_path / "a.csv", "--url", service.base_url) == 2


def test_a_fault_of_its_own_has_a_status_of_its_own(tmp_path, capsys, monkeypatch):
    def fail(_):
        raise RuntimeError("unheard of")

    monkeypatch.setattr(os, "scandir", fail)
    assert score(tmp_path) == 3
    assert "RuntimeError: unheard of" in capsys.readouterr().err


def test_a_folder_that_vanishes_while_it_is_walked_is_reported(tmp_path):
    write_picture(tmp_path / "a.png", seed=0)
    write_picture(tmp_path / "b" / "c.png", seed=0)
    found = in_folder(tmp_path)
    assert next(found).name == str(tmp_path / "a.png")
    shutil.rmtree(tmp_path / "b")
    (gone,) = found
    assert gone.name == str(tmp_path / "b")
    with pytest.raises(PictureReadError, match="No such file"):
        gone.read(1)


# Paths


def test_folders_give_their_pictures_and_nothing_else(tmp_path):
    for name in ("10.png", "9.JPEG", "b/x.webp", "a/y.tiff"):
        write_picture(tmp_path / name, seed=0)
    for name in ("scores.csv", "._9.png", "b/notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "7.png").touch()
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "a" / "round").symlink_to(tmp_path)
    names = ["10.png", "9.JPEG", "a/y.tiff", "b/x.webp"]
    assert [found.name for found in in_folder(tmp_path)] == [str(tmp_path / name) for name in names]


def test_a_wrong_setting_is_told_before_a_file_is_made(service, digits, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CAPSNET_FOO", "1")
    assert score(digits, "--out", tmp_path / "a.csv", "--url", service.base_url) == 2
    assert "CAPSNET_FOO" in capsys.readouterr().err
    assert list(tmp_path.glob("a.csv*")) == []


def test_a_pattern_reaches_into_subfolders(models, digits, tmp_path):
    assert score(f"{digits}/**/*.png", "--out", tmp_path / "a.csv", "--local", "--models", models) == 0
    expected = [str(path) for path in sorted(digits.rglob("*.png"))]
    assert [row["path"] for row in read_csv(tmp_path / "a.csv")] == expected


def test_a_file_named_like_a_pattern_is_a_file_whatever_its_suffix(models, digits, tmp_path):
    shutil.copy(digits / "0" / "0.png", tmp_path / "[7].data")
    named = tmp_path / "[7].data"
    assert score(named, "--out", tmp_path / "a.csv", "--local", "--models", models) == 0
    assert [row["path"] for row in read_csv(tmp_path / "a.csv")] == [str(named)]


@pytest.mark.parametrize("argument", ["digts", "*.pngg", "empty", ""])
def test_a_path_without_pictures_is_named_and_overwrites_nothing(tmp_path, capsys, monkeypatch, argument):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "scores.csv").write_text("from yesterday")
    assert score(argument, "--out", "scores.csv", "--overwrite") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert argument in line
    assert (tmp_path / "scores.csv").read_text() == "from yesterday"


# Usage


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--out", "scores.txt"], "scores.txt ends in none of .csv, .jsonl and .parquet"),
        (["--top-k", "4"], "--top-k must be 1 to 3, the classes of tiny; got 4"),
        (["--model", "nine"], "'nine'"),
        (["--version", "9"], "tiny has no version 9; available: 1, 2"),
        (["--out", "nowhere/scores.csv"], "nowhere/scores.csv"),
    ],
)
@pytest.mark.parametrize("where", ["remote", "local"])
def test_a_choice_that_cannot_be_had_is_told_in_one_line(
    service, models, digits, tmp_path, capsys, monkeypatch, options, told, where
):
    monkeypatch.chdir(tmp_path)
    reached = ["--url", service.base_url] if where == "remote" else ["--local", "--models", models]
    assert score(digits, *reached, *options) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert told in line
    assert captured.out == ""


@pytest.mark.parametrize("around", [["digits"], ["--out", "a.csv"], ["--files-from", "-"]])
def test_a_version_without_its_number_is_no_way_to_score_nothing(capsys, around):
    assert score(*around, "--version") == 2
    captured = capsys.readouterr()
    assert "--version of a model needs a number" in captured.err
    assert captured.out == ""
    assert score("--version") == 0
    assert capsys.readouterr().out.startswith("capsnet-score ")


def test_several_models_without_a_default_must_be_chosen_from(models, digits, tmp_path, capsys):
    shutil.copytree(models / "tiny", tmp_path / "tiny")
    write_bundle(tmp_path / "other" / "1")
    with live_service(settings_for(tmp_path)) as service:
        for reached in (["--url", service.base_url], ["--local", "--models", tmp_path]):
            assert score(digits, *reached) == 2
            assert "--model from other, tiny" in capsys.readouterr().err
            assert score(digits, *reached, "--model", "other") == 0


def test_a_service_that_is_not_there_is_one_line_with_its_address_and_the_remedy(digits, capsys):
    assert score(digits, "--url", "http://127.0.0.1:9") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "http://127.0.0.1:9" in line
    assert "make serve" in line


def test_the_key_comes_from_the_environment_and_is_asked_for_where_it_lacks(
    models, digits, tmp_path, capsys, monkeypatch
):
    arguments = [digits, "--out", tmp_path / "a.csv"]
    monkeypatch.delenv("CAPSNET_API_KEY", raising=False)
    with live_service(settings_for(models, api_keys="one,two")) as service:
        assert score(*arguments, "--url", service.base_url) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "401" in line
        assert line.endswith("set CAPSNET_API_KEY")
        monkeypatch.setenv("CAPSNET_API_KEY", "two")
        assert score(*arguments, "--url", service.base_url) == 0


def test_an_address_that_is_none_is_told_before_it_is_tried(digits, capsys):
    assert score(digits, "--url", "localhost:8000") == 2
    assert "'localhost:8000'" in capsys.readouterr().err


def test_help_shows_examples_and_needs_neither_torch_nor_onnxruntime():
    without = "import sys; sys.modules |= {'torch': None, 'onnxruntime': None}"
    program = f"{without}; from service.score import main; main()"
    ran = subprocess.run([*PYTHON, "-c", program, "--help"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "capsnet-score digits/ --out scores.csv" in ran.stdout


# Trouble on the way


def test_an_overloaded_service_is_asked_again(service, digits, tmp_path):
    with in_front_of(service, lambda post: 503 if post % 2 else None) as url:
        assert score(digits, "--out", tmp_path / "a.csv", "--url", url, "--batch", 2) == 0
    assert len(read_csv(tmp_path / "a.csv")) == 10


def test_a_service_that_stays_overloaded_is_given_up_with_the_rows_before_kept(
    service, digits, tmp_path, capsys
):
    with in_front_of(service, lambda post: 503 if post > 2 else None) as url:
        arguments = [digits, "--out", tmp_path / "a.csv", "--batch", 3, "--concurrency", 1]
        assert score(*arguments, "--url", url, "--retry-timeout", 1) == 2
    assert len(read_csv(tmp_path / "a.csv")) == 6
    assert "the service answered 503" in capsys.readouterr().err
    assert score(*arguments, "--url", service.base_url, "--resume") == 0
    assert [row["path"] for row in read_csv(tmp_path / "a.csv")] == sorted(map(str, digits.rglob("*.*")))


def test_a_picture_that_breaks_the_service_costs_no_other_its_row(service, digits, tmp_path, capsys):
    names = [digits / str(n % 3) / f"{n}.png" for n in range(9)]
    arguments = ["--out", tmp_path / "a.csv", "--batch", 3, "--concurrency", 1]
    with in_front_of(service, lambda post: 500 if post in {2, 3} else None) as url:  # 3 to 5, then 3 alone
        assert score(*names, *arguments, "--url", url) == 1
    assert [row["path"] for row in read_csv(tmp_path / "a.csv")] == [
        str(names[n]) for n in range(9) if n != 3
    ]
    (error,) = (tmp_path / "a.csv.errors.jsonl").read_text().splitlines()
    assert json.loads(error)["path"] == str(names[3])
    assert capsys.readouterr().err.startswith("capsnet-score: 8 scored with tiny/2, 1 skipped")


def test_a_service_that_fails_on_every_picture_is_status_2(service, digits, tmp_path):
    with in_front_of(service, lambda _: 500) as url:
        assert score(digits, "--out", tmp_path / "a.csv", "--url", url) == 2


def test_a_proxy_that_has_lost_its_service_costs_no_row(service, digits, tmp_path):
    with in_front_of(service, lambda post: 599 if post < 4 else None) as url:
        assert score(digits, "--out", tmp_path / "a.csv", "--url", url, "--batch", 3) == 0
    assert len(read_csv(tmp_path / "a.csv")) == 10


def test_a_service_that_goes_on_failing_ends_the_run_which_can_be_continued(
    service, digits, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(run, "MAX_BUGS", 4)
    arguments = [digits, "--out", tmp_path / "a.csv", "--batch", 2, "--concurrency", 1]
    with in_front_of(service, lambda post: 500 if post > 1 else None) as url:
        assert score(*arguments, "--url", url) == 2
    assert "the service answered the last 4 pictures with an internal error" in capsys.readouterr().err
    assert len(read_csv(tmp_path / "a.csv")) == 2
    assert score(*arguments, "--url", service.base_url, "--resume") == 1
    assert len(read_csv(tmp_path / "a.csv")) == 10 - 4


def test_a_run_that_met_bugs_alone_goes_on_behind_them(service, digits, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "MAX_BUGS", 4)
    arguments = [digits, "--out", tmp_path / "a.csv", "--batch", 8]
    with in_front_of(service, lambda _: 500) as url:
        assert score(*arguments, "--url", url) == 2
    assert score(*arguments, "--url", service.base_url, "--resume") == 1
    assert len(read_csv(tmp_path / "a.csv")) == 10 - 8
    assert len((tmp_path / "a.csv.errors.jsonl").read_text().splitlines()) == 8


def test_unreadable_pictures_between_those_that_meet_bugs_hide_nothing(
    service, digits, tmp_path, monkeypatch
):
    monkeypatch.setattr(run, "MAX_BUGS", 4)
    names = "".join(f"{digits / str(n % 3)}/{n}.png\nmissing.png\n" for n in range(9))
    (tmp_path / "names.txt").write_text(names)
    arguments = ["--files-from", tmp_path / "names.txt", "--out", tmp_path / "a.csv", "--batch", 2]
    with in_front_of(service, lambda _: 500) as url:
        assert score(*arguments, "--url", url) == 2
    assert len((tmp_path / "a.csv.errors.jsonl").read_text().splitlines()) == 8, "four of them missing"


def test_a_proxy_that_does_not_find_its_service_again_ends_the_run_and_no_picture_is_lost(
    service, digits, tmp_path
):
    arguments = [digits, "--out", tmp_path / "a.csv", "--batch", 2, "--concurrency", 1]
    with in_front_of(service, lambda post: 599 if post > 1 else None) as url:
        assert score(*arguments, "--url", url, "--retry-timeout", 1) == 2
    assert len(read_csv(tmp_path / "a.csv")) == 2
    assert score(*arguments, "--url", service.base_url, "--resume") == 0
    assert len(read_csv(tmp_path / "a.csv")) == 10


def test_a_table_keeps_to_the_version_it_began_with(digits, tmp_path):
    write_bundle(tmp_path / "models" / "tiny" / "1", seed=1)
    aside = write_bundle(tmp_path / "aside" / "tiny" / "2", seed=2)

    def publish_before_the_second(post: int) -> None:
        if post == 2:
            aside.rename(tmp_path / "models" / "tiny" / "2")
            wait_until(lambda: service.get("/models/tiny").json()["versions"][0]["version"] == 2)

    with live_service(settings_for(tmp_path / "models", rescan_s=0.05)) as service:
        with in_front_of(service, publish_before_the_second) as url:
            arguments = ["--batch", 5, "--concurrency", 1, "--out", tmp_path / "a.csv"]
            assert score(digits, "--url", url, *arguments) == 0
        for row in read_csv(tmp_path / "a.csv"):
            first, second = (classified(service, Path(row["path"]), version=version) for version in (1, 2))
            assert float(row["probability"]) == pytest.approx(first["classes"][0]["probability"], abs=1e-6)
            assert first["classes"] != second["classes"]


def test_a_batch_over_the_services_limits_goes_in_smaller_parts(models, digits, tmp_path):
    limits = {"max_images_per_request": 4, "max_body_bytes": 3000}  # a picture has some 900 bytes
    with live_service(settings_for(models, **limits)) as service:
        names = [digits / str(n % 3) / f"{n}.png" for n in range(9)]
        assert score(*names, "--out", tmp_path / "a.csv", "--url", service.base_url, "--batch", 9) == 0
    assert [row["path"] for row in read_csv(tmp_path / "a.csv")] == [str(name) for name in names]


def test_ctrl_c_leaves_whole_rows_and_status_130(service, digits, tmp_path):
    out, released = tmp_path / "a.jsonl", threading.Event()

    def hold_the_third(post: int) -> None:
        if post == 3:
            released.wait(30)

    program = [*PYTHON, "-m", "service.score", str(digits), "--out", str(out), "--batch", "2"]
    with in_front_of(service, hold_the_third) as url:
        command = [*program, "--concurrency", "1", "--url", url]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
            wait_until(lambda: out.exists() and out.read_text().count("\n") == 4)
            running.send_signal(signal.SIGINT)
            _, told = running.communicate(timeout=30)
        released.set()
    assert running.returncode == 130
    assert told == "capsnet-score: interrupted; the rows written so far stay; continue with --resume\n"
    assert [len(json.loads(line)["classes"]) for line in out.read_text().splitlines()] == [3, 3, 3, 3]


def test_ctrl_c_names_no_resume_where_rows_go_to_a_device(service, digits):
    asked, released = threading.Event(), threading.Event()

    def hold(_: int) -> None:
        asked.set()
        released.wait(30)

    with in_front_of(service, hold) as url:
        command = [*PYTHON, "-m", "service.score", str(digits), "--out", os.devnull, "--format", "csv"]
        with subprocess.Popen([*command, "--url", url], stderr=subprocess.PIPE, text=True) as running:
            assert asked.wait(30)
            running.send_signal(signal.SIGINT)
            _, told = running.communicate(timeout=30)
        released.set()
    assert running.returncode == 130
    assert told.splitlines()[-1] == "capsnet-score: interrupted; the rows written so far stay"


def test_a_reader_that_has_had_enough_ends_it_quietly(models, digits):
    command = [*PYTHON, "-m", "service.score", str(digits), "--local", "--models", str(models)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        running.stdout.close()
        told = running.stderr.read()
    assert (running.returncode, told) == (141, "")


def test_batches_are_taken_as_they_are_needed_and_come_back_in_order():
    taken, running, most = 0, 0, 0

    def pictures() -> Iterator[Picture]:
        nonlocal taken
        for index in range(100):
            taken += 1
            yield Picture(str(index), lambda _: b"", source="folder")

    async def later_ones_first(batch: Batch) -> list[Outcome]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        async with asyncio.timeout(30):
            while most < 4:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.002 * (3 - int(batch[0].name) // 10 % 4))
        running -= 1
        return [Skipped(picture.name, "") for picture in batch]

    async def names_of_all() -> list[str]:
        names: list[str] = []
        async for outcomes in in_order(later_ones_first, in_batches(PictureStream(pictures()), 10, 1), 4):
            names += [outcome.name for outcome in outcomes]
            assert taken <= len(names) + 4 * 10
        return names

    assert asyncio.run(names_of_all()) == [str(index) for index in range(100)]
    assert most == 4
