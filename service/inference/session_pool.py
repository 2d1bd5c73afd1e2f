"""The encoder's sessions: which graph runs a batch, and on how many cores."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import onnxruntime as ort

from export.optimize.plan import PLAIN, Choice, Form, Plan
from service.inference.gpu_session import GpuSession

Session: TypeAlias = ort.InferenceSession | GpuSession


@dataclass(frozen=True)
class BySize:
    """Sessions for the sizes of batches.

    Attributes:
        sessions: from the one for small batches to the one for large ones.
        borders: images in a batch, at most, for each of them but the last; ascending.
    """

    sessions: Sequence[Session]
    borders: Sequence[int] = ()

    def session(self, images: int) -> Session:
        """The one for so many images."""
        return self.sessions[bisect_left(self.borders, images)]


@dataclass(frozen=True)
class Encoders:
    """Sessions of one encoder.

    Attributes:
        alone: for a batch that has all cores to itself.
        beside: for one beside others, with a share of the cores.
        plan: the graphs they run.
        folder: that keeps the plan, if there is one.
    """

    alone: BySize
    beside: BySize
    plan: Plan = PLAIN
    folder: Path | None = None

    def session(self, images: int, *, alone: bool) -> Session:
        """The one for so many images."""
        return (self.alone if alone else self.beside).session(images)

    @property
    def all(self) -> list[Session]:
        """Each session once."""
        sessions = [*self.alone.sessions, *self.beside.sessions]
        return list({id(session): session for session in sessions}.values())

    @property
    def pays_above(self) -> int | None:
        """Above so many images in a batch each costs less; None if size matters little."""
        borders = self.plan.beside.borders
        return borders[-1] if borders else None

    def describe(self) -> str:
        """Which graph runs when: "plain", or "one_axis to 4 images, then both_axes"."""
        alone, beside = self.plan.alone, self.plan.beside
        words = str(alone) if alone == beside else f"{alone}; beside other batches {beside}"
        return f"{words}; measured under load" if self.plan.is_under_load else words


def one_for_all(session: Session) -> Encoders:
    """The same session for every batch."""
    same = BySize([session])
    return Encoders(same, same)


def open_by_size(choice: Choice, opened: Callable[[Form], Session]) -> BySize:
    """The sessions of a choice, each opened once."""
    sessions = {form: opened(form) for form in dict.fromkeys(choice.forms)}
    return BySize([sessions[form] for form in choice.forms], choice.borders)
