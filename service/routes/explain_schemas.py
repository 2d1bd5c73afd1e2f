"""Schemas of /explain's answer, for the OpenAPI document; `service.routes.explain` writes it from arrays."""

from typing import Literal

from pydantic import BaseModel, Field

from service.routes.schemas import Digest, Filename, PoseShape

# T iterations, D numbers of a pose, R rows and C columns of places, B bins

Numbers = list[float]
Map = list[Numbers]


class PlacesAnswer(BaseModel):
    """Where in the input the capsules of a layer look; 0 is its upper or left edge."""

    row_centers: Numbers = Field(description="centers of the receptive fields, pixels, [R]")
    column_centers: Numbers = Field(description="the same along a row, [C]")
    field: int = Field(description="side of a receptive field, pixels")


class ExplainedClass(BaseModel):
    """A class in every iteration."""

    label: str
    probabilities: Numbers = Field(description="length or activation of its capsule, [T]")
    poses: list[Numbers] = Field(description="flat, row-major, [T, D]")
    heat: list[Map] = Field(
        description="where its votes come from, [T, R, C]. Routing by agreement: the part of the capsule's "
        "length |s| that comes from there, coupling times u_hat . v / |v|, negative for votes against; over "
        "the image they sum to |s|, without the capsule's bias if it has one. EM routing: assignment times "
        "activation"
    )
    logit_change: Numbers | None = Field(
        default=None,
        description="agreement only: what the iteration adds to the logits, u_hat . v, mean over the "
        "capsules that vote, weighted by their length, [T]",
    )
    largest_logit_change: Numbers | None = Field(
        default=None, description="agreement only: the same of the capsule that agrees most, [T]"
    )
    distances: list[Numbers] | None = Field(
        default=None,
        description="em only: share of the votes in each bin of `distance_edges`, by their distance from the "
        "class's mean, weighted by assignment, [T, B]",
    )


class ExplainedLayer(BaseModel):
    """A convolutional layer of matrix capsules in every iteration."""

    name: str = Field(examples=["conv_caps.0"])
    grid: PlacesAnswer
    entropy: Numbers = Field(description="of the assignments to its capsules, as above, [T]")
    activations: list[list[Map]] = Field(description="[T, types, R, C]")
    distances: list[list[Map]] = Field(
        description="mean distance of the votes for a capsule from its mean, [T, types, R, C]"
    )


class ExplainAnswer(BaseModel):
    """Answer of /explain; numbers stand for every iteration, the last of which gives the answer."""

    model: str
    version: int
    digest: Digest
    pose_shape: PoseShape = None
    filename: Filename
    routing: Literal["agreement", "em"]
    iterations: int = Field(description="T")
    label: str = Field(description="the most probable class")
    model_input: str = Field(
        description="base64 PNG of what the network sees; of a pair both views side by side"
    )
    grid: PlacesAnswer = Field(description="of the capsules that vote for the classes")
    entropy: Numbers = Field(
        description="of the couplings or assignments, as a share of the largest: at 1 each capsule votes for "
        "all classes alike; mean over the capsules, weighted by their activity, [T]"
    )
    classes: list[ExplainedClass] = Field(description="by falling probability in the last iteration")
    distance_edges: Numbers | None = Field(default=None, description="em only: of the bins, [B + 1]")
    layers: list[ExplainedLayer] | None = Field(
        default=None, description="em only: the layers below the classes, in order"
    )
