"""Connections: what is no request is refused in words, and none stays open for ever."""

import gc
import json
import logging
import socket
import time
from http.client import HTTPResponse

import httpx
import pytest
from PIL import Image
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from service.http.connections import BoundedHttp
from tests.support.live_service import live_service, metric, settings_for, wait_until
from tests.support.raw_http import (
    CHUNKED,
    FORM,
    LENGTH,
    PART,
    PNG,
    connected,
    head,
    is_cut_off,
    read_answer,
    read_to_end,
)
from tests.support.small_pictures import random_png, saved


class ImpatientHttp(BoundedHttp):
    """Looks at its connections much more often, and keeps none without a reason."""

    patience_s = 0.2
    idle_s = 1.0


class HurryingHttp(BoundedHttp):
    """As impatient with those that have begun a request, and no others."""

    patience_s = 0.1


@pytest.mark.parametrize(
    "begun",
    [b"", b"G", b"GET /healthz HTTP/1.1\r\nHost: te", b"GET /healthz HTTP/1.1\r\nHost: test\r\n"],
    ids=["nothing", "a letter", "half a header", "half the headers"],
)
@pytest.mark.parametrize("first", ["", "GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n"], ids=["new", "used"])
def test_a_connection_on_which_no_request_comes_is_closed(models, first, begun):
    with (
        live_service(settings_for(models), http=ImpatientHttp) as client,
        connected(client) as connection,
    ):
        if first:
            connection.sendall(first.encode())
            assert_healthy(connection)
        connection.sendall(begun)
        assert read_to_end(connection) == b""


@pytest.mark.parametrize("first", ["", "GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n"], ids=["new", "used"])
def test_a_connection_on_which_nothing_is_begun_may_wait_for_longer(models, first):
    with live_service(settings_for(models), http=HurryingHttp) as client, connected(client) as connection:
        if first:
            connection.sendall(first.encode())
            assert_healthy(connection)
        time.sleep(5 * HurryingHttp.patience_s)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n")
        assert_healthy(connection)


def assert_healthy(connection: socket.socket) -> None:
    """The next answer is one of /healthz."""
    assert read_answer(connection) == (200, b'{"status":"ok"}')


def test_an_idle_connection_is_kept_for_longer_than_proxies_keep_theirs():
    assert BoundedHttp.idle_s > 60  # of nginx, and of most load balancers


def test_a_head_that_drips_has_no_more_time_than_one_that_stops(models):
    with live_service(settings_for(models), http=ImpatientHttp) as client, connected(client) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: ")
        assert is_cut_off(connection, b"a", pause_s=0.02)


def test_the_rest_of_a_refused_body_may_not_drip_for_ever(models):
    with live_service(settings_for(models), http=ImpatientHttp) as client, connected(client) as connection:
        connection.sendall(head("/nowhere", PNG, "Content-Length: 100000"))
        assert connection.recv(2**16).startswith(b"HTTP/1.1 404 ")
        assert is_cut_off(connection, b".", pause_s=0.02)


def test_a_request_under_way_is_not_cut_off_as_one_that_never_comes(models):
    content = random_png()
    with live_service(settings_for(models), http=ImpatientHttp) as client, connected(client) as connection:
        connection.sendall(head("/classify", PNG, f"Content-Length: {len(content)}"))
        for part in (content[:50], content[50:100], content[100:]):
            time.sleep(3 * ImpatientHttp.patience_s)
            connection.sendall(part)
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")


