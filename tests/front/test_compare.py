"""`gmi-drl compare`: groups, figures over seeds, curves, and a page that nobody's text breaks."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from compared_runs import make_run
from gmi_drl.cli import main
from gmi_drl.report.comparison.curves import curves
from gmi_drl.report.comparison.groups import Comparison, group_rows, run_rows
from gmi_drl.report.comparison.page import comparison_page
from gmi_drl.report.statistics import estimate, interquartile_bands


def test_the_interquartile_mean_leaves_a_quarter_out_at_each_end():
    assert estimate([1, 2, 3, 4, 5, 6, 7, 1000]).iqm == 4.5
    assert estimate([0, 1, 2, 3, 100]).iqm == 2
    assert estimate([1, 5]).iqm == 3
    assert estimate([]) is None


@pytest.mark.parametrize("values", [[math.inf, 1.0], [-math.inf] * 5, [math.nan, 1.0], [1e308] * 3])
def test_a_return_that_is_not_finite_makes_its_mean_so_without_a_word(values):
    assert not math.isfinite(estimate(values).mean)


def test_a_single_run_has_no_interval_and_no_deviation():
    one = estimate([7.0])
    assert (one.iqm, one.mean, one.std, one.low, one.high) == (7, 7, None, None, None)


def test_the_interval_holds_the_true_middle_about_as_often_as_it_says():
    """Of few runs the percentile bootstrap is known to be somewhat too narrow."""
    draws = np.random.default_rng(3).normal(5.0, 2.0, size=(10, 400))
    middle, low, high = interquartile_bands(draws)
    assert ((low <= middle) & (middle <= high)).all()
    assert 0.82 < ((low <= 5.0) & (high >= 5.0)).mean() < 0.98


def test_the_same_runs_have_the_same_interval():
    assert estimate([1.0, 4.0, 9.0]) == estimate([1.0, 4.0, 9.0])


def grouped(path):
    return [(group.label, [run.summary.seed for run in group.runs])
            for group in Comparison.of([path]).groups]  # fmt: skip


def test_runs_that_differ_in_the_seed_alone_are_one_group(tmp_path):
    for seed in (2, 0, 1):
        make_run(tmp_path, seed)
    make_run(tmp_path, 0, name="other", config={"algorithm": {"learning_rate": 0.5}})
    assert sorted(grouped(tmp_path)) == [("ant", [0, 1, 2]), ("other", [0])]
    comparison = Comparison.of([tmp_path])
    (difference,) = comparison.differences
    assert difference[0] == "algorithm.learning_rate"
    assert "0.5" in difference[1:]


def test_which_cores_a_seed_had_makes_no_group_but_how_many_does(tmp_path):
    for seed, cores in enumerate([[0], [3], [0, 1]]):
        make_run(tmp_path, seed, config={"hardware": {"cores": cores}})
    labels = dict(grouped(tmp_path))
    assert labels == {"ant (cores=1 core)": [0, 1], "ant (cores=2 cores)": [2]}


def test_many_cores_are_counted_as_they_are(tmp_path):
    for seed, count in enumerate([100, 128]):
        make_run(tmp_path, seed, config={"hardware": {"cores": list(range(count))}})
    labels = dict(grouped(tmp_path))
    assert labels == {"ant (cores=100 cores)": [0], "ant (cores=128 cores)": [1]}


def test_long_values_that_differ_at_their_end_alone_make_groups(tmp_path):
    for seed, end in enumerate("GHG"):
        rows = ["F" * 32] * 31 + ["F" * 31 + end]
        make_run(tmp_path, seed, config={"env": {"id": "FrozenLake-v1", "options": {"desc": rows}}})
    assert sorted(seeds for _, seeds in grouped(tmp_path)) == [[0, 2], [1]]
    ((key, *values),) = Comparison.of([tmp_path]).differences
    assert key == "env.options.desc"
    assert len({*values}) == 2
    assert max(map(len, values)) < 250


def test_a_layout_file_is_compared_by_what_is_in_it(tmp_path):
    for seed, text in enumerate(["a", "a", "b"]):
        path = make_run(tmp_path, seed, config={"layout": {"file": "layout.yaml"}})
        (path / "layout.yaml").write_text(text)
    assert sorted(seeds for _, seeds in grouped(tmp_path)) == [[0, 1], [2]]


def test_groups_of_one_name_and_one_difference_still_have_labels_of_their_own(tmp_path):
    for seed, name in enumerate(["y", "x" * 90, "x" * 91]):
        make_run(tmp_path, seed, config={"run": {"name": name}})
    labels = [label for label, _ in grouped(tmp_path)]
    assert len(set(labels)) == 3


def test_a_run_without_a_config_stands_for_itself_and_says_so(tmp_path):
    make_run(tmp_path, 0)
    (make_run(tmp_path, 1) / "config.yaml").unlink()
    (make_run(tmp_path, 2) / "config.yaml").write_text("run: [")
    comparison = Comparison.of([tmp_path])
    assert [len(group.runs) for group in comparison.groups] == [1, 1, 1]
    assert len(comparison.warnings) == 2
    assert "t1: it has no config.yaml" in comparison.warnings[0]


def test_a_config_that_grows_by_aliases_is_given_up_at_once(tmp_path):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 8)}]" for i in range(1, 12)]
    (make_run(tmp_path, 0) / "config.yaml").write_text("\n".join(lines))
    (warning,) = Comparison.of([tmp_path]).warnings
    assert "config.yaml cannot be read" in warning


def test_a_config_of_another_version_is_compared_as_it_is_written(tmp_path):
    for seed in (0, 1):
        make_run(tmp_path, seed, config={"version": 99, "later": {"key": [{"a": 1}]}})
    comparison = Comparison.of([tmp_path])
    assert [len(group.runs) for group in comparison.groups] == [2]
    assert comparison.groups[0].settings["later.key[0].a"] == "1"
    assert "not one of this version" in comparison.warnings[0]


def test_damaged_lines_are_counted_and_a_line_in_writing_is_not(tmp_path):
    run = make_run(tmp_path, tail='nonsense\n{"steps": "many", "time_s": 1}\n{"iteration": 21, "st')
    comparison = Comparison.of([run])
    assert comparison.warnings == [f"{run}: 2 damaged lines of metrics.jsonl left out"]
    assert comparison.runs[0][1].num_iterations == 20


def test_curves_are_means_of_the_seeds_that_reach_a_point(tmp_path):
    make_run(tmp_path, 0, slope=1, iterations=10)
    make_run(tmp_path, 1, slope=3, iterations=20)
    curve = curves(Comparison.of([tmp_path]))["return_mean"]["steps"][0]
    x, middle = np.array(curve["x"]), np.array(curve["middle"])
    assert (x[0], x[-1]) == (100, 2000)
    both = x <= 1000
    np.testing.assert_allclose(middle[both], 2 * x[both] / 100, rtol=1e-4)
    np.testing.assert_allclose(middle[~both], 3 * x[~both] / 100, rtol=1e-4)
    np.testing.assert_allclose(np.array(curve["low"])[both], x[both] / 100, rtol=1e-4)
    np.testing.assert_allclose(np.array(curve["high"])[both], 3 * x[both] / 100, rtol=1e-4)
    assert curve["seeds"][0][-1] is None
    assert curve["seeds"][1][-1] == 60


def test_curves_by_seconds_have_seconds(tmp_path):
    make_run(tmp_path, 0, iterations=20)
    curve = curves(Comparison.of([tmp_path]))["return_mean"]["time_s"][0]
    assert (curve["x"][0], curve["x"][-1]) == (0.5, 10)
    assert curve.keys() == {"x", "middle"}  # one run has no band


def test_tables_have_figures_over_seeds_and_of_each_run(tmp_path):
    for seed, slope in enumerate([1, 2, 3]):
        make_run(tmp_path, seed, slope=slope)
    comparison = Comparison.of([tmp_path])
    assert group_rows(comparison) == [
        ["ant", "3", "40.0 (20.0 to 60.0)", "40.0 ± 20.0", "41.0 (21.0 to 61.0)", "41.0 ± 20.0",
         "10.0 ± 0.0", "200 ± 0"]
    ]  # fmt: skip
    first = run_rows(comparison)[0]
    assert first[:10] == [
        "ant", "0", "finished", "2,000", "20.0", "21.0", "-", "10.0", "22.0", "200"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({}, True),
        ({"trained_steps": 1900}, False),  # an earlier checkpoint
        ({"stochastic": True}, False),
        ({"mean": float("nan")}, False),
        ({"mean": "12"}, False),
    ],
)
def test_a_later_evaluation_of_the_last_policy_counts(tmp_path, changes, counts):
    folder = make_run(tmp_path, 0)
    (folder / "report").mkdir()
    evaluation = {"mean": 33.0, "episodes": 100, "stochastic": False, "trained_steps": 2000}
    (folder / "report" / "eval.json").write_text(json.dumps(evaluation | changes))
    comparison = Comparison.of([tmp_path])
    assert run_rows(comparison)[0][5:7] == (["33.0", "100"] if counts else ["21.0", "-"])
    assert group_rows(comparison)[0][4] == ("33.0" if counts else "21.0")


class Elements(HTMLParser):
    """Lists what elements a page has, their attributes, and the text of scripts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.scripts, self.words = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        (self.scripts if self.tags[-1:] == ["script"] else self.words).append(data)


HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">\u2028'


def test_text_of_a_run_cannot_break_out_of_the_page(tmp_path):
    run = make_run(tmp_path, 0, env=HOSTILE, config={"run": {"name": HOSTILE}, HOSTILE: HOSTILE})
    make_run(tmp_path, 1)
    state = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**state, "env": HOSTILE}))
    run.rename(tmp_path / "ant" / "<script>alert(3)<")
    page = comparison_page(Comparison.of([tmp_path]))
    clean = comparison_page(Comparison.of([tmp_path / "ant" / "t1"]))
    hostile, usual = Elements(page), Elements(clean)
    assert hostile.tags.count("script") == usual.tags.count("script") == 3
    assert "img" not in hostile.tags
    assert not [name for name, _ in hostile.attributes if name.startswith("on")]
    assert any("alert(2)" in words for words in hostile.words)  # it is shown, as text
    data = next(script for script in hostile.scripts if script.startswith("{"))
    assert "<" not in data
    assert json.loads(data)["labels"]


def test_the_page_needs_nothing_from_elsewhere_and_allows_only_its_own_scripts(tmp_path):
    make_run(tmp_path, 0)
    page = comparison_page(Comparison.of([tmp_path]))
    found = Elements(page)
    links = [value for name, value in found.attributes if name in ("src", "href", "action")]
    assert links == ["data:,"]
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


