"""What the explain graph of a bundle gives, from the architecture that its manifest states."""

# T iterations, J classes, D numbers of a pose, K types of the capsules that vote for the classes, at R x R
# positions

import math

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from export.contract.manifest import BundleError, Manifest
from export.contract.receptive_fields import capsule_grids

Shapes = dict[str, tuple[int, ...]]  # of each image


class _Routed(BaseModel):
    """What a manifest states of the capsules that are routed."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    routing_iterations: PositiveInt
    primary_types: PositiveInt
    conv_caps_types: tuple[PositiveInt, PositiveInt] | None = None


def explain_outputs(manifest: Manifest) -> Shapes:
    """The outputs of the explain graph beside the encoder's, and their shapes without the batch axis.

    Of a CapsNet, in each iteration:
        couplings: c, how much of each vote each class gets, [T, J, K, R, R];
        agreements: u_hat . v, which the iteration adds to the logits, [T, J, K, R, R].

    Of matrix capsules, in each iteration:
        assignments: R, before it is multiplied by a child's activation, [T, J, K, R, R];
        distances: from each vote to the class's mean, [T, J, K, R, R];
        and for each convolutional capsule layer, such as `conv_caps.0`, of types x R x R capsules
        conv_caps.0.activations: [T, types, R, R];
        conv_caps.0.distances: the same of the mean distance of its votes, weighted by what is assigned;
        conv_caps.0.entropy: of the assignments to the layer, as a share of the largest, mean over the
            children, weighted by their activations, [T].

    Of both:
        capsules: poses of the class capsules, [T, J, D];
        activations: their lengths, or their activations, [T, J];
        activities: the same of the capsules that vote, [K, R, R].

    Raises:
        BundleError: the manifest does not state the architecture.
    """
    grids = capsule_grids(manifest)
    try:
        routed = _Routed.model_validate(manifest.parameters)
    except ValidationError:
        raise BundleError("manifest: parameters do not state the network's architecture") from None
    types = routed.conv_caps_types or (routed.primary_types,)
    iterations, classes = routed.routing_iterations, len(manifest.class_names)
    size = list(grids.values())[-1].size
    if len(types) != len(grids):
        raise BundleError("manifest: parameters do not state the network's architecture")
    places = (types[-1], size, size)
    votes = (iterations, classes, *places)
    shapes: Shapes = {}
    if manifest.architecture == "capsnet":
        shapes |= {"couplings": votes, "agreements": votes}
    else:
        for (layer, grid), count in zip(grids.items(), types, strict=True):
            capsules = (iterations, count, grid.size, grid.size)
            shapes |= {f"{layer}.activations": capsules, f"{layer}.distances": capsules}
            shapes[f"{layer}.entropy"] = (iterations,)
        shapes |= {"assignments": votes, "distances": votes}
    shapes["capsules"] = (iterations, classes, math.prod(manifest.pose_shape))
    return shapes | {"activations": (iterations, classes), "activities": places}
