"""What EM routing does in matrix capsules: whether activations vary, and whether that matters."""

# N images, B batch, S child positions, I child types, P parent positions, J parent types, K child
# positions in a receptive field, N children of a parent in assignments [B, P, J, N]

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from training.data.batches import Batch
from training.models.em import Capsules, Iteration
from training.models.matrix_capsnet import MatrixCapsNet
from training.models.matrix_capsules import MatrixCapsules

AT_ONCE = 16  # images: their votes take memory
SATURATED = 0.01  # an activation nearer than this to 0 or 1


@dataclass(frozen=True)
class Activity:
    """What a layer's capsules do in an iteration of routing; a unit is a capsule of one type at one position.

    Attributes:
        layer: its name in the network.
        iteration: from 1; 0 for the primary capsules, which are not routed.
        sd: standard deviation of a unit's activation over the images: quartiles over the units, the median
            in the middle.
        saturated: share of the activations below 0.01 or above 0.99.
        entropy: of the assignments that the M-step begins with, as a share of its maximum, that of a child
            which gives the same to all parents that it reaches; mean over children, of equal weight, other
            than in the explain graph. None without routing.
        mass: assigned to a parent, mean over parents. None without routing.
    """

    layer: str
    iteration: int
    sd: tuple[float, float, float]
    saturated: float
    entropy: float | None = None
    mass: float | None = None


@dataclass(frozen=True)
class Frozen:
    """How the network answers when each activation of some layers is its mean over the images.

    Attributes:
        layers: their names.
        error_percent: share of the images whose class is not the most active one.
        changed_percent: share of the images that get another answer than before.
    """

    layers: tuple[str, ...]
    error_percent: float
    changed_percent: float


@dataclass(frozen=True)
class Inspection:
    """What was found on some images.

    Attributes:
        images: how many.
        error_percent: share of them whose class is not the most active one.
        activity: of each layer and iteration, in the order of the network.
        frozen: of each layer below the class capsules, then of both convolutional capsule layers.
    """

    images: int
    error_percent: float
    activity: tuple[Activity, ...]
    frozen: tuple[Frozen, ...]


@torch.no_grad()
def inspect(model: MatrixCapsNet, batch: Batch) -> Inspection:
    """Measure the activations of every layer, and freeze them.

    Args:
        model: on any device; it is left in the mode it was in.
        batch: at least two images that show one object each.
    """
    batch = batch.to(next(model.parameters()).device)
    with _evaluating(model):
        labels, before = batch.targets.argmax(dim=1), _answers(model, batch.pixels)
        below = {"primary_caps": model.primary_caps, **_convolutional(model)}
        means = {name: _outputs(model, layer, batch.pixels).mean(dim=0) for name, layer in below.items()}
        frozen = []
        for names in (*((name,) for name in below), tuple(_convolutional(model))):
            with ExitStack() as hooks:
                for name in names:
                    hooks.enter_context(_frozen(below[name], means[name]))
                answers = _answers(model, batch.pixels)
            frozen.append(Frozen(names, _percent(answers != labels), _percent(answers != before)))
    return Inspection(len(batch), _percent(before != labels), activity(model, batch.pixels), tuple(frozen))


@torch.no_grad()
def activity(model: MatrixCapsNet, pixels: Tensor) -> tuple[Activity, ...]:
    """Measure the activations of every layer in every iteration on images [N, C, H, W], at least two."""
    with _evaluating(model):
        primary = _outputs(model, model.primary_caps, pixels)
        found = [Activity("primary_caps", 0, *_variation(primary))]
        for name, layer in {**_convolutional(model), "class_caps": model.class_caps}.items():
            found += _of_layer(name, layer, _inputs(model, layer, pixels))
    return tuple(found)


