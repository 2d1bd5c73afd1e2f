"""The two sets of stereo pairs that matrix capsules are measured on, each under its own name.

smallNORB is the paper's and has to be downloaded; toys the repository makes. Where both are there, an
experiment is carried out on both, and no number of one stands for the other.
"""

from dataclasses import replace

from training.config import MatrixCapsNetConfig, RunConfig, load_preset

SMALLNORB, TOYS = "smallnorb", "toys"
PAPERS = SMALLNORB  # the set that the paper's numbers are of


def without_decoder(preset: str) -> RunConfig:
    """A preset's matrix capsules as in the paper, which draw nothing."""
    config = load_preset(preset)
    assert isinstance(config.model, MatrixCapsNetConfig)
    return replace(config, model=replace(config.model, decoder_hidden=()))


def said_of(data: str) -> str:
    """What a report has to say of numbers on a data set."""
    if data == PAPERS:
        return ""
    return f"{data} is not {PAPERS}, on which the paper's numbers were measured: the two do not compare."
