"""Your own images: a folder that holds one folder of pictures per class.

    pictures/cat/1.jpg
    pictures/cat/2.png
    pictures/dog/a.webp

The folders' names are the classes. Pictures may be of any size, gray or color, in any format that the
service reads; they become a network's input as a picture that is sent to the service does. Hidden files are
passed over. Anything else is refused with its name, all that is wrong together, because a picture that
silently is not learned from is harder to find than an error.
"""

# N images, H and W height and width, C channels

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image
from tqdm import tqdm

from export.contract.manifest import Preprocessing
from export.contract.pictures import PictureError, read_picture
from export.contract.preprocess import to_input
from training.data.split import Split

POLARITY: Literal["any"] = "any"  # nothing is known about the pictures, so none is inverted,
PLACEMENT: Literal["fit"] = "fit"  # and nothing of one is cut off
MAX_PIXELS = 50_000_000  # of a picture; what the service takes by default
TEST_FRACTION = 0.2
MAX_NAMED = 10  # of the pictures that cannot be learned from, in one message
HIDDEN = frozenset({"desktop.ini", "thumbs.db"})  # Windows hides them by an attribute, not by a dot
SOON_S = 2  # reading that takes no longer shows no progress


def read_folder(
    folder: Path, split: Literal["train", "test"], class_names: tuple[str, ...], size: int, channels: int
) -> Split:
    """Read the pictures to train on, or the fifth of each class that is kept to measure on.

    Which picture is in which split depends on the names in the folder alone, so that both are the same on
    every machine, and nearly the same for a new run on more pictures.

    Args:
        folder: holds one folder per class.
        split: which pictures.
        class_names: the folders that must be there, in the order of the labels.
        size: height and width that the pictures are brought to.
        channels: 1 makes them gray, 3 RGB.

    Returns:
        Images [N, size, size, channels], class by class, and labels that count the class names.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: the folder holds other classes, too few pictures or something that is no sound picture;
            names it.
    """
    found = pictures_by_class(folder)
    if tuple(found) != class_names:
        raise ValueError(
            f"{folder} holds the classes {', '.join(found)}; expected {', '.join(class_names)}, "
            "with which the run was started"
        )
    kept = [in_split(paths, split) for paths in found.values()]
    facts = Preprocessing(height=size, width=size, channels=channels, polarity=POLARITY, placement=PLACEMENT)
    images = np.empty((sum(map(len, kept)), size, size, channels), np.uint8)
    for image, picture in zip(images, _read([path for paths in kept for path in paths]), strict=True):
        image[:] = np.rint(to_input(picture, facts) * 255)
    return Split(images, np.repeat(np.arange(len(kept)), [len(paths) for paths in kept]).astype(np.int64))


def refuse_changed(folder: Path, digest: str | None) -> None:
    """Raise unless a folder holds what it held when a run was started.

    With a picture more or less, others would change between those that a run learns from and those that it
    is measured on, and an error measured on what was learned by heart says nothing.

    Args:
        folder: holds one folder per class, wherever it lies by now.
        digest: of the run's configuration.

    Raises:
        FileNotFoundError, ValueError: as `read_folder`; or the names of classes or pictures have changed.
    """
    if digest_of_names(pictures_by_class(folder)) != digest:
        raise ValueError(
            f"the folder has changed since the run was started: pictures of {folder} have been added, "
            "removed or renamed, so that some would be measured on that were trained on before. Bring back "
            "what it held, say where that lies (--images FOLDER), or start another run on what it holds now"
        )


def channels_of(folder: Path) -> Literal[1, 3]:
    """How many channels a network needs for these pictures: 1 if all are gray, however stored, else 3.

    Every picture is read, so that a damaged one is found before anything is trained.

    Raises:
        FileNotFoundError, ValueError: as `read_folder`.
    """
    paths = [path for paths in pictures_by_class(folder).values() for path in paths]
    are_gray = [_is_gray(picture) for picture in _read(paths)]  # all of them, even after one in color
    return 1 if all(are_gray) else 3