def test_a_client_that_does_not_read_its_answers_is_cut_off(models, caplog):
    caplog.set_level(logging.INFO, "service.http.connections")
    asked = 24
    with live_service(settings_for(models), http=ImpatientHttp) as client, connected(client) as connection:
        file = client.get("/docs/swagger-ui-bundle.js").content
        connection.sendall(b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: test\r\n\r\n" * asked)
        wait_until(lambda: "cut off a client" in caplog.text)
        assert len(read_to_end(connection)) < asked * len(file)


@pytest.mark.parametrize(
    ("begun", "more"),
    [
        (b"GET /healthz HTTP/1.1\r\nA: ", b"a" * 65536),
        (b"GET /", b"a" * 65536),
        (b"GET /healthz HTTP/1.1\r\n", b"a: b\r\n" * 10_000),
        (head("/classify", PNG, CHUNKED) + b"4;", b"a" * 65536),
        (head("/classify", PNG, CHUNKED) + b"0\r\n", b"a: b\r\n" * 10_000),
    ],
    ids=["header", "path", "headers", "chunk extension", "trailers"],
)
def test_a_head_without_an_end_is_refused_while_it_comes(patient, begun, more):
    with connected(patient) as connection:
        connection.sendall(begun)
        assert is_cut_off(connection, more)


def test_too_many_headers_are_told_how_many_there_may_be(patient):
    lines = [f"X-{number}: 1" for number in range(BoundedHttp.max_header_lines)]
    with connected(patient) as connection:
        connection.sendall(head("/classify", *lines, "Content-Length: 0"))
        headers, _, body = read_to_end(connection).partition(b"\r\n\r\n")
    assert headers.startswith(b"HTTP/1.1 431 ")
    assert json.loads(body)["type"] == "/problems/head-too-large"
    assert "100 lines" in json.loads(body)["detail"]


UNREADABLE = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no target": b"GET  HTTP/1.1\r\n\r\n",
    "a wrong target": b"GET http:// HTTP/1.1\r\nHost: test\r\n\r\n",
    "a wrong header": b"GET /healthz HTTP/1.1\r\nHost test\r\n\r\n",
    "two lengths": head("/classify", PNG, LENGTH, CHUNKED),
    "a wrong chunk": head("/classify", PNG, CHUNKED) + b"no number\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /healthz HTTP/1.1\r\nHost: test\r\nHost: other\r\n\r\n",
    "a list of hosts": b"GET /healthz HTTP/1.1\r\nHost: test,other\r\n\r\n",
    "a host with a blank": b"GET /healthz HTTP/1.1\r\nHost: test other\r\n\r\n",
    "two hosts and an offer": head(
        "/classify", "Host: other", "Connection: Upgrade", "Upgrade: h2c", "Content-Length: 0"
    ),
    "a tunnel": b"CONNECT test:80 HTTP/1.1\r\nHost: test:80\r\n\r\n",
}
TOO_MANY = b"X: a\r\n" * (BoundedHttp.max_header_lines + 2)  # the parser tells of a line with the next
TOO_LARGE = {
    "headers": b"GET /healthz HTTP/1.1\r\n" + TOO_MANY,
    "whole head": b"GET /healthz HTTP/1.1\r\n" + TOO_MANY + b"\r\n",
    "a whole head in one piece": b"GET /healthz HTTP/1.1\r\nHost: test\r\nA: " + b"a" * 66_000 + b"\r\n\r\n",
    "trailers": head("/classify", PNG, CHUNKED) + b"0\r\n" + TOO_MANY,
    "trailers with an end": head("/classify", PNG, CHUNKED) + b"0\r\n" + TOO_MANY + b"\r\n",
}
REFUSALS = [
    *(pytest.param(sent, 400, "malformed-request", id=name) for name, sent in UNREADABLE.items()),
    *(pytest.param(sent, 431, "head-too-large", id=name) for name, sent in TOO_LARGE.items()),
]
# One of each kind: refused by the parser, by this service, for its size, and after a head that is good.
SOME_REFUSALS = [one for one in REFUSALS if one.id in {"no HTTP", "a tunnel", "headers", "a wrong chunk"}]


def answers(received: bytes) -> list[tuple[int, bytes, bytes]]:
    """Status, headers in lower case and body of every answer; each must have a Content-Length."""
    found = []
    while received:
        headers, _, _ = received.lower().partition(b"\r\n\r\n")
        start = len(headers) + 4
        size = int(headers.split(b"content-length: ")[1].split()[0])
        found.append((int(headers.split()[1]), headers, received[start : start + size]))
        received = received[start + size :]
    return found


