#!/usr/bin/env python3
"""Measures AlphaZero: leaves a second against OpenSpiel's, and what is learned of connect four.

Claims to be tried: a search of many games at once with one network call a wave looks at five times
the leaves of OpenSpiel's Python AlphaZero, which asks its network for one at a time, on one core
with the same network; and connect four learned in half an hour on two cores plays ever more of the
moves that are best by exact solving, and wins more than 80 % of games against MCTS with 400
rollouts.

    leaves    connect four, games from the beginning; 64 of them at once, one by OpenSpiel's
              `MCTSBot` with its `AlphaZeroEvaluator` (PUCT, cache as it comes). Each row is a
              network: dense layers, or residual blocks. Both sides take turns, round after round
    training  a run of two GMIs for --seconds, with a checkpoint every few rounds. Of each: the
              share of 200 positions (bench/results/raw/connect_four.jsonl) in which its move is one
              of the best, by the network alone and by a search, beside what the same search finds
              with a network that prefers nothing. Of the last one: games against
              OpenSpiel's `pyspiel.MCTSBot` of 400 simulations with a random rollout each, which
              solves what it can, half of them on each side; by a search of as many leaves, and of
              a quarter of them

    bench/alphazero.py leaves --rounds 3
    bench/alphazero.py leaves --rounds 1 --seconds 0.5     # a smoke test
    bench/alphazero.py training --seconds 1800

It needs gmi-drl[open_spiel]. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from modes import Rates, column, in_turn
from report import RESULTS, emit, emit_pairs, parser, say

import gmi_drl

NETWORKS: Final[dict[str, dict[str, Any]]] = {
    "dense 128x128": {"blocks": 0, "network": [128, 128]},
    "3 blocks of 32": {"blocks": 3, "channels": 32, "network": [64]},
}
GAMES: Final = 64
SIMULATIONS: Final = 64
POSITIONS: Final = RESULTS / "raw" / "connect_four.jsonl"
ROLLOUTS: Final = 400
MATCH: Final = 100  # games
ALONE: Final = "algorithm.play_simulations=0"
AS_MANY: Final = f"algorithm.play_simulations={ROLLOUTS}"
NETWORK: Final = "3 blocks of 32"
TRAINED: Final[dict[str, Any]] = {
    **NETWORKS[NETWORK], "name": "alphazero", "precision": "bf16", "games": 64, "simulations": 64,
    "play_simulations": ROLLOUTS // 4, "temperature_moves": 20, "updates_per_row": 0.04,
    "replay_capacity": 200_000, "gate_games": 0,
}  # fmt: skip


def network_of(fields: dict[str, Any]) -> Any:
    """Returns a network of connect four whose weights prefer some moves."""
    from gmi_drl.placement import AlphaZeroConfig
    from gmi_drl.roles.games import make_game
    from gmi_drl.roles.policies.search import GameNetwork

    generator = torch.Generator().manual_seed(1)
    network = GameNetwork(make_game("ConnectFour-v0"), AlphaZeroConfig(**fields), generator)
    torch.nn.init.normal_(network.head.weight, 0.0, 0.1, generator=generator)
    return network


def ours(network: Any, seconds: float) -> Rates:
    """Measures the leaves a second of games that are played at once."""
    from gmi_drl.roles.games import step_legal
    from gmi_drl.roles.games.tree import SearchTrees

    game = network.game
    trees = SearchTrees(game, GAMES, SIMULATIONS)
    rng, states, searched = np.random.default_rng(0), game.initial(GAMES), 0
    began = time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        noise = rng.gamma(1.0, size=(GAMES, game.actions))
        moves = trees.search(states, network.evaluate, noise).argmax(1)
        searched += GAMES * SIMULATIONS
        states = step_legal(game, states, moves)
        states[game.terminal(states)[0]] = 0
    return {"leaves_per_s": searched / elapsed}


def openspiel(network: Any, seconds: float) -> Rates:
    """Measures OpenSpiel's Python AlphaZero with this network, a leaf at a time."""
    import pyspiel
    from open_spiel.python.algorithms import mcts
    from open_spiel.python.algorithms.alpha_zero.evaluator import AlphaZeroEvaluator

    class Model:
        """Answers as OpenSpiel's models do; its planes are: empty, and then the two players'."""

        def inference(self, seen: Any, mask: Any) -> tuple[float, Any]:
            planes = np.asarray(seen, np.float32).reshape(3, 6, 7)
            oriented = planes[1:] if (planes[1].sum() + planes[2].sum()) % 2 == 0 else planes[:0:-1]
            preferences, value = network.evaluate(np.ascontiguousarray(oriented)[None])
            odds = np.exp(preferences[0]) * np.asarray(mask)
            return float(value[0]), odds / odds.sum()

    game = pyspiel.load_game("connect_four")
    bot = mcts.MCTSBot(
        game, 1.25, SIMULATIONS, AlphaZeroEvaluator(game, Model()), solve=False,
        random_state=np.random.RandomState(0), child_selection_fn=mcts.SearchNode.puct_value,
        dirichlet_noise=(0.25, 1.0), dont_return_chance_node=True,
    )  # fmt: skip
    state, searched = game.new_initial_state(), 0
    began = time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        state.apply_action(bot.step(state))
        searched += SIMULATIONS
        if state.is_terminal():
            state = game.new_initial_state()
    return {"leaves_per_s": searched / elapsed}


