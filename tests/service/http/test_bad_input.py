"""Whatever a client sends, it gets a 4xx that says what was expected, and memory stays as it is."""

import json
import resource
import socket
import struct
import threading
import zlib
from base64 import b64encode
from collections.abc import Iterator
from itertools import product

import httpx
import numpy as np
import pytest

from tests.support.decompression_bombs import chunk
from tests.support.live_service import live_service, settings_for, wait_until
from tests.support.raw_http import connected, head
from tests.support.small_pictures import random_levels, random_png, to_npy, to_png
from tests.support.tiny_bundle import SIDE, write_bundle

POSE = {"pose": [0.1, -0.2, 0.3, 0.05], "label": "1"}
BODY_LIMIT = 2**20


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    root = tmp_path_factory.mktemp("models")
    write_bundle(root / "tiny" / "1")
    settings = settings_for(
        root, max_body_bytes=BODY_LIMIT, max_images_per_request=8, max_reconstructions=100
    )
    with live_service(settings) as client:
        yield client


def huge_png(side: int) -> bytes:
    """A small file that claims, and holds, side x side black pixels."""
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)  # 1 bit per pixel, gray
    rows = zlib.compress(bytes((side + 7) // 8 + 1) * side, 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def assert_problem(answer: httpx.Response, status: int, slug: str, *said: str) -> None:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    problem = answer.json()
    assert (answer.status_code, problem["status"], problem["type"]) == (status, status, f"/problems/{slug}")
    assert problem["title"]
    for words in said:
        assert words in problem["detail"]


@pytest.mark.parametrize(
    ("content", "status", "slug"),
    [
        (b"this is no picture", 415, "unsupported-picture"),
        (random_png()[:-30], 422, "unreadable-picture"),
        (random_png()[:40], 422, "unreadable-picture"),
        (b"", 400, "malformed-body"),
        (to_png(random_levels(0, 1, 1)), 422, "unreadable-picture"),
        (huge_png(20_000), 413, "picture-too-large"),
    ],
    ids=["text", "truncated", "only a header", "nothing", "one pixel", "20,000 x 20,000"],
)
def test_a_raw_body_that_is_no_good_picture(client, content, status, slug):
    assert_problem(client.post("/classify", content=content), status, slug)


def test_zero_bytes_in_a_form_names_the_file(client):
    files = [("images", ("good.png", random_png())), ("images", ("empty.png", b""))]
    assert_problem(client.post("/classify", files=files), 415, "unsupported-picture", "2 of 2", "empty.png")


def test_a_wrong_field_is_told_the_right_one(client):
    answer = client.post("/classify", files={"image": random_png()})
    assert_problem(answer, 422, "invalid-field", "'image'", "'images'")


def test_text_where_files_belong(client):
    answer = client.post("/classify", files={"images": (None, "7.png")})
    assert_problem(answer, 422, "invalid-field", "files")


@pytest.mark.parametrize("route", ["/classify", "/reconstruct"])
@pytest.mark.parametrize("body", [b"", b"--x--\r\n", b"--x\r\n\r\n", b"garbage", b"--x\r\nContent-Disp"])
def test_a_multipart_body_without_parts(client, route, body):
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    answer = client.post(route, content=body, headers=headers)
    assert answer.status_code in {400, 422}
    assert_problem(answer, answer.status_code, answer.json()["type"].removeprefix("/problems/"))


@pytest.mark.parametrize("cut", [2, 40, 200])
def test_a_form_that_ends_before_its_closing_boundary_is_refused_whole(client, cut):
    files = [("images", ("a.png", random_png())), ("images", ("b.png", random_png()))]
    whole = httpx.Request("POST", client.base_url.join("/classify"), files=files)
    content, headers = whole.read(), {"Content-Type": whole.headers["Content-Type"]}
    assert client.post("/classify", content=content, headers=headers).status_code == 200
    answer = client.post("/classify", content=content.rstrip()[:-cut], headers=headers)
    assert_problem(answer, 400, "malformed-body", "closing boundary")


def test_a_form_cut_in_its_sweep_is_not_answered_without_it(client):
    parts = {"pose": (None, "[0,0,0,0]"), "label": (None, "1"), "sweep": (None, '{"dimensions": [0]}')}
    whole = httpx.Request("POST", client.base_url.join("/reconstruct"), files=parts)
    content, headers = whole.read(), {"Content-Type": whole.headers["Content-Type"]}
    answer = client.post("/reconstruct", content=content[:-45], headers=headers)
    assert_problem(answer, 400, "malformed-body", "closing boundary")


@pytest.mark.parametrize("boundary", ["", "; boundary=", "; boundary=" + "x" * 5000, "; boundary=ä"])
def test_a_multipart_body_without_a_usable_boundary(client, boundary):
    headers = {"Content-Type": f"multipart/form-data{boundary}".encode()}
    assert_problem(client.post("/classify", content=b"--x--", headers=headers), 400, "malformed-body")


def test_more_files_than_a_request_may_bring(client):
    answer = client.post("/classify", files=[("images", random_png())] * 9)
    assert_problem(answer, 413, "too-many-pictures", "8")


@pytest.mark.parametrize("route", ["/classify", "/reconstruct"])
def test_no_body(client, route):
    assert client.post(route).status_code == 400


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("top_k=0", "top_k"),
        ("top_k=4", "1 to 3"),
        ("top_k=99999999999999999999999", "top_k"),
        ("top_k=one", "'one'"),
        ("top_k=1&top_k=2", "twice"),
        ("topk=1", "top_k"),
        ("version=latest", "'latest'"),
        ("version=0", "version"),
        ("version=1.5", "version"),
        ("reconstruction=perhaps", "'perhaps'"),
        ("preprocess=none", "'off'"),
    ],
)
def test_a_wrong_query(client, query, said):
    assert_problem(client.post(f"/classify?{query}", content=random_png()), 422, "invalid-field", said)


