"""The files of the page: who may have them, in which encoding, and what a browser may do with them."""

import gzip
import re
from pathlib import Path

import httpx
import pytest

from service.routes.playground import FOLDER
from tests.support.live_service import live_service, settings_for
from tests.support.tiny_bundle import write_bundle


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    models = tmp_path_factory.mktemp("models")
    write_bundle(models / "tiny" / "1")
    with live_service(settings_for(models, api_keys="one-key")) as client:
        yield client


def get(client: httpx.Client, path: str, **headers: str) -> httpx.Response:
    answer = client.get(path, headers=headers)
    assert answer.status_code in {200, 304}, answer.text
    return answer


def test_the_bare_address_is_the_page_and_needs_no_key(client):
    answer = get(client, "/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "<title>capsnet playground</title>" in answer.text
    assert client.get("/models").status_code == 401


def test_a_browser_may_load_nothing_from_elsewhere_and_run_nothing_in_the_page_itself(client):
    policy = dict(
        part.strip().split(" ", 1) for part in get(client, "/").headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert get(client, "/playground/scripts/app.js").headers["x-content-type-options"] == "nosniff"


def test_every_file_that_the_page_names_is_there_and_no_address_leads_to_another_host(client):
    page = get(client, "/").text
    addresses = re.findall(r'(?:href|src)="([^"#]+)"', page)
    assert {"playground/scripts/app.js", "playground/styles/base.css"} <= set(addresses)
    for address in addresses:
        assert get(client, f"/{address}").status_code == 200
    for script in FOLDER.rglob("*.js"):
        for imported in re.findall(r'from "([^"]+)"', script.read_text()):
            assert (script.parent / imported).is_file(), f"{script.name} imports {imported}"


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip", "gzip"),
        ("br;q=1, GZIP;q=0.5", "gzip"),
        ("*", "gzip"),
        ("identity", "identity"),
        ("gzip;q=0", "identity"),
        ("*;q=0", "identity"),
        ("x-gzip2", "identity"),
    ],
)
def test_files_come_in_an_encoding_that_the_client_reads(client, accepted, encoding):
    request = client.stream("GET", "/playground/scripts/app.js", headers={"Accept-Encoding": accepted})
    with request as answer:
        content = b"".join(answer.iter_raw())
    assert answer.headers.get("content-encoding", "identity") == encoding
    script = gzip.decompress(content) if encoding == "gzip" else content
    assert script == (FOLDER / "scripts" / "app.js").read_bytes()


def test_a_file_that_the_browser_has_is_not_sent_again(client):
    first = get(client, "/playground/styles/base.css")
    for known in (first.headers["etag"], f'"older", {first.headers["etag"]}', "*"):
        again = get(client, "/playground/styles/base.css", **{"If-None-Match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
    assert get(client, "/playground/styles/base.css", **{"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize("path", ["/", "/playground/scripts/app.js"])
def test_a_file_and_the_304_for_it_have_the_headers_for_caches_and_browsers(client, path):
    whole = get(client, path)
    known = get(client, path, **{"If-None-Match": whole.headers["etag"]})
    assert (whole.status_code, known.status_code) == (200, 304)
    for answer in (whole, known):
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["vary"] == "Accept-Encoding"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


def test_one_tag_for_both_encodings_is_a_weak_one(client):
    """They have the same content, but not the same bytes."""
    encodings = ("gzip", "identity")
    packed, plain = (get(client, "/", **{"Accept-Encoding": encoding}) for encoding in encodings)
    assert (packed.headers.get("content-encoding"), plain.headers.get("content-encoding")) == ("gzip", None)
    assert packed.headers["etag"] == plain.headers["etag"]
    assert plain.headers["etag"].startswith('W/"')


@pytest.mark.parametrize("path", ["no.js", "../app.py", "%2e%2e/app.py", "scripts", ""])
def test_nothing_but_the_files_of_the_page_is_served(client, path):
    answer = client.send(client.build_request("GET", f"{client.base_url}/playground/{path}"))
    assert answer.status_code in {401, 404}
    assert answer.headers["content-type"] == "application/problem+json"


def test_the_package_brings_every_kind_of_file():
    kinds = {Path(file).suffix for file in FOLDER.rglob("*") if Path(file).is_file()}
    assert kinds == {".html", ".css", ".js", ".json", ".svg", ".webp"}
