"""EM routing for training on CUDA: votes are made where they are wanted, and never written down.

As array operations EM routing writes its votes to memory and reads them again and again, and does little but
wait for memory. Here an iteration is two kernels (`em_forward.py`): an M-step for each parent, and an E-step
for each child. The way back takes three (`em_backward.py`): for each parent, matrix and child. What is kept
for it are the assignments, a sixteenth of the votes' size, and the parents. The gradients are derived in
`../cpu/fused_em.py`. Nothing here waits for the GPU, so that CUDA
graphs can record it.
"""

# letters as in `em_tiles.py`; T iterations

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from training.models.cuda import em_backward, em_forward
from training.models.routing_inputs import RoutingInputs

EXAMPLES = 32  # in a tile: one in each thread of a warp
CHILDREN = 8  # in a tile of a program that works on a parent: one in each warp
ONE_CHILD: dict[str, Any] = {"example_tile": EXAMPLES, "num_warps": 1, "enable_fp_fusion": True}
SOME_CHILDREN: dict[str, Any] = {**ONE_CHILD, "child_tile": CHILDREN, "num_warps": CHILDREN}


def route(inputs: RoutingInputs) -> tuple[Tensor, Tensor]:
    """EM routing on a CUDA device: means [B, P, J, 16] and log activations [B, P, J] of the parents."""
    poses, terms, (mass_floor, variance_floor) = inputs.poses, inputs.terms, inputs.floors
    lambdas = [x if isinstance(x, Tensor) else poses.new_full((), x) for x in terms.inverse_temperatures]
    with torch.cuda.device_of(poses):
        means, log_activations = _FusedEM.apply(
            poses.movedim(0, -1).contiguous(),  # [C, 16, B]
            inputs.activations.movedim(0, -1).contiguous(),  # [C, B]
            inputs.matrices.contiguous(),
            inputs.beta_u,
            terms.budget,
            (inputs.offsets, inputs.child, inputs.places, inputs.counts, inputs.shares),
            lambdas,
            {
                "mass_floor": mass_floor,
                "variance_floor": variance_floor,
                "eta": inputs.density_exponent,
            },
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
        settings: dict[str, float],
    ) -> tuple[Tensor, Tensor]:
        offsets, child, places, counts, shares = wiring
        batch, iterations = poses.shape[-1], len(lambdas)
        (positions, children), types = child.shape, len(matrices)
        assignments = poses.new_empty(iterations - 1, positions, types, children, batch)  # after the first
        means, precisions = poses.new_empty(2, iterations, positions, types, 16, batch)
        half_logs, totals, complements = poses.new_empty(3, iterations, positions, types, batch)
        log_activations = poses.new_empty(positions, types, batch)
        sizes = {"batch": batch, "types": types, "children": children}
        for t in range(iterations):
            is_last = t + 1 == iterations
            em_forward.m_step[_grid(positions * types, batch)](
                poses=poses,
                activations=activations,
                matrices=matrices,
                offsets=offsets,
                child=child,
                **_by_strides(_assigned(t, shares, assignments)),
                beta_u=beta_u,
                budget=budget,
                inverse_temperature=lambdas[t],
                means=means[t],
                precisions=precisions[t],
                half_logs=half_logs[t],
                totals=totals[t],
                complements=complements[t],
                log_activations=log_activations,
                joint=None if is_last else assignments[t],
                **sizes,
                **settings,
                is_last=is_last,
                **SOME_CHILDREN,
            )
            if not is_last:
                em_forward.e_step[_grid(len(poses), batch)](
                    places=places,
                    counts=counts,
                    joint=assignments[t],
                    **sizes,
                    reach=places.shape[1],
                    type_tile=triton.next_power_of_2(types),
                    **ONE_CHILD,
                )
        ctx.lambdas, ctx.settings = lambdas, settings
        kept = assignments, means, precisions, half_logs, totals, complements
        ctx.save_for_backward(poses, activations, matrices, beta_u, *wiring, *kept)
        return means[-1].clone(), log_activations

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_means: Tensor, grad_log_activations: Tensor) -> tuple[Tensor | None, ...]:
        poses, activations, matrices, beta_u, offsets, child, places, counts, shares, *kept = (
            ctx.saved_tensors
        )
        assignments, means, precisions, half_logs, totals, complements = kept
        iterations, positions, types, _, batch = means.shape
        children = child.shape[1]
        factors = {"poses": poses, "activations": activations, "matrices": matrices, "offsets": offsets}
        sizes = {"batch": batch, "types": types, "children": children}
        settings = {name: ctx.settings[name] for name in ("mass_floor", "eta")}
        grad_r = poses.new_zeros(positions, types, children, batch)  # or grad_joint: 0 in the last iteration
        now, later = torch.zeros_like(activations), torch.zeros_like(activations)
        grad_poses, grad_activations, grad_matrices = map(torch.zeros_like, (poses, activations, matrices))
        grad_budgets = torch.empty_like(totals)
        of_parents = {
            "grad_means": torch.empty_like(means[0]),
            "grad_variances": torch.empty_like(means[0]),
            "grad_totals": torch.empty_like(totals[0]),
        }
        for t in reversed(range(iterations)):
            is_last = t + 1 == iterations
            em_backward.gradients_of_parent[_grid(positions * types, batch)](
                **factors,
                child=child,
                beta_u=beta_u,
                inverse_temperature=ctx.lambdas[t],
                means=means[t],
                precisions=precisions[t],
                half_logs=half_logs[t],
                totals=totals[t],
                complements=complements[t],
                next_shares=None if is_last else assignments[t],
                later=later,
                grad_r=grad_r,
                grad_mean_given=grad_means.contiguous(),
                grad_log_activation_given=grad_log_activations.contiguous(),
                **of_parents,
                grad_budgets=grad_budgets[t],
                **sizes,
                **ctx.settings,
                is_last=is_last,
                **SOME_CHILDREN,
            )
            of_iteration = {
                **factors,
                **_by_strides(_assigned(t, shares, assignments)),
                "means": means[t],
                "precisions": precisions[t],
                "totals": totals[t],
                **of_parents,
                **sizes,
                **settings,
                **ONE_CHILD,
            }
            em_backward.gradients_of_matrix[(types * children,)](
                child=child,
                grad_joints=grad_r,
                grad_matrices=grad_matrices,
                positions=positions,
                **of_iteration,
            )
            em_backward.gradients_of_child[_grid(len(poses), batch)](
                places=places,
                counts=counts,
                grad_r=grad_r,
                now=now,
                grad_poses=grad_poses,
                grad_activations=grad_activations,
                reach=places.shape[1],
                **of_iteration,
            )
            now, later = later, now
        grad_beta_u = -16 * (totals * grad_budgets).sum((0, 1, 3))
        grad_budget = grad_budgets.sum((0, 1, 3))
        return grad_poses, grad_activations, grad_matrices, grad_beta_u, grad_budget, None, None, None


def _grid(programs: int, batch: int) -> tuple[int, int]:
    """One program for each parent or child and tile of examples."""
    return programs, triton.cdiv(batch, EXAMPLES)


def _assigned(t: int, shares: Tensor, assignments: Tensor) -> Tensor:
    """R in an iteration, [P, J, N, B]."""
    return shares[:, None, :, None].expand(assignments.shape[1:]) if t == 0 else assignments[t - 1]


def _by_strides(shares: Tensor) -> dict[str, Any]:
    """R with its strides: in the first iteration they are 0 along parent types and examples."""
    names = ("stride_p", "stride_j", "stride_n", "stride_b")
    return {"shares": shares, **dict(zip(names, shares.stride(), strict=True))}
