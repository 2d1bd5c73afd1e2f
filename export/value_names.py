"""The names of a graph's values: `<module>/<name>[_<iteration>]`.

The model says what a value is called (`name_in_graph`) and the tracer which module computes it. A value
without a name is a step towards the next value of its module that has one, or towards what the module
returns. For example, `class_caps/routing/c_2` are the coupling coefficients of the second iteration.

A value that the graph computes once has no number. With learned priors the coefficients of the first
iteration are a constant, so with two iterations those of the second are `class_caps/routing/c`.
"""

from collections import Counter, defaultdict
from itertools import groupby
from typing import NamedTuple

import onnx_ir as ir
from torch.export import ExportedProgram
from torch.fx import Node

from training.models.graph_names import NOTE

_KEY = "capsnet.step"  # of the note on a node
# What the second input of these operators is called.
_SECOND_INPUT = {"Reshape": "shape"} | dict.fromkeys(
    ("ReduceMax", "ReduceSum", "ReduceL2", "ReduceMean", "Squeeze", "Unsqueeze"), "axes"
)


class Step(NamedTuple):
    """What a node helps to compute.

    Attributes:
        number: of the step; the nodes of one step share it.
        module: that computes it, `class_caps/routing`; empty for the outermost.
        name: that the model gives the value; empty for what a module returns without naming it.
    """

    number: int
    module: str
    name: str

    @property
    def path(self) -> str:
        """Module and name."""
        return "/".join(part for part in (self.module, self.name) if part)


def note_steps(program: ExportedProgram) -> None:
    """Take the model's names out of a traced program and note on its nodes what they help to compute."""
    names = _take_names(program)
    unnamed: dict[str, list[Node]] = defaultdict(list)  # by module: nodes on the way to its next value
    for number, node in enumerate(program.graph.nodes):
        if node.op != "call_function":
            continue
        module = _module(node)
        unnamed[module].append(node)
        if node in names or _is_returned(node, module):
            step = Step(number, module, names.get(node, ""))
            for part in unnamed.pop(module):
                part.meta["custom"] = {**part.meta.get("custom", {}), _KEY: step}


def _take_names(program: ExportedProgram) -> dict[Node, str]:
    """The names by the nodes that compute the values; a value with several names keeps the first."""
    names: dict[Node, str] = {}
    for node in list(program.graph.nodes):
        if node.target is NOTE:
            value, name = node.args
            names.setdefault(value, name)
            program.graph.erase_node(node)
    return names


def _module(node: Node) -> str:
    """Path of the innermost module of ours that computes a node: `class_caps/routing`."""
    paths = [path for path, _ in node.meta.get("nn_module_stack", {}).values() if path]
    dotted = paths[-1] if paths else ""
    return dotted.removeprefix("model").removeprefix(".").replace(".", "/")


def _is_returned(node: Node, module: str) -> bool:
    """Whether something outside of the module reads the value."""
    return any(user.op == "output" or _module(user) != module for user in node.users)


def keep_steps(model: ir.Model) -> None:
    """Copy the notes from the traced nodes to the ONNX nodes, where the optimizer leaves them."""
    for node in model.graph:
        step = node.meta["node"].meta.get("custom", {}).get(_KEY)
        if step is not None:  # None for the size of the batch, which no node reads in the end
            node.metadata_props[_KEY] = "|".join(map(str, step))


def name_values(model: ir.Model) -> None:
    """Rename every value that is not an input, output or weight, and its node.

    The last node of a step gives the value its name; those before it add their operator to the name. A
    constant is named after the node that reads it first.
    """
    ends = {id(value) for value in (*model.graph.inputs, *model.graph.outputs)}
    steps = [list(nodes) for _, nodes in groupby(model.graph, key=_step)]
    for name, nodes in zip(_names(steps), steps, strict=True):
        for position, node in enumerate(nodes):
            last = position == len(nodes) - 1
            node.name = name if last else f"{name}/{node.op_type.lower()}_{position}"
            if id(node.outputs[0]) not in ends:
                node.outputs[0].name = node.name
    _name_initializers(model.graph)


def _names(steps: list[list[ir.Node]]) -> list[str]:
    """The name of each step; what a loop computes several times is numbered."""
    occurrences = Counter(_path(nodes) for nodes in steps)
    iterations: Counter[str] = Counter()  # of a module's loop: how often its busiest value is computed
    for nodes in steps:
        module = _step(nodes[0]).module
        iterations[module] = max(iterations[module], occurrences[_path(nodes)])
    names, seen = [], Counter[str]()
    for nodes in steps:
        path = _path(nodes)
        seen[path] += 1
        # What is constant in the first iteration is folded away: the last ones have the same number.
        iteration = iterations[_step(nodes[0]).module] - occurrences[path] + seen[path]
        names.append(f"{path}_{iteration}" if occurrences[path] > 1 else path)
    return names


def _step(node: ir.Node) -> Step:
    number, module, name = node.metadata_props[_KEY].split("|")
    return Step(int(number), module, name)


def _path(nodes: list[ir.Node]) -> str:
    """Module and name of a step; for what the outermost module returns, the output's name."""
    first = nodes[0]
    output = first.outputs[0].name if first.outputs[0].is_graph_output() else None
    return _step(first).path or output or first.op_type.lower()


def _name_initializers(graph: ir.Graph) -> None:
    """Weights by their place in the model, constants by the first node that reads them."""
    weights = {id(value) for value in graph.initializers.values() if "." in (value.name or "")}
    named: set[int] = set()
    for node in graph:
        for value in node.inputs:
            if value is None or not value.is_initializer() or id(value) in named:
                continue
            named.add(id(value))
            assert value.name is not None  # an initializer is found by its name
            weight = value.name.removeprefix("model.").removeprefix("decoder.")
            value.name = weight if id(value) in weights else f"{node.name}/{_role(node, value)}"


def _role(node: ir.Node, value: ir.Value) -> str:
    """What a constant is to the node that reads it first."""
    place = list(node.inputs).index(value)
    if place == 1 and node.op_type in _SECOND_INPUT:
        return _SECOND_INPUT[node.op_type]
    return f"constant_{place}"