@pytest.mark.parametrize(("sent", "status", "slug"), REFUSALS)
def test_what_is_no_request_is_refused_as_a_problem_and_its_connection_closed(patient, sent, status, slug):
    with connected(patient) as connection:
        connection.sendall(sent)
        [(came, headers, body)] = answers(read_to_end(connection))
    assert came == status
    assert b"content-type: application/problem+json" in headers
    assert b"connection: close" in headers
    assert json.loads(body)["type"] == f"/problems/{slug}"


def test_a_tunnel_is_told_that_this_is_no_proxy(patient):
    with connected(patient) as connection:
        connection.sendall(UNREADABLE["a tunnel"])
        [(_, _, body)] = answers(read_to_end(connection))
    assert "this is not a proxy" in json.loads(body)["detail"]


@pytest.mark.parametrize(("sent", "status", "slug"), SOME_REFUSALS)
def test_earlier_requests_of_a_connection_are_answered_before_one_is_refused(patient, sent, status, slug):
    good = head("/classify", PNG, f"Content-Length: {len(random_png())}") + random_png()
    with connected(patient) as connection:
        connection.sendall(good * 3 + sent + b"X: a\r\n\r\nGET /healthz HTTP/1.1\r\nHost: test\r\n\r\n")
        came = answers(read_to_end(connection))
    assert [status for status, _, _ in came] == [200, 200, 200, status]
    assert all(json.loads(body)["results"] for _, _, body in came[:3])


def test_whole_requests_are_answered_where_the_last_one_is_cut_short(patient):
    good = head("/classify", PNG, f"Content-Length: {len(random_png())}") + random_png()
    with connected(patient) as connection:
        connection.sendall(good * 3 + head("/classify", PNG, LENGTH) + b"half")
        connection.shutdown(socket.SHUT_WR)
        came = answers(read_to_end(connection))
    assert [status for status, _, _ in came[:3]] == [200] * 3
    assert all(json.loads(body)["results"] for _, _, body in came[:3])


