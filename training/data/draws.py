"""Random choices that are a function of a seed and of an index, such as a step or a round."""

import torch


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
