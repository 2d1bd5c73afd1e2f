import gzip
import hashlib
import io
import re
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from training.data.datasets import sources
from training.data.download import DownloadError, data_root, download
from training.data.source import RemoteFile, Source

# About 40 KB that compress to some 20 KB, so that levels 1 and 9 differ.
CONTENT = b"".join(hashlib.sha256(b"%d" % i).hexdigest().encode() for i in range(600))
GOOD = gzip.compress(CONTENT, mtime=0)
FILE = RemoteFile("digits.gz", hashlib.md5(CONTENT).hexdigest(), len(CONTENT))


class Exchange(BaseHTTPRequestHandler):
    """One request, answered by the mirror's own function."""

    def do_GET(self):
        self.server.ranges.append(self.headers.get("Range"))
        try:
            self.server.answer(self)
        except OSError:  # the client went away
            self.close_connection = True

    def send(self, code: int, body: bytes, **headers: object) -> None:
        """Answer with a body; `content_length` may promise another length than it has."""
        self.send_response(code)
        for name, value in ({"content_length": len(body)} | headers).items():
            if value is not None:
                self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


class Mirror(ThreadingHTTPServer):
    """A server on a free port; `ranges` holds the Range header of every request so far."""

    def __init__(self, answer: Callable[[Exchange], None]):
        super().__init__(("127.0.0.1", 0), Exchange)
        self.answer = answer
        self.ranges: list[str | None] = []
        self.url = f"http://127.0.0.1:{self.server_port}/mnist/"
        self.thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        self.thread.start()

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        self.thread.join()


@pytest.fixture(autouse=True)
def direct(monkeypatch):
    """The servers of this file are reached directly, whatever proxy the machine has."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def serve():
    mirrors = []

    def start(answer: Callable[[Exchange], None]) -> Mirror:
        mirrors.append(Mirror(answer))
        return mirrors[-1]

    yield start
    for mirror in mirrors:
        mirror.stop()


def range_start(exchange: Exchange) -> int:
    return int(exchange.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))


def honest(body: bytes) -> Callable[[Exchange], None]:
    """Serves whole files and ranges, and 416 for a range that begins behind the end."""

    def answer(exchange: Exchange) -> None:
        start = range_start(exchange)
        if start and start >= len(body):
            exchange.send(416, b"", content_range=f"bytes */{len(body)}")
        elif start:
            content_range = f"bytes {start}-{len(body) - 1}/{len(body)}"
            exchange.send(206, body[start:], content_range=content_range)
        else:
            exchange.send(200, body)

    return answer


def deaf_to_ranges(body: bytes) -> Callable[[Exchange], None]:
    return lambda exchange: exchange.send(200, body)


def cut_short(body: bytes, sent: int) -> Callable[[Exchange], None]:
    """Promises the body and closes the connection after `sent` bytes of it."""

    def answer(exchange: Exchange) -> None:
        exchange.send(200, body[:sent], content_length=len(body))
        exchange.close_connection = True

    return answer


def missing(exchange: Exchange) -> None:
    exchange.send(404, b"nothing here")


def html(exchange: Exchange) -> None:
    exchange.send(200, b"<html>Please log in</html>", content_type="text/html; charset=utf-8")


def source(*mirrors: Mirror | str, file: RemoteFile = FILE) -> Source:
    urls = tuple(mirror if isinstance(mirror, str) else mirror.url for mirror in mirrors)
    return Source("mnist", urls, (file,))


def leave_part(root: Path, content: bytes) -> Path:
    part = root / "mnist" / "digits.gz.part"
    part.parent.mkdir()
    part.write_bytes(content)
    return part


def stored(root: Path) -> dict[str, bytes]:
    """Every file of the data set's folder, if there is one."""
    return {path.name: path.read_bytes() for path in (root / "mnist").glob("*")}