@pytest.mark.parametrize("name", ["nobody", "../../etc", "tiny/1", "", "%00", "x" * 5000])
def test_a_model_that_is_not_served(client, name):
    answers = [
        client.post("/classify", params={"model": name}, content=random_png()),
        client.post("/reconstruct", json={**POSE, "model": name}),
    ]
    for answer in answers:
        assert_problem(answer, 404, "unknown-model", "tiny")
        assert len(answer.content) < 1000


def test_a_version_that_is_not_served(client):
    answer = client.post("/classify?version=7", content=random_png())
    assert_problem(answer, 404, "unknown-model", "7", "available: 1")


@pytest.mark.parametrize("path", ["/models/nobody", "/models/..%2F..%2Fetc", "/etc", "/docs/..%2Fapp.py"])
def test_a_path_that_leads_nowhere(client, path):
    assert client.get(path).status_code == 404
    assert client.get(path).headers["content-type"] == "application/problem+json"


def test_a_method_that_the_route_does_not_answer(client):
    answer = client.get("/classify")
    assert_problem(answer, 405, "method-not-allowed", "POST")
    assert answer.headers["allow"] == "POST"


def test_bodies_of_another_kind(client):
    assert_problem(
        client.post("/classify", json={"image": ""}), 415, "unsupported-body", "multipart/form-data"
    )
    headers = {"Content-Type": "image/png"}
    answer = client.post("/reconstruct", content=random_png(), headers=headers)
    assert_problem(answer, 415, "unsupported-body", "application/json")


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((1, SIDE, SIDE), object),
        np.zeros((1, SIDE, SIDE + 1), np.uint8),
        np.zeros((SIDE, SIDE), np.uint8),
        np.zeros((1, SIDE, SIDE, 3), np.uint8),
        np.zeros((0, SIDE, SIDE), np.uint8),
        np.full((1, SIDE, SIDE), np.nan, np.float32),
        np.full((1, SIDE, SIDE), 1.5, np.float32),
        np.zeros((1, SIDE, SIDE), np.complex64),
    ],
    ids=["objects", "size", "rank", "channels", "empty", "NaN", "range", "type"],
)
def test_an_array_that_does_not_fit(client, array):
    headers = {"Content-Type": "application/x-npy"}
    assert_problem(client.post("/classify", content=to_npy(array), headers=headers), 422, "wrong-array")


@pytest.mark.parametrize("content", [b"no array", to_npy(np.zeros((1, SIDE, SIDE), np.uint8))[:-100]])
def test_an_array_that_is_none(client, content):
    headers = {"Content-Type": "application/x-npy"}
    assert_problem(client.post("/classify", content=content, headers=headers), 422, "wrong-array")


