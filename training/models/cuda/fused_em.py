"""EM routing for training on CUDA: votes are made where they are wanted, and never written down.

As array operations EM routing writes its votes to memory and reads them again and again, and does little but
wait for memory. Here an iteration is two kernels (`em_forward.py`): an M-step for each parent, and an E-step
for each child. The way back takes three (`em_backward.py`): for each parent, matrix and child. What is kept
for it are the assignments, a sixteenth of the votes' size, and the parents. The gradients are derived in
`../cpu/fused_em.py`, and the arguments are those of its `route`. Nothing here waits for the GPU, so that CUDA
graphs can record it.
"""

# letters as in `em_tiles.py`; T iterations

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from training.models.cuda import em_backward, em_forward

EXAMPLES = 32  # in a tile: one in each thread of a warp
CHILDREN = 8  # in a tile of a program that works on a parent: one in each warp
ONE_CHILD: dict[str, Any] = {"example_tile": EXAMPLES, "num_warps": 1, "enable_fp_fusion": True}
SOME_CHILDREN: dict[str, Any] = {**ONE_CHILD, "child_tile": CHILDREN, "num_warps": CHILDREN}


def route(
    poses: Tensor,
    activations: Tensor,
    matrices: Tensor,
    offsets: Tensor,
    child: Tensor,
    places: Tensor,
    counts: Tensor,
    shares: Tensor,
    beta_u: Tensor,
    budget: Tensor,
    inverse_temperatures: Sequence[float | Tensor],
    floors: tuple[float, float],
    density_exponent: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """EM routing with the arguments and results of `training.models.cpu.fused_em.route`, on a CUDA device."""
    lambdas = [x if isinstance(x, Tensor) else poses.new_full((), x) for x in inverse_temperatures]
    with torch.cuda.device_of(poses):
        means, log_activations = _FusedEM.apply(
            poses.movedim(0, -1).contiguous(),  # [C, 16, B]
            activations.movedim(0, -1).contiguous(),  # [C, B]
            matrices.contiguous(),
            beta_u,
            budget,
            (offsets, child, places, counts, shares),
            lambdas,
            (*floors, density_exponent),
        )
    return means.movedim(-1, 0), log_activations.movedim(-1, 0)


class _FusedEM(torch.autograd.Function):
    """`route` with examples last; it has gradients by poses, activations, matrices, beta_u and budget."""

    @staticmethod
    def forward(
        ctx: Any,
        poses: Tensor,
        activations: Tensor,
        matrices: Tensor,
        beta_u: Tensor,
        budget: Tensor,
        wiring: tuple[Tensor, ...],
        lambdas: list[Tensor],
        settings: tuple[float, float, float],
    ) -> tuple[Tensor, Tensor]:
        offsets, child, places, counts, shares = wiring
        batch, iterations = poses.shape[-1], len(lambdas)
        (positions, children), types = child.shape, len(matrices)
        assignments = poses.new_empty(iterations - 1, positions, types, children, batch)  # after the first
        means, precisions = poses.new_empty(2, iterations, positions, types, 16, batch)
        half_logs, totals, complements = poses.new_empty(3, iterations, positions, types, batch)
        log_activations = poses.new_empty(positions, types, batch)
        for t in range(iterations):
            is_last = t + 1 == iterations
            share = _assigned(t, shares, assignments)
            em_forward.m_step[_grid(positions * types, batch)](
                *(poses, activations, matrices, offsets, child, share, *share.stride()),
                *(beta_u, budget, lambdas[t], means[t], precisions[t], half_logs[t], totals[t]),
                *(complements[t], log_activations, None if is_last else assignments[t]),
                *(batch, types, children, *settings),
                is_last=is_last,
                **SOME_CHILDREN,
            )
            if not is_last:
                em_forward.e_step[_grid(len(poses), batch)](
                    *(places, counts, assignments[t], batch, types, children, places.shape[1]),
                    type_tile=triton.next_power_of_2(types),
                    **ONE_CHILD,
                )
        ctx.lambdas, ctx.settings = lambdas, settings
        kept = assignments, means, precisions, half_logs, totals, complements
        ctx.save_for_backward(poses, activations, matrices, beta_u, *wiring, *kept)
        return means[-1].clone(), log_activations

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_means: Tensor, of_log_activations: Tensor) -> tuple[Tensor | None, ...]:
        poses, activations, matrices, beta_u, offsets, child, places, counts, shares, *kept = (
            ctx.saved_tensors
        )
        assignments, means, precisions, half_logs, totals, complements = kept
        mass_floor, _, exponent = ctx.settings
        iterations, positions, types, _, batch = means.shape
        children = child.shape[1]
        votes, sizes = (poses, activations, matrices, offsets), (batch, types, children)
        of_r = poses.new_zeros(positions, types, children, batch)  # or of_joint: 0 in the last iteration
        now, later = torch.zeros_like(activations), torch.zeros_like(activations)
        of_poses, of_activations, of_matrices = map(torch.zeros_like, (poses, activations, matrices))
        of_parents = torch.empty_like(means[0]), torch.empty_like(means[0]), torch.empty_like(totals[0])
        of_budgets = torch.empty_like(totals)
        given = of_means.contiguous(), of_log_activations.contiguous()
        for t in reversed(range(iterations)):
            is_last = t + 1 == iterations
            em_backward.gradients_of_parent[_grid(positions * types, batch)](
                *(*votes, child, beta_u, ctx.lambdas[t], means[t], precisions[t], half_logs[t], totals[t]),
                *(complements[t], None if is_last else assignments[t], later, of_r, *given, *of_parents),
                *(of_budgets[t], *sizes, *ctx.settings),
                is_last=is_last,
                **SOME_CHILDREN,
            )
            share = _assigned(t, shares, assignments)
            fitted = share, *share.stride(), means[t], precisions[t], totals[t], of_r, *of_parents
            em_backward.gradients_of_matrix[(types * children,)](
                *(*votes, child, *fitted, of_matrices, *sizes, positions, mass_floor, exponent),
                **ONE_CHILD,
            )
            em_backward.gradients_of_child[_grid(len(poses), batch)](
                *(*votes, places, counts, *fitted, now, of_poses, of_activations),
                *(*sizes, places.shape[1], mass_floor, exponent),
                **ONE_CHILD,
            )
            now, later = later, now
        of_beta_u = -16 * (totals * of_budgets).sum((0, 1, 3))
        of_budget = of_budgets.sum((0, 1, 3))
        return of_poses, of_activations, of_matrices, of_beta_u, of_budget, None, None, None


def _grid(programs: int, batch: int) -> tuple[int, int]:
    """One program for each parent or child and tile of examples."""
    return programs, triton.cdiv(batch, EXAMPLES)


def _assigned(t: int, shares: Tensor, assignments: Tensor) -> Tensor:
    """R in an iteration, [P, J, N, B]."""
    return shares[:, None, :, None].expand(assignments.shape[1:]) if t == 0 else assignments[t - 1]
