"""Where a data set is downloaded from: files, checksums, mirrors."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RemoteFile:
    """A file and its content.

    Mirrors may have compressed a .gz file each in their own way, so its content is what it decompresses to.
    Any other file, an archive or a .mat, is its content.

    Attributes:
        name: file name, on the mirrors and here.
        content_md5: 32 hexadecimal digits; None where no sum has been published: the file is a zip archive
            then, and checked by the sums that it holds itself.
        content_bytes: length of the content; at most so long, decompressed, too, where there is no sum.
    """

    name: str
    content_md5: str | None
    content_bytes: int

    @property
    def is_compressed(self) -> bool:
        """Whether the content is what the file decompresses to."""
        return self.name.endswith(".gz") and not self.name.endswith(".tar.gz")

    @property
    def max_bytes(self) -> int:
        """More than the worst compressor makes of the content; whatever is larger is another file."""
        return self.content_bytes + (self.content_bytes // 100 + 4096 if self.is_compressed else 0)


@dataclass(frozen=True)
class Source:
    """A data set that can be downloaded.

    Attributes:
        name: what `capsnet-train download` calls it; also its folder under the data root.
        mirrors: URLs of folders that hold all files, tried in this order.
        files: what belongs to it.
    """

    name: str
    mirrors: tuple[str, ...]
    files: tuple[RemoteFile, ...]
