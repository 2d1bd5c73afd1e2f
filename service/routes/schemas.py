"""Schemas of requests and answers, for checks and for the OpenAPI document.

Request models check. Answer models only describe: orjson writes answers from arrays, because passing ten
poses of 16 numbers per image through pydantic takes longer than classifying the image.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from export.contract.preprocess import Rule
from service.errors import shown
from service.models.index_entry import State
from service.models.interface import MAX_POSE_VALUE
from service.models.traffic import Traffic

# More than any pose has; with fail_fast a list of millions of mistakes is refused at its first.
MAX_ITEMS = 4096
VIEWS = 2  # of a pair
Number = Annotated[float, Field(ge=-MAX_POSE_VALUE, le=MAX_POSE_VALUE, allow_inf_nan=False)]
Preprocess = Annotated[
    Rule,
    Field(description="auto: the model's own rule for pictures of other sizes; off: a plain resize"),
]
ModelChoice = Annotated[
    str | None, Field(description="the model's name; default: CAPSNET_DEFAULT_MODEL, else the only one")
]
MinProbability = Annotated[
    float | None,
    Field(
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="an answer is confident from this probability on; default: the model's own threshold",
    ),
]
VersionChoice = Annotated[
    int | None, Field(ge=1, description="default: the newest one loaded, or what the operator's rule says")
]


class _Request(BaseModel):
    """Fields of a request; the error for an unknown one lists the known ones."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _knows_every_field(cls, given: Any) -> Any:
        if isinstance(given, dict) and (unknown := [name for name in given if name not in cls.model_fields]):
            raise ValueError(
                f"unknown field {unknown[0][:80]!r}; the fields are {', '.join(cls.model_fields)}"
            )
        return given


class ClassifyQuery(_Request):
    """Query parameters of /classify."""

    top_k: int | None = Field(default=None, ge=1, description="the k most probable classes; default: all")
    reconstruction: bool = Field(default=False, description="add the decoded picture of the best class")
    model_input: bool = Field(default=False, description="add the picture that the network sees")
    min_probability: MinProbability = None
    model: ModelChoice = None
    version: VersionChoice = None
    preprocess: Preprocess = "auto"


class SegmentQuery(_Request):
    """Query parameters of /segment."""

    k: int | None = Field(
        default=None,
        ge=1,
        description="objects per image; default: as many as the model expects, at least two",
    )
    min_probability: MinProbability = None
    model: ModelChoice = None
    version: VersionChoice = None
    preprocess: Preprocess = "auto"


class ReconstructQuery(_Request):
    """Query parameters of /reconstruct; model and version may stand in the body instead."""

    model: ModelChoice = None
    version: VersionChoice = None
    preprocess: Preprocess = "auto"


class ExplainQuery(_Request):
    """Query parameters of /explain."""

    label: str | None = Field(default=None, description="show only this class; default: all")
    model: ModelChoice = None
    version: VersionChoice = None
    preprocess: Preprocess = "auto"