def test_leave_to_send_is_given_also_among_other_expectations(patient):
    with connected(patient) as connection:
        connection.sendall(
            head("/classify", PNG, f"Content-Length: {len(random_png())}", "Expect: 100-Continue, x")
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        connection.sendall(random_png())
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("route", ["/classify", "/reconstruct", "/v2/models/tiny/infer"])
def test_a_coding_in_a_second_header_is_seen(patient, route):
    codings = ("Content-Encoding: identity", "Content-Encoding: br")
    with connected(patient) as connection:
        connection.sendall(head(route, *codings, "Content-Length: 2", "Connection: close") + b"{}")
        [(status, _, _)] = answers(read_to_end(connection))
    assert status == 415


def test_a_path_that_is_too_long_is_told_how_long_it_may_be(patient):
    with connected(patient) as connection:
        connection.sendall(b"GET /" + b"a" * BoundedHttp.max_head_bytes)
        [(status, _, body)] = answers(read_to_end(connection))
    assert status == 431
    assert f"{BoundedHttp.max_head_bytes} bytes" in json.loads(body)["detail"]


@pytest.mark.parametrize(
    ("line", "headers"), [("POST /nowhere HTTP/1.1", ["Connection: close"]), ("POST /nowhere HTTP/1.0", [])]
)
def test_a_client_that_sends_everything_before_it_reads_gets_its_refusal(patient, line, headers):
    """`urllib.request` closes its connections, for example."""
    body = bytes(2**24)
    begun = "\r\n".join([line, "Host: test", PNG, f"Content-Length: {len(body)}", *headers, "", ""])
    with connected(patient) as connection:
        connection.sendall(begun.encode())
        time.sleep(0.1)  # the answer is there
        connection.sendall(body)
        time.sleep(0.1)
        [(status, _, _)] = answers(read_to_end(connection))
    assert status == 404


def test_answered_requests_leave_no_garbage(patient):
    """A reference in a circle would keep each, with its body, until the next garbage collection."""

    def kept() -> int:
        return sum(type(one) is RequestResponseCycle for one in gc.get_objects())

    gc.collect()
    before = kept()
    gc.disable()
    try:
        for _ in range(20):
            assert patient.get("/healthz").is_success
        assert kept() - before < 5
    finally:
        gc.enable()


def test_a_refused_client_that_never_ends_is_cut_off(models):
    class Lingering(BoundedHttp):
        linger_s = 0.2

    with live_service(settings_for(models), http=Lingering) as client, connected(client) as connection:
        connection.sendall(head("/nowhere", PNG, "Content-Length: 100000", "Connection: close"))
        assert connection.recv(2**16).startswith(b"HTTP/1.1 404 ")
        assert is_cut_off(connection, b".", pause_s=0.02)


def test_a_request_that_has_its_answer_already_gets_no_second_one(patient):
    with connected(patient) as connection:
        connection.sendall(head("/nowhere", PNG, CHUNKED) + b"1\r\na\r\n")
        answer = HTTPResponse(connection)
        answer.begin()
        assert answer.status == 404
        assert answer.read()
        connection.sendall(b"no number\r\n")
        assert read_to_end(connection) == b""


def refusals_counted(client: httpx.Client, status: int) -> float:
    """How many requests that matched no route were answered so."""
    return metric(client, "capsnet_requests_total", route="other", status=str(status))


@pytest.mark.parametrize(("sent", "status", "slug"), SOME_REFUSALS)
def test_a_refusal_is_counted_and_logged_as_requests_are(patient, caplog, sent, status, slug):
    before = refusals_counted(patient, status)
    with caplog.at_level(logging.INFO, "service.http.request_log"), connected(patient) as connection:
        connection.sendall(sent)
        [(_, headers, _)] = answers(read_to_end(connection))
        assert refusals_counted(patient, status) == before + 1
    lines = [record.args for record in caplog.records if record.name == "service.http.request_log"]
    [line] = [line for line in lines if line["status"] == status]
    assert line["problem"] == f"/problems/{slug}"
    assert line["client"] == "127.0.0.1"
    assert f"x-request-id: {line['id']}".encode() in headers


def form_upload(*headers: str, chunked: bool) -> bytes:
    """A picture in a form, as `curl -F` sends it, with these headers as well."""
    body = PART + random_png() + b"\r\n--x--\r\n"
    if chunked:
        body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:60], body[60:])) + b"0\r\n\r\n"
    framing = CHUNKED if chunked else f"Content-Length: {len(body)}"
    return head("/classify", FORM, framing, *headers) + body


OFFERS = {
    "h2c": ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQ"),
    "websocket": ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
}


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("piece", [1, 100, 2**16])
def test_a_request_that_offers_another_protocol_is_answered_as_if_it_did_not(patient, offer, chunked, piece):
    sent = form_upload(*OFFERS[offer], chunked=chunked) * 2 + form_upload(
        "Connection: close", chunked=chunked
    )
    with connected(patient) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(sent), piece):
            connection.sendall(sent[start : start + piece])
        came = answers(read_to_end(connection))
    assert [status for status, _, _ in came] == [200, 200, 200]
    assert len({body for _, _, body in came}) == 1


def test_an_offer_is_not_taken_up_where_there_is_no_body_either(patient):
    with connected(patient) as connection:
        for path, status in (("/healthz", 200), ("/nowhere", 404)):
            lines = [f"GET {path} HTTP/1.1", "Host: test", *OFFERS["websocket"], "", ""]
            connection.sendall("\r\n".join(lines).encode())
            came, _ = read_answer(connection)
            assert came == status


