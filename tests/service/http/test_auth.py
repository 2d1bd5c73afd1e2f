"""API keys, the admin key, and pages of other origins."""

import socket

import numpy as np
import pytest
from pydantic import SecretStr

from service.errors import AdministrationOffError, AdminKeyError
from service.http import auth
from service.http.keys import Keys
from service.http.picture_pool import PicturePool
from service.settings import Settings
from tests.support.live_service import live_service, settings_for
from tests.support.logged_process import ADMIN_KEY, KEYS, PAGE
from tests.support.small_pictures import to_png
from tests.support.tiny_bundle import write_bundle

PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "x-api-key",
}


# -- keys --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"X-API-Key": KEYS[0]},
        {"X-API-Key": KEYS[1]},
        {"Authorization": f"Bearer {KEYS[1]}"},
        {"Authorization": f"bearer  {KEYS[0]}"},
        {"Authorization": "Basic something-for-a-proxy", "X-API-Key": KEYS[0]},
        {"X-API-Key": ADMIN_KEY},
    ],
)
def test_every_key_opens_in_either_header(process, headers):
    assert process.stranger.get("/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-API-Key": ""},
        {"X-API-Key": "wrong"},
        {"X-API-Key": KEYS[0][:-1]},
        {"X-API-Key": f"{KEYS[0]}, {KEYS[1]}"},
        {"X-API-Key": KEYS[0].upper()},
        {"Authorization": KEYS[0]},
        {"Authorization": f"Basic {KEYS[0]}"},
        {"Authorization": "Bearer"},
        {"Authorization": b"Bearer \xff\xfe"},
        {"Cookie": f"X-API-Key={KEYS[0]}"},
    ],
)
def test_without_one_of_the_keys_the_answer_is_401(process, headers):
    answer = process.stranger.get("/models", headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (401, "/problems/key-required")
    assert answer.headers["www-authenticate"] == 'Bearer realm="capsnet"'
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_key_in_the_query_opens_nothing(process):
    assert process.stranger.get("/models", params={"api_key": KEYS[0]}).status_code == 401


def test_the_401_comes_before_the_body_is_asked_for(process):
    address = (process.client.base_url.host, process.client.base_url.port)
    lines = ["POST /classify HTTP/1.1", "Host: test", "Content-Length: 1000", "Expect: 100-continue", "", ""]
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall("\r\n".join(lines).encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 401")


def test_every_documented_operation_needs_a_key_or_says_that_it_needs_none(process):
    document = process.stranger.get("/openapi.json").json()
    schemes = document["components"]["securitySchemes"]
    assert document["security"] == [{name: []} for name in schemes]
    assert {scheme["type"] for scheme in schemes.values()} == {"http", "apiKey"}
    open_paths = set()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            answer = process.stranger.request(method, path.format_map(Anything()))
            if operation.get("security") == []:
                open_paths.add(path)
                assert answer.status_code != 401
            else:
                assert answer.status_code == 401
                assert {"401", "429"} <= operation["responses"].keys()
    assert {"/healthz", "/readyz", "/metrics"} <= open_paths <= auth.OPEN


class Anything(dict[str, str]):
    """A value for every parameter of a path."""

    def __missing__(self, name: str) -> str:
        return "1"


def test_the_documentation_opens_without_a_key(process):
    for path in ("/", "/playground/scripts/app.js"):
        assert process.stranger.get(path).status_code == 200
    for path in ("/docs", "/docs/swagger-ui.css", "/docs/swagger-ui-bundle.js", "/openapi.json"):
        assert process.stranger.get(path).status_code == 200


def test_keys_are_never_logged(process):
    process.asked("GET", "/models", headers={"Authorization": f"Bearer {KEYS[1]}"})
    process.asked("GET", "/models", headers={"X-API-Key": "a-wrong-key"})
    said = process.log.read_text()
    assert all(key not in said for key in (*KEYS, ADMIN_KEY, "a-wrong-key"))


def test_without_keys_nothing_needs_one(tmp_path):
    with live_service(settings_for(tmp_path), ready=False) as client:
        assert client.get("/models").status_code != 401
        document = client.get("/openapi.json").json()
        assert "security" not in document
        assert "securitySchemes" not in document["components"]


# -- the admin key -----------------------------------------------------------------------------------------


def encoded(**headers: str) -> list[tuple[bytes, bytes]]:
    return [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]


def test_the_admin_key_opens_administration():
    keys = Keys(Settings(admin_key=SecretStr(ADMIN_KEY)))
    auth.check_admin_key(encoded(x_api_key=ADMIN_KEY), keys)
    auth.check_admin_key(encoded(authorization=f"Bearer {ADMIN_KEY}"), keys)


@pytest.mark.parametrize("headers", [{}, {"x_api_key": KEYS[0]}, {"authorization": "Bearer wrong"}])
def test_no_other_key_opens_administration(headers):
    keys = Keys(Settings(admin_key=SecretStr(ADMIN_KEY), api_keys=SecretStr(",".join(KEYS))))
    with pytest.raises(AdminKeyError, match="CAPSNET_ADMIN_KEY") as refusal:
        auth.check_admin_key(encoded(**headers), keys)
    assert ADMIN_KEY not in str(refusal.value)


@pytest.mark.parametrize("headers", [{}, {"x_api_key": ""}, {"x_api_key": KEYS[0]}])
def test_without_an_admin_key_there_is_no_administration(headers):
    with pytest.raises(AdministrationOffError, match="CAPSNET_ADMIN_KEY"):
        auth.check_admin_key(encoded(**headers), Keys(Settings(api_keys=SecretStr(",".join(KEYS)))))


# -- pages of other origins --------------------------------------------------------------------------------


def test_a_preflight_passes_without_a_key(process):
    answer = process.stranger.options("/classify", headers=PREFLIGHT)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "x-api-key" in answer.headers["access-control-allow-headers"].lower()


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_page_may_pin_versions(process, method):
    wanted = {**PREFLIGHT, "Access-Control-Request-Method": method}
    answer = process.stranger.options("/v2/repository/models/tiny/traffic", headers=wanted)
    assert answer.status_code == 200


def test_a_page_may_read_the_id_and_when_to_try_again(process):
    answer = process.client.get("/models", headers={"Origin": PAGE})
    assert answer.headers["access-control-allow-origin"] == PAGE
    exposed = answer.headers["access-control-expose-headers"].lower()
    assert "x-request-id" in exposed
    assert "server-timing" in exposed
    assert "retry-after" in exposed


def test_a_page_may_read_that_its_key_is_wrong(process):
    answer = process.stranger.get("/models", headers={"Origin": PAGE})
    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] == PAGE


def test_a_page_of_another_origin_may_read_nothing(process):
    other = {**PREFLIGHT, "Origin": "https://other.example"}
    assert process.stranger.options("/classify", headers=other).status_code == 400
    answer = process.client.get("/models", headers={"Origin": "https://other.example"})
    assert "access-control-allow-origin" not in answer.headers


def test_a_page_may_read_that_the_service_is_at_fault(tmp_path, monkeypatch):
    def fault(*_: object) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(PicturePool, "run_all", fault)
    write_bundle(tmp_path / "tiny" / "1")
    with live_service(settings_for(tmp_path, cors_origins=PAGE)) as client:
        picture = to_png(np.zeros((500, 500), np.uint8))  # large enough for another thread
        answer = client.post("/classify", content=picture, headers={"Origin": PAGE})
    assert answer.status_code == 500
    assert answer.json()["type"] == "/problems/internal-error"
    assert answer.headers["access-control-allow-origin"] == PAGE


def test_without_origins_no_page_may_read_anything(tmp_path):
    with live_service(settings_for(tmp_path), ready=False) as client:
        assert "access-control-allow-origin" not in client.get("/models", headers={"Origin": PAGE}).headers
        assert client.options("/classify", headers=PREFLIGHT).status_code == 405
