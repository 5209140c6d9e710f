"""What trainers share, co-located or apart: a loop that survives deaths, checkpoints, the end.

A GMI may be killed and come back at any point (docs/recovery.md): whoever meets next is told so,
and all assemble anew behind the last iteration that every survivor has finished.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from time import perf_counter
from typing import Any, Final, Protocol

from gmi_drl.comm import GroupFinished, GroupReformed, assert_identical
from gmi_drl.comm.shm.heartbeat import beat
from gmi_drl.roles.errors import CheckpointError
from gmi_drl.roles.evaluators.evaluate import evaluate_together, longest_episode
from gmi_drl.roles.policies.acting import ActingRole
from gmi_drl.roles.policies.description import compare
from gmi_drl.roles.policies.normalize import Normalizers
from gmi_drl.roles.policies.policy import ActorCritic, FlatParameters
from gmi_drl.roles.state import recovery, saving
from gmi_drl.roles.telemetry.progress import MetricsLog

_REMEDY: Final = (
    "Undo what was changed in the run's config.yaml, or in its role classes, or begin a new run."
)


class Learned(Protocol):
    """What all trainers hold alike."""

    def state_dict(self) -> dict[str, Any]:
        """The state, partly the tensors themselves: copied or written before training goes on."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the one that gave it."""


