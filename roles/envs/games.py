"""Makes a game environments: one player acts, the other one moves at random."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from gmi_drl.roles.games import Game, are_legal, make_game, step_legal, stepped

from .counter_rng import stream_keys, uniform
from .errors import EnvActionError
from .protocol import Step, VecEnvSpec, WithoutState


class GameVecEnv(WithoutState):
    """Plays N games against a player that draws legal moves; which of them begins is drawn, too.

    An observation is the game's state, as the acting player sees it. The end pays 1, 0 or -1; an
    illegal move loses the game.
    """

    def __init__(self, spec: VecEnvSpec) -> None:
        self.env_id, self.game, self.num_env = spec.env_id, make_game(spec.env_id), spec.num_env
        game: Game = self.game
        bounds = np.iinfo(np.int16)
        shape = (game.state_size,)
        self.observation_space = spaces.Box(bounds.min, bounds.max, shape, np.float32)
        self.action_space = spaces.Discrete(game.actions)
        self.device, self._dtype = torch.device("cpu"), spec.dtype
        limit = spec.max_episode_steps
        self._longest = game.longest if limit is None else min(limit, game.longest)
        self.max_episode_steps: int | None = self._longest
        self._seed(spec.seed)
        self._states, self._moves = game.initial(self.num_env), np.zeros(self.num_env, np.int64)

    def reset(self, seed: int | None = None) -> Tensor:
        if seed is not None:
            self._seed(seed)
        self._begin(np.arange(self.num_env))
        return self._observation_of(self._states)

    def step(self, action: Tensor) -> Step:
        if action.shape != (self.num_env,):
            raise EnvActionError.of_shape(self.env_id, action.shape, (self.num_env,))
        game, moves = self.game, action.cpu().numpy().astype(np.int64)
        legal = are_legal(game, self._states, moves)
        reward, over = np.where(legal, 0.0, -1.0), ~legal
        final = self._states.copy()
        playing = np.flatnonzero(legal)
        if len(playing):  # a game of the user's need not know what to do with none
            final[playing] = stepped(game, final[playing], moves[playing])
            playing = self._end_games(final, playing, reward, over, sign=-1.0)
        if len(playing):
            final[playing] = self._reply(final[playing], playing)
            self._end_games(final, playing, reward, over, sign=1.0)
        self._moves += 1
        truncated = ~over & (self._moves >= self._longest)
        self._states = final.copy()
        self._begin(np.flatnonzero(over | truncated))
        return Step(
            self._observation_of(self._states), torch.from_numpy(reward).to(self._dtype),
            torch.from_numpy(over), torch.from_numpy(truncated), self._observation_of(final),
        )  # fmt: skip

    def _end_games(
        self, states: NDArray[np.int16], games: NDArray[np.int64], reward: NDArray[np.float64],
        over: NDArray[np.bool_], sign: float,
    ) -> NDArray[np.int64]:  # fmt: skip
        """Notes which `games` have ended, returns the others; `sign`: -1 if the opponent moves."""
        ended, worth = self.game.terminal(states[games])
        over[games] = ended
        reward[games] = np.where(ended, sign * worth, 0.0)
        return games[~ended]

    def _begin(self, games: NDArray[np.int64]) -> None:
        """Begins new games; in half of them the other player has made the first move.

        Where that move would end the game it was not made.
        """
        if len(games):
            states = self.game.initial(len(games))
            second = np.flatnonzero(self._draw(games)[:, 0] < 0.5)
            if len(second):
                answered = self._reply(states[second], games[second])
                playing = ~self.game.terminal(answered)[0]
                states[second[playing]] = answered[playing]
            self._states[games], self._moves[games] = states, 0

    def _reply(self, states: NDArray[np.int16], games: NDArray[np.int64]) -> NDArray[np.int16]:
        """Returns what the other player makes of the `states` of these games."""
        legal = self.game.legal(states)
        moves = np.where(legal, self._draw(games), -1.0).argmax(1)
        return step_legal(self.game, states, moves)

    def _seed(self, seed: int) -> None:
        """Has each game draw numbers of its own, however many games there are."""
        self._keys = stream_keys(seed, self.num_env, self.device)
        self._draws = torch.zeros(self.num_env, dtype=torch.int64)

    def _draw(self, games: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns a number in [0, 1) for each action of these games."""
        index = torch.from_numpy(games)
        drawn = uniform(self._keys[index], self._draws[index], self.game.actions, torch.float64)
        self._draws[index] += 1
        rows: NDArray[np.float64] = drawn.numpy()
        return rows

    def _observation_of(self, states: NDArray[np.int16]) -> Tensor:
        return torch.from_numpy(states.astype(np.float32)).to(self._dtype)

    def close(self) -> None:
        """Does nothing, as nothing is open."""
