"""EM routing for training on a CPU: what a parent's M-step and E-step need is made where it is wanted.

As array operations EM routing reads and writes the votes again and again, and does little but wait for
memory: they are 2.5 MiB an example in the first convolutional capsules of the 68K network. Here they are
made from their two factors whenever they are wanted, and never stored; what is kept for the way back are the
assignments, in each iteration but the first a sixteenth of their size. The gradients are those of
`em.EMRouting`, by hand. 16 examples are routed at once, one in each lane of a vector (`lanes.py`): all that
is summed over children or elements is summed in each lane alone. Numba compiles this once and keeps the
result beside these files, or where NUMBA_CACHE_DIR says.
"""

# B batch, G groups of L = 16 examples, P parent positions, J parent types, N children of a parent, C children
# in all, Q parent positions that a child reaches at most, 16 pose elements, T iterations
#
# For a parent and its children n, with their assignments R_n, activations a_n and votes v_n:
#     r_n = R_n a_n, total = sum r_n, w_n = r_n / (total + floor), mu = sum w_n v_n, d_n = v_n - mu,
#     var = sum w_n d_n^2 + floor, q = 1 / (2 var), logs = sum_h log(var_h) / 2,
#     z = lambda (budget - (16 beta_u + logs) total), log a = logsigmoid(z),
#     density_n = -logs - sum_h q_h d_nh^2, joint_n = log a + eta density_n,
#     and the next R_n is exp(joint_n) / sum over n's parents.
# The Gaussian's constant, (2 pi)^8, is left out of density_n: it cancels.
#
# Backwards, grad_x is the gradient of the loss with respect to x. For a parent, from the last iteration to
# the first, where R' and grad_r' are those of the next one:
#     grad_joint_n = R'_n a_n (grad_r'_n - sum over n's parents of R' grad_r'), or 0 in the last,
#     grad_density_n = eta grad_joint_n,
#     grad_budget = lambda (1 - a) grad_log_a, grad_beta_u = -16 total grad_budget,
#     grad_logs = -sum_n grad_density_n - total grad_budget,
#     grad_var_h = q_h grad_logs + 2 q_h^2 sum_n grad_density_n d_nh^2,
#     grad_d_nh = 2 d_nh (w_n grad_var_h - q_h grad_density_n),
#     grad_mu_h = grad_mean_h - sum_n grad_d_nh, where sum_n w_n d_nh = mu_h floor / (total + floor),
#     grad_v_nh = grad_d_nh + w_n grad_mu_h,
#     grad_r_n = sum_h (grad_var_h (d_nh^2 - (var_h - floor)) + grad_mu_h d_nh) / (total + floor)
#              - (16 beta_u + logs) grad_budget,
#     and a_n gets R_n grad_r_n from every parent and iteration.
# In the last iteration grad_log_a and grad_mean are what comes in; before it, sum_n grad_joint_n and 0.

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from training.models.cpu.compiled_calls import as_arrays, in_threads
from training.models.cpu.em_backward import Gradients, backward
from training.models.cpu.em_forward import Children, Kept, Parents, Settings, Wiring, forward
from training.models.cpu.lanes import ELEMENTS, LANES
from training.models.routing_inputs import RoutingInputs

Array = NDArray[np.float32]


def route(inputs: RoutingInputs) -> tuple[Tensor, Tensor]:
    """EM routing on the CPU: means [B, P, J, 16] and log activations [B, P, J] of the parents."""
    means: Tensor
    log_activations: Tensor
    means, log_activations = _FusedEM.apply(
        in_lanes(inputs.poses),
        in_lanes(inputs.activations),
        inputs.matrices.contiguous(),
        inputs.beta_u,
        inputs.terms.budget,
        inputs.offsets[:, :, None].expand(-1, -1, LANES).contiguous(),
        Wiring(*as_arrays(inputs.child, inputs.places, inputs.counts, inputs.shares)),
        np.array([float(x) for x in inputs.terms.inverse_temperatures], np.float32),
        Settings(*map(np.float32, (*inputs.floors, inputs.density_exponent))),
    )
    batch = len(inputs.poses)
    return from_lanes(means, batch), from_lanes(log_activations, batch)


