"""Fold the official code's primary coupling into the weights: the same network with fewer operations."""

from dataclasses import replace

import torch

from export.graph import CapsuleNetwork
from training.models.capsnet import CapsNet


def weight_factors(model: CapsuleNetwork) -> dict[str, float]:
    """The weights that folding multiplies by a constant, with the constant."""
    if not isinstance(model, CapsNet) or not model.config.primary_coupling:
        return {}
    return {"primary_caps.conv.weight": model.primary_caps.conv.scale}


def fold_coupling(model: CapsuleNetwork) -> CapsuleNetwork:
    """Multiply the weights of PrimaryCapsules' convolution by the constant that scales it.

    Args:
        model: with a primary coupling or without.

    Returns:
        A network whose configuration has no primary coupling. It shares all other weights with the model,
        and is the model itself if that has none.
    """
    if not isinstance(model, CapsNet) or not model.config.primary_coupling:
        return model
    weights = model.state_dict()
    weights["primary_caps.conv.weight"] = model.primary_caps.conv.scaled_weight().detach()
    with torch.device("meta"):  # no random weights: they are replaced at once
        folded = CapsNet(replace(model.config, primary_coupling=False))
    folded.load_state_dict(weights, assign=True)
    return folded.train(model.training)
