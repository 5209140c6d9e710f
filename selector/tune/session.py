"""Runs a session of tuning, alone on the machine: it searches, races, and writes the choice."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final

from gmi_drl import runtime
from gmi_drl.gmi import GmiError
from gmi_drl.gmi.backends.backend import GPU_BACKENDS
from gmi_drl.gmi.backends.trial import try_backend
from gmi_drl.launcher.colocated_runs import busy_cores, records_folder
from gmi_drl.launcher.start.preload import preload_of
from gmi_drl.launcher.view.view import ViewName, opened
from gmi_drl.placement import Config, Topology, TuneConfig, counted
from gmi_drl.runtime.cache_files import locked, replace_file
from gmi_drl.selector.errors import TuneError, TunerBusy
from gmi_drl.selector.record import identity
from gmi_drl.selector.record.record import TuneJournal, TuneRecord

from . import race
from .algorithms.default import default, most_profiles
from .algorithms.observations import differ_significantly, usable
from .algorithms.paper import paper
from .candidate import (
    Candidate,
    Chosen,
    Failed,
    Measured,
    Space,
    TuneSearch,
    candidate_text,
)
from .efficiency import Prediction, rivals
from .keep import SAME, as_given, by_learning, is_predicted, prediction_of
from .profile.candidate_run import CandidateTimeout
from .profile.profiler import Profiler, train_for
from .request import TuneRequest, changes_of, longer, still_answers
from .search_driver import SearchOutcome, measured_of, run_search
from .space import layout_text, own_of, space_of
from .tune_view import TuneView

TUNER_TIMEOUT: Final = timedelta(minutes=10)  # for another tuner
_LOOK_S: Final = 2.0  # of training, a first look at a candidate
_LEAST_LOOK_S: Final = 0.5
_LEAST_PROFILES: Final = 8  # of a search, however small its budget
_BUSY: Final = 0.5  # cores of others that are told, and their share of all
_BUSY_SHARE: Final = 0.1
_RACE: Final = 0.5  # of the budget, where returns decide
_MOST_RACE: Final = 0.75  # of the budget: the search needs the rest
_DECIDED: Final = {
    "race": "",
    "prediction": "; the prediction decides",
    "rule": "; tune.keep decides alone, and no update grows",
}


def measure(
    request: TuneRequest, title: str, view: ViewName, *, again: bool
) -> tuple[TuneJournal, list[str]]:
    """Tunes, going on with what is on record unless `again`; returns its journal and notes.

    Blocks for the config's budget and some seconds, longer if its last candidate is slow to start;
    before that for another tuner, up to `TUNER_TIMEOUT`. ConfigError when there is nothing to tune,
    TuneError when nothing is found. Everything that was measured until then stays on record.
    """
    space_of(request.config, request.topology)  # raises faults before any wait
    with _tuner_lock(title, view):
        space, held = space_of(request.config, request.topology, works=_usable_backends(request))
        with opened(view, partial(TuneView, title, space, request.config.tune.budget_s)) as screen:
            return _measure_alone(request, space, held, screen, again)


def _measure_alone(
    request: TuneRequest, space: Space, held: list[str], screen: TuneView, again: bool
) -> tuple[TuneJournal, list[str]]:
    """Tunes as `measure` has it, in the lock that keeps other tuners from measuring."""
    budget_s = request.config.tune.budget_s
    record = None if again else request.record()
    if record is not None and request.noise is None and still_answers(record, budget_s):
        journal, _ = TuneJournal.open(request.path, record.header, anew=False)
        note = "another tuner was asked the same, and what it has found is taken"
        screen.note(note)
        return journal, [note]
    notes = list(request.stale())
    anew = again or (record is not None and bool(record.drifts))
    old_text = request.path.read_text(encoding="utf-8") if again and request.fresh() else None
    journal, notices = TuneJournal.open(request.path, _header_of(request, space, held), anew=anew)
    # A load stays on record, as later sessions go on with what was measured under it.
    load = _other_load(request.topology) or str(journal.record.choice.get("load", ""))
    notes += filter(None, [*notices, load])
    for note in notes:
        screen.note(note)
    started = runtime.is_initialized()
    try:
        if not started:
            runtime.init(preload_of(request.config))
        result_notes = _search_and_race(request, space, journal, screen, load)
    except BaseException:
        has_measured = any(isinstance(answer, Measured) for _, answer in journal.record.profiles)
        if old_text is not None and not has_measured:  # a choice is worth more than nothing
            with suppress(OSError):
                replace_file(request.path, old_text)
        raise
    finally:
        if not started:
            runtime.shutdown()
    if journal.trouble and journal.trouble not in notes:
        result_notes.append(journal.trouble)
    for note in result_notes:
        screen.note(note)
    return journal, [*notes, *result_notes]


def _other_load(topology: Topology) -> str:
    """Words what else runs on the cores that are measured; "" if it is little."""
    cores = {core for device in topology.devices for core in device.cores}
    busy = busy_cores(cores)
    if busy <= max(_BUSY, _BUSY_SHARE * len(cores)):
        return ""
    return (
        f"other programs kept {busy:.1f} of {counted(len(cores), 'core')} busy when it "
        "began, and what was measured is beside them; tune again (--again) when they have ended"
    )


def _search_and_race(
    request: TuneRequest, space: Space, journal: TuneJournal, screen: TuneView, load: str
) -> list[str]:
    """Searches, races where the prediction is unsure, writes the choice, and returns notes."""
    config, budget_s = request.config, request.config.tune.budget_s
    notes, facts = list[str](), dict[str, Any]()
    prediction, race_s = None, 0.0
    if is_predicted(config):
        noise = request.noise
        if noise is not None:
            notes.append(str(noise))
            facts["noise"] = str(noise)
        scale = None if noise is None else noise.samples
        prediction = prediction_of(config, request.topology, scale)
        facts["prediction"] = asdict(prediction)
    if by_learning(config):
        race_s, race_note = _race_time(config.tune)
        notes.append(race_note)
        if not race.can_be_held(race_s):
            reason = f"it needs {race.LEAST_S:.0f} s of training for each (--budget, tune.race_s)"
            facts["race"], race_s = f"no race: {reason}", 0.0
    timeout = CandidateTimeout.of(budget_s)
    profiler = Profiler(config, request.beside, timeout=timeout)

    def search_for(seconds: float) -> SearchOutcome:
        search = _search(config, request.topology, space, seconds, prediction)
        return run_search(
            search, space, profiler, journal, seconds, listener=screen, waits_s=timeout.first_s
        )

    outcome, result = search_for(budget_s - race_s), None
    if race_s:
        result, facts["race"] = _race_rivals(
            request, space, outcome.chosen, prediction, journal, screen, race_s
        )
        if result is None and not outcome.chosen.complete:
            outcome = search_for(budget_s)  # in the time that was kept for races
    chosen = outcome.chosen
    notes.append(outcome.left_out)
    if "race" in facts:
        facts["decided_by"] = "prediction"
    if result is not None:
        facts["judged"] = [asdict(score) for score in result.scores]
        if result.all_failed or (prediction is not None and not result.moved):
            if prediction is not None:
                prediction = replace(prediction, noise_scale=None)
                facts.pop("noise", None)
                facts["prediction"] = asdict(prediction)
            facts["decided_by"] = "rule"
            chosen = choose_by_rule(
                journal.record, prediction, chosen, own_of(config, space), result
            )
        elif result.winner is not None:
            facts["decided_by"] = "race"
            if result.winner != chosen.winner:
                predicted = chosen.winner
                chosen = replace(chosen, winner=result.winner, runner_up=predicted, why=result.why)
    if "race" in facts:
        notes.append(f"{facts['race']}{_DECIDED[facts['decided_by']]}")
    winner = chosen.winner
    assert winner is not None
    factor = _steps_factor(config, prediction, winner)
    measured = measured_of(journal, winner)
    changes = "; ".join(changes_of(request, winner, factor))
    is_even = winner.row.percents is None
    layout = None if is_even else layout_text(config, winner, request.topology)
    facts |= {
        "steps_per_s": measured.steps_per_s, "error": measured.error, "budget_s": budget_s,
        "raced": result is not None, "layout": layout, "changes": changes, "load": load,
        "left_out": outcome.left_out, "steps_factor": factor,
    }  # fmt: skip
    resolved = request.resolved(winner, layout)
    facts["answer"] = identity.answer_key(resolved, request.topology, request.beside)
    journal.chose(chosen, facts)
    return [note for note in (*notes, changes) if note]


def _race_time(tune: TuneConfig) -> tuple[float, str]:
    """Returns the seconds for races, and says so where there are fewer than asked for."""
    if tune.race_s is None:
        return tune.budget_s * _RACE, ""
    most_s = tune.budget_s * _MOST_RACE
    if tune.race_s <= most_s:
        return tune.race_s, ""
    return most_s, (
        f"races have {most_s:.0f} s and not tune.race_s, {tune.race_s:g}: the search needs a "
        f"quarter of the budget of {tune.budget_s:g} s"
    )


def choose_by_rule(
    record: TuneRecord, prediction: Prediction | None, chosen: Chosen, own: Candidate | None,
    raced: race.RaceResult,
) -> Chosen:  # fmt: skip
    """Chooses by `tune.keep` alone, as no return has moved: none has shown that it learns.

    It takes the candidate with the most goodput among those that keep an update, or the config as
    given where noise does not tell the two apart. TuneError where all have failed in the race.
    """
    results = replace(record.results(), prediction=prediction)
    worth = {result.candidate: results.worth(result) for result in results.all}
    ran = [c for c in usable(worth, results.failures) if c not in raced.failed]
    ran = [c for c in ran if not c.row.grown] or ran
    if not ran:
        texts = dict.fromkeys(score.text for score in raced.scores if score.text)
        raise TuneError(
            f"all that trained long enough to be measured failed when they trained for longer: "
            f"{'; '.join(texts)}. Mend that, and tune again."
        )
    ranked = sorted(ran, key=lambda c: worth[c].steps_per_s, reverse=True)
    if own in ran and not differ_significantly(worth[own], worth[ranked[0]]):
        ranked = [own, *(c for c in ranked if c != own)]
    runner_up = ranked[1] if ranked[1:] else None
    why = raced.why if raced.all_failed else "no return moved while they raced"
    why += ", and of those that keep an update it has the most goodput"
    return replace(chosen, winner=ranked[0], runner_up=runner_up, why=why)


def _steps_factor(config: Config, prediction: Prediction | None, candidate: Candidate) -> float:
    """Returns how many times the steps of the config as given a run of a candidate needs."""
    if prediction is None or config.tune.keep != "update":
        return 1.0
    factor = 1 / prediction.of(candidate)
    return 1.0 if factor < 1 + SAME else float(f"{factor:.3g}")


def _search(
    config: Config, topology: Topology, space: Space, budget_s: float, prediction: Prediction | None
) -> TuneSearch:
    """Returns the search, its looks as long as the budget lets them be; by predicted goodput.

    It looks first at the config as given, or where that is left open at a plain start.
    """
    if config.tune.algorithm == "paper":
        return paper(space, max(_LEAST_LOOK_S, min(_LOOK_S, budget_s / 2 / space.size)))
    # A quarter of the candidates, or as many as the budget holds with the time that starts take.
    most = most_profiles(space)
    profiles = min(most, max(_LEAST_PROFILES, int(budget_s / (2 * _LOOK_S))))
    look_s = max(_LEAST_LOOK_S, min(_LOOK_S, budget_s / 3 / profiles))
    efficiency = None if prediction is None else prediction.of
    own, plain = own_of(config, space), as_given(config, topology).env.num_env
    start = own or min(space.rows[0], key=lambda c: abs(math.log(c.num_env / plain)))
    return default(space, look_s, profiles=profiles, own=own, start=start, efficiency=efficiency)


def _race_rivals(
    request: TuneRequest, space: Space, chosen: Chosen, prediction: Prediction | None,
    journal: TuneJournal, screen: TuneView, race_s: float,
) -> tuple[race.RaceResult | None, str]:  # fmt: skip
    """Races those that the prediction does not tell apart; returns the result and a note.

    Runs of an earlier race are taken from the record.
    """
    config, winner, results = request.config, chosen.winner, journal.record.results()
    assert winner is not None
    speeds = {result.candidate: result.measured for result in results.all}
    worth = {c: speeds[c].steps_per_s for c in usable(speeds, results.failures)}
    if prediction is not None:
        worth = {c: prediction.goodput(speed, c.samples, c.horizon) for c, speed in worth.items()}
    unsure = rivals(worth, winner, race.UNSURE) if winner in worth else ()
    if not unsure:
        return None, "no race: no other is predicted to learn nearly as fast"
    train_s = race_s - (race.FINALISTS + 2) * journal.record.around_s
    finalists = race.finalists(winner, own_of(config, space), unsure, train_s)
    if len(finalists) < 2:
        return None, (
            "no race: the others are like the choice, or the budget leaves none "
            f"{race.LEAST_S:.0f} s of training for each (--budget)"
        )
    end_s = time.monotonic() + race_s

    def train(candidate: Candidate, seconds: float, number: int) -> race.TrainingCurve | Failed:
        recorded = race.from_record(journal.record, candidate, seconds, number)
        if recorded is not None:
            return recorded
        text = candidate_text(candidate, space.splits)
        screen.racing(f"race, round {number}: {text}, {seconds:.0f} s", end_s - time.monotonic())
        start_s = time.monotonic()
        # It has the steps of a full run: a learning rate that falls is part of what is raced.
        scaled = longer(config, _steps_factor(config, prediction, candidate))
        run = scaled.run.model_copy(update={"seed": config.run.seed + number - 1})
        seeded = scaled.model_copy(update={"run": run})
        curve = train_for(seconds, candidate, seeded, request.topology, request.beside)
        cost_s = time.monotonic() - start_s
        journal.raced(candidate, race.facts_of(curve, seconds, number, cost_s))
        return curve

    result = race.race(finalists, train, train_s)
    return result, f"race of {len(finalists)}: {result.why}"


def _usable_backends(request: TuneRequest) -> list[str] | None:
    """Lists the backends that work on these GPUs, by trying them; None where there is no choice."""
    config, topology = request.config, request.topology
    free = config.hardware.backend == "auto" and config.tune.algorithm == "default"
    if not free or all(device.kind == "cpu" for device in topology.devices):
        return None
    works = []
    for name in GPU_BACKENDS:
        if name not in dict(topology.unusable):
            with suppress(GmiError):
                try_backend(name, topology)
                works.append(name)
    return works


@contextmanager
def _tuner_lock(title: str, view: ViewName) -> Iterator[None]:
    """Lets one tuner at a time measure on a machine; TunerBusy if another does not end in time."""
    path = records_folder() / f"{platform.node() or 'machine'}.lock"
    name = f"process {os.getpid()} ({title})"

    def waits(holder: str) -> None:
        if view != "none":
            limit = f"{TUNER_TIMEOUT.total_seconds():.0f} s at most"
            print(f"waiting for {holder}, which measures on this machine, {limit}", flush=True)

    with locked(path, TUNER_TIMEOUT, name, waits) as lock:
        if not lock.held and lock.holder:
            raise TunerBusy(
                f"{lock.holder} measures on this machine, and has not ended in "
                f"{TUNER_TIMEOUT.total_seconds():g} s; one tuner measures at a time. Wait for it, "
                "or end it."
            )
        yield


def _header_of(request: TuneRequest, space: Space, held: list[str]) -> dict[str, object]:
    config, tune = request.config, request.config.tune
    return {
        "key": request.path.stem, "identity": request.identity, "started": time.time(),
        "machine": identity.machine_text(request.topology), "versions": identity.versions(),
        "commit": identity.commit(), "env": config.env.id, "mode": config.mode,
        "template": config.template.name, "devices": len(request.topology.devices),
        "algorithm": tune.algorithm, "budget_s": tune.budget_s,
        "objective": "learning" if by_learning(config) else "steps",
        "held": held, "space_size": space.size, "config": config.model_dump(mode="json"),
    }  # fmt: skip
