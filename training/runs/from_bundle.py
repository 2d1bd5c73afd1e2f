"""A published bundle as the network that it was made of, and as what a run begins with.

A CapsNet's graphs hold its weights under their own names.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import numpy_helper
from torch import Tensor

from export.contract.manifest import (
    MANIFEST_FILE,
    VERSION,
    BundleError,
    Manifest,
    newest_version,
    read_checked,
    read_manifest,
)
from training.config import CapsNetConfig, MatrixCapsNetConfig, RunConfig, from_dict
from training.models.build import Network, build
from training.models.capsnet import CapsNet
from training.runs.matrix_bundle import read_encoder
from training.runs.weights import start_with


def is_bundle(path: Path) -> bool:
    """Whether this is a version of a model, or a model's folder with versions in it."""
    return (path / MANIFEST_FILE).exists() or any(
        VERSION.fullmatch(entry.name) and entry.is_dir() for entry in path.glob("*")
    )


def origin(path: Path) -> dict[str, Any]:
    """How a bundle's weights came about, and which bundle it is: configuration and progress of its run.

    Args:
        path: of the bundle, or of its model, whose newest version is taken.

    Raises:
        BundleError: its manifest is damaged, or does not say how it was trained, and for how many steps.
        ValueError: it is none of a CapsNet.
    """
    bundle = newest_version(path)
    manifest = read_manifest(bundle)
    architecture = run_config(manifest).model.architecture
    if architecture != "capsnet":
        raise ValueError(
            f"{bundle} is a {architecture}, whose graphs do not hold all weights: give its run instead"
        )
    if not isinstance(manifest.training.get("step"), int):
        raise BundleError(f"the manifest of {manifest.model} has no training.step: how long was it trained?")
    version = bundle.name if VERSION.fullmatch(bundle.name) else bundle.resolve().name
    return {"bundle": f"{manifest.model}/{version}", **manifest.training}


def trained_config(path: Path) -> RunConfig:
    """The configuration of the run that a bundle comes from; of a model, that of its newest version.

    Raises:
        BundleError: its manifest is damaged, or does not say how it was trained.
    """
    return run_config(read_manifest(newest_version(path)))


def network(path: Path) -> Network:
    """The network of a bundle, in evaluation mode; of matrix capsules without its decoder.

    Args:
        path: of the bundle, or of its model, whose newest version is taken.

    Raises:
        BundleError: a file is damaged or missing, or the manifest does not say how it was trained.
        ValueError: the graphs do not hold all weights.
    """
    config = trained_config(path).model
    if isinstance(config, MatrixCapsNetConfig):
        return read_encoder(path, replace(config, decoder_hidden=()))
    model = build(config)
    start_with(model, weights(path, origin(path)["bundle"]))
    return model.eval()


def weights(path: Path, named: str) -> dict[str, Tensor]:
    """The weights of a bundle's CapsNet, as its `state_dict` has them.

    Args:
        path: as `origin` was given it.
        named: the bundle that `origin` found; newer versions may have been published since.

    Raises:
        BundleError: a graph is missing, or not the one that the manifest describes.
        ValueError: the graphs do not hold all weights, because export computed with some of them; or the
            manifest does not say which ones it multiplied by a constant.
    """
    version = path / named.rpartition("/")[2]
    bundle = version if version.is_dir() else path
    manifest = read_manifest(bundle)
    config = run_config(manifest).model
    assert isinstance(config, CapsNetConfig)
    held: dict[str, Tensor] = {}
    for role, prefix in {"encoder": "", "decoder": "decoder."}.items():
        if role not in manifest.graphs:
            continue
        model = onnx.load_model_from_string(read_checked(bundle, manifest.graphs[role]))
        for tensor in model.graph.initializer:
            held[prefix + tensor.name] = torch.from_numpy(numpy_helper.to_array(tensor).copy())
    with torch.device("meta"):
        network = CapsNet(config)
    wanted = network.state_dict()
    if missing := [name for name in wanted if name not in held]:
        raise ValueError(f"{bundle}: its graphs do not hold {', '.join(missing)}: give its run instead")
    factors = manifest.graphs["encoder"].weight_factors
    if factors is None:
        raise ValueError(f"{bundle}: its manifest lacks the encoder's weight_factors: give its run instead")
    for name, factor in factors.items():
        held[name] /= factor
    return {name: held[name] for name in wanted}


def run_config(manifest: Manifest) -> RunConfig:
    """The configuration of the run that a bundle comes from.

    Raises:
        BundleError: there is none, or it is not valid.
    """
    of_model = f"the manifest of {manifest.model}"
    if "config" not in manifest.training:
        raise BundleError(f"{of_model} has no training.config: how was it trained?")
    try:
        return from_dict(manifest.training["config"])
    except ValueError as error:
        raise BundleError(f"{of_model}: training.config: {error}") from None
