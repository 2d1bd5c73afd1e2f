"""What routing by agreement does in a CapsNet's encoder, as outputs of its graph."""

# N images, T iterations, J classes, I primary capsules = K types x R rows x R columns, D class pose

import onnx

from export.contract.receptive_fields import Grid
from export.explain.iterations import of_each_image, stacked
from export.optimize.encoder_values import EncoderValues
from export.optimize.nodes import Nodes

U, U_HAT = "primary_caps/u", "class_caps/u_hat"


def add_agreement(nodes: Nodes, model: onnx.ModelProto, grid: Grid) -> None:
    """Add nodes behind those of an encoder that give `export.contract.explain_outputs`.

    Args:
        nodes: where to add them.
        model: the encoder.
        grid: of the primary capsules.
    """
    encoder = EncoderValues(model)
    _, classes, capsules, pose = encoder.shape(U_HAT)
    types = capsules // grid.size**2
    places = (types, grid.size, grid.size)
    sums = encoder.readers(U_HAT, "MatMul", 1)  # c times u_hat, once in each iteration
    iterations = len(sums)
    v = [encoder.named(f"class_caps/routing/v_{t}") for t in range(1, iterations)] + ["poses"]

    columns = [nodes.reshape(value, [-1, classes, pose, 1], f"explain/v_{t}") for t, value in enumerate(v, 1)]
    agreements = [
        nodes.add("MatMul", U_HAT, column, name=f"explain/agreement_{t}")
        for t, column in enumerate(columns, 1)
    ]  # [N, J, I, 1] each
    first, *others = (node.input[0] for node in sums)  # [N, J, 1, I] each, the first of no image, [J, 1, I]
    column = nodes.reshape(first, [-1, classes, capsules, 1], "explain/coupling/column")
    couplings = [of_each_image(nodes, column, agreements[0], "explain/coupling"), *others]

    stacked(nodes, couplings, (classes, *places), "couplings")
    stacked(nodes, agreements, (classes, *places), "agreements")
    found = stacked(nodes, v, (classes, pose), "capsules")
    lengths = nodes.reduce("ReduceL2", found, 3, "explain/lengths")
    nodes.reshape(lengths, [-1, iterations, classes], "activations")
    activity = nodes.reduce("ReduceL2", encoder.named(U), 2, "explain/activity")
    nodes.reshape(activity, [-1, *places], "activities")
