"""Writes a comparison as one HTML file that needs no server, no network and nothing beside it.

Runs may be a stranger's: their text is escaped, the page's script sets it only as text, and its
policy (CSP) runs and styles nothing but what this program wrote, by their digests.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gmi_drl import __version__
from gmi_drl.launcher.view.tables import printable
from gmi_drl.placement import counted
from gmi_drl.report.vendor import uplot

from .curves import curves
from .groups import GROUP_COLUMNS, RUN_COLUMNS, Comparison, group_rows, run_rows
from .runs import AXES, METRICS

_HERE: Final = Path(__file__).parent
# What would end a script's element, or a line in it, as JSON can write it otherwise.
_ESCAPES: Final = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def comparison_page(comparison: Comparison) -> str:
    """Returns the page."""
    style = _read(uplot.STYLE) + _read(_HERE / "page.css")
    scripts = [_read(uplot.SCRIPT), _read(_HERE / "page.js")]
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_digest, scripts))}; "
        f"style-src {_digest(style)}; img-src data:; base-uri 'none'; form-action 'none'"
    )
    metrics = curves(comparison)
    data = {
        "labels": [group.label for group in comparison.groups],
        "axes": AXES,
        "metrics": metrics,
        "names": METRICS,
    }
    several = any(len(group.runs) > 1 for group in comparison.groups)
    label = ["key", *(group.label for group in comparison.groups)]
    differences = (
        _table(label, comparison.differences)
        if comparison.differences
        else "<p>The configs differ in nothing but the seed.</p>"
    )
    text = f"{counted(len(comparison.runs), 'run')} of {counted(len(comparison.groups), 'config')}"
    elements = "".join(f"<script>{script}</script>\n" for script in scripts)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="referrer" content="no-referrer">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_text(", ".join(group.label for group in comparison.groups)[:120])}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<h1>Comparison of {_text(text)}</h1>
{_warnings(comparison.warnings)}
<noscript><p>The curves need JavaScript; tables do not.</p></noscript>
<section id="curves" hidden>
<div class="controls">
<label>Metric <select id="metric"></select></label>
<label><input type="checkbox" id="seeds"> each seed</label>
</div>
<div class="groups" id="groups"></div>
<div class="charts">
{"".join(_chart(axis, name) for axis, name in AXES.items())}</div>
<p class="note">{_MEANING if several else "One run of each config: lines have no band."}</p>
</section>
<h2>Over seeds</h2>
{_table(GROUP_COLUMNS, group_rows(comparison))}<p class="note">{_FIGURES}</p>
<h2>What sets the configs apart</h2>
{differences}
<h2>Runs</h2>
{_table(RUN_COLUMNS, run_rows(comparison))}<p class="note">gmi-drl {__version__}; curves by uPlot
{uplot.VERSION}, MIT licence.</p>
<script type="application/json" id="data">{_json(data)}</script>
{elements}</body>
</html>
"""


_MEANING: Final = (
    "A line is the interquartile mean over the seeds that reach a point, its band the 95 % "
    "bootstrap interval. Click on a config to hide it; drag over a chart to zoom, double-click to "
    "go back."
)
_FIGURES: Final = (
    "IQM: the mean of the middle half of the seeds, with its 95 % bootstrap interval. Return: of "
    "the last 100 episodes while training; trained policy: without exploration, at the end, by the "
    "run itself or by gmi-drl evaluate. Seconds: of training, all launches together; wall seconds: "
    "of the last launch, with start and evaluation."
)


def _chart(axis: str, name: str) -> str:
    return (
        f'<div class="chart"><h3>By {_text(name)}</h3><div id="chart-{axis}"></div>'
        f'<div class="values" id="values-{axis}"></div></div>\n'
    )


def _warnings(warnings: Sequence[str]) -> str:
    if not warnings:
        return ""
    items = "".join(f"<li>{_text(warning)}</li>" for warning in warnings)
    return f'<ul class="warnings">{items}</ul>\n'


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{_text(column)}</th>' for column in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>\n" for row in rows
    )
    table = f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>\n'


def _text(text: object) -> str:
    return html.escape(printable(text))


def _json(data: object) -> str:
    return json.dumps(data, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)


def _digest(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _read(path: Path) -> str:
    """Reads a file of this program as it is put into an element, which must not end there."""
    text = path.read_text(encoding="utf-8")
    assert not any(end in text.lower() for end in ("</script", "</style")), path
    return text