def test_a_download_leaves_the_file_and_nothing_else(serve, tmp_path):
    folder = download(source(serve(honest(GOOD))), tmp_path / "new" / "root")
    assert folder == tmp_path / "new" / "root" / "mnist"
    assert stored(tmp_path / "new" / "root") == {"digits.gz": GOOD}


def test_every_file_of_a_source_is_downloaded(serve, tmp_path):
    bodies = {f"/mnist/{name}.gz": gzip.compress(name.encode()) for name in ("images", "labels")}
    mirror = serve(lambda exchange: exchange.send(200, bodies[exchange.path]))
    files = tuple(
        RemoteFile(f"{name}.gz", hashlib.md5(name.encode()).hexdigest(), len(name))
        for name in ("images", "labels")
    )
    download(Source("mnist", (mirror.url,), files), tmp_path)
    assert stored(tmp_path) == {path.removeprefix("/mnist/"): body for path, body in bodies.items()}


def test_a_right_file_is_not_downloaded_again(serve, tmp_path, capsys):
    mirror = serve(honest(GOOD))
    download(source(mirror), tmp_path)
    download(source(mirror), tmp_path)
    assert len(mirror.ranges) == 1
    assert "already there and right" in capsys.readouterr().err


def test_a_right_file_needs_no_mirror(serve, tmp_path):
    download(source(serve(honest(GOOD))), tmp_path)
    download(source("http://127.0.0.1:1/"), tmp_path)


def test_a_right_file_that_is_not_compressed_is_enough(tmp_path):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "digits").write_bytes(CONTENT)
    download(source("http://127.0.0.1:1/"), tmp_path)
    assert stored(tmp_path) == {"digits": CONTENT}


@pytest.mark.parametrize("there", [b"", b"not gzip", gzip.compress(b"other", mtime=0), GOOD[:-100]])
def test_a_wrong_file_is_replaced(serve, tmp_path, there, capsys):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "digits.gz").write_bytes(there)
    download(source(serve(honest(GOOD))), tmp_path)
    assert stored(tmp_path) == {"digits.gz": GOOD}
    assert "downloading it again" in capsys.readouterr().err


def test_a_file_compressed_in_another_way_is_right_all_the_same(serve, tmp_path):
    other = gzip.compress(CONTENT, compresslevel=1, mtime=0)
    download(source(serve(honest(other))), tmp_path)
    assert stored(tmp_path) == {"digits.gz": other}


def test_a_partial_file_is_continued_where_it_ends(serve, tmp_path):
    leave_part(tmp_path, GOOD[:5000])
    mirror = serve(honest(GOOD))
    download(source(mirror), tmp_path)
    assert mirror.ranges == ["bytes=5000-"]
    assert stored(tmp_path) == {"digits.gz": GOOD}


def test_a_partial_file_of_which_nothing_is_missing_is_not_asked_for(serve, tmp_path):
    leave_part(tmp_path, GOOD)
    mirror = serve(honest(GOOD))
    download(source(mirror), tmp_path)
    assert mirror.ranges == []
    assert stored(tmp_path) == {"digits.gz": GOOD}


def test_a_server_that_ignores_ranges_starts_again(serve, tmp_path):
    leave_part(tmp_path, GOOD[:5000])
    mirror = serve(deaf_to_ranges(GOOD))
    download(source(mirror), tmp_path)
    assert mirror.ranges == ["bytes=5000-"]
    assert stored(tmp_path) == {"digits.gz": GOOD}


def test_a_partial_file_longer_than_the_mirrors_starts_again(serve, tmp_path):
    leave_part(tmp_path, GOOD + b"more")
    mirror = serve(honest(GOOD))
    download(source(mirror), tmp_path)
    assert mirror.ranges == [f"bytes={len(GOOD) + 4}-", None]
    assert stored(tmp_path) == {"digits.gz": GOOD}


