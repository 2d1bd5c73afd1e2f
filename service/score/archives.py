"""The pictures in tar and zip archives, read without unpacking: no name in them ever becomes a path.

Archives are untrusted: whatever their headers claim, memory use stays bounded by one picture, and a damaged
or truncated archive is reported after the pictures before the damage. tarfile and zipfile raise nearly any
exception on damage, so every exception of theirs counts as damage.
"""

import stat
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Self

from export.contract.one_line import first_line
from service.score.picture_stream import (
    Picture,
    PictureReadError,
    check_bytes,
    is_picture_name,
    unreadable,
)
from service.score.query import ScoreError

ZIP_SUFFIXES = (".zip",)
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tzst")
ENCRYPTED = 0x1  # among a zip member's flags
EXTRA = {  # types of tar headers that hold the next member's name or attributes, and are read as a whole
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
}
HEADER_BYTES = 2**20  # real ones have a few hundred


def in_tar(path: Path) -> Iterator[Picture]:
    """The pictures of a tar archive, plain or compressed, in its order. It is read once, as a stream."""
    check_compression(path)  # of one in a list, too
    try:
        # Not the stream mode "r|*": it decompresses whole blocks, however large.
        with tarfile.open(path, "r:*", tarinfo=_Member) as archive:
            for member in _members(archive):
                if not member.isdir() and _is_picture(member.name):
                    yield _picture(f"{path}/{member.name}", partial(_read_from_tar, archive, member))
    except Exception as error:
        # The first line of a ReadError says nothing: one for each kind of compression follows.
        reason = str(error) if isinstance(error, tarfile.ReadError) else first_line(error)
        yield unreadable(str(path), f"the archive cannot be read further: {' '.join(reason.split())}")


def check_compression(path: Path) -> None:
    """Check that a tar archive can be unpacked here.

    Raises:
        ScoreError: it is compressed with Zstandard, which Python before 3.14 cannot read.
    """
    if path.name.lower().endswith("zst") and sys.version_info < (3, 14):
        raise ScoreError(f"{path} needs Python 3.14 or newer; unpack it with `zstd -d {path}` first")


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members one after the other; none is kept in memory."""
    end = -1
    while (member := archive.next()) is not None:
        archive.members.clear()  # type: ignore[attr-defined]  # grows with the archive
        if archive.offset <= end:  # an endless loop
            raise tarfile.ReadError("a member of negative size")
        end = archive.offset
        yield member


def _read_from_tar(archive: tarfile.TarFile, member: tarfile.TarInfo, limit: int) -> bytes:
    if not member.isreg():
        kind = "a link" if member.islnk() or member.issym() else "a device"
        raise PictureReadError(f"is {kind} in the archive; only files are read")
    check_bytes(member.size, limit)
    file = archive.extractfile(member)
    assert file is not None  # as it is a regular file
    try:
        return file.read()
    except Exception as error:
        raise PictureReadError(f"cannot be unpacked: {first_line(error)}") from None


class _Member(tarfile.TarInfo):
    """A member with a bounded header. Only the end marker ends an archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str | None, errors: str) -> Self:
        """Parse a header block.

        Raises:
            tarfile.ReadError: it is damaged, truncated or missing, which tarfile takes for the end; or the
                name or attributes that it announces are absurdly large.
        """
        try:
            member = super().frombuf(buf, encoding, errors)  # type: ignore[arg-type]  # typeshed's None
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the end marker
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"{error} where the next file or the end marker should be") from None
        if member.type in EXTRA and member.size > HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {member.size} bytes")
        return member


def in_zip(path: Path) -> Iterator[Picture]:
    """The pictures of a zip archive, in the order of its directory; each takes 600 bytes of memory."""
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if not member.is_dir() and _is_picture(member.filename):
                    yield _picture(f"{path}/{member.filename}", partial(_read_from_zip, archive, member))
    except Exception as error:
        yield unreadable(str(path), f"the archive cannot be read: {first_line(error)}")


def _read_from_zip(archive: zipfile.ZipFile, member: zipfile.ZipInfo, limit: int) -> bytes:
    if member.flag_bits & ENCRYPTED:
        raise PictureReadError("is encrypted")
    if stat.S_ISLNK(member.external_attr >> 16):  # made on Unix, the upper half is the file's mode
        raise PictureReadError("is a link in the archive; only files are read")
    # zipfile's decompression is bounded only for these two.
    if member.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise PictureReadError("uses a compression other than deflate, which is not read")
    check_bytes(member.file_size, limit)
    try:
        with archive.open(member) as file:
            return file.read(member.file_size)
    except Exception as error:
        raise PictureReadError(f"cannot be unpacked: {first_line(error)}") from None


def _picture(name: str, read: Callable[[int], bytes]) -> Picture:
    return Picture(name, read, source=name.rpartition("/")[0])


def _is_picture(member: str) -> bool:
    """As in folders: files with a picture's suffix that are not hidden."""
    *folders, name = PurePosixPath(member).parts or ("",)
    return is_picture_name(name) and not any(folder.startswith(".") and folder != ".." for folder in folders)
