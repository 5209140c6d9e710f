#!/usr/bin/env python3
"""Draw the phases of a profiled run: a bar a GMI, on one clock. See docs/profiling.md.

scripts/draw_phases.py RUN PICTURE [ITERATIONS]      RUN: its folder; ITERATIONS: the first so many
"""

import gzip
import json
import sys
from collections import defaultdict
from pathlib import Path

from matplotlib.figure import Figure

COLOURS = {
    "simulate": "#1f77b4",
    "infer": "#76b7e5",
    "train": "#2ca02c",
    "reduce": "#d62728",
    "send": "#9467bd",
    "wait": "#cccccc",
}


def read(path):
    """The ranges of a trace in ms of the clock that all have, by name: (begin, length)."""
    with gzip.open(path) as file:
        trace = json.load(file)
    base_us = trace.get("baseTimeNanoseconds", 0) / 1e3
    ranges = defaultdict(list)
    for event in trace["traceEvents"]:
        if event.get("cat") == "user_annotation":
            begin_ms = (base_us + event["ts"]) / 1e3
            ranges[event["name"].partition("#")[0]].append((begin_ms, event["dur"] / 1e3))
    return ranges


def main(run, picture, iterations=None):
    paths = {int(path.name[3:].partition(".")[0]): path for path in run.glob("profile/gmi*")}
    traces = {f"gmi {gmi_id}": read(path) for gmi_id, path in sorted(paths.items())}
    if not traces:
        sys.exit(f"{run}: no traces. Launch it with --profile.")
    spans = {gmi: sorted(ranges["ProfilerStep"])[:iterations] for gmi, ranges in traces.items()}
    begin_ms = min(its[0][0] for its in spans.values())
    figure = Figure(figsize=(10, 0.8 + 0.7 * len(traces)), layout="constrained")
    axis = figure.subplots()
    names = [name for name in COLOURS if any(ranges[name] for ranges in traces.values())]
    for name in names:
        for row, (gmi, ranges) in enumerate(traces.items()):
            end_ms = sum(spans[gmi][-1])
            shown = [(at - begin_ms, ms) for at, ms in ranges[name] if at < end_ms]
            label = name if row == 0 else None
            axis.broken_barh(shown, (row - 0.4, 0.8), color=COLOURS[name], lw=0, label=label)
    for row, its in enumerate(spans.values()):
        axis.vlines([at - begin_ms for at, _ in its], row - 0.45, row + 0.45, color="black", lw=1)
    axis.set_yticks(range(len(traces)), list(traces))
    axis.invert_yaxis()
    axis.set_xlabel("ms; a black line begins an iteration")
    axis.legend(ncols=len(names), loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    figure.savefig(picture, dpi=130)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