@pytest.mark.parametrize("shape", ["(True, 28, 28)", "(1, 28, 28, True)", "(-1, 28, 28)"])
def test_an_array_whose_sizes_are_no_sizes(client, shape):
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}".ljust(117).encode() + b"\n"
    content = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + bytes(784)
    answer = client.post("/classify", content=content, headers={"Content-Type": "application/x-npy"})
    assert_problem(answer, 422, "wrong-array", shape.strip("()").split(",")[0])


def test_an_array_of_too_many_images_is_refused_whatever_they_are(client):
    headers = {"Content-Type": "application/x-npy"}
    content = to_npy(np.full((9, SIDE, SIDE), np.nan, np.float32))
    assert_problem(client.post("/classify", content=content, headers=headers), 413, "too-many-pictures", "9")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"perturbations": [{"dimension": 99, "delta": 0.1}]}, "0 to 3"),
        ({"perturbations": [{"dimension": 4, "delta": 0.1}]}, "0 to 3"),
        ({"perturbations": [{"dimension": -1, "delta": 0.1}]}, "dimension"),
        ({"perturbations": [{"dimension": True, "delta": 0.1}]}, "True"),
        ({"perturbations": [{"dimension": 10**30, "delta": 0.1}]}, "0 to 3"),
        ({"perturbations": [{"dimension": 1, "delta": True}]}, "True"),
        ({"perturbations": [{"dimension": 1, "delta": "NaN"}]}, "'NaN'"),
        ({"perturbations": [{"dimension": 1, "delta": 1e300}]}, "delta"),
        ({"perturbations": [{"dimension": 1, "delta": 0.1}, {"dimension": 1, "delta": 0.1}]}, "twice"),
        ({"perturbations": [{"dimension": 1}]}, "delta"),
        ({"perturbations": {"dimension": 1, "delta": 0.1}}, "list"),
        ({"perturbations": [], "sweep": {}}, "not both"),
        ({"sweep": {"dimensions": [99]}}, "0 to 3"),
        ({"sweep": {"dimensions": [4]}}, "0 to 3"),
        ({"sweep": {"dimensions": [1, 1]}}, "twice"),
        ({"sweep": {"dimensions": []}}, "dimensions"),
        ({"sweep": {"step": -0.05}}, "step"),
        ({"sweep": {"step": 0}}, "step"),
        ({"sweep": {"start": 0.5, "stop": 0.25}}, "start"),
        ({"sweep": {"steps": 3}}, "dimensions, start, stop, step"),
        ({"label": "7"}, "0, 1, 2"),
        ({"label": 1}, "label"),
        ({"pose": [0.1]}, "4 numbers"),
        ({"pose": [0.1] * 100_000}, "32768 values"),
        ({"pose": [[[[[]] * 3]]] * 10_000}, "32768 values"),
        ({"pose": [0.1] * 5000}, "4096"),
        ({"pose": [0.1], "sweep": {"step": 1e-6}}, "4 numbers"),
        ({"perturbations": [{}] * 5000}, "perturbations[0]"),
        ({"sweep": {"dimensions": [0] * 5000}}, "4096"),
        ({"pose": [[0.1, 0.2], [0.3, 0.4]]}, "number"),
        ({"pose": None}, "image"),
        ({"image": ""}, "either"),
        ({"version": "1"}, "version"),
        ({"version": True}, "version"),
        ({"unknown": 1}, "perturbations"),
        ({"\ud800": 1}, "unknown field"),
        ({"label": "\ud800"}, "0, 1, 2"),
    ],
)
def test_a_wrong_reconstruction(client, change, said):
    content = json.dumps({**POSE, **change})
    answer = client.post("/reconstruct", content=content, headers={"Content-Type": "application/json"})
    assert_problem(answer, 422, "invalid-field", said)


@pytest.mark.parametrize("wrong", [b"[]", b"{}", b'""', b"1"])
def test_a_pose_of_300_000_wrong_elements_is_refused_by_its_count(client, wrong):
    body = b'{"label": "1", "pose": [%s]}' % b",".join([wrong] * 300_000)
    headers = {"Content-Type": "application/json"}
    assert_problem(client.post("/reconstruct", content=body, headers=headers), 422, "invalid-field", "300001")


@pytest.mark.parametrize(
    "change",
    [
        {"pose": [[]] * 4000},
        {"perturbations": [{"dimension": "x"}] * 4000},
        {"sweep": {"dimensions": ["x"] * 4000}},
    ],
    ids=["pose", "perturbations", "dimensions"],
)
def test_of_4000_wrong_elements_the_first_is_told(client, change):
    answer = client.post("/reconstruct", json={**POSE, **change})
    assert_problem(answer, 422, "invalid-field", "[0]")
    assert "[1]" not in answer.json()["detail"]


