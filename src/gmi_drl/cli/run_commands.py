"""Shows what runs have recorded: commands runs, compare, state, timeline, lineage and page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from gmi_drl.launcher.view.tables import printable_lines

from .app import AsJson, BadPath, command, console_for, print_json, refuse_no_file, write_file

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
        raise BadPath(f"{folder}: no such folder. Give the one that holds runs.")
    if summaries := list_runs(folder):
        print_runs(console_for(), summaries)
    else:
        print(f"{folder}: no runs. `gmi-drl launch CONFIG` makes one.")
    return 0


@command
def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Runs, or folders that hold runs.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the page goes.")] = Path(
        "comparison.html"
    ),
) -> int:
    """Lay runs side by side: tables, and a page with curves that opens without a server.

    Runs whose configs differ in run.seed alone are one group.
    """
    from gmi_drl.report.comparison.groups import Comparison, print_comparison
    from gmi_drl.report.comparison.page import comparison_page

    refuse_no_file("--out", out)
    comparison = Comparison.of(runs)
    for warning in comparison.warnings:
        print(f"warning: {printable_lines(warning)}", file=sys.stderr)
    write_file("--out", out, comparison_page(comparison))
    print_comparison(console_for(), comparison)
    print(f"comparison: {printable_lines(out)}")
    return 0


@command
def state(run: _Run = None, as_json: AsJson = False) -> int:
    """Show the tasks, actors, objects and last events of a run."""
    from gmi_drl.report import run_state

    recorded = run_state.read_state(run_state.store_of(run))
    if as_json:
        print_json(recorded)
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

    refuse_no_file("-o", output)
    trace = Timeline.read(store_of(run), last)
    write_file("-o", output, trace.as_text())
    cut = f"; {trace.cut:,} earlier ones are left out (--last)" if trace.cut else ""
    print(f"{output}: {counted(trace.num_tasks, 'task')}{cut}. Open it at https://ui.perfetto.dev.")
    return 0


@command
def lineage(
    id: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]", help="policy@N, or first digits of a task's, object's or actor's id."
        ),
    ] = None,
    run: _Run = None,
    dot: Annotated[bool, typer.Option("--dot", help="Print a graph for Graphviz.")] = False,
    depth: Annotated[int, typer.Option(min=0, help="How many steps back.")] = 8,
    gmi: Annotated[
        int | None, typer.Option(metavar="ID", min=0, help="What this GMI contributed.")
    ] = None,
    after: Annotated[
        int, typer.Option(metavar="N", min=0, help="With --gmi: to versions after policy@N.")
    ] = 0,
    killed: Annotated[
        bool, typer.Option("--killed", help="Which versions saw data of a GMI that was killed.")
    ] = False,
    longest_lag: Annotated[
        bool, typer.Option("--longest-lag", help="What experience was furthest behind.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Show what a version of the policy, a task, object or actor was computed from."""
    from gmi_drl.report import policy_lineage, policy_lines
    from gmi_drl.report.lineage import LineageReader, as_dot, as_text
    from gmi_drl.report.run_state import opened, store_of

    questions = [gmi is not None, killed, longest_lag]
    words = [word for word in (id, None if run is None else str(run)) if word is not None]
    # RUN policy@N reads as well as policy@N RUN; a question needs no ID.
    words.sort(key=lambda word: not word.startswith(policy_lineage.PREFIX))
    name = words.pop(0) if words and not any(questions) else None
    if sum(questions) + (name is not None) != 1 or len(words) > 1:
        raise typer.BadParameter(
            "give one thing to ask for: ID, --gmi, --killed or --longest-lag; and a RUN"
        )
    is_policy = name is None or name.startswith(policy_lineage.PREFIX)
    if as_json and not is_policy:
        raise typer.BadParameter("--json is for policy@N and questions")
    with opened(store_of(Path(words[0]) if words else None)) as store:
        if not is_policy:
            assert name is not None
            lineages = LineageReader(store)
            tree = lineages.tree(lineages.resolve(name), depth)
            print("\n".join(as_dot(tree) if dot else as_text(tree)))
            return 0
        policies = policy_lineage.PolicyReader(store)
        answer: Any
        if gmi is not None:
            answer = policies.contributions(gmi, after)
            lines = policy_lines.contribution_lines(answer, gmi, after)
        elif killed:
            answer = policies.killed()
            lines = policy_lines.killed_lines(answer)
        elif longest_lag:
            answer = policies.longest_lag()
            lines = policy_lines.lag_lines(answer)
        else:
            assert name is not None
            version = policies.find(name)
            answer = policies.policy(version)
            tree = policy_lines.tree_of(policies, version, 0 if as_json else depth)
            lines = as_dot(tree) if dot else as_text(tree)
    if as_json:
        print_json(answer)
    else:
        print("\n".join(lines))
    return 0


@command
def page(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FOLDER|RUN]",
            help="Folder that holds runs, or one run's; else runs and searches here.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any that is free.")] = 8686,
    host: Annotated[
        str, typer.Option(help="Address; one that others reach needs a certificate.")
    ] = "127.0.0.1",
    control: Annotated[
        bool, typer.Option("--control", help="Let the page stop runs and ask for checkpoints.")
    ] = False,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate (PEM), for HTTPS.")
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key (PEM).")] = None,
) -> int:
    """Show runs in a browser, while they go on and after.

    Prints a link that lets in who opens it. Reads the folders of runs, and changes nothing.
    """
    from gmi_drl.page.catalog import open_catalog
    from gmi_drl.page.server import Address, serve

    address = Address(host=host, port=port, certificate=certificate, key=key)
    catalog = open_catalog(folder)
    serve(catalog, address, control, lambda link: print(f"page: {link}", flush=True))
    return 0