def test_numbers_that_json_lacks_leave_the_page_readable(tmp_path):
    tail = '{"iteration": 21, "steps": 2100, "time_s": 11, "return_mean": NaN}\n'
    tail += '{"iteration": 22, "steps": 2200, "time_s": 12, "return_mean": Infinity}\n'
    run = make_run(tmp_path, 0, tail=tail)
    state = json.loads((run / "run.json").read_text()) | {"return_mean": float("nan")}
    (run / "run.json").write_text(json.dumps(state))
    page = comparison_page(Comparison.of([run]))
    data = next(script for script in Elements(page).scripts if script.startswith("{"))
    curve = json.loads(data)["metrics"]["return_mean"]["steps"][0]
    assert curve["x"][-1] == 2000
    assert "<td>nan</td>" in page


def test_the_command_writes_the_page_and_prints_the_tables(tmp_path, capsys):
    for seed in (0, 1):
        make_run(tmp_path / "runs", seed, slope=seed + 1)
    out = tmp_path / "page.html"
    folders = [str(tmp_path / "runs"), str(tmp_path / "runs" / "ant" / "t0")]  # once, though twice
    assert main.main(["compare", *folders, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert out.read_text().startswith("<!doctype html>")
    assert "30.0 (20.0 to 40.0)" in printed
    assert f"comparison: {out}" in printed
    assert printed.count("/t0") == 1


def test_runs_of_different_environments_are_shown_with_a_warning(tmp_path, capsys):
    make_run(tmp_path, 0)
    make_run(tmp_path, 1, env="Pendulum-v1")
    assert main.main(["compare", str(tmp_path), "--out", str(tmp_path / "page.html")]) == 0
    assert "different environments (CartPole-v1, Pendulum-v1)" in capsys.readouterr().err


@pytest.mark.parametrize("case", ["no folder", "no run", "no metrics", "a folder as --out"])
def test_what_cannot_be_compared_is_told_and_nothing_is_written(tmp_path, capsys, case):
    run, out = make_run(tmp_path / "runs", 0, iterations=0), tmp_path / "page.html"
    (tmp_path / "empty").mkdir()
    given, said = {
        "no folder": (tmp_path / "gone", "gone: no such folder. Give runs"),
        "no run": (tmp_path / "empty", "empty: no run is in it"),
        "no metrics": (run, "no metrics yet. Compare when iterations have ended"),
        "a folder as --out": (run, "it is a folder. Give the path of a file"),
    }[case]
    out = tmp_path if case == "a folder as --out" else out
    assert main.main(["compare", str(given), "--out", str(out)]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def test_a_run_without_metrics_beside_others_is_a_warning(tmp_path):
    make_run(tmp_path, 0)
    empty = make_run(tmp_path, 1, iterations=0)
    comparison = Comparison.of([tmp_path])
    assert comparison.warnings == [f"{empty}: no metrics yet"]
    assert "t1" in comparison_page(comparison)
