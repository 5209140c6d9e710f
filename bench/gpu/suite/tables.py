"""Prints a suite's tables, JSON lines and pictures, from its results file alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .plots import draw
from .rows import Row, failures, rows_of
from .stage import EXPERIMENTS
from .store import Store
from .summary import summary


def show(store: Store, folder: Path | None, console: Console | None = None) -> list[Path]:
    """Prints rows as JSON lines on standard output, tables and sentences on standard error.

    Draws the pictures in `folder`, and returns their paths; with None it draws none.
    """
    console = console or Console(stderr=True, width=118, highlight=False)
    head, rows = store.head, rows_of(store)
    for row in rows:
        fields = {**row, "machine": head["machine"], "commit": head["commit"],
                 "suite": head["suite"]}  # fmt: skip
        print(json.dumps(fields | ({"note": head["note"]} if "note" in head else {})), flush=True)
    console.print(f"[bold]Suite {head['suite']}[/], commit {head['commit']}, {head['machine']}")
    if "note" in head:
        console.print(f"[bold]{head['note']}[/]")
    for name, title in EXPERIMENTS.items():
        experiment_rows = [row for row in rows if row["experiment"] == name]
        if experiment_rows:
            console.print(_table(title, experiment_rows))
    stage = head["stage"]
    for backend, why in stage["unusable"].items():
        console.print(f"{backend}: not here: {why}")
    if stage["kind"] == "cpu":
        console.print("no captured rows: CUDA graphs need a GPU")
    for record in store.records.values():
        if "compiled_s" in record:
            block, seconds = record["block"], record["compiled_s"]
            console.print(f"kernels of {block}: there in {seconds:.0f} s", markup=False)
    for key, kind, why in failures(store.records):
        console.print(f"{key}: {kind}: {why}", markup=False)
    for key, record in store.records.items():
        for message in record.get("not_captured", ()):
            console.print(f"{key}: {message}", markup=False)
    clean = [record for record in store.records.values() if not record["left"]]
    console.print(f"{len(store.records)} cells ran; {len(clean)} of them left nothing behind")
    for line in _not_run(store):
        console.print(line, markup=False)
    for sentence in summary(store, rows):
        console.print(sentence, markup=False)
    pictures = draw(store, rows, folder) if folder is not None else []
    for path in pictures:
        console.print(str(path), markup=False)
    return pictures


def _not_run(store: Store) -> list[str]:
    """Returns a line for each cell of the first repeat, and one with the number of later ones."""
    firsts = [cell for cell in store.not_run if cell["key"].endswith("#0")]
    later = Counter(cell["key"].split("/")[0] for cell in store.not_run if cell not in firsts)
    lines = [f"not run: {cell['key']}: {cell['why']}" for cell in firsts]
    if later:
        counts = ", ".join(f"{count} of {name}" for name, count in later.items())
        lines.append(f"not run, of later repeats: {counts}; the same command goes on")
    return lines


def _table(title: str, rows: Sequence[Row]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in ("block", "side", "num_env", "value", "baseline", "ratio", "from - to", "more"):
        right = column in ("num_env", "value", "baseline", "ratio")
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for row in rows:
        ratio = f"{row['ratio']:.{2 if row['ratio'] > 0.1 else 3}f}" if row["ratio"] else ""
        spread = row["spread"] if row["repeats"] > 1 else None
        between = f"{_text(spread[0])} - {_text(spread[1])} ({row['repeats']})" if spread else ""
        num_env = f"{row['num_env']:,}" if "num_env" in row else ""
        value = f"{_text(row['value'])} {row['unit'].split()[0]}"
        peer = _text(row["peer"]) if row["peer"] not in (None, []) else ""
        side = row["side"] if row["experiment"] != "reduction" else (
            f"{row['side']} {row['strategy']}, {row['nbytes'] / 1e6:g} MB"
        )  # fmt: skip
        table.add_row(row["block"], side, num_env, value, peer, ratio, between, _more(row))
    return table


def _text(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _more(row: Row) -> str:
    """Returns the other values of a row in a few words."""
    parts = []
    if row.get("device_bytes"):
        parts.append(f"{row['device_bytes'] / 2**30:.2f} GiB")
    elif row.get("host_bytes"):
        parts.append(f"host {row['host_bytes'] / 2**30:.2f} GiB")
    if row.get("gmi_mem_bytes") and row.get("gmis", 1) > 1:
        share = row.get("gmi_mem_share")
        note = f" ({100 * share:.0f} % of its share)" if share is not None else ""
        parts.append(f"a GMI {row['gmi_mem_bytes'] / 2**30:.2f} GiB{note}")
    if row.get("sm_count"):
        least, most = min(row["sm_count"]), max(row["sm_count"])
        parts.append(f"{least} SMs" if least == most else f"{least} to {most} SMs")
    if "profiles" in row:
        choice = f"{row['gmis']} GMI{'' if row['gmis'] == 1 else 's'} ({row['backend']})"
        parts.append(f"chose {choice}: {row['profiles']} measurements in {row['spent_s']:.0f} s")
    if row.get("sm_activity") is not None:
        parts.append(f"SMs {100 * row['sm_activity']:.0f} %")
    if row.get("cores") is not None:
        parts.append(f"{row['cores']:.1f} cores")
    if row["experiment"] == "learning":
        parts.append(f"half: {row['half'] or '-'}, quarter: {row['quarter'] or '-'}")
        parts.append(f"{row['steps']:,.0f} steps")
    if row["experiment"] == "start":
        parts.append(f"torch at work {row['torch_s']:.2f} s, ended in {row['end_s']:.2f} s")
    return ", ".join(parts)
