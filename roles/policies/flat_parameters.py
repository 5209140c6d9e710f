"""All parameters of a network as one vector: reduced, clipped and applied in one piece.

`PublishedPolicy` is such a vector with statistics behind it: what trainers publish and agents act
with.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from gmi_drl.roles.errors import CheckpointError, RoleError
from gmi_drl.runtime.store.alignment import round_up

from . import PARAMETER_MULTIPLE
from .normalize import Normalizers


class _SideBySide:
    """Parameters that lie one behind the other in a vector, with padding between them."""

    def __init__(self, parameters: Sequence[nn.Parameter], offsets: Sequence[int]) -> None:
        self.parameters, self.offsets = list(parameters), list(offsets)

    def packed(self, vector: Tensor) -> Tensor:
        """Returns a copy of `vector` [n] without padding, as files keep it."""
        return torch.cat([view.reshape(-1) for view in self._views(vector)])

    def unpack(self, packed: Tensor, out: Tensor) -> None:
        """Copy what `packed` gave, on any device, into `out` [n], whose padding stays as it is.

        CheckpointError if it is of another number of parameters.
        """
        views = self._views(out)
        sizes = [view.numel() for view in views]
        if packed.numel() != sum(sizes):
            raise CheckpointError(
                f"a policy of {packed.numel():,} parameters; this config's has {sum(sizes):,}. "
                "Use the env and algorithm sections of the run that wrote it."
            )
        parts = torch.split(packed.to(out.device), sizes)
        for view, part in zip(views, parts, strict=True):
            view.copy_(part.view_as(view))

    def _views(self, flat: Tensor) -> list[Tensor]:
        return [
            flat[start : start + p.numel()].view_as(p)
            for start, p in zip(self.offsets, self.parameters, strict=True)
        ]


class FlatParameters(_SideBySide):
    """All parameters of a module as views of one tensor, in the order of their names.

    `data` [n] is the parameters; `bind_gradients(buffer)` makes every `.grad` a view of
    `buffer[:n]`, which may lie in shared memory: `differentiate` writes straight into it.
    Parameter i begins at `offsets[i]`, a multiple of 64 numbers. What lies between is padding: zero
    in `data` and in gradients, and left out of what `packed` gives.
    """

    def __init__(self, module: nn.Module) -> None:
        named = sorted(module.named_parameters())
        self.names = [name for name, _ in named]
        parameters = [parameter for _, parameter in named]
        if not parameters:
            raise RoleError(
                f"{type(module).__name__} has no parameters that could be trained. Give the "
                "network some; with algorithm CEM use model: learned."
            )
        *offsets, total = accumulate(
            (round_up(parameter.numel(), PARAMETER_MULTIPLE) for parameter in parameters), initial=0
        )
        super().__init__(parameters, offsets)
        first = parameters[0]
        self.data = nn.Parameter(torch.zeros(total, dtype=first.dtype, device=first.device))
        flat = self.data.detach()
        for parameter, view in zip(parameters, self._views(flat), strict=True):
            view.copy_(parameter.detach())
            parameter.data = view

    @property
    def numel(self) -> int:
        """The numbers of `data`, with padding."""
        return self.data.numel()

    def bind_gradients(self, buffer: Tensor) -> None:
        """Make every parameter's `.grad` a view of `buffer` [>= n]."""
        self._gradients = self._views(buffer)
        for parameter, view in zip(self.parameters, self._gradients, strict=True):
            parameter.grad = view

    def differentiate(self, total: Tensor) -> None:
        """Writes the gradient of `total` where it was bound; 0 for what does not affect `total`.

        On a GPU that is one copy. Accumulating takes an operation for each parameter, and clearing.
        """
        trained = [
            (parameter, place)
            for parameter, place in zip(self.parameters, self._gradients, strict=True)
            if parameter.requires_grad
        ]
        parameters, places = zip(*trained, strict=True)
        gradients = torch.autograd.grad(total, parameters, allow_unused=True)
        pairs = list(zip(places, gradients, strict=True))
        reached = [(place, gradient) for place, gradient in pairs if gradient is not None]
        if unreached := [place for place, gradient in pairs if gradient is None]:
            torch._foreach_zero_(unreached)
        torch._foreach_copy_([place for place, _ in reached], [gradient for _, gradient in reached])

    def of_group(self, name: str) -> slice:
        """Returns the indices of the parameters of part `name` of the module, side by side."""
        indices = [i for i, parameter in enumerate(self.names) if _is_within(parameter, name)]
        assert indices == list(range(indices[0], indices[-1] + 1)), "names are sorted"
        return slice(indices[0], indices[-1] + 1)

    def group_fault(self, groups: Collection[str]) -> str:
        """Says why these parts of the module are no groups; "" if each parameter is in one."""
        parts = [[part for part in groups if _is_within(name, part)] for name in self.names]
        if ungrouped := [name for name, own in zip(self.names, parts, strict=True) if not own]:
            return (
                f"the parameters {', '.join(ungrouped)} are in none of the groups "
                f"{', '.join(groups)}"
            )
        if shared := [name for name, own in zip(self.names, parts, strict=True) if len(own) > 1]:
            return f"the parameters {', '.join(shared)} are in several of {', '.join(groups)}"
        unknown = set(groups).difference(itertools.chain(*parts))
        return f"the network has no parameters of {', '.join(sorted(unknown))}" if unknown else ""


