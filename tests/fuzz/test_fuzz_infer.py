"""Whatever is sent to the Open Inference Protocol, it is answered with tensors or told what is wrong."""

import json
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import event, given

from tests.fuzz.fuzzed_service import FuzzedService
from tests.fuzz.infer_messages import HEADER_LENGTH, OUTPUTS, SIZES, Infer, infer_requests
from tests.fuzz.sizes import examples

# Hypothesis's word on what it shows of a failure, which must not stand in place of the failure.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")


@examples(share=120, fuzz=6000)
@given(asked=infer_requests())
def test_an_infer_request_is_answered_with_sound_tensors_or_told_what_is_wrong(
    service: FuzzedService, asked: Infer
) -> None:
    answer = service.send(asked.path, asked.content, asked.headers)
    event(str(answer.status_code))
    assert answer.status_code == 200 or not asked.is_good, answer.text
    if answer.status_code == 200:
        assert_sound_tensors(answer, asked)


def assert_sound_tensors(answer: httpx.Response, asked: Infer) -> None:
    """The outputs that were asked for, of the shape that belongs to the inputs, finite and in range."""
    header, tail = split(answer)
    wanted = [output["name"] for output in asked.header.get("outputs") or ()] or OUTPUTS[asked.model]
    count = asked.header["inputs"][0]["shape"][0]
    assert header.get("id") == asked.header.get("id")
    assert [output["name"] for output in header["outputs"]] == list(wanted)
    for output in header["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        assert_sound_tensor(output, tail[:size] if size else None, count)
        tail = tail[size or 0 :]
    assert tail == b""


def assert_sound_tensor(output: dict[str, Any], content: bytes | None, count: int) -> None:
    shape, name = output["shape"], output["name"]
    if output["datatype"] == "BYTES":
        assert shape[0] == count
        assert 1 <= shape[1] <= 3
        assert content is not None or len(output["data"]) == shape[0] * shape[1]
        return
    values = np.array(output["data"], np.float32) if content is None else np.frombuffer(content, "<f4")
    assert shape == [count, *SIZES[name]]
    assert values.size == np.prod(shape)
    assert np.isfinite(values).all()
    if name not in {"poses", "capsules", "agreements"}:
        assert values.min() >= 0
        assert values.max() <= 1


def split(answer: httpx.Response) -> tuple[dict[str, Any], bytes]:
    """The JSON of an answer, and what stands behind it; httpx has unpacked it."""
    length = int(answer.headers.get(HEADER_LENGTH, len(answer.content)))
    return json.loads(answer.content[:length]), answer.content[length:]
