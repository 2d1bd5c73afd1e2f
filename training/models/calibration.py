"""Calibration of EM routing on the first batch: activations that vary over images from the first step on.

The logit of an activation is lambda times what a parent's costs leave of its budget (Eq. 2). How far costs
vary over images depends on the pictures' contrast, on the spread of the votes and on the size of receptive
fields: 6 nats in one layer, 40 in another. With one small lambda for all, activations hardly vary. So each
layer's lambda and its mean cost are measured once, as other data-dependent initializations do.
"""

# N images, S child positions, I child types, P parent positions, J parent types

import torch
from torch import Tensor

from training.models.em import Capsules
from training.models.matrix_capsnet import MatrixCapsNet
from training.models.matrix_capsules import MatrixCapsules

AT_ONCE = 8  # images: their votes take memory
ROUNDS = 3  # lambda acts back on costs through the assignments of the next iteration


@torch.no_grad()
def calibrate(model: MatrixCapsNet, pixels: Tensor, brightness_contrast: Tensor | None = None) -> None:
    """Set lambda and the budgets' offsets of the convolutional capsule layers, from below, in place.

    Afterwards, in the last iteration, the logits of a layer's activations have the configured standard
    deviation over these images (median over the capsules) and a mean near 0: near it over all types, not
    for each one, because budgets act back on the assignments that types compete for. A network that is not
    configured for it stays as it is.

    Args:
        model: with its first weights.
        pixels: the images that the first step learns from, [N, C, H, W], 0 to 1.
        brightness_contrast: that they are shown with, [N, 2].

    Raises:
        ValueError: costs are the same for all images, with the first lambda or with one that they ask for.
    """
    target = model.config.activation_logit_sd
    if target is None or model.config.mixing_proportions:
        return
    children = model.primary_capsules(pixels, brightness_contrast)
    for layer in model.conv_caps:
        assert isinstance(layer, MatrixCapsules)
        for done in range(ROUNDS):
            costs = _costs(layer, children)
            if done and not costs.std(dim=0).median() > 0:
                raise ValueError(
                    "the first batch cannot calibrate EM routing: with activations that follow the costs, "
                    "these no longer vary; try another --seed or preset"
                )
            layer.routing.calibrate(costs, target)
        children = layer(children)


def _costs(layer: MatrixCapsules, children: Capsules) -> Tensor:
    """Of each parent in the last iteration, nats, [N, P, J]."""
    found = []
    for group in zip(*(part.split(AT_ONCE) for part in children), strict=True):
        *_, last = layer.iterations(Capsules(*group))
        found.append(layer.routing.costs(last.mass, last.variance))
    return torch.cat(found)
