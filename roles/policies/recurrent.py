"""Policies that remember: an LSTM or a GRU between hidden layers and head.

T = steps, N = environments, D = width of an observation, F = features of the hidden layers,
H = size of the cell, S = numbers of a state, P = distribution parameters.

The state of an environment is a row [S], zero where an episode begins. Whole segments go through
the cell step by step, and the state is dropped inside of them where an episode ended: nothing is
padded. One product of the features with the cell's weights serves all steps. Gates have the letters
of torch.nn.LSTM and torch.nn.GRU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from gmi_drl.placement import RecurrentConfig

from .actor_critic import ActorCritic, ActorCriticPolicy
from .recurrent_steps import GRUSteps, LSTMSteps

if TYPE_CHECKING:
    from gmi_drl.roles.samples.batch import Batch, Sequences


class LSTM(nn.LSTMCell):
    """An LSTM cell (Hochreiter and Schmidhuber, 1997); its state is the output, then the cell's."""

    parts = 2

    def advance(self, inputs: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Returns the state after a step, from the features' part of the gates [N, 4 H]."""
        output, memory = state
        gates = torch.addmm(inputs, output, self.weight_hh.t())
        i, f, g, o = gates.chunk(4, -1)
        memory = torch.addcmul(f.sigmoid() * memory, i.sigmoid(), g.tanh())
        return o.sigmoid() * memory.tanh(), memory

    def all_steps(
        self, inputs: Tensor, state: tuple[Tensor, ...], kept: Tensor
    ) -> tuple[Tensor, ...]:
        """Returns outputs and memories [T, N, H] of all steps; outputs can be differentiated.

        `kept` [T, N, 1] is 0 where the state before a step is dropped.
        """
        outputs: tuple[Tensor, Tensor] = LSTMSteps.apply(  # type: ignore[no-untyped-call]
            inputs, self.weight_hh, *state, kept
        )
        return outputs

    def inputs(self, features: Tensor) -> Tensor:
        """Returns the features' part of the gates: [..., 4 H]."""
        return linear(features, self.weight_ih, self.bias_ih + self.bias_hh)


class GRU(nn.GRUCell):
    """A gated recurrent unit (Cho et al., 2014); its state is its output."""

    parts = 1

    def advance(self, inputs: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Returns the state after a step, from the features' part of the gates [N, 3 H]."""
        (output,) = state
        size = self.hidden_size
        recurrent = linear(output, self.weight_hh, self.bias_hh)
        gates = (inputs[:, : 2 * size] + recurrent[:, : 2 * size]).sigmoid()
        r, z = gates.chunk(2, -1)
        n = torch.addcmul(inputs[:, 2 * size :], r, recurrent[:, 2 * size :]).tanh()
        return (torch.lerp(n, output, z),)

    def all_steps(
        self, inputs: Tensor, state: tuple[Tensor, ...], kept: Tensor
    ) -> tuple[Tensor, ...]:
        """Returns the outputs [T, N, H] of all steps; `kept` as for the LSTM."""
        outputs: Tensor = GRUSteps.apply(  # type: ignore[no-untyped-call]
            inputs, self.weight_hh, self.bias_hh, *state, kept
        )
        return (outputs,)

    def inputs(self, features: Tensor) -> Tensor:
        """Returns the features' part of the gates: [..., 3 H]."""
        return linear(features, self.weight_ih, self.bias_ih)


@torch.no_grad()
def cell_of(
    settings: RecurrentConfig, features: int, generator: torch.Generator | None
) -> LSTM | GRU:
    """Returns the cell of a config for so many features, its weights orthogonal."""
    cell = (LSTM if settings.cell == "lstm" else GRU)(features, settings.size)
    for name, parameter in cell.named_parameters():
        if name.startswith("weight"):
            nn.init.orthogonal_(parameter, generator=generator)
        else:
            parameter.zero_()
    return cell


def advance(cell: LSTM | GRU, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the outputs [N, H] for features [N, F] and states [N, S], and the states after."""
    parts = cell.advance(cell.inputs(features), state.chunk(cell.parts, -1))
    return parts[0], torch.cat(parts, -1)


def unroll(cell: LSTM | GRU, features: Tensor, state: Tensor, done: Tensor) -> tuple[Tensor, ...]:
    """Returns the state after each step of segments, in parts [T, N, H], the outputs first.

    `features` are those of the rows of segments [T N, F], `state` [N, S] is before the first step.
    It is dropped after the steps where `done` [T, N], of which the last may be missing, is 1.
    """
    inputs, num_env = cell.inputs(features), len(state)
    steps = len(inputs) // num_env
    kept = torch.ones_like(inputs[:, :1]).view(steps, num_env, 1)
    kept[1:, :, 0] -= done[: steps - 1]
    return cell.all_steps(inputs.view(steps, num_env, -1), state.chunk(cell.parts, -1), kept)


class RecurrentActorCritic(ActorCritic):
    """An actor-critic network with a cell between hidden layers and head.

    `forward` is for the first observations of episodes; `step` goes on from states, and `unroll`
    goes through segments. With precision bf16 the cell stays in float32, as the head does.
    """

    def __init__(self, *args: Any, recurrent: RecurrentConfig, **options: Any) -> None:
        """`recurrent`: the cell; the rest as for an ActorCritic."""
        generator = options.get("generator")
        super().__init__(*args, **{**options, "features": recurrent.size})
        self.cell = cell_of(recurrent, self.trunk.features, generator)
        self.state_columns = self.cell.parts * recurrent.size

    def describe(self) -> dict[str, Any]:
        kind = type(self.cell).__name__.lower()
        return {**super().describe(), "recurrent": f"{kind} {self.cell.hidden_size}"}

    def forward(self, observation: Tensor) -> Tensor:
        state = observation.new_zeros(len(observation), self.state_columns, dtype=torch.float32)
        return self.step(observation, state)[0]

    def step(self, observation: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the head's output [N, P + 1] for observations [N, D], and the states after."""
        output, next_state = advance(self.cell, self.trunk(observation), state)
        head: Tensor = self.head(output)
        return head, next_state

    def unroll(self, observations: Tensor, state: Tensor, done: Tensor) -> Tensor:
        """Returns the head's output [T, N, P + 1] for segments [T, N, D].

        `state` [N, S] is before the first step. It is dropped after the steps where `done` [T, N],
        of which the last may be missing, is 1.
        """
        features = self.trunk(observations.flatten(0, 1))
        head: Tensor = self.head(unroll(self.cell, features, state, done)[0])
        return head


class Unrolled:
    """A recurrent network as losses call one: with all observations of some segments."""

    def __init__(self, network: RecurrentActorCritic, sequences: Sequences) -> None:
        self._network, self._sequences = network, sequences

    def __call__(self, observation: Tensor) -> Tensor:
        """The head's output for segments [T, N, D], or for their rows [T N, D], as those lie."""
        state, done = self._sequences.state, self._sequences.done
        if observation.ndim == 3:
            return self._network.unroll(observation, state, done)
        segments = observation.view(*done.shape, -1)
        return self._network.unroll(segments, state, done).flatten(0, 1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)


class RecurrentPolicy(ActorCriticPolicy):
    """Acts by a recurrent actor-critic network."""

    def __init__(self, network: RecurrentActorCritic) -> None:
        super().__init__(network)
        self.state_columns = network.state_columns

    def network_for(self, batch: Batch) -> Unrolled:
        assert batch.sequences is not None
        return Unrolled(self.network, batch.sequences)

    def act(self, step: Mapping[str, Tensor]) -> Tensor:
        head, state = self.network.step(step["observation"], step["state"])
        step["head"].copy_(head)
        step["state"].copy_(state)
        return self.distribution.sample(step["parameters"], step["noise"], step["action"])

    def value(self, observation: Tensor, state: Tensor | None = None) -> Tensor:
        assert state is not None
        value: Tensor = self.network.step(observation, state)[0][:, -1]
        return value

    def mode(self, observation: Tensor, state: Tensor | None = None) -> Tensor:
        assert state is not None
        head, next_state = self.network.step(observation, state)
        state.copy_(next_state)
        return self.distribution.mode(head[:, :-1])
