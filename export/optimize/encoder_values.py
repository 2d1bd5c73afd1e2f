"""The values of an encoder's graph by the names that export gave them, such as `class_caps/routing/v_2`."""

import onnx

from export.contract.manifest import BundleError
from export.optimize.value_shape import shape_of


class EncoderValues:
    """Finds values of an encoder.

    Args:
        model: the encoder, as capsnet-export writes it, with the shapes of its values.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._makers = {name: node for node in model.graph.node for name in node.output}
        self._shapes = {
            value.name: tuple(size or 0 for size in shape_of(value))
            for value in (*model.graph.value_info, *model.graph.output)
        }

    def named(self, name: str) -> str:
        """The name itself, if there is such a value.

        Raises:
            BundleError: there is none.
        """
        if name not in self._makers:
            raise BundleError(f"the encoder has no value {name}; export its run anew")
        return name

    def in_iterations(self, path: str) -> list[str]:
        """The value of each iteration of a loop; export numbers them from 1 if there are several.

        Raises:
            BundleError: there is none.
        """
        found: list[str] = []
        while (name := f"{path}_{len(found) + 1}") in self._makers:
            found.append(name)
        return found or [self.named(path)]

    def maker(self, name: str) -> onnx.NodeProto:
        """The node that computes a value."""
        return self._makers[self.named(name)]

    def steps(self, name: str) -> list[onnx.NodeProto]:
        """The nodes on the way to a value, in their order; the last one computes it.

        Raises:
            BundleError: there is no such value.
        """
        last = self.maker(name)
        return [node for node in self._makers.values() if node.name.startswith(f"{name}/")] + [last]

    def shape(self, name: str) -> tuple[int, ...]:
        """The sizes of a value; 0 where the graph states none, as of the batch."""
        return self._shapes[self.named(name)]

    def readers(self, name: str, operator: str, place: int) -> list[onnx.NodeProto]:
        """The nodes of this operator whose input at this place is the value, in their order."""
        return [
            node
            for node in self._makers.values()
            if node.op_type == operator and len(node.input) > place and node.input[place] == name
        ]