class Training(ActingRole):
    """The loop of a trainer. A subclass sets `_policy`, `_normalizers`, `_learned` in `_setup`."""

    recoverable = says_set_up = True

    _policy: ActorCritic
    _normalizers: Normalizers
    _learned: Learned

    # What a kind of trainer adds -----------------------------------------------------------

    @abstractmethod
    def _setup(self) -> None:
        """Everything that is this GMI's own; the group is not needed for it."""

    @abstractmethod
    def _connect(self) -> None:
        """Make the buckets of what learns; again after the group was re-formed."""

    @abstractmethod
    def _iterate(self) -> None:
        """One iteration; sets `_finished` after the last one, alike on all GMIs."""

    @abstractmethod
    def _own_state(self) -> dict[str, Any]:
        """What is this GMI's alone in a checkpoint."""

    @abstractmethod
    def _load_own(self, state: dict[str, Any]) -> None:
        """Go on from what `_own_state` gave."""

    @abstractmethod
    def _parameters(self) -> FlatParameters:
        """What is trained."""

    @abstractmethod
    def _close(self) -> None:
        """Let go of what `_setup` opened."""

    def _end(self) -> int:
        """The environment steps that this training is over at."""
        return self.mgr.config.run.total_steps

    def _after_training(self) -> None:
        """All is trained and saved; the evaluation comes next."""

    def _outcome(self) -> dict[str, Any]:
        """What this GMI's result has beside that which all share."""
        return {}

    # The loop ------------------------------------------------------------------------------

    def GMI_run(self, **params: Any) -> dict[str, Any]:
        """Train until the configured steps are done or the launcher asks to stop."""
        self._check_no_params(params)
        self._iteration = self._steps = 0
        self._saved = -1  # the iteration of the last checkpoint of this launch
        self._trained_s = 0.0
        self._finished = self._stopped = False
        self._log: MetricsLog | None = None
        self._metrics: dict[str, Any] | None = None  # of the last iteration, if they are logged
        self._snapshots = recovery.Snapshots()
        context = self.mgr.context
        self._saver = (
            None
            if context.folder is None
            else saving.Saver(context.folder, self.GMI_id, self.group, context.session)
        )
        self._setup()
        try:
            self.mgr.await_set_up()
            self._began = perf_counter()
            while True:
                try:
                    beat("start")
                    return self._train() | self._outcome()
                except GroupReformed:
                    self.mgr.await_set_up()  # the new one makes its environments again
                except GroupFinished as done:  # this GMI died between the end and its answer
                    found: dict[str, Any] = json.loads(done.outcome)
                    return found | self._outcome()
        finally:
            self._close()
            if self._log is not None:
                self._log.close()

    def _train(self) -> dict[str, Any]:
        """From where the group stands to the end of the run; begun anew when it is re-formed."""
        self._assemble()
        while True:
            self._snapshots.keep(self._iteration, self._state())
            every = self.mgr.config.run.checkpoint_every
            if every and self._iteration and self._iteration % every == 0:
                self._save()
            if self._finished:
                break
            self.mgr.begin_iteration()
            self._iterate()
        self._save(final=True)
        self._after_training()
        result = self._evaluate()
        self.group.finish(json.dumps(result))
        return result

    def _conclude(self, metrics: dict[str, Any], gmi_seconds: list[dict[str, float]]) -> None:
        """Decide whether this iteration was the last one, and tell the launcher of it.

        `metrics` are the same on all GMIs; `gmi_seconds` of each GMI of the layout.
        """
        run = self.mgr.config.run
        mean = metrics["return_mean"]
        reached = run.target_return is not None and mean is not None and mean >= run.target_return
        self._finished = self._stopped or reached or self._steps >= self._end()
        self.mgr.context.note_memory()
        peaks = self.mgr.context.of_all("mem_peak_bytes")  # others: as of their iteration's begin
        metrics = {
            "iteration": self._iteration,
            "steps": self._steps,
            "time_s": self._time_s,
            **metrics,
            **({"mem_peak_bytes": max(peaks)} if peaks else {}),
        }
        due = self._iteration % run.log_every == 0 or self._finished
        self._metrics = metrics if due else None
        if self._log is None:
            return
        if due and (failure := self._log.write(metrics)):
            self._warn(failure)
        record = {"kind": "iteration", **metrics, "gmi_seconds": gmi_seconds}
        sms = self.mgr.context.of_all("sm_count")
        self.mgr.report(record | {"gmi_mem_peak_bytes": peaks, "gmi_sm_count": sms})

    def _check_identical(self) -> None:
        parameters = self._parameters()
        assert_identical(
            self.group, parameters.data.detach(), parameters.names, parameters.offsets,
            self._iteration,
        )  # fmt: skip

    def _check_identical_when_due(self) -> None:
        every = self.mgr.config.comm.checksum_every
        if every and self._iteration % every == 0:
            self._check_identical()

    @property
    def _time_s(self) -> float:
        """Seconds of training so far, those before a resume included."""
        return self._trained_s + perf_counter() - self._began

    def _warn(self, message: str) -> None:
        self.mgr.report({"kind": "warning", "message": message})

    # Where the group stands ----------------------------------------------------------------

    def _assemble(self) -> None:
        """Come to one state with the other GMIs, at the beginning and when one was restarted."""
        self.group.reform()
        if self._saver is not None:
            self._saver.mend()
        found = recovery.agree(self.group, self._snapshots)
        if found is None:
            self._load_checkpoint()
        else:
            kept = self._snapshots.get(found.iteration)
            self._take_over(recovery.spread(self.group, found.source, kept))
        self._connect()
        if self.group.generation:
            self._check_identical()
        folder = self.mgr.context.folder
        if self.group.rank == 0 and folder is not None:
            if self._log is not None:
                self._log.close()
            self._log = MetricsLog(folder, self._iteration, self._metrics)
            for told in self._log.news:
                self._warn(told)

    def _state(self) -> dict[str, Any]:
        """What a GMI that comes back needs to go on as if it had been there."""
        return {
            "learned": self._learned.state_dict(),
            "iteration": self._iteration,
            "steps": self._steps,
            "finished": self._finished,
            "stopped": self._stopped,
            "metrics": self._metrics,
            "trained_s": self._trained_s,
            "began": self._began,  # all GMIs have the same clock
        }

    def _take_over(self, state: dict[str, Any]) -> None:
        self._learned.load_state_dict(state["learned"])
        self._iteration, self._steps = state["iteration"], state["steps"]
        self._finished, self._stopped = state["finished"], state["stopped"]
        self._metrics = state["metrics"]
        self._trained_s, self._began = state["trained_s"], state["began"]
        self._saved = -1
        # At once, and not only at the next iteration: should the one that gave it die just now,
        # this GMI is one that holds it.
        self._snapshots.keep(self._iteration, self._state())
        self._snapshots.forget_after(self._iteration)

    def _load_checkpoint(self) -> None:
        """Go on from the last checkpoint: this launch's, or else the one to resume from."""
        newest = None if self._saver is None else self._saver.newest()
        path = newest or self.mgr.context.resume
        if path is None:
            return
        found = saving.read(path, saving.gmis_of(self.mgr.layout))
        told = compare(found, self._description, _REMEDY)
        shared = found.load("shared")
        self._learned.load_state_dict(shared)
        self._iteration, self._steps = shared["iteration"], shared["steps"]
        self._saved = self._iteration
        self._trained_s, self._began = shared["trained_s"], perf_counter()
        self._finished = self._steps >= self._end()
        if found.policy_only:
            told += (
                f" {found.folder} holds the policy alone, as the disk was full: the optimizer's "
                "moments, random numbers and episodes begin anew."
            )
        else:
            self._load_own(found.load(f"gmi{self.GMI_id}"))
        if told and self.group.rank == 0:
            self._warn(told.strip())

    # Checkpoints and evaluation ------------------------------------------------------------

    def _save(self, final: bool = False, missing: str = "") -> None:
        """Write a checkpoint, or the policy alone; fatal only at the end, if neither can be.

        `missing`: see Saver.save.
        """
        if self._saver is None or self._saved == self._iteration:
            return
        beat("checkpoint")
        manifest = {
            "steps": self._steps,
            "gmis": saving.gmis_of(self.mgr.layout),
            "environment": self.mgr.config.env.id,
            "algorithm": self.mgr.config.algorithm.name,
            "policy": self._description,
        }
        exists, told = self._saver.save(
            self._iteration, self._own_state(), self._shared_state, manifest, missing
        )
        if exists:
            self._saved = self._iteration
        elif told and final:
            raise CheckpointError(told)
        if told:
            self._warn(told)

    def _shared_state(self, whole: bool) -> dict[str, Any]:
        """What all GMIs hold alike; not `whole`: without the moments of the optimizer."""
        state = self._learned.state_dict()
        if not whole:
            state["optimizer"] = state["optimizer"] | {"state": {}}
        counted = {"iteration": self._iteration, "steps": self._steps, "trained_s": self._time_s}
        return state | counted

    def _evaluate(self) -> dict[str, Any]:
        """Final result: counters, and the mean return of whole episodes of the greedy policy."""
        result = {"iteration": self._iteration, "steps": self._steps, "stopped": self._stopped}
        episodes = self.mgr.config.run.eval_episodes
        if not episodes or self._stopped:
            return result
        self.mgr.begin_set_up()
        self.group.barrier()  # all know that all make environments
        env = self.make_env(-(-episodes // self.group.size), seed=2)
        self.mgr.close_later(env.close)
        found = evaluate_together(
            env,
            self._policy,
            self._normalizers.observations,
            self.group,
            self.mgr.stop_requested,
            self.mgr.await_set_up,
        )
        if self.group.rank == 0 and (cut := found.get("eval_cut")):
            self._warn(
                f"{cut:.0f} of {found['eval_episodes']:.0f} episodes of the evaluation had not "
                f"ended after {longest_episode(env):,} steps, and count as they were by then. "
                "env.max_episode_steps sets another limit, of training too."
            )
        return result | found