def test_a_server_that_sends_another_range_than_asked_starts_again(serve, tmp_path):
    def answer(exchange: Exchange) -> None:
        if range_start(exchange):
            exchange.send(206, GOOD[7:], content_range=f"bytes 7-{len(GOOD) - 1}/{len(GOOD)}")
        else:
            exchange.send(200, GOOD)

    leave_part(tmp_path, GOOD[:5000])
    download(source(serve(answer)), tmp_path)
    assert stored(tmp_path) == {"digits.gz": GOOD}


def test_a_partial_file_that_does_not_fit_the_mirrors_starts_again(serve, tmp_path):
    leave_part(tmp_path, gzip.compress(CONTENT, compresslevel=1, mtime=0)[:5000])
    mirror = serve(honest(GOOD))
    download(source(mirror), tmp_path)
    assert mirror.ranges == ["bytes=5000-", None]
    assert stored(tmp_path) == {"digits.gz": GOOD}


def test_what_one_mirror_cut_short_the_next_completes(serve, tmp_path):
    first, second = serve(cut_short(GOOD, 5000)), serve(honest(GOOD))
    download(source(first, second), tmp_path)
    assert second.ranges == ["bytes=5000-"]
    assert stored(tmp_path) == {"digits.gz": GOOD}


def test_a_connection_cut_short_leaves_what_came_for_the_next_call(serve, tmp_path):
    with pytest.raises(DownloadError, match=r"the same command continues it"):
        download(source(serve(cut_short(GOOD, 5000))), tmp_path)
    assert stored(tmp_path) == {"digits.gz.part": GOOD[:5000]}


def test_an_answer_of_unknown_length_that_ends_early_is_noticed_and_kept(serve, tmp_path):
    def answer(exchange: Exchange) -> None:
        exchange.send(200, GOOD[:5000], content_length=None)
        exchange.close_connection = True

    with pytest.raises(DownloadError, match="cut short: the gzip stream ends after 5000 bytes"):
        download(source(serve(answer)), tmp_path)
    assert stored(tmp_path) == {"digits.gz.part": GOOD[:5000]}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            gzip.compress(b"another file", mtime=0),
            "wrong content: md5 [0-9a-f]{32}, expected " + FILE.content_md5,
        ),
        (b"\x1f\x8b\x08 no deflate stream" * 9, "not a sound gzip file"),
        (b"a page without a content type", "not a sound gzip file"),
        (b"", "wrong content: md5 d41d8cd98f00b204e9800998ecf8427e"),
        (GOOD[:-8] + b"\0\0\0\0" + GOOD[-4:], "not a sound gzip file: CRC check failed"),
        (gzip.compress(bytes(20_000_000), mtime=0), "more than 38400 bytes when decompressed"),
        (GOOD + b"trailing", "not a sound gzip file"),
    ],
)
def test_wrong_content_is_removed_and_the_next_mirror_asked(serve, tmp_path, body, reason):
    with pytest.raises(DownloadError, match=reason):
        download(source(serve(honest(body))), tmp_path)
    assert stored(tmp_path) == {}
    download(source(serve(honest(body)), serve(honest(GOOD))), tmp_path)
    assert stored(tmp_path) == {"digits.gz": GOOD}


@pytest.mark.parametrize("answer", [missing, html])
def test_a_page_instead_of_the_file_leaves_a_good_partial_file_alone(serve, tmp_path, answer):
    leave_part(tmp_path, GOOD[:5000])
    with pytest.raises(DownloadError):
        download(source(serve(answer)), tmp_path)
    assert stored(tmp_path) == {"digits.gz.part": GOOD[:5000]}


def test_a_file_announced_as_too_large_is_not_even_begun(serve, tmp_path):
    def answer(exchange: Exchange) -> None:
        exchange.send(200, b"", content_length=10**12)
        exchange.close_connection = True

    with pytest.raises(DownloadError, match="announces 1000000000000 bytes; the file's maximum is 42880"):
        download(source(serve(answer)), tmp_path)
    assert stored(tmp_path) == {}


