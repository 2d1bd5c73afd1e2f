"""The administrator's route for which version answers requests that name none."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.support.live_service import live_service, settings_for, wait_until
from tests.support.small_pictures import to_npy
from tests.support.tiny_bundle import SIDE, write_bundle

ADMIN = {"X-API-Key": "operator"}
NPY = {"Content-Type": "application/x-npy"}
PIXELS = np.full((1, SIDE, SIDE, 1), 0.5, np.float32)


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A service with no rule, which each test leaves so."""
    models = tmp_path_factory.mktemp("models")
    for version in (1, 2):
        write_bundle(models / "tiny" / str(version), seed=version)
    with live_service(settings_for(models, admin_key="operator")) as http:
        wait_until(
            lambda: [one["state"] for one in http.get("/models/tiny").json()["versions"]] == ["loaded"] * 2
        )
        yield http


def answering(http: httpx.Client) -> int:
    """The version that answers /classify and every other route that names none."""
    answers = [
        http.post("/classify", content=to_npy(PIXELS), headers=NPY),
        http.post("/reconstruct", json={"pose": [0.1] * 4, "label": "0"}),
    ]
    found = {answer.raise_for_status().json()["version"] for answer in answers}
    tensor = {"name": "pixels", "shape": PIXELS.shape, "datatype": "FP32", "data": PIXELS.ravel().tolist()}
    answer = http.post("/v2/models/tiny/infer", json={"inputs": [tensor]})
    [version] = found | {int(answer.raise_for_status().json()["model_version"])}
    return version


def test_a_pinned_version_answers_until_the_rule_is_removed(http: httpx.Client) -> None:
    path = "/v2/repository/models/tiny/traffic"
    assert answering(http) == 2
    answer = http.put(path, json={"pinned": 1}, headers=ADMIN)
    assert (answer.status_code, answer.json()) == (200, {"pinned": 1})
    assert answering(http) == 1
    assert http.get("/models/tiny").json()["traffic"] == {"pinned": 1}
    answer = http.put(path, json={"canary": 1, "share": 1}, headers=ADMIN)
    assert (answer.status_code, answer.json()) == (200, {"canary": 1, "share": 1.0})
    assert answering(http) == 1
    for _ in range(2):
        assert http.delete(path, headers=ADMIN).status_code == 204
    assert answering(http) == 2


def test_while_a_pinned_version_is_gone_the_service_is_ready_and_the_model_is_not(tmp_path: Path) -> None:
    for version in (1, 2):
        write_bundle(tmp_path / "tiny" / str(version), seed=version)
    (tmp_path / "tiny" / "traffic.json").write_text('{"pinned": 3}')
    with live_service(settings_for(tmp_path)) as http:
        answers = [
            http.get("/v2/models/tiny/ready"),
            http.post("/classify", content=to_npy(PIXELS), headers=NPY),
        ]
        for answer in answers:
            assert (answer.status_code, answer.json()["type"]) == (503, "/problems/not-ready")
            assert "tiny is pinned to version 3" in answer.json()["detail"]
            assert answer.headers["retry-after"] == "1"
        assert http.get("/v2/models/tiny/versions/2/ready").json() == {"name": "tiny", "ready": True}


def test_a_broken_file_at_the_start_is_shown_by_models_and_mended_by_the_administrator(
    tmp_path: Path,
) -> None:
    write_bundle(tmp_path / "tiny" / "1")
    (tmp_path / "tiny" / "traffic.json").write_text('{"pinned": ')
    with live_service(settings_for(tmp_path, admin_key="operator")) as http:
        assert "traffic.json: Invalid JSON" in http.get("/models").json()["models"][0]["traffic_error"]
        assert http.get("/v2/models/tiny/ready").status_code == 503
        http.put("/v2/repository/models/tiny/traffic", json={"pinned": 1}, headers=ADMIN).raise_for_status()
        assert answering(http) == 1


def test_a_405_lists_the_methods_in_order(http: httpx.Client) -> None:
    answer = http.get("/v2/repository/models/tiny/traffic")
    assert (answer.status_code, answer.headers["allow"]) == (405, "DELETE, PUT")


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        (b"", 422, "name a pinned version"),
        (b"{", 400, "valid JSON"),
        (b"[1]", 422, "object"),
        (b'{"pinned": "1"}', 422, "pinned: input should be a valid integer, got '1'"),
        (b'{"canary": 1, "share": 2}', 422, "share: input should be less than or equal to 1, got 2"),
        (b'{"canary": 1, "share": NaN}', 400, "NaN is no JSON number"),
        (b'{"canary": 1}', 422, "canary and share come together"),
        (b'{"pinned": 7}', 404, "tiny has no version 7; available: 1, 2"),
    ],
)
def test_a_rule_that_is_none_is_refused(http: httpx.Client, body: bytes, status: int, why: str) -> None:
    answer = http.put("/v2/repository/models/tiny/traffic", content=body, headers=ADMIN)
    assert answer.status_code == status
    assert why in answer.json()["detail"]
    assert answering(http) == 2


def test_rules_take_the_admin_key_and_a_model_that_is_there(http: httpx.Client) -> None:
    path = "/v2/repository/models/tiny/traffic"
    assert http.put(path, json={"pinned": 1}).status_code == 403
    assert http.delete(path, headers={"X-API-Key": "visitor"}).status_code == 403
    unknown = "/v2/repository/models/none/traffic"
    assert http.put(unknown, json={"pinned": 1}, headers=ADMIN).status_code == 404
    assert http.delete(unknown, headers=ADMIN).status_code == 404
