"""Downloads of data sets: from mirrors, checked, resumed where they were interrupted.

A file arrives as `NAME.part`, is checked, and only then gets its name, so that whatever stands under
the final name is whole and right.
"""

import gzip
import hashlib
import os
import sys
import zipfile
import zlib
from collections.abc import Sequence
from io import BufferedReader
from pathlib import Path

import httpx
from tqdm import tqdm

from training.data.readers.files import ZIP_FAULTS
from training.data.source import RemoteFile, Source

DEFAULT_ROOT = Path("data")
TIMEOUT = httpx.Timeout(30.0, connect=10.0)  # seconds; 30 without a single byte is a dead mirror
CHUNK_BYTES = 1 << 20


class DownloadError(RuntimeError):
    """No mirror gave a file; the message lists every mirror and why."""


class _MirrorError(Exception):
    """A mirror did not give the file; what it gave so far may still be its beginning."""


class _WrongContentError(_MirrorError):
    """What lies in the partial file is not the file, nor its beginning."""


def data_root(given: Path | None) -> Path:
    """Folder of all data sets: the one given, else the environment's CAPSNET_DATA, else `data`."""
    return given or Path(os.environ.get("CAPSNET_DATA") or DEFAULT_ROOT)


def download(source: Source, root: Path, mirrors: Sequence[str] = ()) -> Path:
    """Bring every file of a data set that is not there yet, or not right, into `root/NAME`.

    Interrupted at any moment, the next call continues where it stopped.

    Args:
        source: what to download.
        root: folder of all data sets; made with the first bytes that arrive, when missing.
        mirrors: URLs of folders to try before the source's own.

    Returns:
        The data set's folder.

    Raises:
        DownloadError: a file that no mirror gave.
    """
    folder = root / source.name
    with httpx.Client(timeout=TIMEOUT, follow_redirects=True) as client:
        for file in source.files:
            if not _is_there(folder, file):
                _fetch(client, file, folder, (*mirrors, *source.mirrors))
    return folder


def _is_there(folder: Path, file: RemoteFile) -> bool:
    """Whether the file, compressed or plain, is in the folder and right; says so."""
    for path in (folder / file.name, folder / file.name.removesuffix(".gz")):
        if path.exists():
            try:
                _check(path, file)
            except _MirrorError as error:
                _say(f"{path}: {error}; downloading it again")
                return False
            _say(f"{path}: already there and right")
            return True
    return False


def _fetch(client: httpx.Client, file: RemoteFile, folder: Path, mirrors: Sequence[str]) -> None:
    """Take the file from the first mirror that gives it."""
    part = folder / f"{file.name}.part"
    failures = []
    for mirror in mirrors:
        url = f"{mirror.rstrip('/')}/{file.name}"
        try:
            _fetch_from(client, url, file, part)
        except _MirrorError as error:
            failures.append(f"{url}: {error}")
            _say(failures[-1])
            continue
        _publish(part, folder / file.name)
        checked = "checksum right" if file.content_md5 else "a sound archive; no checksum of it is published"
        _say(f"{folder / file.name}: downloaded from {url}, {checked}")
        return
    kept = f"\n{part} is kept: the same command continues it" if part.exists() else ""
    reasons = "".join(f"\n  {failure}" for failure in failures)
    raise DownloadError(f"no mirror gave {file.name}; --mirror URL names another one{reasons}{kept}")


def _fetch_from(client: httpx.Client, url: str, file: RemoteFile, part: Path) -> None:
    """Complete the partial file from one mirror and check it."""
    start = part.stat().st_size if part.exists() else 0
    try:
        if not (start and _is_whole(part, file)):  # an earlier call may have ended before it was renamed
            _transfer(client, url, file, part, start)
            _check(part, file)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise _MirrorError(f"{type(error).__name__}: {error}") from None
    except _WrongContentError:
        part.unlink(missing_ok=True)
        if start == 0:
            raise
        # What was there may have come from a mirror that compressed the file in another way.
        _fetch_from(client, url, file, part)


def _is_whole(part: Path, file: RemoteFile) -> bool:
    """Whether nothing of a partial file is missing."""
    try:
        _check(part, file)
    except _MirrorError:
        return False
    return True