def test_a_server_that_never_stops_sending_is_left(serve, tmp_path):
    enough, sent = 256 << 20, []

    def answer(exchange: Exchange) -> None:
        exchange.send(200, GOOD[:10], content_length=None)
        while sum(sent) < enough:
            exchange.wfile.write(bytes(1 << 16))
            sent.append(1 << 16)
        exchange.close_connection = True

    with pytest.raises(DownloadError, match="sends more than 42880 bytes"):
        download(source(serve(answer)), tmp_path)
    assert stored(tmp_path) == {}
    assert sum(sent) < enough


def test_when_all_mirrors_fail_the_error_lists_each_with_its_reason(serve, tmp_path):
    mirrors = [serve(missing), serve(html), serve(honest(b"nonsense")), serve(cut_short(GOOD, 10))]
    refusing = "http://127.0.0.1:1/"
    with pytest.raises(DownloadError) as error:
        download(source(*mirrors, refusing, "gopher://old", "http://host:port"), tmp_path)
    message = str(error.value)
    reasons = ["HTTP 404", "HTML page", "not a sound gzip file", "closed connection", "ConnectError"]
    for url, reason in zip([*(mirror.url for mirror in mirrors), refusing], reasons, strict=True):
        assert re.search(f"{re.escape(url)}digits.gz: .*{reason}", message)
    assert re.search(r"gopher://old/digits\.gz: UnsupportedProtocol", message)
    assert re.search(r"http://host:port/digits\.gz: InvalidURL", message)
    assert "digits.gz" not in stored(tmp_path)


def test_where_nothing_arrives_no_folder_is_left(serve, tmp_path):
    with pytest.raises(DownloadError):
        download(source(serve(missing)), tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_file_that_was_there_outlives_a_failed_download(serve, tmp_path):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "digits.gz").write_bytes(b"own edition")
    with pytest.raises(DownloadError):
        download(source(serve(missing)), tmp_path)
    assert stored(tmp_path) == {"digits.gz": b"own edition"}


@pytest.mark.parametrize("name", ["pictures.tar.gz", "pictures.mat"])
def test_a_file_that_is_its_own_content_is_checked_as_it_is(serve, tmp_path, name):
    file = RemoteFile(name, hashlib.md5(GOOD).hexdigest(), len(GOOD))
    other = gzip.compress(CONTENT, compresslevel=1, mtime=0).ljust(len(GOOD), b"\0")[: len(GOOD)]
    mirrors = [serve(honest(body)) for body in (other, GOOD)]
    download(source(*mirrors, file=file), tmp_path)
    assert stored(tmp_path) == {name: GOOD}


def test_a_file_that_is_its_own_content_is_continued_by_another_mirror(serve, tmp_path):
    file = RemoteFile("pictures.mat", hashlib.md5(GOOD).hexdigest(), len(GOOD))
    short, whole = serve(honest(GOOD[:7000])), serve(honest(GOOD))
    download(source(short, whole, file=file), tmp_path)
    assert whole.ranges == ["bytes=7000-"]
    assert stored(tmp_path) == {"pictures.mat": GOOD}


def test_a_zip_archive_without_a_published_sum_is_checked_by_its_own(serve, tmp_path, capsys):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("pictures.mat", CONTENT)
    sound = buffer.getvalue()
    damaged = sound.replace(CONTENT[:64], bytes(64), 1)
    file = RemoteFile("pictures.mat.zip", None, 1_000_000)
    mirrors = [serve(honest(body)) for body in (b"no archive", damaged, sound)]
    download(source(*mirrors, file=file), tmp_path)
    assert stored(tmp_path) == {"pictures.mat.zip": sound}
    said = capsys.readouterr().err
    assert "not a sound zip file: pictures.mat in it is damaged" in said
    assert "no checksum of it is published" in said


