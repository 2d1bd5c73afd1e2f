"""What a data set is: everything that the rest of the package needs to know about it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from training.data.source import Source
from training.data.split import Split

SplitName = Literal["train", "test"]
Reader = Callable[[Path, SplitName], Split]
# How a network is shown the images. `single`: as they are. `pairs`: two of different classes over each other
# (Sec. 6, Sabour et al. 2017). `shifted`: anywhere in a 40x40 frame (Sec. 5.2).
Composition = Literal["single", "pairs", "shifted"]

# Options of a DataConfig that change nothing where images are composed.
WITHOUT_EFFECT: dict[Composition, tuple[str, ...]] = {
    "single": (),
    "pairs": (
        "resize_pixels",
        "crop_pixels",
        "flip",
        "warp",
        "max_brightness",
        "contrast",
        "blank_fraction",
        "scribble_fraction",
    ),
    "shifted": ("resize_pixels", "crop_pixels", "warp", "scribble_fraction"),
}


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """A data set.

    Attributes:
        name: in configurations and on the command line.
        title: for people.
        read: reads a split from the data set's folder; None for the user's own pictures.
        folder: its folder under the data root; "" if it needs no files.
        class_names: one per label, in order; empty for the user's own pictures, whose folders name them.
        image_size: height and width of the images that are read, pixels; None for the user's own pictures.
        channels: 1 for gray, 3 for RGB, 2 for the views of a stereo pair; None for the user's own pictures.
        splits: those that it has; one without `train` cannot be trained on.
        composition: how a network is shown the images.
        repeat_edges: shifted images repeat their edges, as nothing says that they lie on black.
        tells_viewpoint: each image says which toy it shows, from where.
        polarity: `light-on-dark` when ink is light and paper dark.
        placement: how an object sits in the frame, see `export.contract.preprocess`.
        source: where it is downloaded; None if it is not.
        made: whether `capsnet-train make` makes it.
        trained_on: the images that a network learns from, for model cards.
        limits: what a network trained on it cannot be expected to do, for model cards.
    """

    name: str
    title: str
    read: Reader | None
    folder: str
    class_names: tuple[str, ...]
    image_size: int | None
    channels: int | None
    splits: tuple[SplitName, ...] = ("train", "test")
    composition: Composition = "single"
    repeat_edges: bool = False
    tells_viewpoint: bool = False
    polarity: Literal["light-on-dark", "any"] = "any"
    placement: Literal["digit", "fit", "centre-crop"] = "centre-crop"
    source: Source | None = None
    made: bool = False
    trained_on: str = ""
    limits: str = ""

    @property
    def objects_per_image(self) -> int:
        """How many objects a network is shown in an image, of as many classes."""
        return 2 if self.composition == "pairs" else 1

    @property
    def without_effect(self) -> tuple[str, ...]:
        """Options of a DataConfig that would change nothing."""
        return WITHOUT_EFFECT[self.composition]

    @property
    def command(self) -> str:
        """What brings the files, for `docker/`: arguments of capsnet-train; "" if nothing does."""
        if self.made:
            return f"make {self.name}"
        return f"download {self.source.name}" if self.source else ""
