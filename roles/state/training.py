"""Runs an optimizer to its end: a loop that survives deaths, checkpoints, metrics, the evaluation.

A GMI may be killed and come back at any point (docs/recovery.md): the others learn it at their next
meeting, and all go on behind the last iteration that every survivor has finished. Where one is lost
for good with its device, the others leave what they have for the GMIs of a smaller layout.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter, sleep, time
from typing import Any, Final

from gmi_drl.comm import CommError, GroupFinished, GroupReformed, assert_identical
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.errors import CheckpointError
from gmi_drl.roles.evaluators.evaluate import evaluate_together, longest_episode
from gmi_drl.roles.optimizers.optimizer import NoMore, Optimizer, Round
from gmi_drl.roles.optimizers.trained_steps import TrainedSteps
from gmi_drl.roles.policies.description import compare
from gmi_drl.roles.role.heirs import HELD, SAVED, is_saved
from gmi_drl.roles.role.manager import GMI_manager
from gmi_drl.roles.telemetry.experience import Experience
from gmi_drl.roles.telemetry.phases import rounded
from gmi_drl.roles.telemetry.progress import MetricsLog
from gmi_drl.runtime.process.progress import beat, waiting

from . import checkpoint, recovery, request, saving

_REPEATED_VERSIONS: Final = 8  # as a process may be killed before its last records are sent
_LOSS_NOTICE_S: Final = 12.0  # the driver takes a host for lost after ten
_LOOK_S: Final = 0.05
_REMEDY: Final = (
    "Undo what was changed in the run's config.yaml, or in its role classes, or begin a new run."
)


class Training:
    """The training of one GMI, together with the others of its group.

    `description` is that of the policy, which checkpoints keep; `make_env(num_env)` makes the
    environments of the evaluation at the end.
    """

    def __init__(
        self,
        mgr: GMI_manager,
        optimizer: Optimizer,
        description: dict[str, Any],
        make_env: Callable[[int], VecEnv],
    ) -> None:
        self._pause = pause = mgr.context.pause
        total_steps = mgr.config.run.total_steps
        self._end = total_steps if pause is None else min(total_steps, pause.steps)
        self._mgr, self._optimizer = mgr, optimizer
        self._description, self._make_env = description, make_env
        context = mgr.context
        self._group, self._run = context.group, mgr.config.run
        # The clock of all GMIs: one of this host that never jumps, or the one that others have too.
        self._clock = perf_counter if mgr.layout.hosts == 1 else time
        self._iteration = self._steps = 0
        self._saved = -1  # the iteration of the last checkpoint of this launch
        self._trained_s = 0.0
        self._finished = self._stopped = self._requested = False
        same_host = mgr.layout.on_host(mgr.layout.host_of(mgr.GMI_id))
        # One of each host tells of lineage, as what one tells may be lost with its host.
        first_trainer = next(gmi.gmi_id for gmi in same_host if "trainer" in gmi.roles)
        self._tells_lineage = context.folder is not None and mgr.GMI_id == first_trainer
        self._log: MetricsLog | None = None
        self._metrics: dict[str, Any] | None = None  # of the last iteration, if they are logged
        self._lineage: list[dict[str, Any]] = []  # of the last iterations, where it is recorded
        self._restored = ""  # the checkpoint that training goes on from, or "peers"
        self._refused = 0  # of strangers, at the last look
        self._snapshots = recovery.Snapshots()
        self._saver: saving.Saver | None = None
        if (folder := context.folder) is not None:
            optimizer.progress.wants_checkpoint = partial(self._is_requested, folder)
            self._saver = saving.Saver(
                folder, mgr.GMI_id, self._group, context.session, context.epoch
            )

    def run(self) -> dict[str, Any]:
        """Trains until the configured steps are done or the launcher asks to stop."""
        optimizer = self._optimizer
        try:
            self._mgr.await_set_up()
            self._began = perf_counter()
            while True:
                if self._mgr.is_bereft:  # of a whole device or host, perhaps while it set up
                    return self._leave_state()
                try:
                    beat("start")
                    return self._train() | self._outcome()
                except GroupReformed:
                    self._mgr.await_set_up()  # the new one makes its environments again
                except GroupFinished as finished:  # this GMI died between the end and its answer
                    result: dict[str, Any] = json.loads(finished.outcome)
                    return result | self._outcome()
                except CommError:
                    if not self._is_bereft():
                        raise
                    return self._leave_state()
        finally:
            optimizer.close()
            if self._log is not None:
                self._log.close()

    def _outcome(self) -> dict[str, Any]:
        """Returns what this GMI's result has beside that which all share."""
        outcome = self._optimizer.outcome()
        if self._pause is not None and self._saver is not None:
            outcome |= {
                "return_mean": self._optimizer.progress.return_mean,
                "checkpoint": str(self._saver.path_of(self._iteration)),
            }
        return outcome

    def _train(self) -> dict[str, Any]:
        """Trains from where the group stands to the end; called again when it is re-formed."""
        self._assemble()
        if self._log is not None and (note := self._group.note):
            self._mgr.report({"kind": "note", "message": note})
        while True:
            self._snapshots.keep(self._iteration, self._state())
            interval = self._run.checkpoint_every
            due = interval and self._iteration and self._iteration % interval == 0
            if due or self._requested:
                self._save()
            if self._finished:
                break
            self._mgr.begin_iteration()
            training_round = self._optimizer.step(self._iteration, self._steps)
            if isinstance(training_round, NoMore):
                self._finished = True
                self._stopped = self._stopped or training_round.stopped
            else:
                self._conclude(training_round)
        self._save(final=True)
        self._optimizer.finish()
        result = self._evaluate()
        # Of each policy only this answer tells, as there may be too many for a group's outcome.
        outcome = {key: value for key, value in result.items() if "/" not in key}
        self._group.finish(json.dumps(outcome))
        return result

    def _is_bereft(self) -> bool:
        """Tells whether peers are lost for good; of a host the launcher may find out later."""
        mgr = self._mgr
        cluster = mgr.config.cluster
        if cluster is not None and cluster.on_loss != "fail":
            deadline_s = perf_counter() + _LOSS_NOTICE_S
            with waiting:
                while not mgr.is_bereft and perf_counter() < deadline_s:
                    sleep(_LOOK_S)
        return mgr.is_bereft

    def _leave_state(self) -> dict[str, Any]:
        """Ends without peers that are lost; the heir saves its last iteration for a new layout.

        GMIs that could save theirs wait for that, as the heir may be lost next.
        """
        saver, mgr = self._saver, self._mgr
        holds = saver is not None and self._snapshots.newest > self._saved
        mgr.tally[mgr.GMI_id, "snapshot"] = HELD if holds else 0
        if saver is not None and holds and self._is_made_heir():
            self._save_snapshot(saver)
            mgr.tally[mgr.GMI_id, "snapshot"] = SAVED
        return {"iteration": self._iteration, "steps": self._steps, "stopped": True}

    def _is_made_heir(self) -> bool:
        """Waits until the launcher has made this GMI the heir, or another one has saved.

        The launcher ends GMIs for which both take too long.
        """
        mgr = self._mgr
        with waiting:
            while not mgr.is_heir and not is_saved(mgr.context.of_all("snapshot")):
                sleep(_LOOK_S)
        return mgr.is_heir

    def _save_snapshot(self, saver: saving.Saver) -> None:
        """Saves the last iteration that this GMI has finished, for all."""
        beat("checkpoint")
        iteration = self._snapshots.newest
        state = self._snapshots.get(iteration)
        assert state is not None
        shared = state["learned"] | {
            "iteration": iteration,
            "steps": state["steps"],
            "trained_s": state["trained_s"] + self._clock() - state["began"],
            "metrics": state["metrics"],  # its line may have been another's to write
        }
        manifest = self._manifest() | {
            "steps": state["steps"],
            "gmis": [],
            "lineage": state["lineage"],
        }
        if failure := saver.save_alone(iteration, shared, manifest):
            self._mgr.warn(failure)
        if lineage := state["lineage"]:
            self._report_branch(lineage, lineage[-1]["generation"])

    def _is_requested(self, folder: Path) -> bool:
        """Says, in the first GMI of the group, whether somebody asks for a checkpoint."""
        return self._group.rank == 0 and request.is_requested(folder)

    def _conclude(self, training_round: Round) -> None:
        """Counts a round, decides whether it was the last one, and tells the launcher of it."""
        self._iteration += 1
        self._steps += training_round.steps
        self._stopped = training_round.stop
        self._requested = self._optimizer.progress.checkpoint_wanted
        lineage = self._lineage_of(training_round.experience)
        if lineage is not None:
            self._lineage = [*self._lineage[1 - _REPEATED_VERSIONS :], lineage]
        run, context = self._run, self._mgr.context
        self._finished = self._stopped or self._has_reached_end
        context.note_memory()
        self._note_refused()
        peaks = context.of_all("mem_peak_bytes")  # others: as of their iteration's begin
        metrics = {
            "iteration": self._iteration,
            "steps": self._steps,
            "time_s": self._time_s,
            **training_round.metrics,
            "gmi_seconds": [rounded(seconds) for seconds in training_round.gmi_seconds],
            **({"mem_peak_bytes": max(peaks), "gmi_mem_peak_bytes": peaks} if peaks else {}),
        }
        if self._mgr.layout.hosts > 1:
            metrics["refused"] = sum(context.of_all("refused"))
        due = self._iteration % run.log_every == 0 or self._finished
        self._metrics = metrics if due else None
        if self._log is not None:
            if due:
                if self._saver is not None:
                    self._saver.check_epoch()
                self._log.write(metrics)
            gmi_metrics = {"gmi_mem_peak_bytes": peaks, "gmi_sm_count": context.of_all("sm_count")}
            report = {"kind": "iteration", **metrics, **gmi_metrics}
            if lineage is not None:
                report["lineage"] = lineage
            self._mgr.report(report)
        elif self._tells_lineage and lineage is not None:
            self._mgr.report({"kind": "lineage", "lineage": lineage})
        interval = self._mgr.config.comm.checksum_every
        if interval and self._iteration % interval == 0:
            self._check_identical()

    def _note_refused(self) -> None:
        """Counts what strangers have tried since the last look; warns each time it has doubled."""
        context, refused = self._mgr.context, self._group.refused + self._optimizer.refused
        increase, self._refused = refused - self._refused, refused
        if increase <= 0:
            return
        earlier = context.of_mine("refused")
        context.add("refused", increase)
        if (earlier + increase).bit_length() > earlier.bit_length():
            self._mgr.warn(
                f"gmi {self._mgr.GMI_id}: its ports for other hosts have refused "
                f"{earlier + increase} connections or messages that are not of this run. "
                "See who reaches that network."
            )

    @property
    def _generation(self) -> int:
        """Returns how often processes were replaced in this launch, as all that train know it."""
        # One without peers may be replaced without its group's knowing.
        alone = self._group.size == 1
        return self._mgr.context.process if alone else self._group.generation

    def _lineage_of(self, experience: Experience | None) -> dict[str, Any] | None:
        """Returns what the policy of this iteration was computed from, in plain values."""
        if experience is None:
            return None
        trainers = [gmi.gmi_id for gmi in self._mgr.layout.holding("trainer")]
        uses = [
            (trainer, *use)
            for trainer, trainer_uses in zip(trainers, experience.uses, strict=True)
            for use in trainer_uses
        ]
        kept = [(t, *k) for t, k in zip(trainers, experience.kept, strict=False)]
        return {
            "generation": self._generation,
            "version": self._iteration,
            "updates": self._optimizer.learner.updates,
            "steps": self._steps,
            "lag": experience.lag,
            "experience": json.dumps(uses, separators=(",", ":")),
            "replay": json.dumps(kept, separators=(",", ":")) if kept else "",
            "made_s": time(),
        }

    def _report_branch(self, last: list[dict[str, Any]], generation: int) -> None:
        """Tells from where training goes on, and again of the last versions before that.

        The process that has told of those may have been killed before its records were sent.
        """
        learner = self._optimizer.learner
        record = {
            "kind": "branch",
            "generation": generation,
            "version": self._iteration,
            "board": self._optimizer.board_version,
            "restored": self._restored,
            "optimizer": f"{self._mgr.config.algorithm.resolved_optimizer}, "
            f"{type(learner.algorithm).__name__}",
            "began_s": time(),
            "last": last,
        }
        self._mgr.report(record)

    def _check_identical(self) -> None:
        parameters = self._optimizer.learner.parameters
        assert_identical(
            self._group, parameters.data.detach(), parameters.names, parameters.offsets,
            self._iteration,
        )  # fmt: skip

    @property
    def _has_reached_end(self) -> bool:
        """Tells whether the steps are done, or the mean return is what `run.target_return` asks."""
        target, progress = self._run.target_return, self._optimizer.progress
        mean = progress.return_mean if progress.has_seen_enough else None
        reached = target is not None and mean is not None and mean >= target
        return reached or self._steps >= self._end

    @property
    def _time_s(self) -> float:
        """Returns the seconds of training so far, those before a resume included."""
        return self._trained_s + perf_counter() - self._began

    def _assemble(self) -> None:
        """Comes to one state with the other GMIs, at the beginning and when one was restarted."""
        self._group.reform()
        if self._saver is not None:
            self._saver.mend()
        meeting = recovery.agree(self._group, self._snapshots)
        if meeting is None:
            self._load_checkpoint()
        else:
            iteration, source = meeting
            self._take_state(recovery.spread(self._group, source, self._snapshots.get(iteration)))
        if self._mgr.context.wires.links:  # to agents in other GMIs
            TrainedSteps(self._mgr, self._mgr.GMI_id).note(self._iteration, self._steps)
        self._optimizer.connect(self._group, self._iteration)
        if self._group.generation:
            self._check_identical()
        folder = self._mgr.context.folder
        if self._group.rank == 0 and folder is not None:
            if self._log is not None:
                self._log.close()
            self._log = MetricsLog(folder, self._iteration, self._metrics, self._mgr.warn)
        if self._tells_lineage and self._run.lineage:
            self._report_branch(self._lineage, self._generation)

    def _state(self) -> dict[str, Any]:
        """Returns what a GMI that comes back needs to go on as if it had been there."""
        return {
            "learned": self._optimizer.state_dict(),
            "iteration": self._iteration,
            "steps": self._steps,
            "finished": self._finished,
            "stopped": self._stopped,
            "requested": self._requested,
            "metrics": self._metrics,
            "lineage": self._lineage,
            "trained_s": self._trained_s,
            "began": self._clock() - (perf_counter() - self._began),
        }

    def _take_state(self, state: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state["learned"])
        self._iteration, self._steps = state["iteration"], state["steps"]
        self._finished, self._stopped = state["finished"], state["stopped"]
        self._requested = state["requested"]
        self._metrics, self._lineage = state["metrics"], state["lineage"]
        self._restored = "peers"
        self._trained_s = state["trained_s"]
        self._began = perf_counter() - (self._clock() - state["began"])
        self._saved = -1
        # At once: should the one that gave it die just now, this GMI is one that holds it.
        self._snapshots.keep(self._iteration, self._state())
        self._snapshots.forget_after(self._iteration)

    def _load_checkpoint(self) -> None:
        """Goes on from the last checkpoint: this launch's, or else the one to resume from."""
        saved = newest = None if self._saver is None else self._saver.newest()
        resume, gmi_id = self._mgr.context.resume, self._mgr.GMI_id
        if saved is None:
            if resume is None:
                return
            saved = checkpoint.find(resume, ["shared", f"gmi{gmi_id}"])
        self._restored = str(saved.folder)
        compare(saved, self._description, _REMEDY)
        shared = saved.load("shared")
        with _explain_missing_entry(saved):
            self._optimizer.load_state_dict(shared)
            saved_rate, self._lineage = saved.manifest["learning_rate"], saved.manifest["lineage"]
            new_gmis = saving.begun_anew(saved, self._mgr.layout)
        descent, rate = self._optimizer.learner.descent, self._mgr.config.algorithm.learning_rate
        if saved_rate != rate and self._pause is None:  # a resize has changed it
            descent.learning_rate *= rate / saved_rate
        self._iteration, self._steps = shared["iteration"], shared["steps"]
        self._saved, self._metrics = self._iteration, shared.get("metrics")
        self._trained_s, self._began = shared["trained_s"], perf_counter()
        self._finished = self._has_reached_end
        warning = ""
        if saved.policy_only:
            warning = (
                f"{saved.folder} holds the policy alone, as the disk was full: the optimizer's "
                "moments, random numbers and episodes begin anew."
            )
        else:
            if gmi_id not in new_gmis:
                own_state = saved.load(f"gmi{gmi_id}")
                if self._mgr.context.copy and newest is None:
                    # Else it would explore as the other one does. What a replay has is no draw.
                    replay_state = {k: own_state[k] for k in ("replay",) if k in own_state}
                    own_state = self._optimizer.own_state() | replay_state
                with _explain_missing_entry(saved):
                    self._optimizer.load_own_state(own_state)
            if new_gmis := [gmi for gmi in new_gmis if self._mgr.layout.gmi(gmi).num_env]:
                gmis_text = f"GMI{'s' if len(new_gmis) > 1 else ''} {', '.join(map(str, new_gmis))}"
                warning = f"{saved.folder} is of another layout: {gmis_text} begin new episodes."
        if warning and self._group.rank == 0:
            self._mgr.warn(warning)
        if self._pause is not None and newest is None:
            self._saved = -1
            if self._pause.learning_rate is not None:
                self._optimizer.learner.descent.learning_rate = self._pause.learning_rate

    def _save(self, final: bool = False) -> None:
        """Writes a checkpoint, or the policy alone; fatal only at the end, if neither can be."""
        saver, iteration = self._saver, self._iteration
        if saver is None or self._saved == iteration:
            return
        present, missing = self._optimizer.save_parts(lambda: saver.begin(iteration), iteration)
        if not present:
            saver.mend()  # the last checkpoint was whole before any GMI was told to leave
            return
        beat("checkpoint")
        folder, is_first = self._mgr.context.folder, self._group.rank == 0
        if is_first and folder is not None:
            request.take_request(folder)
        own_state, manifest = self._optimizer.own_state(), self._manifest()
        exists, failure = saver.save(iteration, own_state, self._shared_state, manifest, missing)
        if exists:
            self._saved = iteration
            if is_first:
                path = str(saver.path_of(iteration))
                self._mgr.report({"kind": "checkpoint", "iteration": iteration, "path": path})
        elif failure and final:
            raise CheckpointError(failure)
        if failure:
            self._mgr.warn(failure)

    def _manifest(self) -> dict[str, Any]:
        """Returns what a checkpoint says of itself."""
        config, layout = self._mgr.config, self._mgr.layout
        return {
            "steps": self._steps,
            "gmis": saving.gmis_of(layout),
            "template": layout.template,
            "learning_rate": config.algorithm.learning_rate,
            "environment": config.env.id,
            "algorithm": config.algorithm.name,
            "policy": self._description,
            "lineage": self._lineage,
        }

    def _shared_state(self, whole: bool) -> dict[str, Any]:
        """Returns what all GMIs share; without the optimizer's moments if it is not `whole`."""
        state = self._optimizer.state_dict()
        if not whole:
            state["optimizer"] = self._optimizer.learner.descent.state_dict(whole=False)
        counters = {"iteration": self._iteration, "steps": self._steps, "trained_s": self._time_s}
        return state | counters

    def _evaluate(self) -> dict[str, Any]:
        """Returns the final result: counters, and the greedy policy's mean return."""
        result = {"iteration": self._iteration, "steps": self._steps, "stopped": self._stopped}
        episodes = self._run.eval_episodes
        if not episodes or self._stopped:
            return result
        mgr, algorithm = self._mgr, self._optimizer.learner.algorithm
        mgr.begin_set_up()
        self._group.barrier()  # all know that all make environments
        env = self._make_env(-(-episodes // self._group.size))
        mgr.close_later(env.close)
        policy, normalizer = algorithm.policy, algorithm.normalizers.observations
        returns = evaluate_together(
            env, policy, normalizer, self._group, self._is_to_end, await_set_up=mgr.await_set_up
        )
        if self._group.rank == 0 and (cut := returns.get("eval_cut")):
            self._mgr.warn(
                f"{cut:.0f} of {returns['eval_episodes']:.0f} episodes of the evaluation had not "
                f"ended after {longest_episode(env):,} steps, and count as they were by then. "
                "env.max_episode_steps sets another limit, of training too."
            )
        return result | returns

    def _is_to_end(self) -> bool:
        """Tells whether the run is to end at once; a resize comes too late for one that is done."""
        return self._mgr.stop_requested() and not self._mgr.is_resizing


@contextmanager
def _explain_missing_entry(saved: checkpoint.Checkpoint) -> Iterator[None]:
    """Raises CheckpointError where what goes on needs an entry that a checkpoint does not have."""
    try:
        yield
    except KeyError as error:
        raise CheckpointError(
            f"{saved.folder} has no {error}, which this gmi-drl goes on with: another release "
            "wrote it. Resume with the release that wrote it, or begin a new run."
        ) from error