@pytest.mark.parametrize("name", ["model", "version"])
def test_a_model_named_in_the_query_and_in_the_body(client, name):
    given = {"model": "tiny", "version": 1}[name]
    answer = client.post(f"/reconstruct?{name}={given}", json={**POSE, name: given})
    assert_problem(answer, 422, "invalid-field", name, "query")


def test_an_array_called_something_else_is_told_its_content_type(client):
    content = to_npy(np.zeros((1, SIDE, SIDE), np.uint8))
    for kind in ("application/octet-stream", "application/x-www-form-urlencoded"):
        answer = client.post("/classify", content=content, headers={"Content-Type": kind})
        assert_problem(answer, 415, "unsupported-body", "application/x-npy")


@pytest.mark.parametrize("sweep", [{"step": 1e-6}, {"start": -1e6, "stop": 1e6, "step": 1e-6}])
def test_a_sweep_of_a_million_steps(client, sweep):
    answer = client.post("/reconstruct", json={**POSE, "sweep": sweep})
    assert_problem(answer, 413, "too-many-pictures", "at most 100")


def test_the_pictures_of_a_sweep_are_counted_over_all_its_dimensions(client):
    largest, too_large = (
        {"dimensions": [0, 1], "start": 0, "stop": columns - 1, "step": 1} for columns in (50, 60)
    )
    answer = client.post("/reconstruct", json={**POSE, "sweep": largest})
    assert len(answer.json()["reconstructions"]) == 100
    answer = client.post("/reconstruct", json={**POSE, "sweep": too_large})
    assert_problem(answer, 413, "too-many-pictures", "2 dimensions x 60 deltas; at most 100")


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"\xff\xfe{}",
        b'{"pose": [NaN, 0, 0, 0], "label": "1"}',
        b'{"pose": [Infinity, 0, 0, 0], "label": "1"}',
        b'{"label": "1", "label": "2"}',
        b"[" * 30_000,
        b'{"pose":' * 30_000,
        b"1" * 100_000,
    ],
    ids=["open", "encoding", "NaN", "infinity", "twice", "deep list", "deep object", "long number"],
)
def test_a_body_that_is_no_json(client, body):
    answer = client.post("/reconstruct", content=body, headers={"Content-Type": "application/json"})
    assert_problem(answer, 400, "malformed-body")
    assert len(answer.content) < 1000


@pytest.mark.parametrize("body", [b"[]", b"null", b"1", b'"text"'])
def test_a_body_that_is_no_object(client, body):
    answer = client.post("/reconstruct", content=body, headers={"Content-Type": "application/json"})
    assert_problem(answer, 422, "invalid-field", "object")


@pytest.mark.parametrize("delta", ["1e999", "-1e999"])
def test_a_delta_beyond_all_floats(client, delta):
    body = b'{"pose": [0,0,0,0], "label": "1", "perturbations": [{"dimension": 0, "delta": %s}]}'
    content = body % delta.encode()
    answer = client.post("/reconstruct", content=content, headers={"Content-Type": "application/json"})
    assert_problem(answer, 422, "invalid-field", "delta")


@pytest.mark.parametrize("image", ["$$$", "abc", "data:image/png;base64,AAAA", "ä"])
def test_an_image_that_is_no_base64(client, image):
    assert_problem(client.post("/reconstruct", json={"image": image}), 400, "malformed-body", "base64")


def test_base64_of_something_else(client):
    body = {"image": b64encode(b"this is no picture").decode()}
    assert_problem(client.post("/reconstruct", json=body), 415, "unsupported-picture")


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({}, 422, "either"),
        ({"pose": "[0.1,", "label": "1"}, 400, "pose"),
        ({"pose": "[NaN,0,0,0]", "label": "1"}, 400, "NaN"),
        ({"image": "text", "label": "1"}, 422, "file"),
        ({"images": "x"}, 422, "image"),
        ({"version": "one", "pose": "[0,0,0,0]", "label": "1"}, 400, "version"),
    ],
)
def test_a_wrong_form_for_a_reconstruction(client, fields, status, said):
    parts = {name: (None, value) for name, value in fields.items()} or {"label": (None, "1")}
    answer = client.post("/reconstruct", files=parts)
    assert answer.status_code == status
    assert said in answer.json()["detail"]


