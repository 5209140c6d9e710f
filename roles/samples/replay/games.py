"""Keeps the positions of games, the same in all GMIs, and draws minibatches of them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

from gmi_drl.placement import AlphaZeroConfig
from gmi_drl.roles.evaluators.searched_games import Positions
from gmi_drl.roles.games import Game
from gmi_drl.roles.samples.batch import Batch

_DRAWS: Final = 12  # the stream of seeds that minibatches are drawn by


class GameReplay:
    """The newest positions of all games, the same in every GMI.

    Each GMI draws its share of the same minibatch, so that k GMIs train as one does. Draws depend
    on the run's seed and the number of the update alone.
    """

    def __init__(
        self, game: Game, settings: AlphaZeroConfig, seed: int, device: torch.device
    ) -> None:
        self._game, self._settings, self._seed, self._device = game, settings, seed, device
        capacity = settings.replay_capacity
        self._states = np.zeros((capacity, game.state_size), np.int16)
        self._policy = np.zeros((capacity, game.actions), np.float32)
        self._value = np.zeros(capacity, np.float32)
        self._version = np.zeros(capacity, np.int64)  # of the round that put it in
        self._next = self._size = 0  # the place of the next position; how many there are
        self._due = 0.0  # updates that are to be taken
        # The order of observations and of moves by each symmetry, the identity first.
        width = int(np.prod(game.shape))
        observations = [np.arange(width), *(symmetry.observation for symmetry in game.symmetries)]
        moves = [np.arange(game.actions), *(symmetry.moves for symmetry in game.symmetries)]
        self._symmetries = np.stack(observations), np.stack(moves)

    def __len__(self) -> int:
        return self._size

    @property
    def oldest(self) -> int:
        """Returns the version whose round put the oldest position in."""
        return int(self._version[: self._size].min(initial=np.iinfo(np.int64).max))

    def put(self, positions: Positions, version: int | np.ndarray) -> None:
        """Takes in the positions of new games, over the oldest ones where there is no room.

        `version` is that of the round that puts them in, or of each position.
        """
        capacity, count = len(self._value), len(positions.value)
        num_kept = min(count, capacity)
        places = (self._next + np.arange(count - num_kept, count)) % capacity
        newest = slice(count - num_kept, count)
        self._states[places] = positions.states[newest]
        self._policy[places] = positions.policy[newest]
        self._value[places] = positions.value[newest]
        self._version[places] = np.broadcast_to(version, count)[newest]
        self._next = (self._next + count) % capacity
        self._size = min(self._size + count, capacity)
        self._due += self._settings.updates_per_row * count

    def ready(self) -> bool:
        """Tells whether an update is due, and counts it as taken."""
        if self._due < 1.0 or not self._size:
            return False
        self._due -= 1.0
        return True

    def next(self, number: int, rank: int, size: int) -> Batch:
        """Returns a rank's share of update `number`'s minibatch, each row by a random symmetry."""
        game, settings = self._game, self._settings
        rng = np.random.default_rng((self._seed, _DRAWS, number))
        rows = rng.integers(self._size, size=settings.batch_size)[rank::size]
        observation_orders, move_orders = self._symmetries
        picked = rng.integers(len(observation_orders), size=settings.batch_size)[rank::size]
        states = self._states[rows]
        observation = game.observe(states).reshape(len(rows), -1)
        columns = {
            "observation": np.take_along_axis(observation, observation_orders[picked], 1),
            "legal": np.take_along_axis(game.legal(states), move_orders[picked], 1),
            "policy": np.take_along_axis(self._policy[rows], move_orders[picked], 1),
            "value": self._value[rows],
        }
        return Batch(
            {name: torch.from_numpy(column).to(self._device) for name, column in columns.items()}
        )

    def state_dict(self) -> dict[str, Any]:
        arrays = (self._states, self._policy, self._value, self._version)
        states, policy, value, version = (torch.from_numpy(array[: self._size]) for array in arrays)
        return {
            "states": states, "policy": policy, "value": value, "version": version,
            "next": self._next, "due": self._due,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads the positions of another replay, the newest if that was larger."""
        count, begin, capacity = len(state["value"]), state["next"], len(self._value)
        order = np.arange(count)
        keeps_order = count == capacity or (count < capacity and begin == count)
        if not keeps_order and begin < count:  # the oldest one lies where the next comes to lie
            order = np.roll(order, -begin)
        self._next = self._size = 0
        names = ("states", "policy", "value")
        version = state["version"].cpu().numpy()[order]
        self.put(Positions(*(state[name].cpu().numpy()[order] for name in names)), version)
        if keeps_order:  # so that the same rows are drawn
            self._next = begin % capacity
        self._due = state["due"]