def summary(found: tuple[Activity, ...]) -> dict[str, float]:
    """Of each layer's last iteration the numbers for a log, by name."""
    last = {of.layer: of for of in found}
    return {
        f"{layer}_{what}": value
        for layer, of in last.items()
        for what, value in {
            "sd": of.sd[1],
            "saturated": of.saturated,
            "entropy": of.entropy,
            "mass": of.mass,
        }.items()
        if value is not None
    }


def _convolutional(model: MatrixCapsNet) -> dict[str, nn.Module]:
    return {f"conv_caps.{index}": layer for index, layer in enumerate(model.conv_caps)}


def _of_layer(name: str, layer: nn.Module, groups: list[Capsules]) -> Iterator[Activity]:
    """From the layer's children, some images at a time."""
    assert isinstance(layer, MatrixCapsules)
    steps: list[list[tuple[Tensor, float, float]]] = [[] for _ in range(layer.routing.iterations)]
    for children in groups:
        for found, step in zip(steps, layer.iterations(children), strict=True):
            count = len(children.poses)
            entropy, mass = _entropy(step, layer), float(step.mass.mean())
            found.append((step.log_activations.exp(), count * entropy, count * mass))
    for iteration, found in enumerate(steps, 1):
        activations, entropies, masses = zip(*found, strict=True)
        together = torch.cat(activations)
        images = len(together)
        sd, saturated = _variation(together)
        yield Activity(name, iteration, sd, saturated, sum(entropies) / images, sum(masses) / images)


def _entropy(step: Iteration, layer: MatrixCapsules) -> float:
    """Of a child's assignments, as a share of its maximum: mean over images and children."""
    fields = layer.fields
    shape = *step.mean.shape[:3], step.assignments.shape[-1]
    assignments = step.assignments.expand(shape)
    summands = -torch.xlogy(assignments, assignments).sum(dim=2)  # [B, P, N]
    parents = fields.counts[fields.inside] * shape[2]  # that a child reaches, [P, K]
    types = shape[3] // fields.inside.shape[1]
    largest = parents.clamp(min=2).log().repeat_interleave(types, dim=1)  # [P, N]
    children = int((fields.counts > 0).sum()) * types
    return float((summands / largest).sum()) / (shape[0] * children)


def _variation(activations: Tensor) -> tuple[tuple[float, float, float], float]:
    """Quartiles over units of the deviation over images, and the share that is saturated: of [N, S, I]."""
    quarters = torch.tensor([0.25, 0.5, 0.75], device=activations.device)
    low, median, high = activations.std(dim=0).flatten().quantile(quarters).tolist()
    saturated = (activations < SATURATED) | (activations > 1 - SATURATED)
    return (low, median, high), float(saturated.float().mean())


def _answers(model: MatrixCapsNet, pixels: Tensor) -> Tensor:
    """The most active class of each image, [N]."""
    return torch.cat([model(some).activations.argmax(dim=1) for some in pixels.split(AT_ONCE)])


def _inputs(model: MatrixCapsNet, layer: nn.Module, pixels: Tensor) -> list[Capsules]:
    """What the layer is given, some images at a time."""
    given = list[Capsules]()
    with layer.register_forward_pre_hook(lambda _, arguments: given.extend(arguments)):
        _answers(model, pixels)
    return given


def _outputs(model: MatrixCapsNet, layer: nn.Module, pixels: Tensor) -> Tensor:
    """The layer's activations, [N, S, I]."""
    given = list[Tensor]()
    with layer.register_forward_hook(lambda _, __, capsules: given.append(capsules.activations)):
        _answers(model, pixels)
    return torch.cat(given)


@contextmanager
def _frozen(layer: nn.Module, mean: Tensor) -> Iterator[None]:
    """The layer with constant activations [S, I]; its poses stay as they are."""

    def replace(_: nn.Module, __: object, capsules: Capsules) -> Capsules:
        return Capsules(capsules.poses, mean.expand_as(capsules.activations))

    with layer.register_forward_hook(replace):
        yield


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def _percent(of: Tensor) -> float:
    return 100 * float(of.float().mean())