def test_a_field_of_a_form_given_twice(client):
    parts = [("label", (None, "1")), ("label", (None, "2")), ("pose", (None, "[0,0,0,0]"))]
    assert_problem(client.post("/reconstruct", files=parts), 422, "invalid-field", "label", "twice")


@pytest.mark.parametrize(
    ("route", "coding"),
    [
        *(("/classify", coding) for coding in ("gzip", "deflate", "br", "no such coding")),
        *product(("/segment", "/explain", "/reconstruct"), ("gzip", "no such coding")),
    ],
)
def test_a_packed_body_is_refused_as_such(client, route, coding):
    headers = {"Content-Encoding": coding, "Content-Type": ""}
    answer = client.post(route, content=random_png(), headers=headers)
    assert_problem(answer, 415, "unsupported-coding", route, coding)
    assert answer.headers["accept-encoding"] == "identity"


def test_a_body_may_say_that_it_is_not_packed(client):
    answer = client.post("/classify", content=random_png(), headers={"Content-Encoding": "identity"})
    assert answer.status_code == 200


def test_a_body_declared_too_large_is_refused_before_any_of_it_is_sent(client):
    with connected(client) as connection:
        connection.sendall(head("/classify", "Content-Type: image/png", "Content-Length: 52428800"))
        assert_refused_as_too_large(connection)


def test_a_client_that_waits_for_leave_to_send_is_refused_at_once(client):
    with connected(client) as connection:
        headers = ("Content-Type: image/png", "Content-Length: 52428800", "Expect: 100-continue")
        connection.sendall(head("/classify", *headers))
        assert_refused_as_too_large(connection)


@pytest.mark.parametrize(
    ("route", "kind"),
    [
        ("/classify", "image/png"),
        ("/classify", "application/x-npy"),
        ("/classify", "multipart/form-data; boundary=x"),
        ("/reconstruct", "application/json"),
        ("/reconstruct", "multipart/form-data; boundary=x"),
    ],
)
def test_a_chunked_body_is_refused_at_the_limit_and_not_at_its_end(client, route, kind):
    start = b""
    if kind.startswith("multipart"):
        start = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a.png"\r\n\r\n'
    with connected(client) as connection:
        connection.sendall(head(route, f"Content-Type: {kind}", "Transfer-Encoding: chunked"))
        for content in [start, *[bytes(2**16)] * (BODY_LIMIT // 2**16 + 1)]:
            if content:
                connection.sendall(b"%x\r\n%s\r\n" % (len(content), content))
        assert_refused_as_too_large(connection)  # and the last chunk was never sent


def test_a_client_that_sends_50_mb_to_the_end_still_reads_its_answer(client):
    assert_problem(
        client.post("/classify", content=bytes(50_000_000)), 413, "body-too-large", str(BODY_LIMIT)
    )


def test_two_hundred_bad_requests_leave_the_memory_as_it_was(client):
    bomb = huge_png(20_000)  # 400 MB once decoded

    def send_everything() -> None:
        client.post("/classify", content=bomb)
        client.post("/classify", content=random_png()[:-30])
        client.post("/classify", files=[("images", bytes(100_000))] * 9)
        client.post("/classify", content=bytes(2 * BODY_LIMIT))
        client.post("/reconstruct", json={"image": "A" * 100_000})
        client.post("/reconstruct", json={**POSE, "sweep": {"step": 1e-6}})
        client.post("/reconstruct", content=b"[" * 100_000, headers={"Content-Type": "application/json"})
        client.post("/reconstruct", json={**POSE, "perturbations": [{"dimension": 99, "delta": 0}]})

    client.post("/classify", content=random_png())
    at_first = peak_bytes()
    send_everything()
    after_one_round = peak_bytes()
    for _ in range(25):
        send_everything()
    assert after_one_round - at_first < 100_000_000
    assert peak_bytes() - after_one_round < 20_000_000  # a round sends more than 3 MB


def test_the_service_still_answers_after_clients_hang_up(client):
    assert client.post("/classify", content=random_png()).status_code == 200
    before = threading.active_count()
    for _ in range(20):
        with connected(client) as connection:
            connection.sendall(head("/classify", "Content-Type: image/png", "Content-Length: 1000") + b"half")
    assert client.post("/classify", content=random_png()).status_code == 200
    wait_until(lambda: threading.active_count() <= before)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def assert_refused_as_too_large(connection: socket.socket) -> None:
    answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"application/problem+json" in answer
