"""The pictures in tar and zip archives, read without unpacking: no name in them ever becomes a path.

An archive may come from a stranger: whatever its headers claim, memory stays bounded by one picture, and an
archive that is damaged or cut short is reported after the pictures before the damage. On damage tarfile and
zipfile raise nearly everything there is, so that every exception of theirs is taken for it.
"""

import stat
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Self

from service.score.pictures import Picture, UnreadablePictureError, check_bytes, is_picture_name, unreadable
from service.score.query import ScoreError

ZIP_SUFFIXES = (".zip",)
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tzst")
ENCRYPTED = 0x1  # among a zip member's flags
EXTRA = {  # types of tar headers that hold the next member's name or attributes, and are read whole
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
}
HEADER_BYTES = 2**20  # real ones have some hundred


def in_tar(path: Path) -> Iterator[Picture]:
    """The pictures of a tar archive, plain or compressed, in its order; it is read once, as a stream.

    Raises:
        ScoreError: the archive is compressed with Zstandard, which Python before 3.14 cannot read.
    """
    if path.name.lower().endswith("zst") and sys.version_info < (3, 14):
        raise ScoreError(f"{path} needs Python 3.14 or newer; unpack it with `zstd -d {path}` first")
    try:
        # Not the stream mode "r|*": it unpacks whole blocks however large they become.
        with tarfile.open(path, "r:*", tarinfo=_Member) as archive:
            for member in _members(archive):
                if not member.isdir() and _is_picture(member.name):
                    yield _picture(f"{path}/{member.name}", partial(_read_from_tar, archive, member))
    except Exception as error:
        yield unreadable(str(path), f"the archive cannot be read on: {_told(error)}")


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members one by one, none of them kept."""
    end = -1
    while (member := archive.next()) is not None:
        archive.members.clear()  # type: ignore[attr-defined]  # grows with the archive
        if archive.offset <= end:  # the same ones would come again and again
            raise tarfile.ReadError("a member of negative size")
        end = archive.offset
        yield member


def _read_from_tar(archive: tarfile.TarFile, member: tarfile.TarInfo, limit: int) -> bytes:
    if not member.isreg():
        kind = "a link" if member.islnk() or member.issym() else "a device"
        raise UnreadablePictureError(f"is {kind} in the archive; only files are read")
    check_bytes(member.size, limit)
    file = archive.extractfile(member)
    assert file is not None  # as it is a regular file
    try:
        return file.read()
    except Exception as error:
        raise UnreadablePictureError(f"cannot be unpacked: {_told(error)}") from None


class _Member(tarfile.TarInfo):
    """A member whose header is bounded, and without which the archive's end is its end mark alone."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str | None, errors: str) -> Self:
        """Parse a header block.

        Raises:
            tarfile.ReadError: it is damaged, cut short or missing, which tarfile takes for a quiet end; or
                it announces a name or attributes of a size that nobody means.
        """
        try:
            member = super().frombuf(buf, encoding, errors)  # type: ignore[arg-type]  # typeshed's None
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the end mark
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"{error} where the next file or the end mark should be") from None
        if member.type in EXTRA and member.size > HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {member.size} bytes")
        return member


def in_zip(path: Path) -> Iterator[Picture]:
    """The pictures of a zip archive, in the order of its directory, of which it holds some 600 bytes each."""
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if not member.is_dir() and _is_picture(member.filename):
                    yield _picture(f"{path}/{member.filename}", partial(_read_from_zip, archive, member))
    except Exception as error:
        yield unreadable(str(path), f"the archive cannot be read: {_told(error)}")


def _read_from_zip(archive: zipfile.ZipFile, member: zipfile.ZipInfo, limit: int) -> bytes:
    if member.flag_bits & ENCRYPTED:
        raise UnreadablePictureError("is encrypted")
    if stat.S_ISLNK(member.external_attr >> 16):  # made on Unix, the upper half is the file's mode
        raise UnreadablePictureError("is a link in the archive; only files are read")
    # What zipfile unpacks of others is not bounded by what it is asked for.
    if member.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise UnreadablePictureError("is neither stored nor deflated; other compressions are not read")
    check_bytes(member.file_size, limit)
    try:
        with archive.open(member) as file:
            return file.read(member.file_size)
    except Exception as error:
        raise UnreadablePictureError(f"cannot be unpacked: {_told(error)}") from None


def _picture(name: str, read: Callable[[int], bytes]) -> Picture:
    return Picture(name, read, source=name.rpartition("/")[0])


def _is_picture(member: str) -> bool:
    """As in folders: by its suffix, and nothing hidden."""
    *folders, name = PurePosixPath(member).parts or ("",)
    return is_picture_name(name) and not any(folder.startswith(".") and folder != ".." for folder in folders)


def _told(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
