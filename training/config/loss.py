"""What a network is trained to minimize."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from training.config.strict import STRICT

Margin = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True, config=STRICT)
class LossConfig:
    """How a capsule network's answers are judged; Eq. 4 and Sec. 4.1 of Sabour et al. 2017 by default.

    Attributes:
        classification: margin loss (Eq. 4), spread loss (Eq. 3, Hinton et al. 2018), or the cross entropy of
            the probabilities, divided by their sum. A convolutional network always has its cross entropy.
        present_margin: a present class's capsule shall be at least so long.
        absent_margin: an absent class's capsule shall be at most so long.
        absent_weight: of the absent classes' loss, beside that of the present ones.
        margin_weight: of the whole classification loss; 0.05 is the official code's, half of Eq. 4 as a mean
            over 10 classes.
        spread_margins: of spread loss, at the beginning and at the end of training.
        spread_schedule: how the margin grows: linearly, or as in the official code, along a sigmoid of
            700,000 steps.
        reconstruction_weight: of the squared pixel error, summed over pixels and, of several objects, over
            these.
    """

    classification: Literal["margin", "spread", "cross-entropy"] = "margin"
    present_margin: float = Field(default=0.9, ge=0, le=1)
    absent_margin: float = Field(default=0.1, ge=0, le=1)
    absent_weight: float = Field(default=0.5, ge=0)
    margin_weight: float = Field(default=1.0, gt=0)
    spread_margins: tuple[Margin, Margin] = (0.2, 0.9)
    spread_schedule: Literal["linear", "official"] = "linear"
    reconstruction_weight: float = Field(default=0.0005, ge=0)

    def __post_init__(self) -> None:
        first, last = self.spread_margins
        if last < first:
            raise ValueError(f"spread_margins: they grow, got {first:g} and then {last:g}")