def _transfer(client: httpx.Client, url: str, file: RemoteFile, part: Path, start: int) -> None:
    """Stream the answer into the partial file, from byte `start` on where the server can."""
    # The bytes of the .gz as they are: a server must not compress them again on the way.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    with client.stream("GET", url, headers=headers) as response:
        _refuse_other_answers(response, start)
        resumed = response.status_code == httpx.codes.PARTIAL_CONTENT
        done = start if resumed else 0
        length = response.headers.get("Content-Length")
        total = None if length is None else done + int(length)
        if total is not None and total > file.max_bytes:
            raise _MirrorError(f"announces {total} bytes; the file's maximum is {file.max_bytes}")
        part.parent.mkdir(parents=True, exist_ok=True)
        with (
            part.open("ab" if resumed else "wb") as out,
            tqdm(desc=file.name, initial=done, total=total, unit="B", unit_scale=True, disable=None) as bar,
        ):
            for chunk in response.iter_raw():
                out.write(chunk)
                bar.update(len(chunk))
                if out.tell() > file.max_bytes:
                    raise _WrongContentError(f"sends more than {file.max_bytes} bytes, the file's maximum")


def _refuse_other_answers(response: httpx.Response, start: int) -> None:
    """Raise unless the answer is the file, or its rest from byte `start` on."""
    code = response.status_code
    if start and code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
        raise _WrongContentError(f"has nothing after byte {start}")
    if code not in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
        raise _MirrorError(f"HTTP {code} {response.reason_phrase}")
    if response.headers.get("Content-Type", "").startswith("text/html"):
        raise _MirrorError("answers with an HTML page instead of the file")
    content_range = response.headers.get("Content-Range", "")
    if code == httpx.codes.PARTIAL_CONTENT and not content_range.startswith(f"bytes {start}-"):
        raise _WrongContentError(f"asked for the bytes from {start} on, sends {content_range!r}")


def _check(path: Path, file: RemoteFile) -> None:
    """Raise unless the file, plain or compressed, has the content that it should have."""
    if file.content_md5 is None:
        _check_zip(path, file.content_bytes)
        return
    compressed = file.is_compressed and path.name != file.name.removesuffix(".gz")
    try:
        with gzip.open(path) if compressed else path.open("rb") as content:
            found, length = _md5(content, file.content_bytes)
    except EOFError:
        raise _MirrorError(f"cut short: the gzip stream ends after {path.stat().st_size} bytes") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise _WrongContentError(f"not a sound gzip file: {error}") from None
    if not compressed and length < file.content_bytes:
        raise _MirrorError(f"cut short: {length} of {file.content_bytes} bytes")
    if found != file.content_md5:
        raise _WrongContentError(f"wrong content: md5 {found}, expected {file.content_md5}")


def _check_zip(path: Path, max_bytes: int) -> None:
    """Raise unless each file in the archive has the sum that the archive states, and all are so small."""
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(info.file_size for info in archive.infolist()) > max_bytes:
                raise _WrongContentError(f"wrong content: more than {max_bytes} bytes when decompressed")
            damaged = archive.testzip()
    except ZIP_FAULTS as error:
        raise _WrongContentError(f"not a sound zip file: {error}") from None
    if damaged:
        raise _WrongContentError(f"not a sound zip file: {damaged} in it is damaged")


def _md5(content: BufferedReader | gzip.GzipFile, expected_bytes: int) -> tuple[str, int]:
    """Hash and length of the content; no more is read than there should be, however much there is."""
    md5 = hashlib.md5(usedforsecurity=False)
    length = 0
    while chunk := content.read(CHUNK_BYTES):
        length += len(chunk)
        if length > expected_bytes:
            when = " when decompressed" if isinstance(content, gzip.GzipFile) else ""
            raise _WrongContentError(f"wrong content: more than {expected_bytes} bytes{when}")
        md5.update(chunk)
    return md5.hexdigest(), length


def _publish(part: Path, final: Path) -> None:
    """Give the checked file its name; its bytes are on the disk before the name is."""
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    part.replace(final)


def _say(message: str) -> None:
    tqdm.write(message, file=sys.stderr)
