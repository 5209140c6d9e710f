"""Simulator and agent of a GMI in one loop: a horizon of steps, straight into a batch's columns.

On the CPU every step looks for episodes that ended, and only they cost something. On a GPU every
step launches the same work on all environments, with masks, and nothing waits for the device until
`read`. With a pool, the work between two steps of the environments is one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gmi_drl.roles.algorithms.algorithm import Algorithm
from gmi_drl.roles.envs.agents import AgentGroup, rows_of
from gmi_drl.roles.envs.protocol import Step, VecEnv
from gmi_drl.roles.errors import NotFiniteError, RoleError
from gmi_drl.roles.graphs import Graph, Pool, capture_steps, static_on
from gmi_drl.roles.policies.normalize import normalized
from gmi_drl.roles.seeds import draw_on
from gmi_drl.roles.telemetry.clock import Clock
from gmi_drl.roles.telemetry.phases import phase
from gmi_drl.runtime.process.progress import beat

from .batch import Batch, env_action
from .episodes import EpisodeStats, Seen


class Collector:
    """Steps the environments with the policy for one horizon at a time.

    `static`: work as on a GPU, on any device (None: on all devices but the CPU). `pool`: where that
    work is captured, from the second horizon on; None: it is not captured. Policy and normalisers
    must keep their tensors from then on, whose contents may change.
    """

    def __init__(
        self,
        env: VecEnv,
        algorithm: Algorithm,
        batch: Batch,
        generator: torch.Generator,
        *,
        pool: Pool | None = None,
        static: bool | None = None,
    ) -> None:
        policy, settings = algorithm.policy, algorithm.settings
        self._env, self._policy, self.batch = env, policy, batch
        self._normalizer = algorithm.normalizers.observations
        self._value_normalizer = algorithm.normalizers.values
        self._gamma, self._reward_scale = settings.gamma, settings.reward_scale
        self._generator = generator
        self._static = static_on(env.device, static)
        groups: Sequence[AgentGroup] = getattr(env, "groups", ())
        group_rows = rows_of(groups, env.num_env) if len(groups) > 1 else []
        # Whether the policy can only value all rows at once, as that of several agents.
        self._values_all = getattr(policy, "values_all_rows", False)
        self.episodes = EpisodeStats(env.num_env, env.device, group_rows)
        self.of_groups: list[Seen] = []  # the episodes of the last `read`, of each policy
        self.observation = env.reset().clone()  # [N, D], the next to act on
        self._to_env = env_action(env.action_space, env.device)
        self._steps = batch.steps()
        if batch.frames is not None:  # float observations are for acting, and are not kept
            floats = torch.zeros(self.observation.shape, device=env.device)
            for step in self._steps:
                step["observation"] = floats
        # The policy's state of each environment, in the same tensor at all times.
        self._state: Tensor | None = None
        if batch.sequences is not None:
            self._state = torch.zeros_like(batch.sequences.state)
            for step in self._steps:
                step["state"] = self._state
        # Where rows are agents: which of them act next, in the same tensor at all times.
        self._present: Tensor | None = getattr(env, "present", None)
        self._records = "next_observation" in batch.columns
        self._records_paid = "paid" in batch.columns
        self._reads_final = settings.bootstrap_time_limit
        # An algorithm that records next observations values these itself.
        self._bootstrap = self._reads_final and not self._records
        self._converted = [batch["value"]] if "value" in policy.columns else []
        if self._present is not None:
            self._converted.append(batch["present"])
        self._clock = Clock(env.device)
        self._iteration = 0
        self._steady, self._captured_at = Steady(), 0
        self._action = self._to_env(self._steps[0]["action"]).clone()
        self._bad_final = torch.zeros_like(batch["ended"])
        self._bad = torch.zeros((), dtype=torch.bool, device=env.device)
        self._pool = pool
        if pool is not None:
            capture_steps(env, pool)
        self._graphs: dict[int, Graph] = {}

    @torch.no_grad()
    def collect(self, iteration: int, is_late: Callable[[], bool] = lambda: False) -> int:
        """Fill the rollout. On a GPU this returns when the work is queued, at the latest.

        NotFiniteError if the environments gave NaN or infinity; on a GPU `read` raises it. On the
        CPU it ends before a step when `is_late`, and the next one goes on from there; the batch is
        of no use then. Returns how many steps were taken.
        """
        batch, policy = self.batch, self._policy
        self._iteration = iteration
        # A horizon before that was given up has not been read.
        self._clock.clear()
        self.episodes.forget()
        self._clock.begin("infer")
        for name, constant in policy.row_constants.items():
            batch.row_constants[name].copy_(constant)
        policy.noise(self._generator, batch)
        if batch.sequences is not None and self._state is not None:
            batch.sequences.state.copy_(self._state)
        if batch.frames is not None:
            batch.frames.begin(self.observation)
        taken = len(self._steps)
        if self._static:
            self._collect_masked()
        else:
            taken = self._collect_on_host(is_late)
        self._clock.stop()
        return taken

    def read(self) -> tuple[tuple[float, float], Seen]:
        """Returns the seconds of the last `collect` and the episodes that ended.

        The seconds are those of the simulator and of the agent. Waits for the device;
        NotFiniteError as for `collect`.
        """
        seconds = self._clock.read()  # waits without spinning
        if self._static and bool(self._bad):
            raise self._not_finite()
        self.of_groups = self.episodes.of_groups
        # There are no seconds of the simulator if no step was taken in time.
        return (seconds.get("simulate", 0.0), seconds["infer"]), self.episodes.take()

    def close(self) -> None:
        """Let captured work and its memory go."""
        for graph in self._graphs.values():
            graph.close()
        self._graphs.clear()

    def state_dict(self) -> dict[str, Any]:
        """Returns where simulation stands: environments, observations, episodes, generator."""
        return {
            "env": self._env.state_dict(),
            "observation": self.observation,
            "state": self._state,
            "episodes": self.episodes.state_dict(),
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Loads `state`; returns False if its adapter could not save the environments.

        Then new episodes begin.
        """
        draw_on(self._generator, state["generator"])
        if state["env"] is None:
            return False
        self._env.load_state_dict(state["env"])
        self.observation.copy_(state["observation"])
        if self._state is not None:
            self._state.copy_(state["state"])
        self.episodes.load_state_dict(state["episodes"])
        return True

    # Both ways -----------------------------------------------------------------------------

    def _act(self, step: Mapping[str, Tensor], observation: Tensor) -> Tensor:
        """Records an observation and returns the environments' actions."""
        if self._present is not None:
            step["present"].copy_(self._present)
        if self.batch.frames is None:
            step["raw_observation"].copy_(observation)
        else:
            self.batch.frames.record(step["raw_observation"], observation)
        normalized(self._normalizer, observation, step["observation"])
        return self._to_env(self._policy.act(step))

    def _value(self, observation: Tensor, rows: Tensor | None = None) -> Tensor:
        """Returns the values of next observations, which are those of `rows` if given."""
        floats = torch.empty_like(observation, dtype=torch.float32)  # images are bytes
        inputs, state = normalized(self._normalizer, observation, floats), self._state
        if state is not None and rows is not None:
            state = state[rows]
        return self._denormalized(self._policy.value(inputs, state))

    def _reset_state(self, done: Tensor) -> None:
        """Clears the policy's state where episodes have ended, after their value was computed."""
        if self._state is not None:
            self._state.masked_fill_(done[:, None], 0.0)

    def _denormalized(self, value: Tensor) -> Tensor:
        normalizer = self._value_normalizer
        return value if normalizer is None else normalizer.denormalize(value)

    def _complete(self) -> None:
        """Fills the columns that are computed for all steps at once."""
        batch = self.batch
        batch["done"].copy_(batch["ended"])
        open_turns = None if self._present is None else _drop_open_turns(batch, self._present)
        self._policy.finish(batch)
        if "value" in self._policy.columns:
            value = batch["value"]
            value.copy_(self._denormalized(value))
        if "value" in batch.bootstrap:
            last = batch.bootstrap["value"]
            last.copy_(self._value(self.observation))
            if open_turns is not None:  # an open turn is what follows the agent's turn before
                open_values = batch["value"].masked_fill(~open_turns, 0.0).sum(0)
                last.copy_(torch.where(open_turns.any(0), open_values, last))
        if "observation" in batch.bootstrap:
            batch.bootstrap["observation"].copy_(self.observation)

    def _finite_sum(self) -> Tensor:
        """Returns a sum that is finite if all observations and rewards are, but for overflow."""
        raw, reward = self.batch["raw_observation"], self.batch["reward"]
        if not raw.is_floating_point():
            return reward.sum()
        return raw.sum() + self.observation.sum() + reward.sum()

    def _record_next(self, row: Mapping[str, Tensor], step: Step) -> None:
        """Records next observations: the final observation where an episode ended."""
        ended = row["ended"][:, None]
        row["next_observation"].copy_(torch.where(ended, step.final_observation, step.observation))
        row["terminated"].copy_(step.terminated)

    # On the CPU ----------------------------------------------------------------------------

    def _collect_on_host(self, is_late: Callable[[], bool]) -> int:
        clock, simulating = self._clock, phase("simulate")
        taken = 0
        for t, row in enumerate(self._steps):
            if is_late():
                break
            beat("rollout")
            action = self._act(row, self.observation)
            clock.begin("simulate")
            with simulating:
                step = self._env.step(action)
            clock.begin("infer")
            row["reward"].copy_(step.reward)
            if self._records_paid:
                row["paid"].copy_(step.reward)
            done = torch.logical_or(step.terminated, step.truncated, out=row["ended"])
            self.observation = step.observation
            present = row["present"] if self._present is not None else None
            if self.episodes.add(step.reward, done, present) and self._reads_final:
                cut = step.truncated & ~step.terminated
                self._read_final(t, cut, step.final_observation)
            if self._records:
                self._record_next(row, step)
            self._reset_state(done)
            taken += 1
        self.observation = self.observation.clone()  # the env's buffer is its own
        if not bool(torch.isfinite(self._finite_sum())):
            raise self._not_finite()
        if taken < len(self._steps):
            if self._records_paid:  # games go on, and later rows are of the horizon before
                for name in ("paid", "ended", "present"):
                    self.batch[name][taken:].zero_()
                self.batch["done"].copy_(self.batch["ended"])
            return taken
        if self._reward_scale != 1.0:
            self.batch["reward"].mul_(self._reward_scale)
        self._complete()
        if self._present is not None and not bool(self.batch["present"].any()):
            raise RoleError(
                f"algorithm.horizon={len(self._steps)}: agents take turns, and of no turn of a "
                "horizon is known what came of it, which the agent's next turn tells. Use twice as "
                "many steps as there are agents, or more."
            )
        return taken

    def _read_final(self, t: int, cut: Tensor, final_observation: Tensor) -> None:
        """Checks the observations that episodes were cut at, and bootstraps from them if set."""
        rows = cut.nonzero().squeeze(-1)
        if rows.numel():
            final = final_observation[rows]
            bad_rows = (~torch.isfinite(final).all(-1)).nonzero()
            if len(bad_rows):
                env_index = int(rows[bad_rows[0]])
                raise self._error_at("final observation", env_index, t)
            if self._bootstrap:
                # A time limit does not end an episode: it is credited with the value of the state
                # that it was cut in. Rewards are scaled at the end, so this undoes the scale.
                value = (
                    self._value(final_observation)[rows]
                    if self._values_all
                    else self._value(final, rows)
                )
                self.batch["reward"][t, rows] += value * (self._gamma / self._reward_scale)

    # On a GPU: launches only, the same ones in every iteration ---------------------------------

    def _collect_masked(self) -> None:
        clock, simulating, steady = self._clock, phase("simulate"), self._steady
        # The first horizon finds out whether steps stay in the same tensors.
        capture = self._pool is not None and steady.moves > 0
        if capture and steady.moves != self._captured_at:
            self.close()
            self._captured_at = steady.moves
        for i in range(len(self._steps) + 1):
            beat("rollout")
            if i:
                clock.begin("simulate")
                with simulating:
                    step = self._env.step(self._action)
                clock.begin("infer")
                steady.take(step)
            if capture and steady.moves == self._captured_at:
                self._graph(i)()
            else:
                self._between(i)

    def _graph(self, i: int) -> Graph:
        if i not in self._graphs:
            assert self._pool is not None
            # Trial runs count episodes, and convert values again that were converted.
            keep = [*self.episodes.tensors, *self._converted] if i else []
            keep += [] if self._state is None else [self._state]
            work, name = partial(self._between, i), f"the work before step {i}"
            device, pool = self._env.device, self._pool
            self._graphs[i] = Graph(work, device, keep=keep, pool=pool, name=name)
        return self._graphs[i]

    def _between(self, i: int) -> None:
        """Does the work before the i-th step of the environments, or after the last."""
        if i:
            self._record(i - 1, self._steady.step)
        if i < len(self._steps):
            observation = self._steady.step.observation if i else self.observation
            self._action.copy_(self._act(self._steps[i], observation))
            return
        self.observation.copy_(self._steady.step.observation)
        finite = torch.isfinite(self._finite_sum())
        self._bad.copy_(~finite | self._bad_final.any())
        self._complete()

    def _record(self, t: int, step: Step) -> None:
        row, is_bad = self._steps[t], self._bad_final[t]
        row["reward"].copy_(step.reward)
        if self._records_paid:
            row["paid"].copy_(step.reward)
        done = torch.logical_or(step.terminated, step.truncated, out=row["ended"])
        self.episodes.add_masked(step.reward, done, row.get("present"))
        if self._records:
            self._record_next(row, step)
        if self._reads_final:
            cut = step.truncated & ~step.terminated
            torch.logical_and(cut, ~torch.isfinite(step.final_observation).all(-1), out=is_bad)
        if self._bootstrap:
            final_value = self._value(step.final_observation) * (self._gamma / self._reward_scale)
            row["reward"].add_(final_value.masked_fill_(~cut, 0.0))
        self._reset_state(done)
        if self._reward_scale != 1.0:
            row["reward"].mul_(self._reward_scale)

    def _not_finite(self) -> NotFiniteError:
        """Returns the error that names the first bad entry; waits for the device."""
        if len(final := self._bad_final.nonzero()):
            step, env_index = final[0].tolist()
            return self._error_at("final observation", env_index, step)
        bad_reward = ~torch.isfinite(self.batch["reward"])
        bad, raw = bad_reward, self.batch["raw_observation"]
        if raw.is_floating_point():
            observations = torch.cat([raw[1:], self.observation[None]])
            bad = bad_reward | ~torch.isfinite(observations).all(-1)
        entries = bad.nonzero()
        if not len(entries):  # in the first observation, or a sum too large for float32
            field = "the first observation, or the sum of all,"
            return self._error_at(field, 0, 0)
        step, env_index = entries[0].tolist()
        field = "reward" if bad_reward[step, env_index] else "observation"
        return self._error_at(field, env_index, step)

    def _error_at(self, what: str, env_index: int, step: int) -> NotFiniteError:
        env_id = getattr(self._env, "env_id", "of the role")
        if (row_name := getattr(self._env, "row_name", None)) is not None:  # rows are agents
            what = f"{what} of {row_name(env_index)},"
        first_seed = getattr(self._env, "seed", None)  # as make_env has it
        seed = first_seed + env_index if isinstance(first_seed, int) else None
        return NotFiniteError(env_id, what, env_index, seed, step, self._iteration)