def leaves(rounds: int, seconds: float) -> None:
    """Measures the rows of the search."""
    torch.set_num_threads(1)
    for name, fields in NETWORKS.items():
        network = network_of(fields)
        sides = {
            side.__name__: lambda side=side, network=network: side(network, seconds)
            for side in (ours, openspiel)
        }
        speeds = column(in_turn(sides, rounds), "leaves_per_s")
        emit_pairs(
            "alphazero", f"leaves {name}", "leaves/s", *speeds.values(), digits=None, games=GAMES,
            simulations=SIMULATIONS, peer_name="OpenSpiel's Python AlphaZero",
        )  # fmt: skip


class Looker(gmi_drl.Callback):
    """Looks at what checkpoints play, and stops the run when its time is over."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._run: Any = None
        self.shares: list[list[float]] = []  # steps, and the shares alone and by search
        self.last: dict[str, Any] = {}

    def on_start(self, run: Any) -> None:
        self._run = run

    def on_iteration(self, iteration: int, metrics: Mapping[str, Any]) -> None:
        self.last = dict(metrics)
        if metrics["time_s"] > self._seconds:
            self._run.request_stop(f"{self._seconds:g} s are over")

    def on_checkpoint(self, path: Path) -> None:
        policies = (gmi_drl.load_policy(path, overrides=[ALONE]), gmi_drl.load_policy(path))
        shares = [round(best_share(policy.act), 3) for policy in policies]
        self.shares.append([self.last["steps"], *shares])
        say(f"steps, best moves alone, by search: {self.shares[-1]}")


def training(seconds: float, rounds: int) -> None:
    """Trains connect four for so long, and looks at what it plays."""
    with tempfile.TemporaryDirectory(prefix="gmi-bench-") as folder:
        config = {
            "version": 1,
            "run": {
                "name": "connect_four", "folder": folder, "seed": 1, "total_steps": 10**9,
                "eval_episodes": 0, "checkpoint_every": rounds,
            },
            "env": {"id": "ConnectFour-v0", "num_env": TRAINED["games"] // 2},
            "algorithm": TRAINED,
            "layout": {"gmi_per_gpu": 2},
        }  # fmt: skip
        looker = Looker(seconds)
        result = gmi_drl.launch(config, view="none", callbacks=[looker])
        torch.set_num_threads(1)  # one game at a time is searched
        fewer_leaves = against_mcts(gmi_drl.load_policy(result.folder), MATCH)
        equal = gmi_drl.load_policy(result.folder, overrides=[AS_MANY])
        wins, draws, losses = against_mcts(equal, MATCH)
    emit(
        "alphazero", "connect four", value=(wins + 0.5 * draws) / MATCH,
        unit="score against MCTS with 400 rollouts",
        wins=wins, draws=draws, losses=losses, with_fewer_leaves=fewer_leaves,
        leaves=[ROLLOUTS, TRAINED["play_simulations"]], network=NETWORK, best_moves=looker.shares,
        best_moves_of_search_alone=round(best_share(search_alone), 3),
        seconds=round(looker.last["time_s"]), gmis=2, steps=looker.last["steps"],
        promoted=looker.last["promoted"],
    )  # fmt: skip


def search_alone(cells: Any) -> Any:
    """Returns the moves of a search whose network prefers nothing and values positions as draws."""
    from gmi_drl.roles.games import make_game
    from gmi_drl.roles.games.tree import SearchTrees

    game = make_game("ConnectFour-v0")
    trees = SearchTrees(game, len(cells), TRAINED["play_simulations"])

    def nothing(seen: Any) -> tuple[Any, Any]:
        return np.zeros((len(seen), game.actions), np.float32), np.zeros(len(seen), np.float32)

    return trees.search(cells.astype(np.int16), nothing).argmax(1)


def best_share(act: Callable[[Any], Any]) -> float:
    """Returns the share of positions in which `act` plays one of the best moves."""
    rows = [json.loads(line) for line in POSITIONS.read_text(encoding="utf-8").splitlines()]
    moves = act(np.array([row["cells"] for row in rows], np.float32))
    best = [
        row["values"][move] == max(value for value in row["values"] if value is not None)
        for row, move in zip(rows, moves.tolist(), strict=True)
    ]
    return sum(best) / len(best)


def against_mcts(policy: Any, games: int) -> tuple[int, int, int]:
    """Returns wins, draws and losses of a policy, which begins in every other game."""
    import pyspiel

    from gmi_drl.roles.games import make_game

    game, our_game = pyspiel.load_game("connect_four"), make_game("ConnectFour-v0")
    counts = [0, 0, 0]
    for number in range(games):
        bot = pyspiel.MCTSBot(
            game, pyspiel.RandomRolloutEvaluator(1, number), 2.0, ROLLOUTS, 1000, True, number,
            False,
        )  # fmt: skip
        state, row, side = game.new_initial_state(), our_game.initial(1), number % 2
        while not state.is_terminal():
            if state.current_player() == side:
                move = int(policy.act(row[0].astype(np.float32)))
            else:
                move = bot.step(state)
            state.apply_action(move)
            row = our_game.step(row, np.array([move]))
        counts[1 - int(state.returns()[side])] += 1
    wins, draws, losses = counts
    return wins, draws, losses


def main() -> None:
    """Measures what is asked for."""
    options_of = parser(__doc__, rounds=3)
    options_of.add_argument("part", choices=("leaves", "training"))
    options_of.add_argument("--seconds", type=float, default=8.0, help="of a side, or of training")
    options_of.add_argument("--look", type=int, default=10, help="rounds between two looks")
    options = options_of.parse_args()
    if options.part == "leaves":
        leaves(options.rounds, options.seconds)
    else:
        training(options.seconds, options.look)


if __name__ == "__main__":
    main()
