"""Familiar viewpoints, which networks are trained on, and novel ones (Sec. 5.1, Hinton et al. 2018)."""

# N stereo pairs

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from training.data.readers.smallnorb import ToySplit
from training.data.split import Split

FAMILIAR_DEGREES = {"azimuth": (300, 320, 340, 0, 20, 40), "elevation": (30, 35, 40)}


def degrees(split: Split, along: Literal["azimuth", "elevation"]) -> NDArray[np.int64]:
    """The azimuth or the elevation that each pair of smallnorb or toys was taken from, int64 [N]."""
    assert isinstance(split, ToySplit)  # a configuration with anything else is refused
    return split.azimuth_degrees if along == "azimuth" else split.elevation_degrees


def are_familiar(split: Split, along: Literal["azimuth", "elevation"]) -> NDArray[np.bool_]:
    """Whether each pair was taken from a third of the azimuths, or of the elevations, bool [N]."""
    return np.isin(degrees(split, along), FAMILIAR_DEGREES[along])