def test_a_zip_archive_that_cannot_be_checked_is_left_for_the_next_mirrors(serve, tmp_path, capsys):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pictures.mat", bytes(50_000))
    larger = buffer.getvalue()
    with zipfile.ZipFile(buffer := io.BytesIO(), "w") as archive:
        archive.writestr("pictures.mat", CONTENT)
    sound = buffer.getvalue()
    entry = sound.index(b"PK\1\2")
    encrypted, unknown = bytearray(sound), bytearray(sound)
    encrypted[entry + 8] = encrypted[6] = 1
    unknown[entry + 10] = unknown[8] = 99
    mirrors = [serve(honest(bytes(body))) for body in (larger, encrypted, unknown, sound)]
    download(source(*mirrors, file=RemoteFile("pictures.mat.zip", None, 40_000)), tmp_path)
    assert stored(tmp_path) == {"pictures.mat.zip": sound}
    said = capsys.readouterr().err
    for reason in ("more than 40000 bytes when decompressed", "is encrypted", "method is not supported"):
        assert reason in said


def test_own_mirrors_come_before_the_sources(serve, tmp_path):
    published, own = serve(honest(GOOD)), serve(honest(GOOD))
    download(source(published), tmp_path, mirrors=[own.url])
    assert (own.ranges, published.ranges) == ([None], [])


def test_own_mirrors_that_fail_are_followed_by_the_sources(serve, tmp_path):
    download(source(serve(honest(GOOD))), tmp_path, mirrors=[serve(missing).url, "http://127.0.0.1:1"])
    assert stored(tmp_path) == {"digits.gz": GOOD}


def test_a_mirror_may_redirect(serve, tmp_path):
    target = serve(honest(GOOD))
    redirecting = serve(lambda exchange: exchange.send(302, b"", location=target.url + "digits.gz"))
    download(source(redirecting), tmp_path)
    assert stored(tmp_path) == {"digits.gz": GOOD}


def test_a_content_encoding_header_does_not_unpack_the_file(serve, tmp_path):
    download(source(serve(lambda exchange: exchange.send(200, GOOD, content_encoding="gzip"))), tmp_path)
    assert stored(tmp_path) == {"digits.gz": GOOD}


def test_ctrl_c_leaves_a_part_that_the_next_call_continues(serve, tmp_path):
    done = threading.Event()

    def stall(exchange: Exchange) -> None:
        exchange.send(200, GOOD[:15000], content_length=len(GOOD))
        done.wait(60)
        exchange.close_connection = True

    command = (
        "from pathlib import Path\n"
        "from training.data.download import download\n"
        "from training.data.source import RemoteFile, Source\n"
        f"download({source(serve(stall))!r}, Path({str(tmp_path)!r}))"
    )
    part = tmp_path / "mnist" / "digits.gz.part"
    with subprocess.Popen([sys.executable, "-c", command], stderr=subprocess.PIPE) as process:
        while process.poll() is None and not (part.exists() and part.stat().st_size):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()
    done.set()
    assert b"KeyboardInterrupt" in stderr
    came = part.stat().st_size
    assert 0 < came <= 15000
    assert stored(tmp_path) == {"digits.gz.part": GOOD[:came]}
    mirror = serve(honest(GOOD))
    download(source(mirror), tmp_path)
    assert mirror.ranges == [f"bytes={came}-"]
    assert stored(tmp_path) == {"digits.gz": GOOD}


def test_the_downloads_and_the_reader_import_no_torch():
    command = "import sys, training.data.datasets, training.data.download; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command], check=False).returncode == 0


def test_data_root_is_the_one_given_else_the_environments_else_data(monkeypatch):
    monkeypatch.setenv("CAPSNET_DATA", "/from/environment")
    assert data_root(Path("/given")) == Path("/given")
    assert data_root(None) == Path("/from/environment")
    monkeypatch.setenv("CAPSNET_DATA", "")
    assert data_root(None) == Path("data")
    monkeypatch.delenv("CAPSNET_DATA")
    assert data_root(None) == Path("data")


def test_mnist_comes_from_several_mirrors_over_https():
    mnist = sources()["mnist"]
    assert mnist.name == "mnist"
    assert len(set(mnist.mirrors)) >= 2
    assert all(mirror.startswith("https://") for mirror in mnist.mirrors)
