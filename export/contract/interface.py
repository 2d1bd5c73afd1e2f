"""What goes into a bundle's graphs and comes out, by the classes and the preprocessing of its manifest."""

import math
from collections.abc import Mapping

from export.contract.explain_outputs import explain_outputs
from export.contract.manifest import BundleError, Manifest


def check_contract(manifest: Manifest) -> None:
    """The manifest describes graphs as the service runs them.

    Raises:
        BundleError: it describes others; names the graph and the tensor.
    """
    facts, classes = manifest.preprocessing, len(manifest.class_names)
    picture = (None, facts.height, facts.width, facts.channels)
    poses = (None, classes, math.prod(manifest.pose_shape))
    answer = {"probabilities": (None, classes), "poses": poses}
    shown = explain_outputs(manifest) if "explain" in manifest.graphs else {}
    expected: Mapping[str, tuple[Mapping[str, object], Mapping[str, object]]] = {
        "encoder": ({"pixels": picture}, answer),
        "explain": ({"pixels": picture}, answer | {name: (None, *shape) for name, shape in shown.items()}),
        "decoder": ({"poses": poses, "mask": (None, classes)}, {"reconstruction": picture}),
    }
    for role, graph in manifest.graphs.items():
        found = tuple({t.name: t.shape for t in tensors} for tensors in (graph.inputs, graph.outputs))
        if found != expected[role]:
            raise BundleError(
                f"manifest: the {role} has {found}; with these classes it needs {expected[role]}"
            )
