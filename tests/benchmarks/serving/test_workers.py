"""What benchmarks.serving.workers posts is answered, and counted by the route that it reads."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from benchmarks.serving.workers import Cost, Posted, answered, engine_pid, line, parse, what_is_posted
from tests.support.live_process import LiveProcess, live_process
from tests.support.live_service import wait_until
from tests.support.tiny_bundle import SIDE, write_bundle

IMAGES = 5


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("models") / "tiny" / "1")


@pytest.fixture(scope="module")
def service(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveProcess]:
    with live_process(bundle.parents[1], tmp_path_factory.mktemp("log") / "log") as service:
        yield service


def post(service: LiveProcess, posted: Posted) -> list[httpx.Response]:
    """What post.lua does with each file once."""
    kind, *others = posted.arguments
    set_here = [one.removeprefix("HEADER_").split("=") for one in others if one.startswith("HEADER_")]
    headers = {"Content-Type": kind, **dict(set_here)}
    files = [Path(one) for one in others if not one.startswith("HEADER_")]
    return [service.client.post(posted.path, content=file.read_bytes(), headers=headers) for file in files]


def test_a_picture_is_answered_and_counted(service, bundle, tmp_path):
    posted = what_is_posted(bundle, parse([]), tmp_path)
    before = answered(service, posted)
    [answer] = post(service, posted)
    assert answer.status_code == 200, answer.text
    assert answered(service, posted) == before + 1


@pytest.mark.parametrize(("datatype", "size"), [("FP32", 4), ("UINT8", 1)])
def test_a_tensor_of_so_many_images_is_answered_and_counted(service, bundle, tmp_path, datatype, size):
    options = parse(["--tensors", str(IMAGES), "--datatype", datatype])
    posted = what_is_posted(bundle, options, tmp_path)
    before, images = answered(service, posted), service.metric("capsnet_batch_images_sum", model="tiny")
    [answer] = post(service, posted)
    assert answer.status_code == 200, answer.text
    assert answered(service, posted) == before + 1
    assert service.metric("capsnet_batch_images_sum", model="tiny") == images + IMAGES
    assert IMAGES * SIDE * SIDE * size < len(answer.request.content) < IMAGES * SIDE * SIDE * size + 300


def test_pixels_as_bytes_are_those_of_the_samples(service, bundle, tmp_path):
    """Within the half step by which rounding to bytes changes them."""
    found = []
    for datatype in ("FP32", "UINT8"):
        options = parse(["--tensors", str(IMAGES), "--datatype", datatype])
        [answer] = post(service, what_is_posted(bundle, options, tmp_path))
        length = int(answer.headers["Inference-Header-Content-Length"])
        found.append(np.frombuffer(answer.content[length:], "<f4"))
    np.testing.assert_allclose(*found, atol=0.01)


def test_the_engine_process_is_known_by_what_the_supervisor_says(bundle, tmp_path):
    with live_process(bundle.parents[1], tmp_path / "log", workers=2) as service:
        said = f"the engine process {engine_pid(service)} has the models"
        wait_until(lambda: any(line["message"] == said for line in service.lines))


def test_a_row_has_the_processor_time_of_each_request():
    cost = Cost(requests=1000, seconds=2, workers_s=3, engine_s=1, load_s=0.5, resident_mib=100)
    assert line(2, cost, 64) == "| 2 | 500 | 32000 | 3.00 | 1.00 | 0.50 | 100 | 667 |"


def test_a_load_of_which_nothing_was_answered_is_told():
    cost = Cost(requests=0, seconds=2, workers_s=3, engine_s=1, load_s=0.5, resident_mib=100)
    with pytest.raises(ValueError, match="no request was answered with 200"):
        line(1, cost, 1)


@pytest.mark.parametrize("wrong", [("--tensors", "0"), ("--datatype", "FP64"), ("--model", "docs")])
def test_an_option_that_cannot_be_is_refused(wrong):
    with pytest.raises(SystemExit):
        parse(wrong)


@pytest.mark.parametrize(
    "wrong", [["--workers", "a"], ["--workers", "1,0"], ["--clients", "0"], ["--tensors", "-1"]]
)
def test_numbers_that_are_none_are_refused_in_a_line(wrong, capsys):
    with pytest.raises(SystemExit):
        parse(wrong)
    assert "expected a whole number from 1 on" in capsys.readouterr().err


def test_several_numbers_of_workers_are_taken_in_order():
    assert parse(["--workers", "2,1"]).workers == [2, 1]
    assert parse([]).workers == [1, 2, 4]
