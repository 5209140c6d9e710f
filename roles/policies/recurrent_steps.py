"""All steps of a recurrent cell at once, with gradients by hand: a few operations for each step.

Autograd records every operation of every step, and goes back through each. Here what does not
depend on later steps is computed for all of them in one go, the gradient of the weights too.

T = steps, N = environments, H = size of the cell. `kept` [T, N, 1] is 0 where the state before a
step is dropped, and 1 elsewhere.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class LSTMSteps(torch.autograd.Function):
    """The outputs [T, N, H] of an LSTM for the features' part of its gates [T, N, 4 H]."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, output: Tensor, memory: Tensor, kept: Tensor
    ) -> Tensor:
        gates = torch.empty_like(inputs)
        let_in, keep, new, show = gates.chunk(4, -1)
        outputs, squashed = (torch.empty_like(new) for _ in range(2))
        remembered, before = (torch.empty_like(new) for _ in range(2))  # what a step began with
        mixed, memory = weight.t(), memory.contiguous()
        for t, all_gates in enumerate(gates.unbind()):
            torch.mul(output, kept[t], out=before[t])
            torch.mul(memory, kept[t], out=remembered[t])
            torch.addmm(inputs[t], before[t], mixed, out=all_gates)
            news = new[t].tanh()
            all_gates.sigmoid_()
            new[t].copy_(news)
            memory = torch.mul(keep[t], remembered[t]).addcmul_(let_in[t], news)
            torch.tanh(memory, out=squashed[t])
            output = torch.mul(show[t], squashed[t], out=outputs[t])
        ctx.save_for_backward(gates, squashed, remembered, before, weight, kept)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gates, squashed, remembered, before, weight, kept = ctx.saved_tensors
        let_in, keep, new, show = gates.chunk(4, -1)
        through = show * (1 - squashed * squashed)  # from an output to the memory
        slopes = new.new_empty(*new.shape[:2], 4, new.shape[-1])
        slopes[:, :, 0] = new * let_in * (1 - let_in)
        slopes[:, :, 1] = remembered * keep * (1 - keep)
        slopes[:, :, 2] = let_in * (1 - new * new)
        slopes[:, :, 3] = squashed * show * (1 - show)
        keep = keep * kept
        towards = torch.empty_like(slopes)  # the gradient of what goes into the gates
        flat = towards.flatten(2)
        of_output = of_memory = torch.zeros_like(gradient[0])
        for t in range(len(gradient) - 1, -1, -1):
            of_output = gradient[t] + of_output
            of_memory = torch.addcmul(of_memory, of_output, through[t])
            torch.mul(slopes[t, :, :3], of_memory[:, None], out=towards[t, :, :3])
            torch.mul(slopes[t, :, 3], of_output, out=towards[t, :, 3])
            of_memory = of_memory * keep[t]
            of_output = torch.mm(flat[t], weight).mul_(kept[t])
        of_weight = flat.flatten(0, 1).t() @ before.flatten(0, 1)
        return flat, of_weight, of_output, of_memory, None


class GRUSteps(torch.autograd.Function):
    """The outputs [T, N, H] of a GRU for the features' part of its gates [T, N, 3 H]."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor, output: Tensor, kept: Tensor
    ) -> Tensor:
        size = output.shape[-1]
        gates, recalled = torch.empty_like(inputs), torch.empty_like(inputs)
        news, outputs, before = (torch.empty_like(inputs[..., :size]) for _ in range(3))
        mixed = weight.t()
        for t, all_gates in enumerate(gates.unbind()):
            torch.mul(output, kept[t], out=before[t])
            torch.addmm(bias, before[t], mixed, out=recalled[t])
            torch.add(inputs[t], recalled[t], out=all_gates).sigmoid_()
            reset, keep = all_gates[:, :size], all_gates[:, size : 2 * size]
            torch.addcmul(inputs[t, :, 2 * size :], reset, recalled[t, :, 2 * size :], out=news[t])
            news[t].tanh_()
            output = torch.lerp(news[t], before[t], keep, out=outputs[t])
        ctx.save_for_backward(gates, recalled, news, before, weight, kept)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gates, recalled, news, before, weight, kept = ctx.saved_tensors
        size = news.shape[-1]
        reset, keep = gates[..., :size], gates[..., size : 2 * size]
        slope = (1 - keep) * (1 - news * news)
        of_inputs = news.new_empty(*news.shape[:2], 3, size)
        of_inputs[:, :, 0] = slope * recalled[..., 2 * size :] * reset * (1 - reset)
        of_inputs[:, :, 1] = (before - news) * keep * (1 - keep)
        of_inputs[:, :, 2] = slope
        of_recalled = of_inputs.clone()
        of_recalled[:, :, 2] *= reset
        of_output = torch.zeros_like(gradient[0])
        for t in range(len(gradient) - 1, -1, -1):
            of_output = gradient[t] + of_output
            of_inputs[t].mul_(of_output[:, None])
            of_recalled[t].mul_(of_output[:, None])
            kept_on = of_output * keep[t]
            of_output = torch.addmm(kept_on, of_recalled[t].flatten(1), weight).mul_(kept[t])
        flat = of_recalled.flatten(2).flatten(0, 1)
        of_weight, of_bias = flat.t() @ before.flatten(0, 1), flat.sum(0)
        return of_inputs.flatten(2), of_weight, of_bias, of_output, None
