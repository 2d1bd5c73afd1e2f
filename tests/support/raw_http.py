"""Requests and answers as bytes on a socket, for what no HTTP client would send."""

import socket
import time
from http.client import HTTPResponse

import httpx

PNG = "Content-Type: image/png"
PART = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a.png"\r\n\r\n'
FORM = "Content-Type: multipart/form-data; boundary=x"
LENGTH = "Content-Length: 1000"
CHUNKED = "Transfer-Encoding: chunked"


def head(route: str, *headers: str) -> bytes:
    return "\r\n".join([f"POST {route} HTTP/1.1", "Host: test", *headers, "", ""]).encode()


def connected(client: httpx.Client) -> socket.socket:
    return socket.create_connection((client.base_url.host, client.base_url.port), timeout=20)


def read_answer(connection: socket.socket) -> tuple[int, bytes]:
    """The status and the body of the next answer, which may come in parts; the connection stays open."""
    with HTTPResponse(connection) as answer:
        answer.begin()
        return answer.status, answer.read()


def read_to_end(connection: socket.socket) -> bytes:
    """All that comes until the service closes the connection, in whichever way."""
    received = b""
    try:
        while more := connection.recv(2**16):
            received += more
    except ConnectionResetError:
        pass
    return received


def is_cut_off(connection: socket.socket, piece: bytes, *, pause_s: float = 0) -> bool:
    """Whether the service ends the connection while a thousand pieces are sent."""
    try:
        for _ in range(1000):
            connection.sendall(piece)
            time.sleep(pause_s)
    except (BrokenPipeError, ConnectionResetError):
        return True
    return False
