"""Values of an encoder as outputs of the explain graph: with an axis of iterations, and one of images."""

from export.optimize.nodes import Nodes


def stacked(nodes: Nodes, values: list[str], shape: tuple[int, ...], name: str) -> str:
    """Values of several iterations, each [N, *shape] in some form, as one, [N, iterations, *shape]."""
    each = [
        nodes.reshape(value, [-1, 1, *shape], f"{name}/iteration_{place}")
        for place, value in enumerate(values, 1)
    ]
    return nodes.add("Concat", *each, name=name, axis=1)


def of_each_image(nodes: Nodes, constant: str, like: str, name: str) -> str:
    """A constant once for each image: in the shape of another value, whose numbers are finite."""
    nothing = nodes.add("Mul", like, nodes.number(f"{name}/0", 0.0), name=f"{name}/nothing")
    return nodes.add("Add", constant, nothing, name=name)
