"""Looks at what earlier runs have left: commands runs, state, timeline, lineage."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from .app import BAD_INPUT, AsJson, command, console_for, is_for_a_file

_Run: TypeAlias = Annotated[
    Path | None,
    typer.Argument(metavar="[RUN]", help="A run's folder, or its gcs.sqlite; else the newest."),
]


@command
def runs(
    folder: Annotated[Path, typer.Argument(help="Folder that holds runs.")] = Path("runs"),
) -> int:
    """List the runs in FOLDER."""
    from gmi_drl.report.run_list import list_runs, print_runs

    if not folder.is_dir() and folder != Path("runs"):  # which is there from the first run on
        print(f"{folder}: no such folder. Give the one that holds runs.", file=sys.stderr)
        return BAD_INPUT
    if summaries := list_runs(folder):
        print_runs(console_for(), summaries)
    else:
        print(f"{folder}: no runs. `gmi-drl launch CONFIG` makes one.")
    return 0


@command
def state(run: _Run = None, as_json: AsJson = False) -> int:
    """Show the tasks, actors, objects and last events of a run."""
    import json

    from gmi_drl.report import run_state

    recorded = run_state.read_state(run_state.store_of(run))
    if as_json:
        print(json.dumps(dataclasses.asdict(recorded), indent=1))
    else:
        run_state.print_state(console_for(), recorded)
    return 0


@command
def timeline(
    run: _Run = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Where the trace goes.")
    ] = Path("timeline.json"),
    last: Annotated[int, typer.Option(min=1, help="So many tasks, the last ones.")] = 200_000,
) -> int:
    """Write a run as a Chrome trace, which https://ui.perfetto.dev shows."""
    from gmi_drl.placement import counted
    from gmi_drl.report.run_state import store_of
    from gmi_drl.report.timeline import Timeline

    if not is_for_a_file("-o", output):
        return BAD_INPUT
    trace = Timeline.read(store_of(run), last)
    trace.write(output)
    cut = f"; {trace.cut:,} earlier ones are left out (--last)" if trace.cut else ""
    print(f"{output}: {counted(trace.num_tasks, 'task')}{cut}. Open it at https://ui.perfetto.dev.")
    return 0


@command
def lineage(
    id: Annotated[str, typer.Argument(metavar="ID", help="First digits of an id.")],
    run: _Run = None,
    dot: Annotated[bool, typer.Option("--dot", help="Print a graph for Graphviz.")] = False,
    depth: Annotated[int, typer.Option(min=0, help="How many steps back.")] = 8,
) -> int:
    """Show what a task, object or actor was computed from."""
    from gmi_drl.report.lineage import LineageReader, as_dot, as_text
    from gmi_drl.report.run_state import opened, store_of

    with opened(store_of(run)) as store:
        lineages = LineageReader(store)
        tree = lineages.tree(lineages.resolve(id), depth)
    print("\n".join(as_dot(tree) if dot else as_text(tree)))
    return 0
