"""What a network is trained to minimize."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from training.config.strict import STRICT

Margin = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True, config=STRICT)
class LossConfig:
    """The loss of a capsule network; by default Eq. 4 and Sec. 4.1 of Sabour et al. 2017.

    Attributes:
        classification: margin loss (Eq. 4), spread loss (Eq. 3, Hinton et al. 2018), or the cross entropy of
            the probabilities, divided by their sum. A convolutional network always has its cross entropy.
        present_margin: m+, minimum capsule length of a present class.
        absent_margin: m-, maximum capsule length of an absent class.
        absent_weight: lambda, weight of the absent classes' loss; present classes have weight 1.
        margin_weight: weight of the classification loss; the official code's 0.05 is half of Eq. 4, averaged
            over 10 classes.
        spread_margins: margin of the spread loss at the start and at the end of training.
        spread_schedule: how the margin grows: linearly, or as in the official code, along a sigmoid of
            700,000 steps.
        reconstruction_weight: weight of the squared pixel error, summed over pixels and objects.
        reconstruction_target: what the decoder draws: the image, or the image `standardized`, with the
            brightness and contrast that all images have there. Poses of a network that standardizes its
            images do not know those of the image itself.
    """

    classification: Literal["margin", "spread", "cross-entropy"] = "margin"
    present_margin: float = Field(default=0.9, ge=0, le=1)
    absent_margin: float = Field(default=0.1, ge=0, le=1)
    absent_weight: float = Field(default=0.5, ge=0)
    margin_weight: float = Field(default=1.0, gt=0)
    spread_margins: tuple[Margin, Margin] = (0.2, 0.9)
    spread_schedule: Literal["linear", "official"] = "linear"
    reconstruction_weight: float = Field(default=0.0005, ge=0)
    reconstruction_target: Literal["image", "standardized"] = "image"

    def __post_init__(self) -> None:
        first, last = self.spread_margins
        if last < first:
            raise ValueError(f"spread_margins: they grow, got {first:g} and then {last:g}")
