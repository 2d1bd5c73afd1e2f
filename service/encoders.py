"""The encoder's sessions: which graph runs a batch, and on how many cores."""

from dataclasses import dataclass
from typing import TypeAlias

import onnxruntime as ort

from export.optimize.plan import PLAIN, Plan
from service.gpu_session import GpuSession

Session: TypeAlias = ort.InferenceSession | GpuSession


@dataclass(frozen=True)
class Encoders:
    """Sessions of one encoder; some of them may be the same.

    Attributes:
        alone: for a small batch that has all cores to itself.
        alone_up_to: images in such a batch, at most; more are better shared between lanes.
        small: for a small batch beside others.
        small_up_to: images in such a batch, at most.
        large: for a larger one.
        plan: the graphs they run.
    """

    alone: Session
    alone_up_to: int
    small: Session
    small_up_to: int
    large: Session
    plan: Plan = PLAIN

    def session(self, images: int, *, alone: bool) -> Session:
        """The one for so many images."""
        if alone and images <= self.alone_up_to:
            return self.alone
        return self.small if images <= self.small_up_to else self.large

    @property
    def all(self) -> list[Session]:
        """Each session once."""
        return list({id(session): session for session in (self.alone, self.small, self.large)}.values())

    def describe(self) -> str:
        """Which graph runs when, in words: "plain", or "one_axis to 4 images, then both_axes"."""
        plan = self.plan
        if len(plan.forms) == 1:
            return plan.large
        small = plan.small if plan.alone == plan.small else f"{plan.alone} alone, {plan.small} beside others"
        if plan.small == plan.large:
            return small
        images = "1 image" if self.small_up_to == 1 else f"{self.small_up_to} images"
        return f"{small} to {images}, then {plan.large}"


def one_for_all(session: Session, max_batch: int) -> Encoders:
    """The same session for every batch."""
    return Encoders(session, max_batch, session, max_batch, session)
