"""The names that values have in exported graphs, which a model gives them where it computes them.

Export writes them behind the module's path, and counts the iterations of a loop: `c` of the second iteration
is `class_caps/routing/c_2`. Training and inference in PyTorch skip them.
"""

import torch
from torch import Tensor


@torch.library.custom_op("capsnet::name_in_graph", mutates_args=())
def _note(value: Tensor, name: str) -> None:
    """A node of the traced graph that export reads and removes."""


@_note.register_fake
def _(value: Tensor, name: str) -> None: ...


NOTE = torch.ops.capsnet.name_in_graph.default
torch.fx.node.has_side_effect(NOTE)  # else it would be removed, because nothing reads its output


def name_in_graph(**values: Tensor) -> None:
    """Give values their names in an exported graph: `name_in_graph(c=c, s=s)`."""
    if torch.compiler.is_exporting():
        for name, value in values.items():
            _note(value, name)