@pytest.mark.parametrize("offer", ["h2c", "websocket"])
@pytest.mark.parametrize("connection", ["close, Upgrade", "Upgrade, close"])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("content", [b"", random_png()], ids=["GET", "POST"])
def test_an_offer_on_a_connection_that_is_to_close_is_answered(patient, offer, connection, version, content):
    line = f"POST /classify HTTP/{version}" if content else f"GET /healthz HTTP/{version}"
    lines = [
        "Host: test",
        f"Connection: {connection}",
        f"Upgrade: {offer}",
        f"Content-Length: {len(content)}",
    ]
    with connected(patient) as client:
        client.sendall("\r\n".join([line, *lines, "", ""]).encode() + content)
        [(status, headers, _)] = answers(read_to_end(client))
    assert status == 200
    assert b"connection: close" in headers


def test_an_old_client_needs_no_host(patient):
    with connected(patient) as connection:
        connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        [(status, _, _)] = answers(read_to_end(connection))
    assert status == 200


def slow_png() -> bytes:
    """A picture that takes longer to decode than the end of a client's sending takes to be noticed."""
    return saved(Image.new("L", (6000, 6000)), "PNG")


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("before", [0, 3])
def test_a_client_that_sends_no_more_gets_all_its_answers(patient, version, before):
    content = slow_png()
    kept = "Connection: keep-alive"
    last = head("/classify", PNG, kept, f"Content-Length: {len(content)}") + content
    earlier = head("/classify", PNG, kept, f"Content-Length: {len(random_png())}") + random_png()
    with connected(patient) as connection:
        connection.sendall((earlier * before + last).replace(b"HTTP/1.1", f"HTTP/{version}".encode()))
        connection.shutdown(socket.SHUT_WR)
        received = read_to_end(connection)
    if version == "1.0":
        assert b"100 Continue" not in received  # which such a client does not know
        before = 0  # nor a second request on a connection
    came = answers(received.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b""))
    assert [status for status, _, _ in came] == [200] * (before + 1)
    assert b"connection: close" in came[-1][1]


def test_a_client_that_sends_no_more_of_a_body_is_gone(patient):
    with connected(patient) as connection:
        connection.sendall(head("/classify", PNG, LENGTH) + b"\x89PNG")
        connection.shutdown(socket.SHUT_WR)
        assert read_to_end(connection) == b""


def test_what_is_no_request_is_refused_to_a_client_that_sends_no_more(patient):
    good = head("/classify", PNG, f"Content-Length: {len(slow_png())}") + slow_png()
    with connected(patient) as connection:
        connection.sendall(good + b"no request\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        came = answers(read_to_end(connection).replace(b"HTTP/1.1 100 Continue\r\n\r\n", b""))
    assert [status for status, _, _ in came] == [200, 400]


def test_a_refused_client_that_waits_for_leave_to_send_is_cut_off(patient):
    with connected(patient) as connection:
        connection.sendall(head("/nowhere", PNG, LENGTH, "Expect: 100-Continue"))
        answer = read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"connection: close" in answer


def test_a_refused_client_that_sends_anyway_keeps_its_connection(patient):
    with connected(patient) as connection:
        connection.sendall(head("/nowhere", PNG, LENGTH))
        assert read_answer(connection)[0] == 404
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1)


def test_requests_that_offer_another_protocol_do_not_pile_up_either(patient):
    offer = "\r\n".join(["GET /healthz HTTP/1.1", "Host: test", *OFFERS["h2c"], "", ""]).encode()
    with connected(patient) as connection:
        assert is_cut_off(connection, offer * 10)


def test_requests_sent_ahead_of_their_answers_do_not_pile_up(patient):
    with connected(patient) as connection:
        assert is_cut_off(connection, b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n" * 1000)


def test_a_few_requests_sent_ahead_of_their_answers_are_answered(patient):
    with connected(patient) as connection:
        last = b"GET /healthz HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n" * 16 + last)
        assert read_to_end(connection).count(b"HTTP/1.1 200 ") == 17
