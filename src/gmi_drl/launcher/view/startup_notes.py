"""Lists what a run says before its first iteration: undone, left out, chosen, assumed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from gmi_drl.gmi.lease import SweptLease
from gmi_drl.launcher.plan.planning import backend_reason
from gmi_drl.launcher.watch.traces import BEGINNING
from gmi_drl.placement import Config, Layout

PLAN_FILE = "plan.json"  # in a run's folder


def startup_notes(
    config: Config,
    layout: Layout,
    folder: Path,
    swept: Sequence[SweptLease],
    notes: Sequence[str] = (),
) -> Iterator[str]:
    """Yields a line each; none where there is nothing to say of machine and config.

    `notes` say what `auto` in the config has become, and by whom.
    """
    for one in swept:
        if one.undone:  # what could not be is a warning
            yield f"undone: what a launcher that was killed had left of backend {one.lease.kind}"
    yield from notes
    if config.run.profile:
        yield BEGINNING
    for gpu in layout.topology.left_out:
        yield f"not used: {gpu}"
    if reason := backend_reason(config, layout):
        yield reason
    yield from _of_plan(folder / PLAN_FILE)


def _of_plan(path: Path) -> Iterator[str]:
    if not path.exists():  # nobody trains
        return
    plan = json.loads(path.read_text(encoding="utf-8"))
    if plan["notes"]:  # else nothing was measured or assumed
        yield f"reduction: {plan['strategy']}, {plan['why']}"
        yield from plan["notes"]
