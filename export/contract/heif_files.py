"""HEIC and AVIF, as phones and browsers make them: files of boxes, told apart by their brands.

Pillow reads AVIF. HEIC is read by pi-heif, which only decodes (libheif and libde265, LGPL): the extra `heif`.
How the camera was held is said by boxes of the file, which count, and by EXIF, which does not: libheif turns
the picture itself, and for AVIF the boxes' answer is handed on as EXIF's.
"""

import struct

from PIL import ExifTags, Image
from PIL.AvifImagePlugin import AvifImageFile

AVIF_BRANDS = frozenset({b"avif", b"avis"})
HEIC_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"})
MAX_BRANDS = 64
DECODE_THREADS = 1  # pictures are decoded side by side


class AvifFile(AvifImageFile):
    """Pillow's reader without the file's EXIF, profile and text.

    Pillow parses an EXIF block of any size when it opens a file: one of 0.8 MB takes a second.
    """

    def _open(self) -> None:
        from PIL import _avif  # which few builds of Pillow come without

        assert self.fp is not None
        self._decoder = _avif.AvifDecoder(self.fp.read(), "auto", DECODE_THREADS)
        self._size, self.n_frames, self._mode, _, _, orientation, _ = self._decoder.get_info()
        self.is_animated = self.n_frames > 1
        if orientation != 1:
            exif = Image.Exif()
            exif[ExifTags.Base.Orientation] = orientation
            self.info["exif"] = exif.tobytes()
        self.seek(0)


Image.register_open("AVIF", AvifFile)


def format_of_boxes(content: bytes) -> str | None:
    """`AVIF` or `HEIF`, Pillow's names, by the brands in the first box; None for any other file."""
    if content[4:8] != b"ftyp":
        return None
    (size,) = struct.unpack_from(">I", content)
    end = min(size, len(content), 16 + 4 * MAX_BRANDS)
    brands = {content[8:12], *(content[start : start + 4] for start in range(16, end - 3, 4))}
    if brands & AVIF_BRANDS:  # before the others: an AVIF file is of the brand mif1, too
        return "AVIF"
    return "HEIF" if brands & HEIC_BRANDS else None


def can_read_heic() -> bool:
    """Whether the extra `heif` is installed; Pillow reads its files from then on."""
    try:
        import pi_heif
    except ModuleNotFoundError:
        return False
    pi_heif.register_heif_opener(
        decode_threads=DECODE_THREADS, thumbnails=False, depth_images=False, aux_images=False
    )
    return True