def _drop_open_turns(batch: Batch, present: Tensor) -> Tensor:
    """Takes turns out of a batch whose outcome is not known yet, and returns them [T, N].

    They are the last turns of agents that do not act next, by `present` [N], in episodes that go
    on: there is no observation yet to value what follows by.
    """
    acted = batch["present"]
    later = acted.flip(0).cumsum(0).flip(0) > acted.long()  # a turn of the same agent
    ends = batch["ended"].flip(0).cumsum(0).flip(0) > 0
    open_turns = acted & ~(later | ends | present)
    acted.logical_and_(~open_turns)
    return open_turns


class Steady:
    """Keeps the last `Step` where captured work can read it: in the same tensors from the second.

    An environment that gives the same Step object every time writes into the same tensors, which
    are read in place. The steps of others are copied, on their device.
    """

    def __init__(self) -> None:
        self._step: Step | None = None
        self._copied = False
        self.taken = 0  # steps
        self.moves = 0  # how often `step` has changed its place

    @property
    def step(self) -> Step:
        assert self._step is not None
        return self._step

    def take(self, step: Step) -> None:
        """Takes in a step of the environments."""
        self.taken += 1
        if step is self._step:
            return
        if self._step is None:
            self._step, self.moves = step, 1
            return
        if not self._copied:
            self._step = Step(*(torch.empty_like(part) for part in step))
            self._copied, self.moves = True, self.moves + 1
        for target, source in zip(self._step, step, strict=True):
            target.copy_(source)
