"""capsnet: answers as the service gives them, insistence where it helps, and errors that say why."""

import asyncio
import doctest
import json
import math
import pickle
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path

import httpx
import numpy as np
import pytest
import tenacity
from PIL import Image

import capsnet as client_package
from capsnet import (
    AsyncClient,
    CapsnetError,
    ChangedBundleError,
    Client,
    ConnectError,
    Failed,
    Pair,
    Retry,
    Scored,
    Sweep,
    UnreachableError,
)
from capsnet.answers import read_png
from capsnet.errors import retry_after_s, unreachable
from capsnet.retries import Contact, tenacity_options
from capsnet.uploads import REQUEST_IMAGES, UPRIGHT
from capsnet.wire_format import HEADER_LENGTH, write_request
from export.contract.pictures import UPRIGHT as SERVICES_UPRIGHT
from tests.support.deep_pictures import tiff
from tests.support.live_service import live_service, settings_for, wait_until
from tests.support.paths import ROOT
from tests.support.small_pictures import random_levels, random_png, saved, to_png
from tests.support.tiny_bundle import CLASSES, SIDE, write_bundle
from tests.support.tiny_explain import write_explained_bundle

SIZE = 4  # numbers of a tiny pose
QUICK = Retry(attempts=3, first_wait_s=0.01)
SEEN = {"label": "1", "labels": ["1"], "confident": True, "blank": False, "classes": []}
ONE_ROW = json.dumps({"model": "other", "version": 1, "digest": "a", "results": [SEEN]}).encode()
BUG = b'{"type": "/problems/internal-error", "title": "Internal error", "detail": "internal error"}'
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service with two versions of `tiny`, the default, and `square`, whose poses are 2x2."""
    root = tmp_path_factory.mktemp("models")
    write_bundle(root / "tiny" / "1", seed=1)
    write_explained_bundle(root / "tiny" / "2", seed=2)
    write_bundle(root / "square" / "1", seed=3, pose_shape=(2, 2))
    write_bundle(root / "pairs" / "1", seed=4, channels=2)
    with live_service(settings_for(root, default_model="tiny", max_pixels=10**6)) as raw:
        yield str(raw.base_url)


class Awaited:
    """An AsyncClient that is called as Client is, so that every claim is made of both."""

    def __init__(self, *arguments: object, **options: object) -> None:
        self.runner = asyncio.Runner()
        self.client = AsyncClient(*arguments, **options)

    def __getattr__(self, name: str) -> Callable[..., object]:
        method = getattr(self.client, name)
        return lambda *arguments, **options: self.runner.run(method(*arguments, **options))

    def classify_many(self, *arguments: object, **options: object) -> list[object]:
        async def collect() -> list[object]:
            return [outcome async for outcome in self.client.classify_many(*arguments, **options)]

        return self.runner.run(collect())

    def close(self) -> None:
        self.runner.run(self.client.aclose())
        self.runner.close()


@pytest.fixture(params=[Client, Awaited], ids=["blocking", "asyncio"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Client]]:
    """Makes clients of either kind, and closes them."""
    made = []

    def make(*arguments: object, **options: object) -> Client:
        made.append(request.param(*arguments, **options))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def client(connect, url) -> Client:
    return connect(url)


@pytest.fixture
def blocking(url) -> Iterator[Client]:
    """For claims on what both kinds share: which requests are sent, and how answers are read."""
    with Client(url) as client:
        yield client


@pytest.fixture(scope="module")
def raw(url) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url) as raw:
        yield raw


def pixels_of(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((count, SIDE, SIDE, 1), np.float32)


@contextmanager
def server(*answers: tuple[int, dict[str, str], bytes] | Callable[[BaseHTTPRequestHandler], None]):
    """A server that gives these answers in turn, the last one for ever; its URL, and what it was asked."""
    asked: list[tuple[float, str, dict[str, str]]] = []
    turns = iter(answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def respond(self):
            self.rfile.read(int(self.headers.get("content-length", 0)))
            answer = next(turns, answers[-1])  # before the request shows in `asked`: tests wait for that
            asked.append((time.monotonic(), self.path, dict(self.headers)))
            if callable(answer):
                self.close_connection = True
                answer(self)
                return
            status, headers, body = answer
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_CONNECT = respond  # noqa: N815

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}", asked
        finally:
            http.shutdown()
            thread.join()


MODELS = (200, {}, b'{"models": [{"name": "other", "default": true, "versions": []}]}')
BUSY = (503, {"Retry-After": "0"}, b'{"type": "/problems/overloaded", "detail": "full"}')


# Pictures


@pytest.mark.parametrize("kind", ["path", "text", "bytes", "file", "levels"])
def test_a_picture_is_a_path_its_bytes_an_open_file_or_an_array(client, raw, tmp_path, kind):
    path = tmp_path / "7.png"
    path.write_bytes(random_png())
    with path.open("rb") as file:
        given = {
            "path": path,
            "text": str(path),
            "bytes": random_png(),
            "file": file,
            "levels": random_levels(),
        }[kind]
        answer = client.classify(given)
    (expected,) = raw.post("/classify", content=random_png()).json()["results"]
    (result,) = answer.results
    assert (answer.model, answer.version) == ("tiny", 2)
    assert (result.confident, result.blank) == (expected["confident"], expected["blank"]) == (None, False)
    assert (result.label, list(result.labels)) == (expected["label"], expected["labels"])
    assert result.filename == (None if kind in {"bytes", "levels"} else "7.png")
    for score, wanted in zip(result.classes, expected["classes"], strict=True):
        assert (score.label, score.probability) == (wanted["label"], wanted["probability"])
        assert score.pose.dtype == np.float32
        assert score.pose.tolist() == np.float32(wanted["pose"]).tolist()


def test_any_number_of_pictures_is_classified_in_order(client):
    pixels = pixels_of(2 * REQUEST_IMAGES + 3)
    results = client.classify(pixels).results
    probabilities, poses = client.infer(pixels)
    assert len(results) == len(pixels)
    for result, lengths, capsules in zip(results, probabilities, poses, strict=True):
        best = result.classes[0]
        assert best.label == CLASSES[lengths.argmax()]
        assert best.probability == pytest.approx(lengths.max(), abs=1e-6)
        np.testing.assert_allclose(best.pose, capsules[lengths.argmax()], atol=1e-6)


def test_files_and_arrays_may_be_mixed(client):
    mixed = client.classify([random_png(1), random_levels(2), pixels_of(1, 3)[0], random_png(4)])
    alone = [
        client.classify(one) for one in (random_png(1), random_levels(2), pixels_of(1, 3), random_png(4))
    ]
    assert [result.classes[0].probability for result in mixed.results] == pytest.approx(
        [one.results[0].classes[0].probability for one in alone], abs=1e-6
    )


def test_the_options_of_classify_reach_the_service(client, raw):
    answer = client.classify(random_png(), top_k=1, reconstruction=True, model_input=True, version=1)
    query = {"top_k": 1, "reconstruction": True, "version": 1}
    expected = raw.post("/classify", params=query, content=random_png()).json()
    (result,) = answer.results
    assert (answer.version, len(result.classes)) == (1, 1)
    assert result.classes[0].probability == expected["results"][0]["classes"][0]["probability"]
    assert (result.reconstruction.shape, result.reconstruction.dtype) == ((SIDE, SIDE, 1), np.uint8)
    np.testing.assert_array_equal(result.model_input[:, :, 0], random_levels())


def test_poses_have_the_models_shape_and_can_be_given_back(client):
    best = client.classify(random_png(), model="square").results[0].classes[0]
    assert best.pose.shape == (2, 2)
    made = client.reconstruct(pose=best.pose, label=best.label, model="square")
    np.testing.assert_array_equal(made.reconstructions[0].pose, best.pose)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I", "F", "CMYK", "YCbCr"])
def test_a_pil_image_is_seen_as_the_file_of_it(blocking, mode):
    page = Image.new("L", (60, 50), 235)
    page.paste(20, (25, 10, 31, 40))
    deep = {"I;16": np.uint16, "I": np.int32, "F": np.float32}
    image = Image.fromarray(np.asarray(page, deep[mode])) if mode in deep else page.convert(mode)
    of_image, of_file = (blocking.classify(one).results[0] for one in (image, saved(image, "TIFF")))
    assert of_image.filename is None
    assert not of_image.blank
    for one, other in zip(of_image.classes, of_file.classes, strict=True):
        assert (one.label, one.probability) == (other.label, pytest.approx(other.probability, abs=1e-4))


@pytest.mark.parametrize("mode", ["I;16B", "I;16L", "I;16N", "La", "PA", "RGBa", "RGBX", "HSV"])
def test_a_pil_image_in_a_mode_that_no_png_has_keeps_its_depth_and_its_transparency(blocking, mode):
    page = Image.new("L", (60, 50), 235)
    page.paste(20, (25, 10, 31, 40))
    ink = Image.new("LA", page.size, (0, 0))
    ink.paste((20, 255), (25, 10, 31, 40))
    usual = ink if mode in {"La", "PA", "RGBa"} else page
    if mode.startswith("I;16"):
        numbers = np.asarray(page, {"I;16B": ">u2", "I;16L": "<u2", "I;16N": "=u2"}[mode]) * 257
        image = Image.frombytes(mode, page.size, numbers.tobytes())
    else:
        image = usual.convert("RGBA" if usual is ink and mode != "La" else usual.mode)
        image = (image.convert("RGB") if usual is page else image).convert(mode)
    assert image.mode == mode
    of_image, of_usual = (blocking.classify(one).results[0] for one in (image, usual))
    assert not of_image.blank
    for one, other in zip(of_image.classes, of_usual.classes, strict=True):
        assert (one.label, one.probability) == (other.label, pytest.approx(other.probability, abs=1e-3))


@pytest.mark.parametrize("kind", ["u2", "f4"])
def test_a_deep_tiff_whose_0_is_white_is_sent_as_a_file_or_not_at_all(blocking, kind):
    page = np.full((60, 50, 1), 0.1)
    page[10:40, 25:31] = 0.9  # ink
    file = tiff((page * (65535 if kind == "u2" else 1)).astype(kind), white_zero=True)
    with pytest.raises(ValueError, match="0 is white, which a PIL image of it does not tell; send the file"):
        blocking.classify(Image.open(BytesIO(file)))


def test_a_photograph_opened_by_pil_is_turned_upright_as_its_file_is(blocking, tmp_path):
    levels_of = np.random.default_rng(3).integers(0, 256, (SIDE, SIDE), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held on its side
    path = tmp_path / "held.png"
    Image.fromarray(levels_of).save(path, exif=exif)
    with Image.open(path) as opened:
        of_image = blocking.classify(opened).results[0].classes[0]
    of_file = blocking.classify(path).results[0].classes[0]
    lying = blocking.classify(levels_of).results[0].classes[0]
    assert (of_image.label, of_image.probability) == (of_file.label, of_file.probability)
    assert of_image.probability != lying.probability


def photograph(*tags: bytes) -> bytes:
    """A JPEG with these entries of EXIF, 12 bytes each."""
    exif = b"Exif\0\0MM\0*\0\0\0\x08" + struct.pack(">H", len(tags)) + b"".join(tags) + bytes(4)
    return saved(Image.fromarray(random_levels()), "JPEG", exif=exif)


HELD = struct.pack(">HHIHxx", 0x0112, 3, 1, 6)  # the camera was held on its side
UNIT_AS_BYTE = struct.pack(">HHIBxxx", 0x0128, 1, 1, 2)
UNIT_AS_TEXT = struct.pack(">HHI4s", 0x0128, 2, 2, b"2")
RESOLUTION_AS_TEXT = struct.pack(">HHI4s", 0x011A, 2, 3, b"72")


@pytest.mark.parametrize("damaged", [UNIT_AS_BYTE, UNIT_AS_TEXT, RESOLUTION_AS_TEXT])
def test_a_photograph_opened_by_pil_is_turned_upright_though_its_exif_is_damaged(blocking, damaged):
    entries = sorted([HELD, damaged])
    of_image = blocking.classify(Image.open(BytesIO(photograph(*entries)))).results[0].classes[0]
    of_file = blocking.classify(photograph(*entries)).results[0].classes[0]
    lying = blocking.classify(photograph()).results[0].classes[0]
    assert of_image.probability == pytest.approx(of_file.probability, abs=1e-6)
    assert of_image.probability != pytest.approx(lying.probability, abs=1e-6)


def test_the_client_turns_pictures_as_the_service_does():
    """Each has the table of EXIF's orientations: the client imports nothing of the service's."""
    assert UPRIGHT == SERVICES_UPRIGHT


def test_a_photograph_whose_orientation_cannot_be_read_is_taken_as_it_lies(blocking):
    exif = b"Exif\0\0neither II nor MM"
    file = BytesIO()
    Image.fromarray(random_levels()).save(file, "JPEG", exif=exif)
    of_image = blocking.classify(Image.open(file)).results[0].classes[0]
    of_file = blocking.classify(file.getvalue()).results[0].classes[0]
    assert of_image.probability == pytest.approx(of_file.probability, abs=1e-6)


def test_a_pair_may_be_of_pil_images(blocking):
    left, right = (Image.open(BytesIO(random_png(seed))) for seed in (1, 2))
    of_images = blocking.classify(Pair(left, right), model="pairs").results[0].classes[0]
    of_files = blocking.classify(Pair(random_png(1), random_png(2)), model="pairs").results[0].classes[0]
    assert (of_images.label, of_images.probability) == (of_files.label, of_files.probability)


@pytest.mark.parametrize("shape", [(90, 70), (90, 70, 1), (90, 70, 3)])
def test_levels_of_another_size_than_the_models_are_prepared_as_a_file_is(blocking, shape):
    page = np.full(shape, 235, np.uint8)
    page[20:60, 30:36] = 20
    file = to_png(page if len(shape) == 2 else page[:, :, 0])
    of_array, of_file = (blocking.classify(one).results[0] for one in (page, file))
    assert not of_array.blank
    assert of_array.classes[0].probability == pytest.approx(of_file.classes[0].probability, abs=1e-6)
    [streamed] = blocking.classify_many([page])
    assert streamed.classification.label == of_array.label


@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_floats_of_any_width_are_taken(blocking, kind):
    pixels = pixels_of(2).astype(np.float16)
    expected = blocking.classify(pixels.astype(np.float32)).results
    for one, other in zip(blocking.classify(pixels.astype(kind)).results, expected, strict=True):
        assert one.classes[0].probability == pytest.approx(other.classes[0].probability, abs=1e-6)


def test_min_probability_reaches_the_service(client):
    for least, expected in ((0.0, True), (1.0, False)):
        assert client.classify(random_png(), min_probability=least).results[0].confident is expected
        objects = client.segment(random_png(), min_probability=least).results[0].objects
        assert {one.confident for one in objects} == {expected}
        [seen] = client.classify_many([random_png()], min_probability=least)
        assert seen.classification.confident is expected


def test_what_is_given_back_is_short_where_it_is_printed(blocking):
    answer = blocking.classify([random_png(seed) for seed in range(50)], reconstruction=True)
    segmented = blocking.segment([random_png(1)])
    [scored, failed] = blocking.classify_many([random_png(), bytes(5000)])
    printed = {
        name: repr(value)
        for name, value in {
            "Answer": answer,
            "Classification": answer.results[0],
            "ClassScore": answer.results[0].classes[0],
            "Segmentation": segmented.results[0],
            "Reconstructions": blocking.reconstruct(random_png(), sweep=Sweep()),
            "Explanation": blocking.explain(random_png()),
            "Encoded": blocking.infer(pixels_of(50)),
            "Pinned": blocking.pin(),
            "Model": blocking.model("tiny"),
            "Scored": scored,
            "Failed": failed,
            "Pair": Pair(bytes(5000), bytes(5000)),
        }.items()
    }
    for name, text in printed.items():
        assert text.startswith(f"{name}("), text
        assert len(text) < 2500, name
    best = answer.results[0].classes[0]
    assert printed["ClassScore"] == (
        f"ClassScore(label={best.label!r}, probability={best.probability:.4g}, pose=<float32 [{SIZE}]>)"
    )


@pytest.mark.parametrize(
    ("picture", "error", "said"),
    [
        (np.zeros((SIDE, SIDE), int), ValueError, "the array is int64; expected uint8 .* or floats"),
        (np.zeros((SIDE,), np.uint8), ValueError, r"\[N, H, W, C\]; got shape \[28\]"),
        (np.zeros((SIDE, 0), np.uint8), ValueError, r"shape \[28, 0\]; a picture has pixels"),
        (Image.new("L", (0, 5)), ValueError, "PIL image is 0x5; a picture has pixels"),
        (Pair(np.zeros((SIDE, SIDE)), random_png()), TypeError, r"np.stack\(\[left, right\], axis=-1\)"),
        (5, TypeError, "must be a path, bytes, .* got int"),
        ([], ValueError, "at least one picture"),
        ([None], TypeError, "must be a path, bytes, .* got NoneType"),
        ("no/such/file.png", FileNotFoundError, "no/such/file.png"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_anything_is(picture, error, said):
    with Client("http://127.0.0.1:1", retry=QUICK) as client, pytest.raises(error, match=said):
        client.classify(picture)


def test_a_picture_opened_as_text_is_told_how_to_open_it(blocking, tmp_path):
    (tmp_path / "one.png").write_bytes(random_png())
    with (
        (tmp_path / "one.png").open(encoding="utf-8") as file,
        pytest.raises(ValueError, match="binary mode"),
    ):
        blocking.classify(file)


def test_of_many_pictures_the_error_says_among_which_the_bad_one_is(blocking):
    pictures = [random_png()] * (REQUEST_IMAGES + 12)
    pictures[REQUEST_IMAGES + 6] = b"no picture"
    with pytest.raises(CapsnetError, match=r"of pictures 65 to 76: image 7 of 12 "):
        blocking.classify(pictures)


def test_of_floats_of_another_size_the_error_says_how_to_have_them_fitted(blocking):
    with pytest.raises(
        CapsnetError, match="another size fitted send it as a file, in Python as uint8 or a PIL"
    ):
        blocking.classify(np.zeros((60, 80)))


@pytest.mark.parametrize("method", ["classify", "segment"])
def test_pictures_with_too_many_pixels_for_one_request_are_sent_in_halves(connect, tmp_path, method):
    write_bundle(tmp_path / "tiny" / "1")
    pictures = [random_png(seed) for seed in range(5)]
    limits = {"max_pixels": SIDE * SIDE, "max_request_pixels": 2 * SIDE * SIDE}
    with live_service(settings_for(tmp_path, **limits)) as service:
        ask = getattr(connect(str(service.base_url)), method)
        results = ask(pictures).results
        expected = [ask(picture).results[0] for picture in pictures]
    poses = "classes" if method == "classify" else "objects"
    for result, alone in zip(results, expected, strict=True):
        np.testing.assert_allclose(getattr(result, poses)[0].pose, getattr(alone, poses)[0].pose, atol=1e-6)


def test_a_picture_that_is_too_large_by_itself_is_not_looked_for_in_halves(connect):
    too_large = (413, {}, b'{"type": "/problems/picture-too-large", "detail": "image 1 of 2"}')
    with server(too_large) as (url, asked), pytest.raises(CapsnetError, match="image 1 of 2"):
        connect(url).classify([random_png(1), random_png(2)])
    assert len(asked) == 1


def test_a_proxy_that_finds_even_one_picture_too_large_ends_the_halving(connect):
    with server((413, {}, b"")) as (url, asked), pytest.raises(CapsnetError, match="413"):
        connect(url).classify([random_png(1), random_png(2)])
    assert len(asked) == 2


# Reconstructions


def test_a_sweep_gives_one_picture_per_delta_and_the_same_as_a_grid(client):
    sweep = Sweep(dimensions=[0, 2], start=-0.5, stop=0.5, step=0.5)
    made = client.reconstruct(random_png(), sweep=sweep)
    grid = client.reconstruct_grid(random_png(), sweep=sweep)
    changes = [dict(one.perturbations) for one in made.reconstructions]
    assert changes == [{0: -0.5}, {0: 0.0}, {0: 0.5}, {2: -0.5}, {2: 0.0}, {2: 0.5}]
    rows = np.stack([one.picture for one in made.reconstructions]).reshape(2, 3, SIDE, SIDE, 1)
    np.testing.assert_array_equal(grid, rows.transpose(0, 2, 1, 3, 4).reshape(2 * SIDE, 3 * SIDE, 1))


def test_perturbations_are_added_to_the_pose_together(client):
    pose = np.linspace(-0.2, 0.2, SIZE)
    (made,) = client.reconstruct(pose=pose, label="1", perturbations={0: 0.25, 3: -0.5}).reconstructions
    np.testing.assert_allclose(made.pose, pose + [0.25, 0, 0, -0.5], atol=1e-6)
    assert made.perturbations == {0: 0.25, 3: -0.5}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"pose": [0, 1, math.nan, 0], "label": "1"}, r"pose\[2\] must be a finite number, got nan"),
        ({"image": random_png(), "perturbations": {3: math.inf}}, "delta of dimension 3 must be .*, got inf"),
        ({"image": random_png(), "sweep": Sweep(start=-math.inf)}, "start must be a finite number, got -inf"),
    ],
)
def test_numbers_that_json_has_not_are_refused_by_name(blocking, asked, message):
    with pytest.raises(ValueError, match=message):
        blocking.reconstruct(**asked)


@pytest.mark.parametrize("asked", [{"sweep": Sweep(dimensions=[1.7])}, {"perturbations": {1.9: 0.2, 1: 0.5}}])
def test_a_dimension_that_is_no_integer_is_refused_and_not_cut(blocking, asked):
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        blocking.reconstruct(random_png(), **asked)


def test_the_same_picture_as_a_file_and_as_an_array_is_decoded_alike(client):
    of_file, of_array = (client.reconstruct(one, label="2") for one in (random_png(), random_levels()))
    assert of_file.label == of_array.label == "2"
    np.testing.assert_array_equal(of_file.reconstructions[0].picture, of_array.reconstructions[0].picture)


def test_an_array_with_more_channels_than_a_picture_is_no_picture_to_decode(client):
    with pytest.raises(ValueError, match=r"shape \[28, 28, 5\]; expected .* C at most 4"):
        client.reconstruct(np.zeros((SIDE, SIDE, 5), np.uint8))


def test_a_picture_is_explained_as_the_service_does_it(client, raw):
    answer = client.explain(random_png(1))
    body = raw.post("/explain", content=random_png(1)).json()
    assert (answer.model, answer.version, answer.digest) == (body["model"], body["version"], body["digest"])
    assert (answer.routing, answer.label, answer.filename) == ("agreement", body["label"], None)
    assert answer.model_input.shape == (SIDE, SIDE, 1)
    np.testing.assert_allclose(answer.entropy, body["entropy"])
    assert answer.grid.field == body["grid"]["field"]
    np.testing.assert_array_equal(answer.grid.row_centers, body["grid"]["row_centers"])
    assert [one.label for one in answer.classes] == [one["label"] for one in body["classes"]]
    for found, sent in zip(answer.classes, body["classes"], strict=True):
        for name in ("probabilities", "poses", "heat", "logit_change", "largest_logit_change"):
            np.testing.assert_allclose(getattr(found, name), sent[name], rtol=1e-6)
    assert (answer.distance_edges, answer.layers) == (None, ())


def test_one_class_is_explained(client):
    answer = client.explain(np.zeros((SIDE, SIDE), np.uint8), label="1", model="tiny", version=2)
    assert [one.label for one in answer.classes] == ["1"]


def test_an_array_of_another_size_is_explained_as_a_file(client):
    levels = np.random.default_rng(0).integers(0, 256, (40, 50), np.uint8)
    assert client.explain(levels).model_input.shape == (SIDE, SIDE, 1)


def test_a_bundle_without_an_explain_graph_is_told_by_its_error(client):
    with pytest.raises(CapsnetError, match="export its run again with `capsnet-export bundle`") as raised:
        client.explain(random_png(), model="square")
    assert (raised.value.status, raised.value.type) == (409, "/problems/no-explain-graph")


def test_matrix_capsules_are_explained_with_their_layers(connect):
    with live_service(
        settings_for(ROOT / "models", default_model="matrix-capsnet-toys", optimize=False)
    ) as shipped:
        pair = Pair(ROOT / "docs" / "left.png", ROOT / "docs" / "right.png")
        answer = connect(str(shipped.base_url)).explain(pair)
    assert (answer.routing, answer.filename) == ("em", "left.png, right.png")
    assert answer.classes[0].poses.shape == (3, 4, 4)
    assert answer.classes[0].distances.shape == (3, len(answer.distance_edges) - 1)
    assert [layer.activations.shape for layer in answer.layers] == [(3, 16, 6, 6), (3, 16, 4, 4)]


def test_objects_are_segmented_as_the_service_does_it(client, raw):
    answer = client.segment([random_png(1), random_png(2)], k=2)
    expected = raw.post(
        "/segment", params={"k": 2}, files=[("images", random_png(1)), ("images", random_png(2))]
    ).json()
    for result, wanted in zip(answer.results, expected["results"], strict=True):
        assert [one.label for one in result.objects] == [one["label"] for one in wanted["objects"]]
        assert result.overlay.shape == (SIDE, SIDE, 3)
        for one in result.objects:
            assert one.reconstruction.shape == (SIDE, SIDE, 1)
            assert (one.mask.shape, one.mask.dtype) == ((SIDE, SIDE), np.bool_)
            brightest = one.reconstruction[:, :, 0] == one.reconstruction.max()
            assert one.mask[brightest].all()


# Arrays


@pytest.mark.parametrize("count", [1, REQUEST_IMAGES, REQUEST_IMAGES + 1])
def test_infer_and_decode_take_any_number_and_keep_the_order(client, count):
    pixels = pixels_of(count)
    probabilities, poses = client.infer(pixels)
    assert (probabilities.shape, poses.shape) == ((count, 3), (count, 3, SIZE))
    np.testing.assert_allclose(np.linalg.norm(poses, axis=2), probabilities, atol=1e-6)
    np.testing.assert_allclose(client.infer(pixels[-1:]).poses, poses[-1:], atol=1e-6)
    mask = np.eye(3, dtype=np.float32)[probabilities.argmax(axis=1)]
    pictures = client.decode(poses, mask)
    assert pictures.shape == pixels.shape
    shown = client.classify(pixels[-1:], reconstruction=True).results[0].reconstruction
    np.testing.assert_allclose(pictures[-1] * 255, shown, atol=0.51)


def test_requests_stay_below_the_bytes_given(connect, url):
    pixels, image_bytes = pixels_of(5), SIDE * SIDE * 4
    narrow, wide = connect(url, request_bytes=2 * image_bytes), connect(url)
    np.testing.assert_allclose(narrow.infer(pixels).poses, wide.infer(pixels).poses, atol=1e-6)
    with server(MODELS, (200, {}, b"{}")) as (elsewhere, asked):
        with pytest.raises(CapsnetError, match="Invalid response from the server"):
            connect(elsewhere, request_bytes=2 * image_bytes).infer(pixels)
        assert 2 * image_bytes < int(asked[-1][2]["Content-Length"]) < 3 * image_bytes


@pytest.mark.parametrize("wrong", [pixels_of(1)[0], pixels_of(1).astype(np.float64), pixels_of(0)])
def test_infer_refuses_what_is_no_batch_of_float32(blocking, wrong):
    with pytest.raises(ValueError, match=r"pixels must be a float32 array \[N, H, W, C\]"):
        blocking.infer(wrong)


# Models


def test_models_tells_versions_and_model_their_manifests(client):
    default = {model.name: model.default for model in client.models()}
    assert default == {"pairs": False, "square": False, "tiny": True}
    versions = client.model("tiny").versions
    assert [(one.version, one.state) for one in versions] == [(2, "loaded"), (1, "loaded")]
    assert versions[0].manifest["class_names"] == list(CLASSES)


def test_a_pinned_version_is_loaded_and_brings_its_manifest(client):
    assert client.pin()[:2] == ("tiny", 2)
    assert client.pin(version=1)[:2] == ("tiny", 1)
    pinned = client.pin("square")
    assert (pinned.version, tuple(pinned.manifest["pose_shape"])) == (1, (2, 2))
    for wrong in (("nobody", None), ("tiny", 9)):
        with pytest.raises(CapsnetError) as refused:
            client.pin(*wrong)
        assert (refused.value.status, refused.value.type) == (404, "/problems/unknown-model")


def test_a_client_pins_the_version_that_the_operators_rule_names(connect, tmp_path):
    for version in (1, 2, 3):
        write_bundle(tmp_path / "tiny" / str(version), seed=version)
    with live_service(settings_for(tmp_path, admin_key="operator")) as service:
        client = connect(str(service.base_url))
        pictures = [pixels_of(1)[0]]
        for rule, version in (
            ({"pinned": 1}, 1),
            ({"pinned": 1, "canary": 3, "share": 0.4}, 1),
            ({"canary": 2, "share": 0.6}, 2),
            ({"canary": 3, "share": 0.4}, 2),
        ):
            headers = {"X-API-Key": "operator"}
            path = "/v2/repository/models/tiny/traffic"
            assert service.put(path, json=rule, headers=headers).is_success
            assert client.pin().version == version
            assert [one.version for one in client.model("tiny").versions if one.default] == [version]
            (scored,) = client.classify_many(pictures)
            expected = client.classify(pictures, version=version).results[0]
            assert [one.probability for one in scored.classification.classes] == [
                one.probability for one in expected.classes
            ]


AWAY = (502, {}, b"<html>Bad Gateway</html>")  # of a proxy


@pytest.mark.parametrize("answer", [BUSY, AWAY, (500, {}, b"Internal Server Error")])
def test_ready_is_false_while_nothing_is_served_and_asks_once(connect, url, answer):
    assert connect(url).ready() is True
    with server(answer) as (unready, asked):
        assert connect(unready).ready() is False
        assert len(asked) == 1


# Streams


def test_a_stream_gives_one_outcome_a_picture_in_order(client, tmp_path):
    pictures = [random_png(seed) for seed in range(20)]
    outcomes = list(client.classify_many(iter(pictures), batch=3, concurrency=2, top_k=1, version=1))
    assert [outcome.picture for outcome in outcomes] == pictures
    expected = client.classify(pictures, top_k=1, version=1).results
    for outcome, wanted in zip(outcomes, expected, strict=True):
        assert isinstance(outcome, Scored)
        assert len(outcome.classification.classes) == 1
        assert outcome.classification.classes[0].probability == pytest.approx(
            wanted.classes[0].probability, abs=1e-6
        )


@pytest.mark.parametrize(
    "one",
    [
        "digit.png",
        Path("digit.png"),
        b"content",
        BytesIO(b"content"),
        Image.new("L", (9, 9)),
        Pair("l", "r"),
        np.zeros((SIDE, SIDE)),
        np.zeros((SIDE, SIDE, 1)),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_single_picture_is_no_stream(client, one):
    with pytest.raises(TypeError, match="classify_many takes several pictures"):
        client.classify_many(one)


@pytest.mark.parametrize("shape", [(2, SIDE, SIDE), (2, SIDE, SIDE, 1)])
def test_an_array_of_pictures_is_a_stream(client, shape):
    outcomes = list(client.classify_many(np.zeros(shape, np.float32)))
    assert [type(outcome) for outcome in outcomes] == [Scored, Scored]


def test_failed_pictures_do_not_keep_their_requests_in_memory(client, tmp_path):
    path = tmp_path / "no.png"
    path.write_bytes(bytes(2**20))
    image = Image.open(BytesIO(random_png()[:60]))
    outcomes = list(client.classify_many([path, path, random_png(), image, path]))
    errors = [outcome.error for outcome in outcomes if isinstance(outcome, Failed)]
    assert len(errors) == 4
    for error in errors:
        assert (error.__traceback__, error.__context__, error.__cause__) == (None, None, None)


def test_bad_pictures_fail_alone_and_say_why(client, tmp_path):
    bad = {2: b"no picture", 3: tmp_path / "missing.png", 7: random_png()[:60], 8: np.zeros((5, 5), np.uint8)}
    bad |= {9: saved(Image.new("L", (1001, 1001)), "PNG"), 11: np.zeros((SIDE, SIDE), int)}
    reasons = {2: "expected a PNG", 3: "No such file", 7: "", 8: "8x8 pixels", 9: "pixels", 11: "int64"}
    pictures = [bad.get(index, random_png(index)) for index in range(13)]
    outcomes = list(client.classify_many(pictures, batch=8, concurrency=2))
    assert {i for i, outcome in enumerate(outcomes) if isinstance(outcome, Failed)} == set(bad)
    for index, reason in reasons.items():
        assert reason in outcomes[index].reason
        assert outcomes[index].reason
    for index, outcome in enumerate(outcomes):
        if isinstance(outcome, Scored):
            alone = client.classify(pictures[index]).results[0]
            assert outcome.classification.label == alone.label


def test_a_bug_fails_its_picture_alone_and_a_lost_service_fails_none():
    answers = (500, {}, BUG), (500, {}, b"Internal Server Error"), (200, {}, ONE_ROW)
    one_by_one = {"batch": 1, "concurrency": 1, "model": "other", "version": 1}
    with server(*answers) as (url, asked), Client(url, retry=QUICK) as client:
        bug, scored = client.classify_many([random_png(1), random_png(2)], **one_by_one)
        assert (bug.error.type, type(scored), len(asked)) == ("/problems/internal-error", Scored, 3)


def test_what_took_too_long_to_send_is_sent_in_halves():
    """A line may be too slow for four large pictures within the time that the service waits."""
    slow, half = (408, {}, b""), (200, {}, ONE_ROW)
    in_pairs = {"batch": 2, "concurrency": 1, "model": "other", "version": 1}
    with server(slow, half) as (url, asked), Client(url, retry=QUICK) as client:
        outcomes = list(client.classify_many([random_png(1), random_png(2)], **in_pairs))
        assert ([type(outcome) for outcome in outcomes], len(asked)) == ([Scored] * 2, 3)
    with server(slow) as (url, asked), Client(url, retry=QUICK) as client:
        with pytest.raises(CapsnetError, match="408"):
            list(client.classify_many([random_png(1)], **in_pairs))
        assert len(asked) == 1


def test_a_damaged_pil_image_fails_alone(client):
    file = bytearray(to_png(random_levels(height=300, width=300)))
    second = file.index(b"IDAT", file.index(b"IDAT") + 4)
    file[second : second + 4] = b"\0\0\0\0"
    damaged, scored = client.classify_many([Image.open(BytesIO(file)), random_png()])
    assert isinstance(damaged, Failed)
    assert isinstance(scored, Scored)


def test_a_file_above_the_services_limit_fails_alone(client):
    outcomes = list(client.classify_many([random_png(1), bytes(40 * 2**20), random_png(2)]))
    assert [isinstance(outcome, Failed) for outcome in outcomes] == [False, True, False]
    assert outcomes[1].error.status == 413


@pytest.mark.parametrize("wrong", [{"top_k": 99}, {"version": 9}, {"model": "nobody"}])
def test_a_wrong_question_ends_a_stream(client, wrong):
    with pytest.raises(CapsnetError) as refused:
        list(client.classify_many([random_png(seed) for seed in range(4)], batch=2, **wrong))
    assert refused.value.status in {404, 422}


@pytest.mark.parametrize("wrong", [{"top_k": 99}, {"version": 9}, {"model": "nobody"}])
def test_a_wrong_question_of_a_stream_is_asked_once(connect, raw, wrong):
    query = {"model": "tiny", "version": 1, **wrong}
    came = raw.post("/classify", params=query, content=random_png())
    pictures = [random_png(seed) for seed in range(4)]
    with server((came.status_code, {}, came.content)) as (url, asked), pytest.raises(CapsnetError) as refused:
        list(connect(url).classify_many(pictures, batch=2, concurrency=1, **query))
    assert len(asked) == 1
    assert refused.value.status == came.status_code


@pytest.mark.parametrize("name", ["", ".", "..", "nobody"])
def test_a_name_of_no_model_is_an_unknown_model_whatever_it_would_mean_in_a_path(client, name):
    with pytest.raises(CapsnetError) as refused:
        client.model(name)
    assert (refused.value.status, refused.value.type) == (404, "/problems/unknown-model")


def test_a_stream_reads_no_further_ahead_than_its_requests(url):
    asked = 0

    def endless() -> Iterator[bytes]:
        nonlocal asked
        while True:
            asked += 1
            yield random_png()

    with Client(url) as client:
        stream = client.classify_many(endless(), batch=2, concurrency=3)
        for _ in range(10):
            next(stream)
        assert asked <= 10 + 2 * 3
        stream.close()


def test_an_asynchronous_stream_can_be_left_and_leaves_nothing_behind(url):
    async def leave() -> tuple[object, set[asyncio.Task[object]]]:
        async with AsyncClient(url) as client:
            endless = iter(lambda: random_png(), None)
            async with aclosing(client.classify_many(endless, batch=2, concurrency=3)) as stream:
                first = await anext(stream)
            return first, asyncio.all_tasks() - {asyncio.current_task()}

    first, left = asyncio.run(leave())
    assert isinstance(first, Scored)
    assert not left


def test_a_stream_that_is_left_does_not_wait_for_the_next_attempt():
    away = (503, {"Retry-After": "500"}, b"")
    patient = Retry(max_wait_s=500, timeout_s=5000)
    with server((200, {}, ONE_ROW), away) as (url, asked), Client(url, retry=patient) as client:

        def endless() -> Iterator[bytes]:
            yield random_png()
            wait_until(lambda: len(asked) == 1)  # so that the first picture gets the good answer
            while True:
                yield random_png()

        stream = client.classify_many(endless(), batch=1, concurrency=2, model="other", version=1)
        assert isinstance(next(stream), Scored)
        wait_until(lambda: len(asked) == 2)
        stream.close()  # in vain, until the test's own time is up, if this waited for the other picture


# Insistence


def test_what_is_busy_is_asked_again_after_the_time_it_asks_for(connect):
    later = (503, {"Retry-After": "1"}, b"")
    with server(later, MODELS) as (url, asked):
        connect(url).models()
        (first, _, _), (second, _, _) = asked
        assert second - first >= 1


def test_retry_after_is_capped(connect):
    for_hours = (429, {"Retry-After": "7200"}, b"")
    with server(for_hours, MODELS) as (url, asked):
        connect(url, retry=Retry(attempts=2, max_wait_s=0.05)).models()
        assert len(asked) == 2


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_attempts_are_bounded_and_the_last_refusal_is_raised(connect, status):
    refused = (status, {"X-Request-ID": "abc"}, b'{"type": "/problems/x", "title": "X", "detail": "why"}')
    with server(refused) as (url, asked), pytest.raises(CapsnetError) as last:
        connect(url, retry=QUICK).models()
    assert len(asked) == QUICK.attempts
    error = last.value
    assert (error.status, error.type, error.title, error.detail) == (status, "/problems/x", "X", "why")
    assert error.request_id == "abc"
    assert str(error) == f"{status} X: why (request abc)"


@pytest.mark.parametrize("status", [400, 401, 404, 408, 413, 422, 500])
def test_what_would_be_refused_again_is_asked_once(connect, status):
    refusal = BUG if status == 500 else b""
    answer = (status, {"Retry-After": "0"}, refusal)
    with server(answer) as (url, asked), pytest.raises(CapsnetError) as refused:
        connect(url, retry=QUICK).models()
    assert (len(asked), refused.value.status) == (1, status)


def test_a_500_of_a_proxy_that_has_lost_its_service_is_asked_again(connect):
    with server((500, {}, b"Internal Server Error"), MODELS) as (url, asked):
        connect(url, retry=QUICK).models()
        assert len(asked) == 2


def test_no_attempt_begins_after_the_total_time(connect):
    with server((503, {"Retry-After": "5"}, b"")) as (url, asked), pytest.raises(CapsnetError):
        connect(url, retry=Retry(timeout_s=4)).models()
    assert len(asked) == 1


def test_a_connection_that_is_cut_is_made_again(connect):
    def cut(handler):
        handler.connection.shutdown(socket.SHUT_RDWR)

    with server(cut, cut, MODELS) as (url, asked):
        assert connect(url, retry=QUICK).models()[0].name == "other"
        assert len(asked) == 3


def test_a_server_that_hangs_is_given_up_after_the_timeout(connect):
    end = threading.Event()
    with server(lambda _: end.wait(20)) as (url, asked):
        with pytest.raises(UnreachableError, match=r"timed out|ReadTimeout"):
            connect(url, timeout_s=0.5, retry=QUICK).models()
        wait_until(lambda: len(asked) == QUICK.attempts)  # the server's thread may be a moment behind
        end.set()


def test_a_free_connection_is_waited_for_without_a_timeout(connect):
    client = connect("http://localhost", timeout_s=7)
    timeout = getattr(client, "client", client)._http.timeout
    assert (timeout.read, timeout.pool) == (7, None)


REQUEST = httpx.Request("GET", "http://127.0.0.1:1/models")


def test_that_nothing_listens_is_said_at_once(connect):
    patient = Retry(first_wait_s=1000, max_wait_s=1000, timeout_s=10**6)  # longer than the test may take
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectError, match=r"Connection refused|connection attempts failed"):
            connect(f"http://127.0.0.1:{free.getsockname()[1]}", retry=patient).models()


@pytest.mark.parametrize("kind", [httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError])
def test_an_address_that_cannot_be_connected_to_is_not_tried_again(kind):
    pauses: list[float] = []
    retrying = tenacity.Retrying(sleep=pauses.append, **tenacity_options(Retry(), Contact()))

    def send() -> None:
        raise unreachable(kind("no", request=REQUEST))

    with pytest.raises(ConnectError):
        retrying(send)
    assert not pauses


def test_what_a_proxy_answers_is_not_taken_for_the_services(connect, monkeypatch):
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)

    def refuse(handler):
        handler.wfile.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

    with server(refuse) as (proxy, asked):
        monkeypatch.setenv("https_proxy", proxy)
        with pytest.raises(ConnectError, match="the proxy answered: 403 Forbidden"):
            connect("https://capsnet.example", retry=QUICK).models()
        assert len(asked) == 1


def test_a_password_in_the_url_is_not_shown_and_takes_no_keys_place(connect):
    url = "http://bob:hidden@127.0.0.1:1"
    with pytest.raises(ConnectError) as nobody:
        connect(url, retry=QUICK).models()
    assert "http://127.0.0.1:1/models" in str(nobody.value)
    assert "bob" not in str(nobody.value)
    with pytest.raises(ValueError, match="would be sent in place of api_key") as refused:
        Client(url, api_key="KEY")
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    ("retry", "contact"),
    [(Retry(until_started=True), Contact()), (Retry(), Contact(made=True))],
    ids=["asked to", "answered before"],
)
def test_a_service_that_is_to_start_or_has_answered_before_is_waited_for(retry, contact):
    pauses: list[float] = []
    retrying = tenacity.Retrying(sleep=pauses.append, **tenacity_options(retry, contact))

    def send() -> str:
        if not pauses:
            raise unreachable(httpx.ConnectError("refused", request=REQUEST))
        return "an answer"

    assert retrying(send) == "an answer"
    assert len(pauses) == 1


def test_an_answer_of_any_kind_is_a_contact(connect):
    with server((503, {}, b"")) as (url, _):
        client = connect(url, retry=Retry(attempts=1))
        with pytest.raises(CapsnetError):
            client.models()
        assert getattr(client, "client", client)._contact.made


def test_nobody_there_is_an_error_that_names_the_address(connect):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(UnreachableError) as nobody:
            connect(url, retry=QUICK).classify(random_png())
        assert url in str(nobody.value)
        assert nobody.value.status is None


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b'{"models": 3}', b'{"models": [{}]}', b"\xff\xfe", b'{"models": null}']
)
def test_an_answer_of_something_else_is_said_not_to_be_understood(body):
    with (
        server((200, {}, body)) as (url, asked),
        Client(url, retry=QUICK) as client,
        pytest.raises(CapsnetError, match="is it a capsnet service"),
    ):
        client.models()
    assert len(asked) == 1


def test_an_answer_that_cannot_be_decompressed_is_not_understood_and_asked_for_once(connect):
    with server((200, {"Content-Encoding": "gzip"}, b"no gzip")) as (url, asked):
        client = connect(url, retry=QUICK)
        with pytest.raises(
            CapsnetError, match=r"^Invalid response from the server: .*decompressed"
        ) as raised:
            client.models()
        assert not isinstance(raised.value, UnreachableError)
        assert len(asked) == 1
        assert getattr(client, "client", client)._contact.made


@pytest.mark.parametrize("body", [b"", b"<html>", b"null", b"[1]", b'{"detail": null}', b"\xff" * 300])
def test_a_refusal_in_any_form_is_an_error_with_its_status(body):
    with (
        server((418, {}, body)) as (url, _),
        Client(url) as client,
        pytest.raises(CapsnetError) as refused,
    ):
        client.models()
    assert refused.value.status == 418
    assert refused.value.type == "about:blank"
    assert 0 < len(refused.value.detail) <= 200


def test_bytes_that_are_no_http_are_an_error_of_the_connection(connect):
    def noise(handler):
        handler.wfile.write(b"\x00\x01 noise \r\n\r\n")

    with server(noise) as (url, _), pytest.raises(UnreachableError):
        connect(url, retry=QUICK).models()


@pytest.mark.parametrize("results", [0, 3])  # two would be those of a pair
def test_more_or_fewer_results_than_pictures_are_not_understood(results):
    body = json.dumps({"model": "m", "version": 1, "digest": "a", "results": [SEEN] * results}).encode()
    with (
        server((200, {}, body)) as (url, _),
        Client(url) as client,
        pytest.raises(CapsnetError, match="Invalid response from the server"),
    ):
        client.classify(random_png())


@pytest.mark.parametrize(
    "body", [b"[]", b"null", b'"text"', b"1", b'{"versions": ["1"], "name": "", "default": true}']
)
def test_json_of_another_kind_is_not_understood(body):
    with server((200, {}, body)) as (url, _), Client(url) as client:
        for ask in (
            lambda: client.reconstruct(random_png(), model="tiny"),
            lambda: client.explain(random_png(), model="tiny"),
            lambda: client.model("tiny"),
        ):
            with pytest.raises(CapsnetError, match="Invalid response from the server"):
                ask()


def test_a_damaged_png_is_a_value_error():
    file = bytearray(random_png())
    file[file.index(b"IDAT") - 1] -= 6  # the length of the chunk
    with pytest.raises(ValueError, match="no PNG file"):
        read_png(bytes(file))


def test_the_version_that_begins_answers_for_all(connect, url, raw):
    with server(MODELS) as (elsewhere, asked):
        with pytest.raises(CapsnetError):
            connect(elsewhere, request_bytes=1).classify([random_png(1), random_png(2)])
        assert "version" not in asked[0][1]
    one = raw.post("/classify", params={"version": 1}, content=random_png()).content
    with server((200, {}, one), (404, {}, b"")) as (elsewhere, asked):
        with pytest.raises(CapsnetError):
            connect(elsewhere, request_bytes=1).classify([random_png(1), random_png(2)])
        assert "model=tiny" in asked[1][1]
        assert "version=1" in asked[1][1]


def answers_of_two_bundles(raw) -> tuple[tuple[int, dict, bytes], tuple[int, dict, bytes]]:
    """What /classify answers to a picture, and the same from another bundle under the same version."""
    body = raw.post("/classify", params={"version": 1}, content=random_png()).content
    digest = json.loads(body)["digest"]
    return (200, {}, body), (200, {}, body.replace(digest.encode(), b"deadbeef"))


def test_a_bundle_that_is_replaced_between_two_requests_ends_them_and_both_digests_are_named(connect, raw):
    first, second = answers_of_two_bundles(raw)
    before = json.loads(first[2])["digest"]
    with server(first, second) as (url, asked), pytest.raises(ChangedBundleError) as changed:
        connect(url, request_bytes=1).classify([random_png(1), random_png(2), random_png(3)])
    assert len(asked) == 2
    assert f"tiny/1 had the digest {before} and now has deadbeef" in str(changed.value)


def test_a_bundle_that_is_replaced_ends_a_stream(connect, raw):
    first, second = answers_of_two_bundles(raw)
    options = {"batch": 1, "concurrency": 1, "model": "tiny", "version": 1}
    with server(first, second) as (url, _), pytest.raises(ChangedBundleError):
        list(connect(url).classify_many([random_png(1), random_png(2)], **options))
    with server(first) as (url, _), pytest.raises(ChangedBundleError, match="0badf00d"):
        list(connect(url).classify_many([random_png(1)], digest="0badf00d", **options))


def test_a_bundle_that_is_replaced_ends_infer(connect, raw):
    pixels = pixels_of(2)
    message = write_request({"pixels": pixels[:1]}, ("probabilities", "poses"))
    path = "/v2/models/tiny/versions/2/infer"
    came = raw.post(path, content=message.body, headers=message.headers)
    length = came.headers[HEADER_LENGTH]
    digest = json.loads(came.content[: int(length)])["parameters"]["digest"]
    first = (200, {HEADER_LENGTH: length}, came.content)
    second = (200, {HEADER_LENGTH: length}, came.content.replace(digest.encode(), b"deadbeef"))
    with (
        server(first, second) as (url, _),
        pytest.raises(ChangedBundleError, match=f"{digest} and now has deadbeef"),
    ):
        connect(url, request_bytes=1).infer(pixels, model="tiny", version=2)


def test_outputs_that_are_no_floats_are_not_understood():
    tensors = [
        {"name": name, "shape": [1], "datatype": "UINT8", "data": [1]} for name in ("probabilities", "poses")
    ]
    answer = {"model_version": "2", "parameters": {"digest": "0"}, "outputs": tensors}
    with (
        server((200, {}, json.dumps(answer).encode())) as (url, _),
        Client(url) as client,
        pytest.raises(CapsnetError, match="datatype must be FP32, got 'UINT8'"),
    ):
        client.infer(pixels_of(1), model="tiny", version=2)


@pytest.mark.parametrize("key", ["secret\n", "two words", "schlüssel", ""])
def test_a_key_that_no_header_can_hold_is_refused_at_once_and_not_shown(key):
    with pytest.raises(ValueError, match="printable ASCII") as refused:
        Client("http://localhost", api_key=key)
    assert not key or key not in str(refused.value)


def test_a_service_with_keys_opens_to_the_key_and_names_the_request_it_refuses(connect, tmp_path):
    write_bundle(tmp_path / "tiny" / "1")
    with live_service(settings_for(tmp_path, api_keys="s3cret")) as raw:
        assert connect(str(raw.base_url), api_key="s3cret").models()[0].name == "tiny"
        with pytest.raises(CapsnetError) as refused:
            connect(str(raw.base_url)).models()
    assert (refused.value.status, refused.value.type) == (401, "/problems/key-required")
    assert refused.value.request_id


# Retry-After


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("0", 0),
        ("120", 120),
        (" 7 ", 7),
        (format_datetime(NOW + timedelta(seconds=90), usegmt=True), 90),
        (format_datetime(NOW - timedelta(seconds=90), usegmt=True), 0),
        ("Fri, 02 Jan 2026 03:05:05 -0000", 60),
        ("", 0),
        ("-5", 0),
        ("soon", 0),
        ("٣", 0),
        ("Mon, 01 Jan 2024 00:00:00 +9999999999999999", 0),
    ],
)
def test_retry_after_is_seconds_or_a_date(header, seconds):
    assert retry_after_s(header, NOW) == seconds


def wait_s(retry: Retry, attempt: int, asked_s: float = 0) -> float:
    """The wait after this attempt, when its response asked for `asked_s` seconds."""
    state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
    state.attempt_number = attempt
    error = CapsnetError(503, "/problems/overloaded", "", "")
    error.retry_after_s = asked_s
    state.set_exception((CapsnetError, error, None))
    return tenacity_options(retry, Contact())["wait"](state)


def test_waits_grow_are_random_and_have_a_limit():
    retry = Retry(first_wait_s=1, max_wait_s=8)
    for attempt in range(1, 2000):
        assert 0 <= wait_s(retry, attempt) <= min(8, 2 ** (attempt - 1))
    assert len({wait_s(retry, 3) for _ in range(10)}) > 1
    assert max(wait_s(retry, 4) for _ in range(200)) > 4
    assert all(5 <= wait_s(retry, 1, 5) <= 6 for _ in range(10))
    assert wait_s(retry, 1, math.inf) <= 9


# The module


def test_the_example_in_the_documentation_runs_as_it_stands(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("7.png").write_bytes(random_png())
    text = client_package.__doc__.replace("http://localhost:8000", url)
    example = doctest.DocTestParser().get_doctest(text, {}, "capsnet", None, 0)
    assert doctest.DocTestRunner().run(example) == (0, len(example.examples))


def test_importing_the_client_needs_no_server_and_no_model_runtime():
    heavy = ("fastapi", "starlette", "uvicorn", "onnxruntime", "torch", "pydantic")
    code = f"import sys, capsnet; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_errors_survive_a_process_boundary():
    error = CapsnetError(404, "/problems/x", "X", "why", "abc")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.request_id) == (str(error), "abc")


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", "not a url"])
def test_an_address_that_is_none_is_refused_at_once(url):
    for kind in (Client, AsyncClient):
        with pytest.raises(ValueError, match="url must look like http://localhost:8000"):
            kind(url)