def pictures_by_class(folder: Path) -> dict[str, list[Path]]:
    """The files in each class's folder, sorted by name.

    Raises:
        FileNotFoundError, ValueError: as `read_folder`.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; expected one that holds a folder per class")
    places = _visible(folder)
    classes = {path.name: _visible(path) for path in places if path.is_dir()}
    wrong = [
        f"{path} is not a folder; put each picture into the folder of its class"
        for path in places
        if not path.is_dir()
    ]
    if len(classes) < 2:
        wrong.append(f"{folder} holds {_count(len(classes), 'folder')}; expected one per class, at least 2")
    for name, paths in classes.items():
        wrong += _faults_of_class(folder / name, paths)
    _refuse(wrong)
    return classes


def _faults_of_class(folder: Path, paths: list[Path]) -> Iterator[str]:
    """What is wrong with a class's folder, of what can be seen without opening a picture."""
    if not folder.name.isprintable():  # it could be written into no manifest
        yield f"{folder.parent} holds the folder {folder.name!r}; a class's name must be printable text"
        return
    for path in paths:
        if path.is_dir():
            yield f"{path} is a folder; move its pictures into {folder}, or remove it"
        elif not path.is_file():
            yield f"{path} is no file, nor a link to one; remove it"
    if len(paths) < 2:
        yield (
            f"{folder} holds {_count(len(paths), 'picture')}; expected at least 2, one of them to test with: "
            "add some, or remove the folder"
        )


def describe_copies(found: dict[str, list[Path]]) -> list[str]:
    """What files of the same content spoil, in words: a test of what is learned, or the names of classes."""
    by_content: dict[bytes, list[Path]] = {}
    for path in (path for paths in found.values() for path in paths):
        by_content.setdefault(hashlib.sha256(path.read_bytes()).digest(), []).append(path)
    same = [paths for paths in by_content.values() if len(paths) > 1]
    tested = {path for paths in found.values() for path in in_split(paths, "test")}
    learned = [path for paths in same for path in paths if path in tested and not tested.issuperset(paths)]
    contrary = [paths for paths in same if len({path.parent for path in paths}) > 1]
    doubts = []
    if learned:
        doubts.append(
            f"pictures to test with that have a copy among those to train on: {len(learned)}, such as "
            f"{learned[0]}; the test error will be too low"
        )
    if contrary:
        doubts.append(
            f"pictures that are in two classes or more: {len(contrary)}, such as "
            f"{' and '.join(map(str, contrary[0][:2]))}"
        )
    return doubts


def _visible(folder: Path) -> list[Path]:
    """What a folder holds that is not hidden, sorted by name."""
    paths = (path for path in folder.iterdir() if not path.name.startswith("."))
    return sorted((path for path in paths if path.name.lower() not in HIDDEN), key=lambda path: path.name)


def in_split(paths: list[Path], split: Literal["train", "test"]) -> list[Path]:
    """Those of a class's pictures that belong to the split: at least one, sorted by name."""
    tested = max(1, round(TEST_FRACTION * len(paths)))
    shuffled = sorted(paths, key=_digest)
    return sorted(shuffled[:tested] if split == "test" else shuffled[tested:])


def _digest(path: Path) -> bytes:
    """A number that looks random but is the same everywhere: of the class and the picture's name."""
    return hashlib.sha256(os.fsencode(f"{path.parent.name}/{path.name}")).digest()


def digest_of_names(found: dict[str, list[Path]]) -> str:
    """16 hexadecimal digits that change with any name of a class or a picture."""
    digests = [_digest(path) for paths in found.values() for path in paths]
    return hashlib.sha256(b"".join(digests)).hexdigest()[:16]


def _read(paths: list[Path]) -> Iterator[Image.Image]:
    """Decode pictures one after the other; after the last it says which could not be, and why."""
    wrong: list[str] = []
    is_other = os.environ.get("RANK", "0") != "0"  # of torchrun's processes
    silent = True if is_other else None  # None: unless standard error is a terminal
    for path in tqdm(paths, "reading", unit="picture", leave=False, disable=silent, delay=SOON_S):
        try:
            yield read_picture(path.read_bytes(), MAX_PIXELS)
        except PictureError as error:
            wrong.append(f"{path}: {error}")
    _refuse(wrong)


def _refuse(wrong: list[str]) -> None:
    """Raise if there is something wrong; says what, the first few of it."""
    if wrong:
        more = f"; and {len(wrong) - MAX_NAMED} more" if len(wrong) > MAX_NAMED else ""
        raise ValueError("; ".join(wrong[:MAX_NAMED]) + more)


def _is_gray(picture: Image.Image) -> bool:
    """Whether a picture, L or RGB, has no color."""
    if picture.mode == "L":
        return True
    red, green, blue = picture.split()
    return red.tobytes() == green.tobytes() == blue.tobytes()


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"
