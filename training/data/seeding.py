"""Random choices that are a function of a seed and of an index, such as a step or a round."""

from typing import NamedTuple

import torch
from torch import Tensor

ALL = slice(None)


class RandomChoices(NamedTuple):
    """Random choices for each image of a batch, of which a process may train on a part.

    They are made for the whole batch, and those of the part are returned. So an image is changed in the same
    way however many processes share its batch.

    Attributes:
        generator: on the device where the images are.
        batch: images in the whole batch.
        part: which of them are wanted.
    """

    generator: torch.Generator
    batch: int
    part: slice = ALL

    def integers(self, below: int, before: tuple[int, ...] = (), after: tuple[int, ...] = ()) -> Tensor:
        """Numbers from 0, int64 [*before, B, *after] for the B images of the part."""
        shape, device = (*before, self.batch, *after), self.generator.device
        every = torch.randint(below, shape, generator=self.generator, device=device)
        return every[(ALL,) * len(before) + (self.part,)]

    def uniform(self) -> Tensor:
        """A number from 0 to 1 for each of the B images of the part, float32 [B]."""
        return torch.rand(self.batch, generator=self.generator, device=self.generator.device)[self.part]

    def normal(self, after: tuple[int, ...]) -> Tensor:
        """Standard normal numbers for each of the B images of the part, float32 [B, *after]."""
        shape, device = (self.batch, *after), self.generator.device
        return torch.randn(shape, generator=self.generator, device=device)[self.part]


def generator_for(seed: int, index: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator on the device that makes the same choices whenever it is asked for with these arguments.

    Args:
        seed: of the run or of the data set, at least 0.
        index: of the step, epoch or round that the choices are for.
        device: where the choices are made; the same seed gives others on another kind of device.
    """
    return torch.Generator(device).manual_seed(seed_for(seed, index))


def seed_for(seed: int, index: int) -> int:
    """The seed of that generator."""
    return (seed * 1_000_003 + index) % 2**63
