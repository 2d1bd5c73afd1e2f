"""A published bundle as what a run begins with: its graphs hold a CapsNet's weights under their own names."""

from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import numpy_helper
from torch import Tensor

from export.contract.manifest import MANIFEST_FILE, VERSION, newest_version, read_checked, read_manifest
from training.config import CapsNetConfig, from_dict
from training.models.capsnet import CapsNet


def is_bundle(path: Path) -> bool:
    """Whether this is a version of a model, or a model's folder with versions in it; no run has either."""
    return (path / MANIFEST_FILE).exists() or any(VERSION.fullmatch(entry.name) for entry in path.glob("*"))


def origin(path: Path) -> dict[str, Any]:
    """How a bundle's weights came about, and which bundle it is: configuration and progress of its run."""
    bundle = newest_version(path)
    manifest = read_manifest(bundle)
    return {"bundle": f"{manifest.model}/{bundle.resolve().name}", **manifest.training}


def weights(path: Path) -> dict[str, Tensor]:
    """The weights of a bundle's CapsNet, as its `state_dict` has them.

    Args:
        path: of the bundle, or of its model, whose newest version is taken.

    Raises:
        BundleError: a graph is missing, or not the one that the manifest describes.
        ValueError: the graphs do not hold all weights: the bundle is none of a CapsNet, or export computed
            with some of them.
    """
    bundle = newest_version(path)
    manifest = read_manifest(bundle)
    config = from_dict(manifest.training["config"]).model
    if not isinstance(config, CapsNetConfig):
        raise ValueError(  # noqa: TRY004  # the bundle is wrong, not an argument's type
            f"{bundle} is a {config.architecture}, whose graphs do not hold all weights: start from its run"
        )
    held: dict[str, Tensor] = {}
    for role, graph in manifest.graphs.items():
        model = onnx.load_model_from_string(read_checked(bundle, graph))
        prefix = "decoder." if role == "decoder" else ""
        for tensor in model.graph.initializer:
            held[prefix + tensor.name] = torch.from_numpy(numpy_helper.to_array(tensor).copy())
    with torch.device("meta"):
        network = CapsNet(config)
    wanted = network.state_dict()
    if missing := [name for name in wanted if name not in held]:
        raise ValueError(f"{bundle}: its graphs do not hold {', '.join(missing)}: start from its run")
    held["primary_caps.conv.weight"] /= network.primary_caps.conv.scale  # which export multiplied it by
    return {name: held[name] for name in wanted}