class _StrictRequest(_Request):
    """Fields of a JSON body: neither `true` nor "3" is a number."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Perturbation(_StrictRequest):
    """A number added to one dimension of the pose."""

    dimension: int = Field(ge=0, description="index into the flat pose")
    delta: Number


class Sweep(_StrictRequest):
    """One picture per dimension and delta, dimension by dimension, `stop` included if the steps reach it."""

    dimensions: list[Annotated[int, Field(ge=0)]] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_ITEMS,
        fail_fast=True,
        description="indices into the flat pose; default: all",
    )
    start: Number = -0.25
    stop: Number = 0.25
    step: Annotated[Number, Field(ge=1e-6)] = 0.05

    @model_validator(mode="after")
    def _runs_upwards(self) -> Self:
        if self.start > self.stop:
            raise ValueError(f"start must not be above stop, got start {self.start} and stop {self.stop}")
        return self


def _flat(given: Any) -> Any:
    """Refuse nested lists with a message of their own, not one about the type of the first number."""
    if isinstance(given, list) and given and isinstance(given[0], list):
        raise ValueError(f"must be a flat list of numbers, a matrix row by row; got {shown(given[0])} at [0]")
    return given


class ReconstructFields(_StrictRequest):
    """Fields of /reconstruct beside the picture; in multipart the lists and numbers are JSON."""

    pose: Annotated[list[Number] | None, BeforeValidator(_flat)] = Field(
        default=None, max_length=MAX_ITEMS, fail_fast=True, description="a flat pose; needs a label"
    )
    label: str | None = Field(default=None, description="class to decode; default: the most probable")
    model: ModelChoice = None
    version: VersionChoice = None
    perturbations: list[Perturbation] | None = Field(
        default=None, max_length=MAX_ITEMS, fail_fast=True, description="applied together"
    )
    sweep: Sweep | None = None

    @model_validator(mode="after")
    def _asks_for_one_thing(self) -> Self:
        if self.perturbations is not None and self.sweep is not None:
            raise ValueError("give perturbations or sweep, not both")
        if self.pose is not None and self.label is None:
            raise ValueError("a pose needs a label: the decoder is told which class the pose is of")
        return self


def _one_file_or_two(given: Any) -> Any:
    """Check as pydantic would, with one message instead of one for each type."""
    is_pair = isinstance(given, list) and len(given) == VIEWS and all(isinstance(one, str) for one in given)
    if given is None or isinstance(given, str) or is_pair:
        return given
    raise ValueError(
        "must be the base64 of a picture's file, or for a model of two views a list of two such texts; "
        f"got {shown(given)}"
    )


class ReconstructRequest(ReconstructFields):
    """JSON body of /reconstruct: `image`, or `pose` and `label`."""

    image: Annotated[
        str | Annotated[list[str], Field(min_length=VIEWS, max_length=VIEWS)] | None,
        BeforeValidator(_one_file_or_two),
    ] = Field(
        default=None,
        description="base64 of a picture's file; for a model of two views a list of two, the left one first",
    )

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if (self.image is None) == (self.pose is None):
            raise ValueError("give either image (base64 of a picture's file) or pose and label")
        return self


PoseShape = Annotated[list[int] | None, Field(description="when poses are not vectors", examples=[[4, 4]])]
Digest = Annotated[
    str,
    Field(
        description="of the bundle that answered; under one version, another digest means other weights or "
        "another preprocessing",
        examples=["b4da55d6"],
    ),
]
Blank = Annotated[
    bool,
    Field(description="the image shows nothing: no ink was found, or all pixels are nearly equal"),
]


class ClassAnswer(BaseModel):
    """One class. Classes are independent: the probabilities of an image need not sum to 1."""

    label: str
    probability: float = Field(description="length of the class's capsule, or its activation, 0-1")
    pose: list[float] = Field(description="flat, row-major")


Filename = Annotated[
    str | None,
    Field(
        description="of a pair of views both names, the left one first",
        examples=["7.png", "left.png, right.png"],
    ),
]


class ClassifyResult(BaseModel):
    """The prediction for one image, or for a pair of views."""

    filename: Filename
    label: str = Field(description="the most probable class")
    labels: list[str] = Field(description="as many of the best as the model expects objects per image")
    confident: bool | None = Field(
        description="the picture is not blank, and all of `labels` reach `min_probability`, by default "
        "the model's own threshold; null if it has none"
    )
    blank: Blank
    classes: list[ClassAnswer] = Field(description="by descending probability")
    reconstruction: str | None = Field(
        default=None, description="base64 PNG, if requested; of a pair both views side by side"
    )
    model_input: str | None = Field(
        default=None,
        description="base64 PNG, if requested: the image after preprocessing, as the network sees it; of a "
        "pair both views side by side",
    )


class ClassifyAnswer(BaseModel):
    """Answer of /classify."""

    model: str
    version: int
    digest: Digest
    pose_shape: PoseShape = None
    results: list[ClassifyResult]


class SegmentObject(ClassAnswer):
    """One object of an image, as its capsule alone shows it."""

    confident: bool | None = Field(
        description="the picture is not blank, and the probability reaches the threshold; null where there "
        "is none"
    )
    colour: str = Field(description="in the overlay", examples=["#ff0000"])
    reconstruction: str = Field(description="base64 PNG of the object alone")
    mask: str = Field(
        description="base64 PNG, 255 where the reconstruction is at least half as bright as its brightest "
        "pixel, else 0; a pixel may belong to several objects"
    )


class SegmentResult(BaseModel):
    """The objects in one image, or in a pair of views, which stand side by side in every picture."""

    filename: Filename
    blank: Blank
    overlay: str = Field(
        description="base64 PNG: the reconstructions in their colors, added up; yellow is where red and "
        "green overlap"
    )
    objects: list[SegmentObject] = Field(description="by descending probability")


class SegmentAnswer(BaseModel):
    """Answer of /segment."""

    model: str
    version: int
    digest: Digest
    pose_shape: PoseShape = None
    results: list[SegmentResult]


class Reconstruction(BaseModel):
    """One decoded pose."""

    perturbations: list[Perturbation]
    pose: list[float] = Field(description="flat, row-major, as decoded")
    image: str = Field(description="base64 PNG; of a pair both views side by side")


class ReconstructAnswer(BaseModel):
    """Answer of /reconstruct: exactly one entry, the plain one, when nothing is perturbed."""

    model: str
    version: int
    digest: Digest
    pose_shape: PoseShape = None
    label: str
    reconstructions: list[Reconstruction]


class VersionAnswer(BaseModel):
    """A version of a model: loaded, loading, or not served and why."""

    version: int
    state: State = Field(
        description="available: loads with the first request; superseded: CAPSNET_VERSIONS_KEPT newer ones "
        "are served; unloaded: taken down by an operator"
    )
    default: bool = Field(description="answers requests that name no version, or with a canary most of them")
    device: str | None = Field(default=None, description="cpu, cuda or tensorrt")
    provider: str | None = Field(default=None, description="ONNX Runtime's execution provider")
    graphs: dict[str, str] | None = Field(default=None, description="graphs of the bundle, by role")
    encoder: str | None = Field(
        default=None,
        description="the encoder's graphs in use: plain is the bundle's own; faster ones are derived from "
        "it, as in `toom_cook_1d to 4 images, then toom_cook_2d`",
    )
    precision: str | None = Field(default=None, description="float32 or half, of the encoder's products")
    digest: str | None = Field(default=None, description="as answers have it; of a loaded version")
    reason: str | None = Field(
        default=None,
        description="why it is not served; if it is loaded, why its files, which have changed, would not be",
    )
    manifest: dict[str, Any] | None = None


class ModelAnswer(BaseModel):
    """A model and its versions, newest first."""

    name: str
    default: bool = Field(description="answers requests that name no model")
    versions: list[VersionAnswer]
    traffic: Traffic | None = Field(
        default=None, description="which version answers requests that name none, if it is not the newest"
    )
    traffic_error: str | None = Field(
        default=None,
        description="what is wrong with it: it cannot be read, or the version that it pins is not loaded",
    )


class ModelsAnswer(BaseModel):
    """Answer of /models, without the manifests; /models/{name} has them."""

    models: list[ModelAnswer]


class Health(BaseModel):
    """The process is alive."""

    status: Literal["ok"]


class Readiness(BaseModel):
    """Requests will be answered."""

    status: Literal["ready"]
    device: str = Field(
        description="the devices in use, not the requested one, joined by ', '; empty while nothing is loaded"
    )
    models: list[str] = Field(description="name/version of every loaded version")
    warnings: list[str] | None = Field(
        default=None,
        description="which versions are slower than they could be, and why; only if some are",
    )
