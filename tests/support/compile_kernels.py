"""`python -m tests.support.compile_kernels 80 90`: compile the kernels in Triton for chips that are not here.

Prints how often each exchanges data between threads, as a line of JSON for each compute capability.
"""

import json
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from training.models.cuda import em_backward, em_forward, fused_em, fused_routing, routing_kernels

NUMBERS = {"mass_floor", "variance_floor", "eta"}
COUNTS = {"batch", "types", "children", "reach", "positions", "lower", "upper", "lower_dim", "upper_dim"}
COUNTS |= {"iterations", *(f"stride_{axis}" for axis in "pjnbi")}
INDICES = {"child", "places", "counts"}
DIGITS = fused_routing.tiles(lower_dim=8, upper=10, upper_dim=16) | {"none_of_the_above": True}
LAUNCHES = [
    (routing_kernels.route_once, {"is_first": True, "chunk": fused_routing.CHUNK, **DIGITS}),
    (routing_kernels.route_once, {"is_first": False, "chunk": fused_routing.CHUNK, **DIGITS}),
    (routing_kernels.gradients_of_iteration, {"chunk": fused_routing.CHUNK, **DIGITS}),
    (routing_kernels.gradients_of_factors, DIGITS),
    (em_forward.m_step, {"is_last": False, **fused_em.SOME_CHILDREN}),
    (em_forward.m_step, {"is_last": True, **fused_em.SOME_CHILDREN}),
    (em_forward.e_step, {"type_tile": 16, **fused_em.ONE_CHILD}),
    (em_backward.gradients_of_parent, {"is_last": False, **fused_em.SOME_CHILDREN}),
    (em_backward.gradients_of_parent, {"is_last": True, **fused_em.SOME_CHILDREN}),
    (em_backward.gradients_of_matrix, fused_em.ONE_CHILD),
    (em_backward.gradients_of_child, fused_em.ONE_CHILD),
]


def type_of(argument: str) -> str:
    """In Triton's words."""
    kinds = {"fp32": NUMBERS, "i32": COUNTS, "*i64": INDICES}
    return next((kind for kind, names in kinds.items() if argument in names), "*fp32")


def exchanges(kernel, options, capability: int) -> int:
    """Barriers and shuffles in a kernel that is compiled."""
    constants = {name: value for name, value in options.items() if name in kernel.arg_names}
    types = {name: "constexpr" if name in constants else type_of(name) for name in kernel.arg_names}
    others = {name: value for name, value in options.items() if name not in constants}
    source = ASTSource(
        kernel, types, {(kernel.arg_names.index(name),): constants[name] for name in constants}
    )
    target = GPUTarget("cuda", capability, warp_size=32)
    ptx = triton.compile(source, target=target, options=others).asm["ptx"]
    return ptx.count("bar.sync") + ptx.count("shfl.sync")


def main(capabilities: list[str]) -> None:
    for capability in map(int, capabilities):
        found = [(kernel.__name__, exchanges(kernel, options, capability)) for kernel, options in LAUNCHES]
        sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
