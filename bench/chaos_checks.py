"""Says what has to hold of a run that chaos.py strikes: Fault where it is not documented so."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chaos_modes import ON_HOSTS
from chaos_run import Fault, Run
from chaos_strikes import Blow, Dealt

from gmi_drl.placement import Layout, layout_faults_of, load_config
from gmi_drl.report.policy_lineage import PolicyReader
from gmi_drl.roles.state import checkpoint

_HOSTS = ("host", "agent", "raylet")  # a host is lost when one of these ends


def judge(run: Run, dealt: Sequence[Dealt], blows: Sequence[Blow], since: int) -> str:
    """Waits until the run has continued after a strike, or has ended; returns the outcome.

    `blows` are all of the case so far, `since` what its launcher had printed before the strike.
    """
    if any(hit.blow.ends for hit in dealt):
        run.until(lambda: not run.runs(), "the launcher's end", works=False)
    progress = run.progress()
    run.until(lambda: not run.runs() or run.progress() > progress + 1, "going on")
    run.until(lambda: not run.runs() or not run.is_resizing(), "the end of the resize")
    if run.runs():
        if len(dealt) == 1:
            _check_told(run, dealt[0], since)
        return "went on"
    ending = {hit.blow.what for hit in dealt if hit.blow.ends}
    status = ended(run, blows)
    if status == 0:
        if run.mode not in ("tune", "search"):
            _check_state(run)
        return "finished"
    if "kill" in ending and status == -signal.SIGKILL:
        return "ended by SIGKILL"
    if ending & {"term", "int"} and status in (130, -signal.SIGTERM, -signal.SIGINT):
        return f"ended with {status}"
    text = run.output()
    if status == 1 and any(hit.blow.what == "full" for hit in dealt) and "No space left" in text:
        return "failed: disk full"
    if status == 1 and any(hit.name in _HOSTS for hit in dealt) and run.progress() == run.began:
        return "failed: a host was lost before it trained"
    raise Fault(f"the launcher ended with {status}: {' '.join(text.splitlines()[-3:])}")


def _check_told(run: Run, dealt: Dealt, since: int) -> None:
    """Waits until the launcher has reported the only blow, if it reports blows of this kind."""
    # A search runs a trial again without a message (docs/search.md), a GMI that makes room may have
    # finished its work, and fork servers of other hosts write to the logs there.
    silent = {"tune": "gmi", "search": "gmi", "resize": ("gmi", "fork")}
    silent |= dict.fromkeys(ON_HOSTS, "fork")
    kind = dealt.name.split(".")[0]
    pattern = ""
    if dealt.blow.what == "kill" and kind.startswith(("gmi", "fork")):
        if run.mode not in silent or not kind.startswith(silent[run.mode]):
            pattern = rf"{kind}\b.*killed by SIGKILL"
    elif dealt.blow.what == "loss":
        pattern = r"is lost: none of its cores"
    run.until(lambda: not run.runs() or run.said(pattern, since), pattern)


def ended(run: Run, blows: Sequence[Blow]) -> int:
    """Returns the launcher's exit status; Fault if something is left over or incomplete."""
    status = run.ended()
    text = run.output()
    if "Traceback (most recent call last)" in text and status != 0:
        raise Fault(f"a traceback: {text.splitlines()[-1]}")
    if run.folder is None:
        return status
    if (run.folder / "run.json").exists():
        json.loads((run.folder / "run.json").read_text())
    iterations = [line["iteration"] for line in run.metrics() if "iteration" in line]
    expected = list(range(1, len(iterations) + 1))
    was_full = any(blow.victim == "disk" for blow in blows)  # it may have gaps, as documented
    if iterations != (sorted(set(iterations)) if was_full else expected):
        raise Fault(f"iterations of metrics.jsonl: {iterations}")
    times = [line["time_s"] for line in run.metrics() if "time_s" in line]
    jumps = any(blow.victim == "clock" for blow in blows) and run.mode in ON_HOSTS
    if not jumps and (times != sorted(times) or times[-1:] > [run.age_s]):
        raise Fault(f"times of metrics.jsonl, after {run.age_s:.0f} s: {times}")
    for folder in run.checkpoints():
        checkpoint.find(folder).load("shared")
    store = run.folder / "gcs.sqlite"
    if store.exists():
        with contextlib.closing(_opened(store)) as database:
            (verdict,) = database.execute("PRAGMA integrity_check").fetchone()
            if verdict != "ok":
                raise Fault(f"{store.name}: {verdict}")
    _check_layout(run)
    return status


def _check_layout(run: Run) -> None:
    """Checks that config and layout match; of an interrupted change, those in change.json."""
    config_path, layout_path = run.folder / "config.yaml", run.folder / "layout.json"
    if (run.folder / "change.json").exists():
        change = json.loads((run.folder / "change.json").read_text())
        config, layout = load_config(change["config"]), Layout.from_json(change["layout"])
    elif layout_path.exists():
        config, layout = load_config(config_path), Layout.from_json(layout_path.read_text())
    else:
        return
    faults: list[object] = [*layout_faults_of(config, layout)]
    if run.mode == "resize" and len(layout.gmis) != (count := config.layout.gmi_per_gpu):
        faults.append(f"layout.gmi_per_gpu={count}, and {len(layout.gmis)} GMIs")
    if faults:
        raise Fault(f"a layout by halves: {faults[0]}")


def check_finished(run: Run, blows: Sequence[Blow]) -> None:
    """Checks that the last resume has finished completely and has left nothing behind."""
    if run.mode in ("tune", "search"):
        written = "tuned.yaml" if run.mode == "tune" else "searches/t/*/best.yaml"
        if not list(run.disk.glob(written)):
            raise Fault(f"{written} is not there")
    else:
        state = _check_state(run)
        if run.mode != "serving":
            _check_lineage(run, state["iteration"], blows)
        if hidden := list((run.folder / "checkpoints").glob(".*")):
            raise Fault(f"left in checkpoints: {hidden}")
    if leftovers := run.left_files():
        raise Fault(f"left behind: {', '.join(map(str, leftovers))}")


def _check_state(run: Run) -> dict[str, Any]:
    """Returns what run.json says of a run that has finished; Fault if it does not say so."""
    state: dict[str, Any] = json.loads((run.folder / "run.json").read_text())
    if state["state"] != "finished":
        raise Fault(f"run.json says {state['state']}")
    return state


def _check_lineage(run: Run, last: int, blows: Sequence[Blow]) -> None:
    """Checks that all versions are recorded but those lost to a killed launcher or a full disk."""
    with contextlib.closing(_opened(run.folder / "gcs.sqlite")) as store:
        known = {policy.version.number for policy in PolicyReader(store).chain()}
    missing = sorted(set(range(1, last + 1)) - known)
    run.tell(f"  {last} versions, {len(missing)} not recorded")
    # The launcher of a host is a "process". What one lost host has not sent, the others still know.
    ends_host = ("process", "agent", "raylet")
    lost = [blow for blow in blows if run.mode in ON_HOSTS and blow.victim in ends_host]
    others_know = run.mode != "hosts that sample"  # there one host alone trains
    excused = len(lost) > others_know or any(blow.ends or blow.victim == "disk" for blow in blows)
    if missing and not excused:
        raise Fault(f"versions not recorded: {missing}")


def _opened(store: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{store}?mode=ro", uri=True)
