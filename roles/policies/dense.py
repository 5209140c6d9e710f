"""Evaluates dense networks of the same layers side by side, with few operations.

K = networks, R = rows, D = numbers of a row. The time of small networks is that of launching their
operations, on a GPU and on a CPU. A module is evaluated layer by layer, and twice where one loss
differentiates it by its parameters and another by its input. Here it is evaluated once, and the
gradients of all K networks are one product a layer.
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
# The gradient of an activation's input, by the gradient of its output and that output.
_BACKWARDS: Final[Mapping[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "relu": lambda gradient, out: _aten.threshold_backward(gradient, out, 0.0),
    "tanh": _aten.tanh_backward,
    "elu": lambda gradient, out: _aten.elu_backward(gradient, 1.0, 1.0, 1.0, True, out),
}


class DenseNetworks:
    """K networks of the same dense layers, with an activation between them."""

    def __init__(self, networks: Sequence[Sequence[nn.Linear]], activation: str) -> None:
        self.networks, self.activation = networks, activation
        layers = [layer for same_layers in zip(*networks, strict=True) for layer in same_layers]
        # Weights [outputs, inputs] layer by layer, of K networks each, then biases likewise.
        self._parameters = [layer.weight for layer in layers] + [layer.bias for layer in layers]
        self._memory: list[Layer] = []
        self._address = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> DenseNetworks:
        return DenseNetworks(copy.deepcopy(self.networks, memo), self.activation)

    def __call__(self, rows: Tensor, trained: int) -> Tensor:
        """Returns what the networks give for `rows` [R, D]: [K, R, outputs].

        The first `trained` rows are differentiated by the networks' parameters alone, the others
        by `rows` alone.
        """
        out: Tensor = _Evaluate.apply(rows, trained, self, *self._parameters)  # type: ignore[no-untyped-call]
        return out

    @property
    def layers(self) -> list[Layer]:
        """The memory of each layer's parameters, which is found anew when they have moved."""
        if self._address != (address := self._parameters[0].data_ptr()):
            count, tensors = len(self.networks), [p.detach() for p in self._parameters]
            parts = [tensors[i : i + count] for i in range(0, len(tensors), count)]
            depth = len(parts) // 2
            self._memory = [Layer(*pair) for pair in zip(parts[:depth], parts[depth:], strict=True)]
            self._address = address
        return self._memory


class Layer:
    """One layer of K networks: the memory of its parameters, without gradients."""

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> None:
        self.weights, self.outputs = weights, len(biases[0])
        self.each = [(weight.t(), bias) for weight, bias in zip(weights, biases, strict=True)]
        offsets = [weight.storage_offset() for weight in weights]
        steps = {after - before for before, after in pairwise(offsets)} or {0}
        memory = {weight.untyped_storage().data_ptr() for weight in weights}
        self._side_by_side: Tensor | None = None
        if len(memory) == len(steps) == 1 and min(steps) >= 0:
            shape, strides = weights[0].shape, weights[0].stride()
            self._side_by_side = weights[0].as_strided((len(weights), *shape), (*steps, *strides))

    def stacked(self) -> Tensor:
        """Returns the weights [K, outputs, inputs]: a view where they are equally far apart."""
        return torch.stack(list(self.weights)) if self._side_by_side is None else self._side_by_side


def dense_networks(networks: Iterable[tuple[HiddenLayers, nn.Module]]) -> DenseNetworks | None:
    """Returns networks, each a trunk and a head, side by side, or None.

    All must have the same layers, which are dense, in fp32 or tf32.
    """
    names = {module: name for name, module in ACTIVATIONS.items()}
    linear_layers: list[list[nn.Linear]] = []
    activations: set[str | None] = set()
    for trunk, head in networks:
        hidden = list(trunk) if type(trunk) is Trunk and not trunk.bf16 else []
        layers = [layer for layer in (*hidden[::2], head) if type(layer) is nn.Linear]
        if not hidden or len(layers) != len(hidden) // 2 + 1:
            return None
        activations |= {names.get(type(layer)) for layer in hidden[1::2]}
        linear_layers.append(layers)
    shapes = {tuple(layer.weight.shape for layer in layers) for layers in linear_layers}
    if len(shapes) != 1 or len(activations) != 1 or None in activations:
        return None
    return DenseNetworks(linear_layers, str(activations.pop()))


class _Evaluate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, trained: int, networks: DenseNetworks, *parameters: Tensor
    ) -> Tensor:
        layers, activation = networks.layers, networks.activation
        count = len(networks.networks)
        layer_inputs: Sequence[Tensor] = [rows] * count
        inputs, out = [rows], rows
        for layer in layers:
            is_last = layer is layers[-1]
            out = rows.new_empty(count, len(rows), layer.outputs)
            outputs = out.unbind()
            for x, (weight, bias), output in zip(layer_inputs, layer.each, outputs, strict=True):
                if activation == "relu" and not is_last:  # one kernel on a GPU
                    torch._addmm_activation(bias, x, weight, out=output)
                else:
                    torch.addmm(bias, x, weight, out=output)
            if not is_last:
                if activation == "tanh":
                    out.tanh_()
                elif activation == "elu":
                    nn.functional.elu_(out)
                inputs.append(out)
                layer_inputs = outputs
        ctx.networks, ctx.inputs, ctx.trained = networks, inputs, trained
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        inputs, trained, layers = ctx.inputs, ctx.trained, ctx.networks.layers
        rows, backwards = inputs[0], _BACKWARDS[ctx.networks.activation]
        by_rows = ctx.needs_input_grad[0] and trained < len(rows)
        by_parameters = trained > 0 and any(ctx.needs_input_grad[3:])
        begin, end = 0 if by_parameters else trained, len(rows) if by_rows else trained
        gradient = gradient[:, begin:end]
        weight_grads: list[Tensor | None] = []
        bias_grads: list[Tensor | None] = []
        row_grad = None
        for index in reversed(range(len(layers))):
            layer, layer_input = layers[index], inputs[index]
            if index == 0:
                layer_input = rows.expand(len(gradient), -1, -1)
            if by_parameters:
                part = gradient[:, :trained]
                weight_grads[:0] = part.transpose(1, 2).bmm(layer_input[:, :trained]).unbind()
                bias_grads[:0] = part.sum(1).unbind()
            if index:
                gradient = backwards(gradient.bmm(layer.stacked()), layer_input[:, begin:end])
            elif by_rows:
                row_grad = torch.zeros_like(rows)
                target = row_grad[trained:]
                for grad, weight in zip(gradient[:, trained - begin :], layer.weights, strict=True):
                    target.addmm_(grad, weight)
        if not by_parameters:
            weight_grads, bias_grads = [None] * len(ctx.needs_input_grad[3:]), []
        return row_grad, None, None, *weight_grads, *bias_grads
