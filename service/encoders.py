"""The encoder's sessions: which graph runs a batch, and on how many cores."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import onnxruntime as ort

from export.optimize.plan import PLAIN, Choice, Form, Plan
from service.gpu_session import GpuSession

Session: TypeAlias = ort.InferenceSession | GpuSession


@dataclass(frozen=True)
class BySize:
    """Sessions for the sizes of batches; both may be the same.

    Attributes:
        small: for small batches.
        small_up_to: images in such a batch, at most.
        large: for larger ones.
    """

    small: Session
    small_up_to: int
    large: Session

    def session(self, images: int) -> Session:
        """The one for so many images."""
        return self.small if images <= self.small_up_to else self.large


@dataclass(frozen=True)
class Encoders:
    """Sessions of one encoder.

    Attributes:
        alone: for a batch that has all cores to itself.
        beside: for one beside others, with a share of the cores.
        plan: the graphs they run.
    """

    alone: BySize
    beside: BySize
    plan: Plan = PLAIN

    def session(self, images: int, *, alone: bool) -> Session:
        """The one for so many images."""
        return (self.alone if alone else self.beside).session(images)

    @property
    def all(self) -> list[Session]:
        """Each session once."""
        pairs = (self.alone, self.beside)
        sessions = [session for pair in pairs for session in (pair.small, pair.large)]
        return list({id(session): session for session in sessions}.values())

    @property
    def pays_above(self) -> int | None:
        """Above so many images in a batch each costs less; None if size matters little."""
        choice = self.plan.beside
        return None if choice.small == choice.large else choice.small_up_to

    def describe(self) -> str:
        """Which graph runs when: "plain", or "one_axis to 4 images, then both_axes"."""
        alone, beside = self.plan.alone, self.plan.beside
        return str(alone) if alone == beside else f"{alone}; beside other batches {beside}"


def one_for_all(session: Session) -> Encoders:
    """The same session for every batch."""
    same = BySize(session, 1, session)
    return Encoders(same, same)


def open_by_size(choice: Choice, opened: Callable[[Form], Session]) -> BySize:
    """The sessions of a choice, each opened once."""
    sessions = {form: opened(form) for form in {choice.small, choice.large}}
    return BySize(sessions[choice.small], choice.small_up_to, sessions[choice.large])
