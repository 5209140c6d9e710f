#!/usr/bin/env python3
"""Makes the Ray paper's figures again on one host, ours beside the real Ray.

8a task latency and locality, 8b tasks a second and devices, 9 object store, 11a lost workers,
11b lost actors, 12 all-reduce (10a and 10b: bench/runtime/gcs.py). Every part runs in a process of
its own, in turn, round after round; curves are medians over rounds, bands the lowest and highest.
Pictures go to docs/runtime/, results to bench/results/runtime_figures/. Needs the extra [bench].

    bench/runtime/figures.py --rounds 3
    bench/runtime/figures.py --figures 9 12 --rounds 1
    bench/runtime/figures.py --quick --rounds 1 --pictures /tmp/pictures      # a smoke test
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import paper
from children import answer, ask
from paper.base import Curves, Figure, Series, merge
from report import emit, parser, say

_PICTURES = Path(__file__).resolve().parents[2] / "docs" / "runtime"


def measure(figure: Figure, rounds: int, quick: bool) -> tuple[Curves, list[str]]:
    """Measures the curves of a figure; returns also the errors of the parts that failed."""
    series: list[Series] = []
    errors = []
    for number in range(rounds):
        for part in figure.parts:
            say(f"round {number + 1}/{rounds}  figure {figure.number}  {part}")
            command = [__file__, "--figures", figure.number, "--part", part]
            result = ask(*command, *["--quick"] * quick)
            if "error" in result:
                errors.append(f"{part}: {result['error']}")
                say(f"    fails: {result['error']}")
            else:
                series.append(result["found"])
    return merge(series), errors


def draw(figure: Figure, curves: Curves, folder: Path) -> Path:
    """Draws a figure as an SVG that is the same for the same curves."""
    import matplotlib
    from matplotlib.figure import Figure as Picture

    matplotlib.rcParams.update({"svg.hashsalt": figure.name, "axes.grid": True, "grid.alpha": 0.3})
    picture = Picture(figsize=figure.size, layout="constrained")
    figure.draw(curves, picture)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{figure.name}.svg"
    picture.savefig(path, metadata={"Date": None})
    return path


def report(figure: Figure, curves: Curves, errors: list[str], rounds: int, keep: bool) -> None:
    """Emits the row of a figure, with all its points."""
    points: dict[str, Any] = {
        label: {"x": curve.x, "median": curve.y, "low": curve.low, "high": curve.high}
        for label, curve in curves.items()
    }
    emit(
        "runtime_figures", f"{figure.number}_{figure.name}", repeats=rounds, dry=not keep,
        **figure.headline.fields(curves), points=points, **({"errors": errors} if errors else {}),
    )  # fmt: skip


def main() -> None:
    options_of = parser(__doc__, rounds=3)
    add = options_of.add_argument
    add("--figures", nargs="+", default=list(paper.MODULES), metavar="NUMBER")
    add("--quick", action="store_true", help="small numbers: nothing is kept")
    add("--pictures", type=Path, help="where they go (docs/runtime)")
    add("--part", help="one part, in this process, whose answer is printed")
    options = options_of.parse_args()
    figures = [paper.find(number) for number in options.figures]
    if options.part is not None:
        answer(lambda: figures[0].parts[options.part](options.quick))
        return
    pictures = options.pictures or (None if options.quick else _PICTURES)
    for figure in figures:
        curves, errors = measure(figure, options.rounds, options.quick)
        report(figure, curves, errors, options.rounds, keep=not options.quick)
        if curves and pictures is not None:
            say(f"drawn: {draw(figure, curves, pictures)}")


if __name__ == "__main__":
    main()