def in_lanes(x: Tensor) -> Tensor:
    """Examples [B, ...] in groups of 16, one in each lane, and with zeros behind the last: [G, ..., 16]."""
    groups = -(-len(x) // LANES)
    whole = torch.cat([x, x.new_zeros(groups * LANES - len(x), *x.shape[1:])]) if len(x) % LANES else x
    return whole.unflatten(0, (groups, LANES)).movedim(1, -1).contiguous()


def from_lanes(x: Tensor, examples: int) -> Tensor:
    """Back from groups [G, ..., 16] to examples [B, ...]."""
    return x.movedim(-1, 1).flatten(0, 1)[:examples]


class _FusedEM(torch.autograd.Function):
    """`route` of groups of 16 examples, with gradients by poses, activations, matrices, beta_u and budget."""

    @staticmethod
    def forward(
        ctx: Any,
        poses: Tensor,
        activations: Tensor,
        matrices: Tensor,
        beta_u: Tensor,
        budget: Tensor,
        offsets: Tensor,
        wiring: Wiring,
        inverse_temperatures: Array,
        settings: Settings,
    ) -> tuple[Tensor, Tensor]:
        groups, iterations = len(poses), len(inverse_temperatures)
        each = len(wiring.child), len(matrices)  # P, J
        kept = (
            poses.new_empty(groups, iterations - 1, *each, wiring.child.shape[1], LANES),
            *poses.new_empty(2, groups, iterations, *each, ELEMENTS, LANES),
            *poses.new_empty(3, groups, iterations, *each, LANES),
        )
        log_activations = poses.new_empty(groups, *each, LANES)
        parents = Parents(*as_arrays(matrices, offsets, beta_u, budget))
        of_groups = as_arrays(poses, activations), as_arrays(*kept), as_arrays(log_activations)

        def work(group: int) -> None:
            given, filled, [last] = ([array[group] for array in arrays] for arrays in of_groups)
            forward(inverse_temperatures, settings, Children(*given), parents, wiring, Kept(*filled), last)

        in_threads(groups, work)
        ctx.constants = wiring, inverse_temperatures, settings
        ctx.save_for_backward(poses, activations, matrices, offsets, beta_u, budget, *kept)
        return kept[1][:, -1].clone(), log_activations

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_means: Tensor, grad_log_activations: Tensor) -> tuple[Tensor | None, ...]:
        wiring, inverse_temperatures, settings = ctx.constants
        poses, activations, *of_parents = as_arrays(*ctx.saved_tensors[:6])
        parents, kept = Parents(*of_parents), as_arrays(*ctx.saved_tensors[6:])
        come_in = as_arrays(grad_means.contiguous(), grad_log_activations.contiguous())
        groups = len(poses)
        gradients = (
            np.zeros_like(poses),
            np.zeros_like(activations),
            np.zeros((groups, *parents.matrices.shape), np.float32),
            np.zeros((groups, 2, len(parents.matrices), LANES), np.float32),
        )

        def work(group: int) -> None:
            grad_r = np.empty(kept[0].shape[2:], np.float32)
            backward(
                inverse_temperatures,
                settings,
                Children(poses[group], activations[group]),
                parents,
                wiring,
                Kept(*(array[group] for array in kept)),
                *(array[group] for array in come_in),
                grad_r,
                Gradients(*(array[group] for array in gradients)),
            )

        in_threads(groups, work)
        grad_poses, grad_activations, grad_matrices, grad_betas = map(torch.from_numpy, gradients)
        return grad_poses, grad_activations, grad_matrices.sum(0), *grad_betas.sum((0, 3)), *[None] * 4
