"""Whatever bytes come down a connection, it is answered or closed, and never by a fault of the server's."""

import re
import select
import socket

import httpx
from hypothesis import event, example, given
from hypothesis import strategies as st

from tests.fuzz.fuzzed_service import LIMIT_S, FuzzedService
from tests.fuzz.mutations import Draw, damaged, mostly
from tests.fuzz.sizes import examples

PAUSE_S = 0.02  # in which most answers come; only then does the client say that it sends no more
METHODS = ("GET", "HEAD", "PUT", "OPTIONS", "CONNECT", "TRACE", "PRI", "get", "\x00", "X" * 100)
TARGETS = (
    "/classify",
    "/segment?k=2",
    "/reconstruct",
    "/explain",
    "/v2/models/tiny/infer",
    "/readyz",
    "/models",
    "/metrics",
)
ODD_TARGETS = (
    *("", "*", "//", "/%", "/%00", "/%ff%fe", "/models/%2e%2e%2fetc", "/docs/../app.py", "/" + "x" * 70_000),
    *("http://other/classify", "tiny:80", "/classify#f", "/\xff", "/ /", "/classify?" + "k=1&" * 5000),
)
VERSIONS = ("HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "HTTP/1.1 ", "HTTP/1", "ICY", "")
ODD_HEADERS = (
    *("Content-Length: 5", "Content-Length: -1", "Content-Length: +5", "Content-Length: 5, 6"),
    *("Content-Length: ", "Content-Length: 99999999999999999999", "Content-Length: 0x10"),
    *("Transfer-Encoding: chunked", "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: \x0bchunked"),
    *("Host: a", "Host: b\r\nHost: c", "Expect: 100-continue", "Expect: nonsense", "Connection: upgrade"),
    *("Upgrade: websocket", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__", "Content-Encoding: gzip"),
    *("Inference-Header-Content-Length: 7", "Inference-Header-Content-Length: -7", "X-Request-ID: a\x00b"),
    *(" folded: line", "no colon", ": nothing", "X: " + "y" * 70_000, "X: \x00", "X\xff: \xff", "X-Api-Key:"),
)
KINDS = ("application/json", "image/png", "application/x-npy", "application/octet-stream", "")
CHUNKS = (
    *(b"0\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n", b"5;a=b\r\nhello\r\n0\r\nX: y\r\n\r\n"),
    *(b"5\r\nhi\r\n0\r\n\r\n", b"5 \r\nhello\r\n", b"0x5\r\nhello\r\n0\r\n\r\n", b"-1\r\n\r\n"),
    *(b"fffffffffffffffff\r\n", b"\r\n\r\n", b"5"),
)
TLS = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)  # where it is not expected
STATUS_LINE = re.compile(rb"HTTP/1\.1 (\d\d\d) ")


@st.composite
def conversations(draw: Draw) -> bytes:
    """One to three requests, one behind the other, of which a few bytes may be damaged."""
    content = b"".join(_request(draw) for _ in range(mostly(draw, 1, [2, 3])))
    return draw(damaged(content)) if draw(st.booleans()) else content


def _request(draw: Draw) -> bytes:
    target = mostly(draw, draw(st.sampled_from(TARGETS)), ODD_TARGETS)
    start = f"{mostly(draw, 'POST', METHODS)} {target} {mostly(draw, 'HTTP/1.1', VERSIONS)}"
    body = draw(st.just(b'{"inputs": []}') | st.sampled_from(CHUNKS) | st.binary(max_size=100))
    lines = ["Host: service", f"Content-Type: {draw(st.sampled_from(KINDS))}"]
    lines.append("Transfer-Encoding: chunked" if body in CHUNKS else f"Content-Length: {len(body)}")
    lines += draw(st.lists(st.sampled_from(ODD_HEADERS), max_size=2))
    return "\r\n".join([start, *lines, "", ""]).encode("latin-1") + body


@examples(share=80, fuzz=2000)
@given(sent=conversations(), is_for_metrics=st.booleans())
@example(sent=b"", is_for_metrics=False)
@example(sent=TLS, is_for_metrics=False)
@example(sent=TLS, is_for_metrics=True)
@example(sent=b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", is_for_metrics=False)
@example(sent=b"GET /metrics HTTP/1.1\r\nHost: service\r\n\r\n", is_for_metrics=True)
def test_a_connection_is_answered_or_closed_whatever_comes_down_it(
    service: FuzzedService, sent: bytes, is_for_metrics: bool
) -> None:
    answer = converse(metrics_address(service) if is_for_metrics else service.process.address, sent)
    assert answer == b"" or STATUS_LINE.match(answer), answer[:1000]
    statuses = [int(status) for status in STATUS_LINE.findall(answer)] or [0]
    assert all(status < 500 or status == 503 for status in statuses), answer[:1000]
    event(str(statuses[-1]))
    service.conversations += 1
    service.count(statuses[-1])


def metrics_address(service: FuzzedService) -> tuple[str, int]:
    url = httpx.URL(service.process.metrics_url)
    assert url.port
    return url.host, url.port


def converse(address: tuple[str, int], sent: bytes) -> bytes:
    """All that comes back; a connection that nobody closes raises TimeoutError."""
    with socket.create_connection(address, timeout=LIMIT_S) as connection:
        received = b""
        try:
            connection.sendall(sent)
            if select.select([connection], [], [], PAUSE_S)[0]:
                received = connection.recv(2**16)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(2**16):
                received += part
        except TimeoutError:
            raise
        except OSError:  # the service has closed while we were talking
            pass
        return received
