"""Forms: their parts, in UTF-8 alone, read where they keep nobody else waiting."""

import asyncio
import encodings
import logging
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import httpx
import pytest

from service.errors import MalformedBodyError, TooManyPicturesError
from service.http.bodies import INLINE_FORM_BYTES, Body
from service.http.key_use import KeyUse
from service.http.keys import Keys
from service.http.limits import BodyMemory
from service.http.multipart import MAX_TEXT_BYTES, MAX_TEXTS, Upload, parse_form
from service.http.picture_pool import PicturePool
from service.models.local_models import LocalModels
from service.models.repository import Repository
from service.observability.metrics import Metrics
from service.observability.request_metrics import RequestMetrics
from service.routes.images import parse_images
from service.state import Service
from tests.support.live_service import live_service, settings_for
from tests.support.small_pictures import random_png

FORM = "multipart/form-data; boundary=B"


def part(disposition: bytes, content: bytes) -> bytes:
    return b"--B\r\nContent-Disposition: form-data; " + disposition + b"\r\n\r\n" + content + b"\r\n"


def picture(filename: bytes = b"7.png") -> bytes:
    return part(b'name="images"; filename="' + filename + b'"', random_png()) + b"--B--\r\n"


@pytest.fixture(scope="module")
def client(models: Path) -> Iterator[httpx.Client]:
    with live_service(settings_for(models)) as client:
        yield client


def post(client: httpx.Client, route: str, body: bytes, charset: str) -> httpx.Response:
    return client.post(route, content=body, headers={"Content-Type": f"{FORM}; charset={charset}"})


CHARSETS = (
    "undefined",
    "punycode",
    "idna",
    "unicode_escape",
    "utf-7",
    "utf-16",
    "latin-1",
    "hex",
    "rot13",
    "base64",
    "no-such-one",
    "",
)


@pytest.mark.parametrize(
    ("route", "charset"),
    [
        *(("/classify", charset) for charset in CHARSETS),
        *product(("/segment", "/explain", "/reconstruct"), ("utf-16", "no-such-one")),
    ],
)
def test_a_form_in_another_charset_is_told_the_one_that_is_read(client, route, charset):
    answer = post(client, route, picture(b"\\ud800+2AA-.png"), charset)
    assert (answer.status_code, answer.json()["type"]) == (415, "/problems/unsupported-body")
    assert "utf-8" in answer.json()["detail"]


@pytest.mark.parametrize("charset", ["utf-8", "UTF-8", '"utf-8"', "utf8"])
def test_a_form_may_say_that_it_is_in_utf_8(client, charset):
    answer = post(client, "/classify", picture("Größe 7.png".encode()), charset)
    assert answer.status_code == 200
    assert answer.json()["results"][0]["filename"] == "Größe 7.png"


def test_names_of_charsets_that_nobody_knows_are_not_kept(client):
    before = set(encodings._cache)
    for number in range(20):
        assert post(client, "/classify", picture(), f"nobody-knows-{number}").status_code == 415
    assert {name for name in set(encodings._cache) - before if name.startswith("nobody")} == set()


def test_parts_come_in_their_order_as_texts_and_files():
    body = (
        part(b'name="a"', "ä".encode())
        + part(b'name=b; filename="c d.png"', b"\r\n--\0")
        + part(b'name="e"; filename=""', b"")
    )
    assert parse_form(body + b"--B--", FORM, max_files=2) == [
        ("a", "ä"),
        ("b", Upload("c d.png", b"\r\n--\0")),
        ("e", Upload(None, b"")),
    ]


def test_a_name_that_is_not_utf_8_is_read_as_latin_1():
    body = part(b'name="images"; filename="Gr\xf6\xdfe.png"', b"x") + b"--B--"
    assert parse_form(body, FORM, max_files=1) == [("images", Upload("Größe.png", b"x"))]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "closing boundary"),
        (b"garbage", "cannot be read"),
        (part(b'name="a"', b"x"), "closing boundary"),
        (part(b'filename="a"', b"x") + b"--B--", "name"),
        (b"--B\r\n\r\nx\r\n--B--", "name"),
        (b"--B\r\na b: c\r\n\r\nx\r\n--B--", "cannot be read"),
        (part(b'name="a"', b"x") * (MAX_TEXTS + 1) + b"--B--", f"more than {MAX_TEXTS}"),
        (part(b'name="a"', bytes(MAX_TEXT_BYTES + 1)) + b"--B--", f"more than {MAX_TEXT_BYTES}"),
    ],
    ids=["nothing", "garbage", "cut short", "no name", "no headers", "a wrong header", "many", "long"],
)
def test_a_form_that_cannot_be_read_says_why_and_logs_nothing(caplog, body, said):
    with caplog.at_level(logging.WARNING), pytest.raises(MalformedBodyError, match=said):
        parse_form(body, FORM, max_files=1)
    assert caplog.records == []


def test_texts_are_not_counted_as_files_nor_files_as_texts():
    body = part(b'name="a"', b"x") * MAX_TEXTS + part(b'name="b"; filename="c"', b"x") * 3 + b"--B--"
    assert len(parse_form(body, FORM, max_files=3)) == MAX_TEXTS + 3
    with pytest.raises(TooManyPicturesError, match="2 images"):
        parse_form(body, FORM, max_files=2)


def test_a_large_form_is_parsed_while_others_are_served(models):
    hostile = part(b'name="images"; filename="a.png"', b"\r\n--Bx" * 4 * INLINE_FORM_BYTES) + b"--B--"

    async def turns_of_others() -> int:
        settings, pool = settings_for(models), PicturePool(1, 100)
        gathered = Metrics()
        local = LocalModels(Repository(settings, gathered), gathered)
        service = Service(settings, local, pool, RequestMetrics(), BodyMemory(1), Keys(settings), KeyUse())
        body = Body(hostile, FORM, "multipart/form-data", "/classify")
        parsing, turns = asyncio.create_task(parse_images(body, service)), 0
        while not parsing.done():
            await asyncio.sleep(0)
            turns += 1
        assert parsing.result().files[0].content == b"\r\n--Bx" * 4 * INLINE_FORM_BYTES
        return turns

    assert asyncio.run(turns_of_others()) > 10
