"""The explain graph of a bundle: its encoder with further outputs, which show every iteration of routing.

The encoder's own nodes stay as they are, so the last iteration is the encoder's answer. The first outputs are
the encoder's, the others are described in `export.contract.explain_outputs`. The graph is static as all are.
"""

import onnx
from onnx import TensorProto, helper

from export.contract.explain_outputs import explain_outputs
from export.contract.manifest import Manifest
from export.contract.receptive_fields import capsule_grids
from export.explain.agreement import add_agreement
from export.explain.em import add_em
from export.optimize.nodes import Nodes


def explain_graph(encoder: onnx.ModelProto, manifest: Manifest) -> onnx.ModelProto:
    """The explain graph, its weights in it.

    Args:
        encoder: the bundle's, as capsnet-export wrote it.
        manifest: of the bundle; states the architecture.

    Raises:
        BundleError: the encoder lacks a value that the graph shows, or the manifest its architecture.
    """
    grids, nodes = capsule_grids(manifest), Nodes()
    if manifest.architecture == "capsnet":
        add_agreement(nodes, encoder, grids["primary_caps"])
    else:
        add_em(nodes, encoder, grids)
    for node in nodes.nodes:  # an encoder's node may be called as an output is
        node.name = f"explain: {node.name}"
    made = onnx.ModelProto()
    made.CopyFrom(encoder)
    made.graph.node.extend(nodes.nodes)
    made.graph.initializer.extend(nodes.constants)
    batch = encoder.graph.output[0].type.tensor_type.shape.dim[0].dim_param
    made.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, *shape])
        for name, shape in explain_outputs(manifest).items()
    )
    onnx.checker.check_model(made, full_check=True)
    return made