def _is_within(parameter: str, part: str) -> bool:
    return parameter == part or parameter.startswith(f"{part}.")


class Piece:
    """One of k pieces of flat parameters, as a view: `data` [m] can be trained by itself."""

    def __init__(self, parameters: FlatParameters, number: int, pieces: int) -> None:
        """ValueError where parameters are fewer than pieces of 64."""
        blocks = parameters.numel // PARAMETER_MULTIPLE
        if blocks < pieces:
            raise ValueError(
                f"{parameters.numel} parameters, with padding, in {pieces} pieces; they are cut in "
                f"blocks of {PARAMETER_MULTIPLE}. Use {blocks} or fewer."
            )
        begin, end = (PARAMETER_MULTIPLE * (blocks * i // pieces) for i in (number, number + 1))
        self.place = slice(begin, end)
        self.data = nn.Parameter(parameters.data.detach()[begin:end])

    @property
    def numel(self) -> int:
        """The numbers of `data`, with padding."""
        return self.data.numel()

    def packed(self, vector: Tensor) -> Tensor:
        """Returns a copy of `vector` [m] with padding, as files keep whole vectors alone."""
        return vector.clone()

    def unpack(self, packed: Tensor, out: Tensor) -> None:
        """Copy what `packed` gave into `out` [m]."""
        out.copy_(packed)


class ParameterGroup(_SideBySide):
    """The parameters of one part of a module, as a view: `data` [m] can be trained by itself."""

    def __init__(self, parameters: FlatParameters, name: str) -> None:
        """`name`: of a submodule, or of a parameter."""
        indices = parameters.of_group(name)
        begin, *_ = offsets = parameters.offsets[indices]
        end = [*parameters.offsets, parameters.numel][indices.stop]
        super().__init__(parameters.parameters[indices], [offset - begin for offset in offsets])
        self.place = slice(begin, end)
        self.data = nn.Parameter(parameters.data.detach()[self.place])


class PublishedPolicy:
    """The parameters of a policy and its normalisers' statistics, to and from float32 [numel].

    In this order: parameters as `FlatParameters` lays them out, with padding, then means and
    1 / deviations of the observation normaliser, and the moments of the value normaliser, which may
    be merged with more: float64 in the place of two float32. Both ends build it from the same
    config, so that nothing but numbers travels.
    """

    def __init__(self, parameters: FlatParameters | Piece, normalizers: Normalizers) -> None:
        self._tensors: list[Tensor] = [parameters.data]
        if (observations := normalizers.observations) is not None:
            self._tensors += (observations.mean, observations.inv_std)
        if (values := normalizers.values) is not None:
            self._tensors.append(values.moments)
        self._values = values
        self.numel = sum(tensor.nbytes for tensor in self._tensors) // 4

    @torch.no_grad()
    def write(self, out: Tensor) -> None:
        """Write the policy as it is now into `out` [numel]."""
        for tensor, part in self._parts(out):
            part.copy_(tensor)

    @torch.no_grad()
    def load(self, vector: Tensor) -> None:
        """Copies the policy that another one wrote from `vector` [numel]."""
        if vector.shape != (self.numel,):
            raise ValueError(
                f"a policy vector of shape {tuple(vector.shape)}: this policy has {self.numel} "
                "numbers. Build both ends from the same environment and algorithm section."
            )
        for tensor, part in self._parts(vector):
            tensor.copy_(part)
        if self._values is not None:
            self._values.refresh()

    def _parts(self, vector: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        parts = torch.split(vector, [tensor.nbytes // 4 for tensor in self._tensors])
        for tensor, part in zip(self._tensors, parts, strict=True):
            yield tensor, part.view(tensor.dtype)
