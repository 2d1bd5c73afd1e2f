"""Weights: whether they are of a network, and what it begins with."""

import errno
import os
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from training.models.build import Network

DECODER = "decoder."  # how its weights' names begin
REMEDY = "remove the folder of this checkpoint to go on without it"
Shapes = dict[str, tuple[int, ...]]  # of tensors, by name


def start_with(model: Network, weights: dict[str, Tensor]) -> None:
    """Give a model the weights of another run, or of a bundle; a decoder that these lack stays as it is.

    Raises:
        ValueError: they are those of another architecture.
    """
    whole = with_decoder_of(model, weights)
    refuse_other_weights(model, whole, "what it is to start from")
    model.load_state_dict(whole)


def with_decoder_of(model: Network, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a network and, if they are of one without a decoder, those of the model's."""
    if any(name.startswith(DECODER) for name in weights):
        return weights
    own = {name: tensor for name, tensor in model.state_dict().items() if name.startswith(DECODER)}
    return weights | own


def refuse_other_weights(model: Network, weights: dict[str, Tensor], where: str) -> None:
    """Raise unless weights have the names and shapes of a model's.

    Raises:
        ValueError: they are those of another architecture; names one that differs.
    """
    if differs := difference(shapes(model.state_dict()), shapes(weights)):
        raise ValueError(f"{where} holds the weights of another architecture: {differs}")


def shapes(tensors: dict[str, Tensor]) -> Shapes:
    """Of each tensor."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def difference(wanted: Shapes, found: Shapes) -> str:
    """How what a file holds differs from what is wanted, in words; "" if it does not."""
    differing = [name for name in wanted | found if wanted.get(name) != found.get(name)]
    if not differing:
        return ""
    name = differing[0]
    others = f" and {len(differing) - 1} others" if len(differing) > 1 else ""
    return f"{name} is {_shape(found.get(name))} there, {_shape(wanted.get(name))} here{others}"


def _shape(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else str(list(shape))


def load_tensors(path: Path) -> dict[str, Tensor]:
    """What a file of a checkpoint holds.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is damaged.
    """
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}; {REMEDY}") from None
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, f"{os.strerror(errno.ENOENT)}; {REMEDY}", str(path)) from None


def load_finite(path: Path) -> dict[str, Tensor]:
    """The weights in a file of a checkpoint.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is damaged, or a weight is not finite.
    """
    weights = load_tensors(path)
    if broken := not_finite(weights):
        raise ValueError(f"{path} is damaged: {broken[0]} has numbers that are not finite; {REMEDY}")
    return weights


def not_finite(tensors: dict[str, Tensor]) -> list[str]:
    """The names of tensors in which a number is not finite."""
    return [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
