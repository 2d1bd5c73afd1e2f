"""What a bundle promises: the manifest beside its graphs, read and checked by whoever loads it.

A bundle is a folder `<model>/<version>/` with the graphs, `samples.npz`, `manifest.json` and
`MODEL_CARD.md`. The version is the folder's name and stands nowhere inside.
"""

import hashlib
import json
import re
import stat
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    ValidationError,
    model_validator,
)

MANIFEST_FILE = "manifest.json"
MODEL_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
VERSION = re.compile(r"[1-9][0-9]{0,8}")  # what a version's folder is called
DIGEST_DIGITS = 8
# What an answer depends on; the rest of a manifest says where the model comes from.
ANSWERS_DEPEND_ON = {
    "class_names",
    "objects_per_image",
    "pose_shape",
    "graphs",
    "preprocessing",
    "confidence",
}


class BundleError(ValueError):
    """A bundle disagrees with its manifest; the message says which file or field, and how."""


def _plain_file_name(name: str) -> str:
    if PurePosixPath(name).name != name or {"\\", "\0"} & {*name} or name in {"", ".", ".."}:
        raise ValueError(f"{name!r} is not a plain file name")
    return name


def model_name(name: str) -> str:
    """The name itself, if a model may have it; else a ValueError that shows the rule."""
    if not MODEL_NAME.fullmatch(name):
        raise ValueError(f"model name {name!r} must match {MODEL_NAME.pattern}")
    return name


FileName = Annotated[str, AfterValidator(_plain_file_name)]
ModelName = Annotated[str, AfterValidator(model_name)]
Architecture = Literal["capsnet", "matrix-capsnet"]
Role = Literal["encoder", "decoder", "explain"]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Fact(BaseModel):
    """A part of the manifest: immutable, and a field it does not know is an error.

    Numbers are finite: JSON has no others, so a manifest that is written anew would have null instead.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Tensor(_Fact):
    """One input or output of a graph; None in the shape is the free batch axis."""

    name: str
    shape: tuple[int | None, ...]
    dtype: Literal["float32"] = "float32"
    range: tuple[float, float] | None = None


class File(_Fact):
    """A file of the bundle and the hash of its bytes."""

    file: FileName
    sha256: Sha256


class Graph(File):
    """An ONNX graph: its file and what goes in and comes out.

    Attributes:
        inputs: that it takes.
        outputs: that it gives.
        weight_factors: of the weights, by name, that are the trained ones times a constant; None where the
            exporter did not record it yet.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    weight_factors: dict[str, Annotated[float, Field(gt=0)]] | None = None


class Preprocessing(_Fact):
    """How a picture becomes the model's input; `export.contract.preprocess` carries it out.

    The views of a pair differ by where things stand in them, and a model may see depth by that. So a rule
    that moves or inverts a picture by what it finds in it, and might do otherwise to the other view, is for
    one view only.

    Attributes:
        height: rows of the model's input.
        width: columns of the model's input.
        channels: 1 for gray, 3 for RGB, 2 for the gray views of a stereo pair, the left one first.
        polarity: `light-on-dark` inverts pictures whose border is lighter than their ink; `any` never does.
        placement: `digit` fits the ink box into 20/28 of the frame and centers it by mass, as MNIST was
            made; `fit` shows the whole picture, padded; `centre-crop` fills the frame.
        crop_share: how much of a picture's shorter side a `centre-crop` shows. A network that was trained on
            windows of 24 in pictures of 32 pixels has 0.75.
    """

    height: int = Field(ge=1)
    width: int = Field(ge=1)
    channels: int = Field(default=1, ge=1, le=3)
    polarity: Literal["light-on-dark", "any"] = "any"
    placement: Literal["digit", "fit", "centre-crop"] = "fit"
    crop_share: float = Field(default=1.0, gt=0, le=1)

    @property
    def views(self) -> Literal[1, 2]:
        """How many pictures make one input."""
        return 2 if self.channels == 2 else 1

    @model_validator(mode="after")
    def _treats_both_views_alike(self) -> Self:
        if self.views == 2 and (self.polarity != "any" or self.placement == "digit"):
            raise ValueError(
                "the two views of a pair need polarity any, and placement fit or centre-crop; got "
                f"{self.polarity} and {self.placement}"
            )
        return self


class Parity(_Fact):
    """Largest absolute difference between PyTorch and ONNX Runtime, seen by the gate at export."""

    max_abs_error: float = Field(ge=0)
    tolerance: float = Field(gt=0)
    batch_sizes: tuple[int, ...]
    routing_iterations: tuple[int, ...]
    images: str


class Metric(_Fact):
    """A measured number, the data it was measured on and the command that measures it again."""

    name: str
    value: float
    unit: str
    data: str
    command: str


