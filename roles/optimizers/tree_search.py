"""Self-play: games of the best network so far, a replay of them, and a candidate that may follow.

A round has the four parts of AlphaGo Zero (Silver et al., 2017): each GMI plays its share of games,
every GMI keeps all of them, the candidate is trained on them, and now and then it plays a match
against the best network, whose place it takes when it wins enough.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from gmi_drl.comm import Group
from gmi_drl.roles.algorithms.alphazero import AlphaZero
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.errors import RoleError
from gmi_drl.roles.evaluators.evaluate import play
from gmi_drl.roles.evaluators.searched_games import Match, Positions, SearchedGames
from gmi_drl.roles.policies.flat_parameters import FlatParameters
from gmi_drl.roles.policies.policy import GreedyActor
from gmi_drl.roles.policies.search import GameNetwork, SearchPolicy
from gmi_drl.roles.samples.episodes import Seen
from gmi_drl.roles.samples.replay.games import GameReplay
from gmi_drl.roles.telemetry.clock import Clock
from gmi_drl.roles.telemetry.experience import ExperienceCodec, Kept, Use
from gmi_drl.roles.telemetry.phases import phase
from gmi_drl.roles.telemetry.progress import Progress

from .gradient_step import check_finite
from .learner import Learner
from .optimizer import NoMore, Optimizer, Round, share_of

if TYPE_CHECKING:
    from gmi_drl.roles.role.acting import ActingRole

_CURVE: Final = 13  # the stream of seeds of the games that the curve is made of


def make(role: ActingRole) -> TreeSearchRounds:
    """Make the optimizer of a role, over the game of its environments."""
    env = role.build_with_env()
    if not isinstance(role.algorithm, AlphaZero):
        raise RoleError(
            f"{type(role.algorithm).__name__} learns from no positions of games, which optimizer "
            "tree_search gives. Derive it from gmi_drl.roles.algorithms.alphazero.AlphaZero, or "
            "use another optimizer."
        )
    return TreeSearchRounds(role, role.algorithm, env)


class TreeSearchRounds(Optimizer):
    """Plays games, trains the candidate on them, and lets it play the best network."""

    def __init__(self, role: ActingRole, algorithm: AlphaZero, env: VecEnv) -> None:
        mgr, settings = role.mgr, algorithm.settings
        self._mgr, self._env, self._settings = mgr, env, settings
        self._group, self._seed = mgr.context.group, mgr.config.run.seed
        candidate: GameNetwork = algorithm.policy.network
        self._game = candidate.game
        self._best = candidate
        if settings.gate_games:  # a copy that shares the game
            self._best = copy.deepcopy(candidate, {id(self._game): self._game})
        self._evaluator = SearchedGames(self._game, env.num_env, settings, self._seed)
        device = mgr.context.device
        self._replay = GameReplay(self._game, settings, self._seed, device)
        self.learner = Learner(algorithm, torch.Generator(device))  # it draws nothing
        self._best_parameters = self.learner.parameters
        if settings.gate_games:
            self._best_parameters = FlatParameters(self._best)
        algorithm.policy.plays_by = self._best
        self._alone = SearchPolicy(candidate, simulations=0)
        self._codec = ExperienceCodec(1, is_recorded=mgr.config.run.lineage > 0, has_replay=True)
        self.progress = Progress(mgr.layout, extra=2 + self._codec.numel)
        self._clock = Clock(device)
        self._promoted = 0  # how often the candidate became the best network
        self._best_version = 0  # which version of the candidate that is
        self._match = [0, 0, 0]  # wins, draws and losses of the last match

    def connect(self, group: Group, iteration: int) -> None:
        self._group = group
        self.learner.connect(group)
        self.progress.connect(group)
        game, most_games = self._game, -(-self._settings.games // group.size)
        width = game.state_size + game.actions + 1
        self._shared = group.bucket("positions", most_games * game.longest * width, torch.float32)
        self._matches = group.bucket("match", 3, torch.float64)

    def step(self, iteration: int, steps: int) -> Round | NoMore:
        learner, clock, settings = self.learner, self._clock, self._settings
        learner.anneal(steps / self._mgr.config.run.total_steps)
        clock.clear()  # of a round that was given up
        learner.clock.clear()
        leaves = self._evaluator.leaves
        clock.begin("infer")
        with phase("infer"):
            games = share_of(settings.games, self._group.rank, self._group.size)
            positions = self._evaluator.play(self._best.evaluate, iteration, games)
        clock.begin("reduce")
        with phase("reduce"):
            everyone = self._gather(positions)
        clock.stop()
        self._replay.put(everyone, iteration + 1)
        acting_version = self._best_version if settings.gate_games else iteration
        updates_before = learner.updates
        with phase("train"):
            learner.clock.begin("train")
            learner.noise.begin(settings.batch_size // self._group.size)
            while self._replay.ready():
                rank, size = self._group.rank, self._group.size
                learner.step(self._replay.next(learner.updates, rank, size))
            learner.clock.stop()
        clock.begin("infer")
        if settings.gate_games and (iteration + 1) % settings.gate_every == 0:
            self._play_match(iteration)
        leaves = self._evaluator.leaves - leaves  # of the match too, whose seconds are in infer
        clock.begin("simulate")
        episodes = self._curve(iteration)
        clock.stop()
        stats, seconds, learner_seconds = learner.stats(), clock.read(), learner.clock.read()
        check_finite(stats)
        phases = [seconds.get(name, 0.0) + learner_seconds.get(name, 0.0) for name in
                  ("simulate", "infer", "train", "reduce")]  # fmt: skip
        mgr, own_positions = self._mgr, len(positions.value)
        use = Use(mgr.GMI_id, mgr.context.process, acting_version, len(games), own_positions)
        kept = Kept(len(self._replay), self._replay.oldest, learner.updates - updates_before)
        packed = self._codec.pack([use], iteration - acting_version, kept)
        extra = (leaves, seconds["infer"], *packed)
        agreed = self.progress.agree(episodes, phases, self._mgr.stop_requested(), extra=extra)
        num_positions = len(everyone.value)
        wins, draws, losses = self._match
        metrics = {
            "steps_per_s": num_positions / sum(phases),
            "leaves_per_s": sum(num_leaves / s for num_leaves, s, *_ in agreed.extra),
            **agreed.metrics, **stats, "updates": learner.updates,
            "replay_rows": len(self._replay), "match_wins": wins, "match_draws": draws,
            "match_losses": losses, "promoted": self._promoted,
        }  # fmt: skip
        experience = self._codec.unpack([row[2:] for row in agreed.extra])
        return Round(num_positions, metrics, agreed.gmi_seconds, agreed.stop, experience)

    def _gather(self, positions: Positions) -> Positions:
        """Returns the positions of all GMIs, in the order of their games."""
        rows = np.concatenate(
            [positions.states, positions.policy, positions.value[:, None]], 1, dtype=np.float32
        )
        counts = self._group.exchange(len(rows))
        width, states = rows.shape[1], self._game.state_size
        self._shared.buffer[: rows.size].copy_(torch.from_numpy(rows).flatten())
        parts = self._shared.gather()
        everyone = torch.cat(
            [part[: n * width].view(n, width) for part, n in zip(parts, counts, strict=True)]
        ).numpy()
        return Positions(
            everyone[:, :states].astype(np.int16), everyone[:, states:-1], everyone[:, -1]
        )

    def _play_match(self, iteration: int) -> None:
        """Plays a match, and makes the candidate the best network if it wins enough."""
        pairs = share_of(self._settings.gate_games // 2, self._group.rank, self._group.size)
        candidate: GameNetwork = self.learner.algorithm.policy.network
        outcomes = self._evaluator.match(candidate.evaluate, self._best.evaluate, iteration, pairs)
        self._matches.buffer.copy_(torch.tensor(outcomes, dtype=torch.float64))
        match = Match(*map(int, self._matches.reduce("sum").tolist()))
        self._match = list(match)
        if match.wins and match.wins >= self._settings.gate_share * (match.wins + match.losses):
            self._best_parameters.data.detach().copy_(self.learner.parameters.data.detach())
            self._promoted += 1
            self._best_version = iteration + 1

    def _curve(self, iteration: int) -> Seen:
        """Plays the candidate without search against random moves."""
        sequence = np.random.SeedSequence((self._seed, _CURVE, iteration, self._group.rank))
        seed = int(sequence.generate_state(1)[0]) >> 1
        played = play(self._env, GreedyActor(self._alone, None), seed=seed)
        ended = played.ended > 0
        returns, lengths = played.returns[ended], played.lengths[ended]
        return Seen(int(ended.sum()), float(returns.sum()), float(lengths.sum()))

    def finish(self) -> None:
        """Warns where what acts after training is the network that training began with."""
        settings = self._settings
        if settings.gate_games and not self._promoted and self._group.rank == 0:
            self._mgr.warn(
                "no candidate has become the best network, so that what acts is the network that "
                f"training began with: gate_every={settings.gate_every} rounds lie between two "
                f"matches, of which it has to win gate_share={settings.gate_share:g}. Train "
                "longer, lower gate_every, or use gate_games: 0, with which the newest acts."
            )

    def state_dict(self) -> dict[str, Any]:
        """Returns the best network as `parameters`, as it is what acts after training."""
        state, best = super().state_dict(), self._best_parameters
        return {
            **state,
            "parameters": best.packed(best.data.detach()),
            "candidate": state["parameters"],
            "replay": self._replay.state_dict(),
            "match": list(self._match),
            "promoted": self._promoted,
            "best_version": self._best_version,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        best = self._best_parameters
        with torch.no_grad():
            best.unpack(state["parameters"], best.data)
        super().load_state_dict({**state, "parameters": state["candidate"]})
        self._replay.load_state_dict(state["replay"])
        self._match, self._promoted = list(state["match"]), state["promoted"]
        self._best_version = state["best_version"]
