"""Evaluates dense networks of the same layers side by side, with few operations.

K = networks, R = rows, D = numbers of a row. On a GPU small networks take as long as the number of
operations is large, and on a CPU each costs its overhead. A module is evaluated layer by layer, and
twice where one loss differentiates it by its parameters and another by its input; here it is once,
and gradients of all K networks are one product a layer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor, nn

from .trunk import ACTIVATIONS, HiddenLayers, Trunk

_aten: Final = torch.ops.aten
# The gradient behind an activation, by the gradient ahead and by what the activation gave.
_BACKWARDS: Final[Mapping[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "relu": lambda gradient, out: _aten.threshold_backward(gradient, out, 0.0),
    "tanh": _aten.tanh_backward,
    "elu": lambda gradient, out: _aten.elu_backward(gradient, 1.0, 1.0, 1.0, True, out),
}


class DenseNetworks:
    """K networks of the same dense layers, with an activation between them."""

    def __init__(self, networks: Sequence[Sequence[nn.Linear]], activation: str) -> None:
        self.networks, self.activation = networks, activation
        layers = [layer for each in zip(*networks, strict=True) for layer in each]
        # Layer by layer, those of K networks each: weights [outputs, inputs], then biases.
        self._parameters = [layer.weight for layer in layers] + [layer.bias for layer in layers]
        self._memory: list[Layer] = []
        self._address = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> DenseNetworks:
        return DenseNetworks(copy.deepcopy(self.networks, memo), self.activation)

    def __call__(self, rows: Tensor, trained: int) -> Tensor:
        """Returns what the networks give for `rows` [R, D]: [K, R, outputs].

        The first `trained` rows are differentiated by the networks' parameters alone, those behind
        them by what is in `rows` alone.
        """
        out: Tensor = _Evaluate.apply(rows, trained, self, *self._parameters)  # type: ignore[no-untyped-call]
        return out

    @property
    def layers(self) -> list[Layer]:
        """The memory of each layer's parameters, as it is until they are given another one."""
        if self._address != (address := self._parameters[0].data_ptr()):
            count, those = len(self.networks), [one.detach() for one in self._parameters]
            cut = [those[i : i + count] for i in range(0, len(those), count)]
            depth = len(cut) // 2
            self._memory = [Layer(*its) for its in zip(cut[:depth], cut[depth:], strict=True)]
            self._address = address
        return self._memory


class Layer:
    """One layer of K networks: their memory, of which nothing is differentiated."""

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> None:
        self.weights, self.outputs = weights, len(biases[0])
        self.each = [(weight.t(), bias) for weight, bias in zip(weights, biases, strict=True)]
        places = [weight.storage_offset() for weight in weights]
        steps = {after - before for before, after in pairwise(places)} or {0}
        memory = {weight.untyped_storage().data_ptr() for weight in weights}
        self._side_by_side: Tensor | None = None
        if len(memory) == len(steps) == 1 and min(steps) >= 0:
            shape, strides = weights[0].shape, weights[0].stride()
            self._side_by_side = weights[0].as_strided((len(weights), *shape), (*steps, *strides))

    def stacked(self) -> Tensor:
        """Returns the weights [K, outputs, inputs]: a view where they are equally far apart."""
        return torch.stack(list(self.weights)) if self._side_by_side is None else self._side_by_side


def dense_networks(networks: Iterable[tuple[HiddenLayers, nn.Module]]) -> DenseNetworks | None:
    """Returns networks, each a trunk and a head, side by side; None where that cannot be.

    It can where all have the same layers, which are dense, in fp32 or tf32.
    """
    kinds = {kind: name for name, kind in ACTIVATIONS.items()}
    found: list[list[nn.Linear]] = []
    between: set[str | None] = set()
    for trunk, head in networks:
        hidden = list(trunk) if type(trunk) is Trunk and not trunk.bf16 else []
        layers = [one for one in (*hidden[::2], head) if type(one) is nn.Linear]
        if not hidden or len(layers) != len(hidden) // 2 + 1:
            return None
        between |= {kinds.get(type(layer)) for layer in hidden[1::2]}
        found.append(layers)
    shapes = {tuple(layer.weight.shape for layer in layers) for layers in found}
    if len(shapes) != 1 or len(between) != 1 or None in between:
        return None
    return DenseNetworks(found, str(between.pop()))


class _Evaluate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, trained: int, networks: DenseNetworks, *parameters: Tensor
    ) -> Tensor:
        layers, activation = networks.layers, networks.activation
        count = len(networks.networks)
        seen: Sequence[Tensor] = [rows] * count
        inputs, out = [rows], rows
        for layer in layers:
            is_last = layer is layers[-1]
            out = rows.new_empty(count, len(rows), layer.outputs)
            each = out.unbind()
            for x, (weight, bias), place in zip(seen, layer.each, each, strict=True):
                if activation == "relu" and not is_last:  # one kernel on a GPU
                    torch._addmm_activation(bias, x, weight, out=place)
                else:
                    torch.addmm(bias, x, weight, out=place)
            if not is_last:
                if activation == "tanh":
                    out.tanh_()
                elif activation == "elu":
                    nn.functional.elu_(out)
                inputs.append(out)
                seen = each
        ctx.networks, ctx.inputs, ctx.trained = networks, inputs, trained
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        inputs, trained, layers = ctx.inputs, ctx.trained, ctx.networks.layers
        rows, backwards = inputs[0], _BACKWARDS[ctx.networks.activation]
        by_rows = ctx.needs_input_grad[0] and trained < len(rows)
        by_parameters = trained > 0 and any(ctx.needs_input_grad[3:])
        first, until = 0 if by_parameters else trained, len(rows) if by_rows else trained
        gradient = gradient[:, first:until]
        of_weights: list[Tensor | None] = []
        of_biases: list[Tensor | None] = []
        of_rows = None
        for number in reversed(range(len(layers))):
            layer, seen = layers[number], inputs[number]
            if number == 0:
                seen = rows.expand(len(gradient), -1, -1)
            if by_parameters:
                mine = gradient[:, :trained]
                of_weights[:0] = mine.transpose(1, 2).bmm(seen[:, :trained]).unbind()
                of_biases[:0] = mine.sum(1).unbind()
            if number:
                gradient = backwards(gradient.bmm(layer.stacked()), seen[:, first:until])
            elif by_rows:
                of_rows = torch.zeros_like(rows)
                place = of_rows[trained:]
                for one, weight in zip(gradient[:, trained - first :], layer.weights, strict=True):
                    place.addmm_(one, weight)
        if not by_parameters:
            of_weights, of_biases = [None] * len(ctx.needs_input_grad[3:]), []
        return of_rows, None, None, *of_weights, *of_biases