class Confidence(_Fact):
    """From which probability on an answer of the model is confident.

    Where an image shows several objects, the least probable of the classes that are named has to reach it.

    Attributes:
        min_probability: the largest, to four decimals, that 99 % of the right answers on `data` reach; below
            0.0001, to four digits.
        right: how many answers were right.
        right_confident: how many of these reach it.
        wrong: how many answers were wrong.
        wrong_confident: how many of these reach it, too.
        data: images that were held out of training, never those that the test error is of.
        command: measures it again.
    """

    min_probability: float = Field(ge=0, le=1)
    right: int = Field(ge=1)
    right_confident: int = Field(ge=1)
    wrong: int = Field(ge=0)
    wrong_confident: int = Field(ge=0)
    data: str
    command: str


class Manifest(_Fact):
    """Everything about a bundle that its reader relies on.

    Attributes:
        architecture: the length of a capsule of `capsnet`, below 1, is its probability; one of
            `matrix-capsnet` has an activation beside its pose.
        pose_shape: of one class's pose, [16] or [4, 4]; the graphs have it flat, row-major.
        views: pictures of one object that make one input: 2 for a stereo pair.
        graphs: the encoder, and maybe a decoder and the graph that shows the encoder's routing, which reads
            its weights from the encoder's file.
        confidence: None where nothing was held out to measure it on.
    """

    schema_version: Literal[1] = 1
    model: ModelName
    architecture: Architecture
    parameters: dict[str, Any]
    parameter_count: int
    class_names: tuple[str, ...] = Field(min_length=1)
    objects_per_image: int = Field(default=1, ge=1)
    pose_shape: tuple[PositiveInt, ...] = Field(min_length=1)
    views: Literal[1, 2] = 1
    graphs: dict[Role, Graph]
    samples: File
    preprocessing: Preprocessing
    opset: int
    parity: Parity
    metrics: tuple[Metric, ...] = ()
    confidence: Confidence | None = None
    training: dict[str, Any]
    source_commit: str

    @property
    def digest(self) -> str:
        """The same 8 hexadecimal digits for bundles that give the same answers, whatever their version is."""
        facts = self.model_dump(
            mode="json",
            include=ANSWERS_DEPEND_ON,
            # The explain graph is made of the encoder's, and has no weights of its own.
            exclude={"graphs": {"__all__": {"weight_factors"}, "explain": True}},
            exclude_defaults=True,
        )
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:DIGEST_DIGITS]

    @model_validator(mode="after")
    def _has_an_encoder(self) -> Self:
        if "encoder" not in self.graphs:
            raise ValueError("graphs must hold an encoder")
        if len(set(self.class_names)) != len(self.class_names):
            raise ValueError(f"class names must differ, got {self.class_names}")
        if self.objects_per_image > len(self.class_names):
            raise ValueError(
                f"objects_per_image is {self.objects_per_image}, of {len(self.class_names)} different classes"
            )
        return self

    @model_validator(mode="after")
    def _has_a_channel_for_each_view(self) -> Self:
        if self.views != self.preprocessing.views:
            raise ValueError(
                f"views is {self.views} and preprocessing.channels is {self.preprocessing.channels}; a pair "
                "of 2 views has 2 channels, one view is a picture of 1 channel (gray) or 3 (RGB)"
            )
        return self


def sha256_of(path: Path) -> str:
    """Hash of the file's bytes, as 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def newest_version(path: Path) -> Path:
    """The bundle itself, or the newest version in a model's folder that has a manifest.

    Raises:
        BundleError: this is no folder.
    """
    if not path.is_dir():
        raise BundleError(f"{path} is not a folder")
    if (path / MANIFEST_FILE).exists():
        return path
    versions = [
        int(child.name)
        for child in path.iterdir()
        if VERSION.fullmatch(child.name) and (child / MANIFEST_FILE).exists()
    ]
    return path / str(max(versions)) if versions else path


def read_manifest(bundle: Path) -> Manifest:
    """Read the manifest of a bundle folder.

    Raises:
        BundleError: no manifest there, or one that is not valid; names the field.
        OSError: it cannot be read.
    """
    path = bundle / MANIFEST_FILE
    try:
        return Manifest.model_validate_json(_read_regular(path))
    except FileNotFoundError:
        raise BundleError(f"{path} does not exist") from None
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, e['loc'])) or 'document'}: {e['msg']}" for e in error.errors()]
        raise BundleError(f"{path}: {'; '.join(faults)}") from None


def read_checked(bundle: Path, file: File) -> bytes:
    """Bytes of a file of the bundle, once its hash has been found to be the manifest's.

    Raises:
        BundleError: the file is missing or its bytes are not those the manifest describes.
        OSError: it cannot be read.
    """
    path = bundle / file.file
    try:
        content = _read_regular(path)
    except FileNotFoundError:
        raise BundleError(f"{path} does not exist; the manifest lists it") from None
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        raise BundleError(f"{path} has sha256 {found}; the manifest says {file.sha256}")
    return content


def _read_regular(path: Path) -> bytes:
    """The file's bytes; of a pipe or a device they might never come, or never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise BundleError(f"{path} is no regular file")
    return path.read_bytes()
