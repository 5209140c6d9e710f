"""All steps of a recurrent cell at once, with gradients by hand: a few operations for each step.

Autograd records every operation of every step, and goes back through each. Here what does not
depend on later steps is computed for all of them at once, the gradient of the weights too.

T = steps, N = environments, H = size of the cell. `kept` [T, N, 1] is 0 where the state before a
step is dropped, and 1 elsewhere. Gates have the letters of torch.nn.LSTM and torch.nn.GRU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gmi_drl.roles.graphs import static_on


class LSTMSteps(torch.autograd.Function):
    """The outputs and memories [T, N, H] of an LSTM for the features' part of its gates.

    That part is [T, N, 4 H]. Nothing is differentiated through the memories from outside.
    """

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, output: Tensor, memory: Tensor, kept: Tensor
    ) -> tuple[Tensor, Tensor]:
        first_output, first_memory, weight_t = output, memory.contiguous(), weight.t()
        gates, size = torch.empty_like(inputs), output.shape[-1]
        updates, tanh, outputs, memories = (torch.empty_like(inputs[..., :size]) for _ in range(4))
        # Views of all steps at once: indexing a step takes as long as its work.
        steps = zip(
            inputs.unbind(), gates.unbind(), *(part.unbind() for part in gates.chunk(4, -1)),
            updates.unbind(), tanh.unbind(), outputs.unbind(), memories.unbind(), kept.unbind(),
            _drops(kept), strict=True,
        )  # fmt: skip
        memory = first_memory
        for x, gates_t, i, f, g_raw, o, g, tanh_c, h_t, c_t, kept_t, dropped in steps:
            if dropped:
                output, memory = output * kept_t, memory * kept_t
            torch.addmm(x, output, weight_t, out=gates_t)
            torch.tanh(g_raw, out=g)
            gates_t.sigmoid_()
            memory = torch.mul(f, memory, out=c_t).addcmul_(i, g)
            torch.tanh(memory, out=tanh_c)
            output = torch.mul(o, tanh_c, out=h_t)
        last_outputs, last_memories = (
            torch.cat([initial[None], later[:-1]]).mul_(kept)
            for initial, later in ((first_output, outputs), (first_memory, memories))
        )
        ctx.save_for_backward(gates, updates, tanh, last_memories, last_outputs, weight, kept)
        ctx.mark_non_differentiable(memories)
        return outputs, memories

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        gates, g, tanh, last_memory, last_output, weight, kept = ctx.saved_tensors
        i, f, _, o = gates.chunk(4, -1)
        memory_slope = o * (1 - tanh * tanh)  # from an output to the memory
        slopes = g.new_empty(*g.shape[:2], 4, g.shape[-1])
        slopes[:, :, 0] = g * i * (1 - i)
        slopes[:, :, 1] = last_memory * f * (1 - f)
        slopes[:, :, 2] = i * (1 - g * g)
        slopes[:, :, 3] = tanh * o * (1 - o)
        f = f * kept
        gate_gradients = torch.empty_like(slopes)  # the gradient of what goes into the gates
        flat = gate_gradients.flatten(2)
        memory_gradient = output_gradient = torch.zeros_like(gradient[0])
        steps = zip(
            gradient.unbind(), memory_slope.unbind(), slopes[:, :, :3].unbind(),
            slopes[:, :, 3].unbind(), gate_gradients[:, :, :3].unbind(),
            gate_gradients[:, :, 3].unbind(), flat.unbind(), f.unbind(), kept.unbind(),
            _drops(kept), strict=True,
        )  # fmt: skip
        for step in reversed(list(steps)):
            grad_t, slope_t, ifg_slope, o_slope, ifg_out, o_out, flat_t, f_t, kept_t, dropped = step
            output_gradient = grad_t + output_gradient
            memory_gradient = torch.addcmul(memory_gradient, output_gradient, slope_t)
            torch.mul(ifg_slope, memory_gradient[:, None], out=ifg_out)
            torch.mul(o_slope, output_gradient, out=o_out)
            memory_gradient = memory_gradient * f_t
            output_gradient = torch.mm(flat_t, weight)
            if dropped:
                output_gradient.mul_(kept_t)
        weight_gradient = flat.flatten(0, 1).t() @ last_output.flatten(0, 1)
        return flat, weight_gradient, output_gradient, memory_gradient, None


class GRUSteps(torch.autograd.Function):
    """The outputs [T, N, H] of a GRU for the features' part of its gates [T, N, 3 H]."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor, output: Tensor, kept: Tensor
    ) -> Tensor:
        first_output, size = output, output.shape[-1]
        gates, recurrent = torch.empty_like(inputs), torch.empty_like(inputs)
        candidates, outputs = (torch.empty_like(inputs[..., :size]) for _ in range(2))
        weight_t, n_columns = weight.t(), slice(2 * size, None)
        steps = zip(
            inputs.unbind(), inputs[..., n_columns].unbind(), gates.unbind(),
            gates[..., :size].unbind(), gates[..., size : 2 * size].unbind(), recurrent.unbind(),
            recurrent[..., n_columns].unbind(), candidates.unbind(), outputs.unbind(),
            kept.unbind(), _drops(kept), strict=True,
        )  # fmt: skip
        for step in steps:
            x, x_n, gates_t, r, z, recurrent_t, recurrent_n, n, h_t, kept_t, dropped = step
            if dropped:
                output = output * kept_t
            torch.addmm(bias, output, weight_t, out=recurrent_t)
            torch.add(x, recurrent_t, out=gates_t).sigmoid_()
            torch.addcmul(x_n, r, recurrent_n, out=n)
            n.tanh_()
            output = torch.lerp(n, output, z, out=h_t)
        last_outputs = torch.cat([first_output[None], outputs[:-1]]).mul_(kept)
        ctx.save_for_backward(gates, recurrent, candidates, last_outputs, weight, kept)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gates, recurrent, n, last_output, weight, kept = ctx.saved_tensors
        size = n.shape[-1]
        r, z = gates[..., :size], gates[..., size : 2 * size]
        slope = (1 - z) * (1 - n * n)
        input_gradients = n.new_empty(*n.shape[:2], 3, size)
        input_gradients[:, :, 0] = slope * recurrent[..., 2 * size :] * r * (1 - r)
        input_gradients[:, :, 1] = (last_output - n) * z * (1 - z)
        input_gradients[:, :, 2] = slope
        recurrent_gradients = input_gradients.clone()
        recurrent_gradients[:, :, 2] *= r
        output_gradient = torch.zeros_like(gradient[0])
        steps = zip(
            gradient.unbind(), input_gradients.unbind(), recurrent_gradients.unbind(),
            recurrent_gradients.flatten(2).unbind(), z.unbind(), kept.unbind(), _drops(kept),
            strict=True,
        )  # fmt: skip
        for gradient_t, input_t, recurrent_t, flat_t, z_t, kept_t, dropped in reversed(list(steps)):
            output_gradient = gradient_t + output_gradient
            input_t.mul_(output_gradient[:, None])
            recurrent_t.mul_(output_gradient[:, None])
            output_gradient = torch.addmm(output_gradient * z_t, flat_t, weight)
            if dropped:
                output_gradient.mul_(kept_t)
        flat = recurrent_gradients.flatten(2).flatten(0, 1)
        weight_gradient, bias_gradient = flat.t() @ last_output.flatten(0, 1), flat.sum(0)
        return input_gradients.flatten(2), weight_gradient, bias_gradient, output_gradient, None


def _drops(kept: Tensor) -> list[bool]:
    """Tells before which steps [T] some state is dropped; True for all on a GPU, not to wait."""
    if static_on(kept.device):
        return [True] * len(kept)
    drops: list[bool] = (kept.flatten(1).amin(1) < 1.0).tolist()
    return drops
