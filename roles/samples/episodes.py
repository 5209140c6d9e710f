"""Returns and lengths of finished episodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

WINDOW: Final = 100  # episodes that a mean is over


class Seen(NamedTuple):
    """The episodes that ended in an iteration: how many, and the sums over them."""

    episodes: float
    return_sum: float
    length_sum: float

    @classmethod
    def by(cls, agents: Mapping[int, Sequence[float]]) -> Seen:
        """Sums the (count, return_sum, length_sum) of all agents, by gmi_id.

        They are summed in the order of the ids: the bits are the same in whatever order they came.
        """
        rows = [agents[gmi_id] for gmi_id in sorted(agents)]
        return cls(*(sum(column) for column in zip(*rows, strict=True)))

    def plus(self, other: Seen) -> Seen:
        """Returns the sums over both."""
        return Seen(*(a + b for a, b in zip(self, other, strict=True)))


class RecentEpisodes:
    """The episodes of the last iterations: the fewest whole iterations that have 100."""

    def __init__(self) -> None:
        self._seen: deque[Seen] = deque()
        self._earlier = 0.0  # episodes that were in there before

    def add(self, seen: Seen) -> None:
        """Adds the episodes of an iteration."""
        if seen.episodes:
            self._seen.append(seen)
        while sum(seen.episodes for seen in list(self._seen)[1:]) >= WINDOW:
            self._earlier += self._seen.popleft().episodes

    @property
    def total(self) -> float:
        """Returns how many episodes have ended so far."""
        return self._earlier + sum(seen.episodes for seen in self._seen)

    def means(self) -> tuple[float | None, float | None]:
        """Returns the means of return and length; None before the first episode has ended."""
        if not self._seen:
            return None, None
        count, returns, lengths = (sum(numbers) for numbers in zip(*self._seen, strict=True))
        return returns / count, lengths / count

    def state_dict(self) -> dict[str, Any]:
        return {"seen": [list(seen) for seen in self._seen], "earlier": self._earlier}

    def load_state_dict(self, state: dict[str, Any] | list[list[float]]) -> None:
        if isinstance(state, list):  # of a checkpoint of before `earlier` was kept
            state = {"seen": state, "earlier": 0.0}
        self._seen = deque(Seen(*row) for row in state["seen"])
        self._earlier = state["earlier"]


class EpisodeStats:
    """Follows N environments and sums up the episodes that ended, on the environments' device.

    Returns are undiscounted and unscaled, as the environment pays them; float32, sums in float64.
    """

    def __init__(
        self, num_env: int, device: torch.device | str = "cpu", groups: Sequence[slice] = ()
    ) -> None:
        """`groups`: rows that are also summed up by themselves."""
        self._open = torch.zeros(3, num_env, device=device)  # 1, return and length so far
        self._open[0] = 1.0
        self._return, self._length = self._open[1], self._open[2]
        self._counted = [0.0, 0.0, 0.0]  # what ended: episodes, their returns and lengths
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)  # the same, of add_masked
        self._groups = list(groups)
        self._of_groups = torch.zeros(len(groups), 3, dtype=torch.float64, device=device)

    def add(self, reward: Tensor, done: Tensor, present: Tensor | None = None) -> bool:
        """Counts one step, [N] each; True if an episode ended with it. For tensors on the CPU.

        `present` bool: which agents acted, where rows are agents that come and go.
        """
        self._return += reward
        self._length += 1 if present is None else present
        if not done.any():
            return False
        if self._groups:
            self._add_to_groups(self._open.masked_fill(~done, 0.0))
        for i in done.nonzero().squeeze(-1).tolist():
            self._counted[0] += 1.0
            self._counted[1] += float(self._return[i])
            self._counted[2] += float(self._length[i])
            self._return[i] = 0
            self._length[i] = 0
        return True

    def add_masked(self, reward: Tensor, done: Tensor, present: Tensor | None = None) -> None:
        """Counts one step by launches alone: on a GPU it does not wait, and may be captured."""
        self._return += reward
        self._length += 1 if present is None else present
        ended = self._open.masked_fill(~done, 0.0)
        self._sums += ended.sum(1, dtype=torch.float64)
        if self._groups:
            self._add_to_groups(ended)
        self._open[1:].masked_fill_(done, 0.0)

    def _add_to_groups(self, ended: Tensor) -> None:
        for group, sums in zip(self._groups, self._of_groups, strict=True):
            sums += ended[:, group].sum(1, dtype=torch.float64)

    @property
    def tensors(self) -> list[Tensor]:
        """Returns the tensors that `add_masked` changes."""
        return [self._open, self._sums, self._of_groups]

    @property
    def of_groups(self) -> list[Seen]:
        """Returns what `take` does, for each group. Waits for the device if there are groups."""
        return [Seen(*row) for row in self._of_groups.tolist()]

    def take(self) -> Seen:
        """Returns the episodes that ended since the last call. Waits for the device."""
        episodes = Seen(*self._counted).plus(Seen(*self._sums.tolist()))
        self.forget()
        return episodes

    def forget(self) -> None:
        """Counts anew from zero; episodes that are open go on. Does not wait."""
        self._counted = [0.0, 0.0, 0.0]
        self._sums.zero_()
        self._of_groups.zero_()

    def state_dict(self) -> dict[str, Tensor]:
        return {"return": self._return.clone(), "length": self._length.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._return.copy_(state["return"])
        self._length.copy_(state["length"])
