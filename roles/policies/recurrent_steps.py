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

from gmi_drl.roles.graphs import static_on


class LSTMSteps(torch.autograd.Function):
    """The outputs [T, N, H] of an LSTM for the features' part of its gates [T, N, 4 H].

    And its memories, through which nothing is differentiated from outside.
    """

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, output: Tensor, memory: Tensor, kept: Tensor
    ) -> tuple[Tensor, Tensor]:
        first, at_first, mixed = output, memory.contiguous(), weight.t()
        gates, size = torch.empty_like(inputs), output.shape[-1]
        news, squashed, outputs, memories = (torch.empty_like(inputs[..., :size]) for _ in range(4))
        # Views of all steps at once: making one by its index takes as long as its work.
        steps = zip(
            inputs.unbind(), gates.unbind(), *(part.unbind() for part in gates.chunk(4, -1)),
            news.unbind(), squashed.unbind(), outputs.unbind(), memories.unbind(), kept.unbind(),
            _drops(kept), strict=True,
        )  # fmt: skip
        memory = at_first
        for given, four, let_in, keep, raw, show, new, tanh, out, after, stays, drops in steps:
            if drops:
                output, memory = output * stays, memory * stays
            torch.addmm(given, output, mixed, out=four)
            torch.tanh(raw, out=new)
            four.sigmoid_()
            memory = torch.mul(keep, memory, out=after).addcmul_(let_in, new)
            torch.tanh(memory, out=tanh)
            output = torch.mul(show, tanh, out=out)
        before, remembered = (
            torch.cat([begin[None], then[:-1]]).mul_(kept)
            for begin, then in ((first, outputs), (at_first, memories))
        )
        ctx.save_for_backward(gates, news, squashed, remembered, before, weight, kept)
        ctx.mark_non_differentiable(memories)
        return outputs, memories

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        gates, new, squashed, remembered, before, weight, kept = ctx.saved_tensors
        let_in, keep, _, show = gates.chunk(4, -1)
        through = show * (1 - squashed * squashed)  # from an output to the memory
        slopes = new.new_empty(*new.shape[:2], 4, new.shape[-1])
        slopes[:, :, 0] = new * let_in * (1 - let_in)
        slopes[:, :, 1] = remembered * keep * (1 - keep)
        slopes[:, :, 2] = let_in * (1 - new * new)
        slopes[:, :, 3] = squashed * show * (1 - show)
        keep = keep * kept
        towards = torch.empty_like(slopes)  # the gradient of what goes into the gates
        flat = towards.flatten(2)
        of_memory = of_output = torch.zeros_like(gradient[0])
        steps = zip(
            gradient.unbind(), through.unbind(), slopes[:, :, :3].unbind(),
            slopes[:, :, 3].unbind(), towards[:, :, :3].unbind(), towards[:, :, 3].unbind(),
            flat.unbind(), keep.unbind(), kept.unbind(), _drops(kept), strict=True,
        )  # fmt: skip
        for (
            given,
            through_t,
            three,
            last,
            to_three,
            to_last,
            four,
            keep_t,
            stays,
            drops,
        ) in reversed(list(steps)):
            of_output = given + of_output
            of_memory = torch.addcmul(of_memory, of_output, through_t)
            torch.mul(three, of_memory[:, None], out=to_three)
            torch.mul(last, of_output, out=to_last)
            of_memory = of_memory * keep_t
            of_output = torch.mm(four, weight)
            if drops:
                of_output.mul_(stays)
        of_weight = flat.flatten(0, 1).t() @ before.flatten(0, 1)
        return flat, of_weight, of_output, of_memory, None


class GRUSteps(torch.autograd.Function):
    """The outputs [T, N, H] of a GRU for the features' part of its gates [T, N, 3 H]."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor, output: Tensor, kept: Tensor
    ) -> Tensor:
        first, size = output, output.shape[-1]
        gates, recalled = torch.empty_like(inputs), torch.empty_like(inputs)
        news, outputs = (torch.empty_like(inputs[..., :size]) for _ in range(2))
        mixed, last = weight.t(), slice(2 * size, None)
        steps = zip(
            inputs.unbind(), inputs[..., last].unbind(), gates.unbind(),
            gates[..., :size].unbind(), gates[..., size : 2 * size].unbind(), recalled.unbind(),
            recalled[..., last].unbind(), news.unbind(), outputs.unbind(), kept.unbind(),
            _drops(kept), strict=True,
        )  # fmt: skip
        for (
            given,
            given_new,
            both,
            reset,
            keep,
            memory,
            memory_new,
            new,
            out,
            stays,
            drops,
        ) in steps:
            if drops:
                output = output * stays
            torch.addmm(bias, output, mixed, out=memory)
            torch.add(given, memory, out=both).sigmoid_()
            torch.addcmul(given_new, reset, memory_new, out=new)
            new.tanh_()
            output = torch.lerp(new, output, keep, out=out)
        before = torch.cat([first[None], outputs[:-1]]).mul_(kept)
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
        steps = zip(
            gradient.unbind(), of_inputs.unbind(), of_recalled.unbind(),
            of_recalled.flatten(2).unbind(), keep.unbind(), kept.unbind(), _drops(kept),
            strict=True,
        )  # fmt: skip
        for given, towards, back, flat_back, keep_t, stays, drops in reversed(list(steps)):
            of_output = given + of_output
            towards.mul_(of_output[:, None])
            back.mul_(of_output[:, None])
            of_output = torch.addmm(of_output * keep_t, flat_back, weight)
            if drops:
                of_output.mul_(stays)
        flat = of_recalled.flatten(2).flatten(0, 1)
        of_weight, of_bias = flat.t() @ before.flatten(0, 1), flat.sum(0)
        return of_inputs.flatten(2), of_weight, of_bias, of_output, None


def _drops(kept: Tensor) -> list[bool]:
    """Tells before which steps [T] some state is dropped; on a GPU all, as nobody waits to know."""
    if static_on(kept.device):
        return [True] * len(kept)
    drops: list[bool] = (kept.flatten(1).amin(1) < 1.0).tolist()
    return drops
