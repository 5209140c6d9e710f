"""What `gmi-drl plan` says of a config, and that a launch follows and keeps it."""

import json
import os
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from gmi_drl import launch
from gmi_drl.cli import main
from gmi_drl.comm.links.links import Link
from gmi_drl.comm.plan.capability import LinkFacts
from gmi_drl.comm.plan.plan import ReductionPlan
from gmi_drl.comm.plan.project import decide, key_of, project_all, stages_of
from gmi_drl.launcher.plan.planning import (
    ask_role,
    assumed,
    backend_reason,
    faults_of,
    numel_of,
    reduction_of,
)
from gmi_drl.placement import (
    ConfigError,
    Device,
    Topology,
    layout_of,
    load_config,
    reducing,
    tcg_ex,
)
from gmi_drl.placement.layout_yaml import from_yaml
from gmi_drl.report.layout_picture import draw_layout, layout_lines, spans_of
from gmi_drl.report.plan_tables import compare_templates, print_reduction

CORES = os.sched_getaffinity(0)
ROOT = Path(__file__).parents[2]

TEXT = """\
version: 1
run: {name: pole, total_steps: 64, eval_episodes: 0}
env: {id: CartPole-v1, num_env: 2}
algorithm: {network: [8, 8], horizon: 16, minibatches: 1, epochs: 1}
hardware: {num_gpus: 2}
"""
# Biases and weights of 4 observations, two layers of 8, 2 logits and a value: each of them takes up
# a multiple of 64 numbers. And 6 loss parts, and a squared norm.
NUMEL = 6 * 64 + 7


pytestmark = pytest.mark.usefixtures("warm")


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "pole.yaml"
    path.write_text(TEXT)
    return path


def test_plan_measures_what_is_missing_and_shows_both_answers(config, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(config.parent))
    assert main.main(["plan", str(config), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    plan = found["reduction"]
    assert found["layout"]["template"] == "tcg_ex"
    assert plan["gradient"]["numel"] == NUMEL
    assert plan["algorithm_1"]["strategy"] == "mrr"
    assert plan["strategy"] == plan["fastest"]
    times = {row["strategy"]: row["measured_s"] for row in plan["strategies"]}
    assert min(times["mpr"], times["mrr"], times["har"]) == times[plan["fastest"]]
    assert "measured 2 links" in plan["notes"][0]

    assert main.main(["plan", str(config), "--no-measure"]) == 0  # what is known by now
    out = capsys.readouterr().out
    for piece in (f"used               {plan['fastest']}: ", "by Algorithm 1     mrr: 1 GMI on"):
        assert piece in out
    assert "measured 2 links" not in out


def test_without_measuring_nothing_is_known_of_a_new_machine(config, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(config.parent))
    assert main.main(["plan", str(config), "--no-measure"]) == 0
    out = capsys.readouterr().out
    assert "used               mrr: Algorithm 1, since links are not measured" in out
    assert "mpr       -        -         shared memory of 2" in out
    assert list(config.parent.iterdir()) == [config]


def synthetic():
    """The plan of 8 GMIs on 2 GPUs, with links that were made up."""
    gpus = [Device(i, "gpu", "H200", (0, 1, 2, 3), f"GPU-{i}", 132, 141 << 30) for i in range(2)]
    layout = tcg_ex(Topology(tuple(gpus)), 4, 64, "direct")
    facts = LinkFacts("gpu", (2, 28, 9), (False, False), True)
    mpl = reducing(layout)
    stages = [*stages_of("mpr", mpl), *stages_of("har", mpl, "ipc")]
    keys = {key_of(stage, layout) for stage in stages}
    links = {key: Link(2e-5, 1e-11, 0.04, ()) for key in keys}
    rows = project_all(layout, mpl, facts, links, 700_000)
    chosen, why = decide("auto", mpl, rows)
    plan = ReductionPlan(
        "auto", chosen, why, "har", "more GMIs than devices", 175_000, "fp32", rows, links,
        ("measured 3 links of this machine in 4.0 s, kept in /home/somebody/.cache/links.json",),
    )  # fmt: skip
    return plan, layout


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("terminal", [False, True])
def test_the_tables_fit_the_width_there_is(width, terminal):
    console = Console(force_terminal=terminal, width=width, no_color=True)
    with console.capture() as captured:
        print_reduction(console, *synthetic())
    text = re.sub("\x1b[^m]*m", "", captured.get())
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.replace("│", " ").split())
    for piece in ("refuses two", "GPU memory of 2 x 4", "175,000", "100 GB/s", "4 %"):
        assert piece in words


def test_the_size_is_assumed_where_the_environment_cannot_be_asked(config):
    loaded = load_config(config)
    layout = tcg_ex(Topology.from_cores([0, 1]), 2, 1)
    trainer = "gmi_drl.roles:Trainer"
    assert ask_role("size", numel_of, loaded, layout, trainer) == (NUMEL, "")
    elsewhere = load_config(config, ["env.adapter=isaacgym"])
    numel, why = ask_role("size", numel_of, elsewhere, layout, trainer)
    assert numel is None
    assert "isaacgym" in why
    # The paper's Ant: 60 observations, 8 actions with a deviation each, and the value. The first
    # weight takes up 512 numbers, the last one 128, and five other parameters 64.
    assert assumed(loaded) == 512 + 128 + 5 * 64 + 7


def test_what_the_shape_or_the_hardware_forbids_is_a_fault(config, monkeypatch):
    faults = faults_of(load_config(config, ["comm.reduction=ipc"]))
    assert [str(fault) for fault in faults] == [
        "comm.reduction='ipc'; the GMIs are on 2 devices, and ipc reduces on one GPU. "
        "Use har, or auto."
    ]
    alone = load_config(
        config, ["comm.reduction=ipc", "hardware.num_gpus=1", "layout.gmi_per_gpu=2"]
    )
    (fault,) = faults_of(alone)
    assert "there is no GPU whose memory" in str(fault)
    with pytest.raises(ConfigError, match="there is no GPU whose memory"):
        reduction_of(alone, tcg_ex(Topology.from_cores([0, 1]), 2, 1))


@pytest.mark.parametrize(("reduction", "wire"), [("har", "fp32"), ("mrr", "bf16")])
def test_a_run_keeps_the_plan_it_followed(config, tmp_path, reduction, wire):
    result = launch(
        config,
        overrides=[f"run.folder={tmp_path}", f"comm.reduction={reduction}", f"comm.wire={wire}"],
        view="none",
    )
    plan = json.loads((result.folder / "plan.json").read_text())
    assert (result.state, plan["strategy"], plan["gradient"]["wire"]) == (
        "finished", reduction, wire,
    )  # fmt: skip
    assert not plan["notes"]


def test_a_view_begins_with_what_was_measured(config, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for told in (True, False):
        launch(config, overrides=[f"run.folder={tmp_path}"], view="plain")
        first = capsys.readouterr().out.splitlines()[0]
        assert first.startswith("reduction: ") == told


def test_a_repeatable_run_follows_no_clock(config):
    loaded = load_config(config, ["run.deterministic=true"])
    plan = reduction_of(loaded, tcg_ex(Topology.from_cores([0, 1], 2), 1, 1))
    assert (plan.strategy, plan.notes) == ("mrr", ())
    assert "run.deterministic" in plan.why


# Templates and pictures ---------------------------------------------------------------------------


def machine(count):
    """GPUs that are not there."""
    return Topology(
        tuple(
            Device(
                i, "gpu", "NVIDIA H200", tuple(range(8 * i, 8 * i + 8)), f"GPU-{i}", 132, 141 << 30,
                (9, 0), mig_mode=False,
            )
            for i in range(count)
        )
    )  # fmt: skip


def drawn(template, gmis, strategy, mode="sync", backend="auto", count=2):
    config = load_config(
        {
            "version": 1, "mode": mode, "env": {"id": "Ant-v5"},
            "hardware": {"backend": backend, "allow_create": True},
            "layout": {"template": template, "gmi_per_gpu": gmis},
        }
    )  # fmt: skip
    layout = layout_of(config, machine(count))
    return config, layout, ReductionPlan("auto", strategy, "", "", "", 9, "fp32", [], {}, ())


def test_the_models_word_on_each_template_and_whether_it_fits():
    config, layout, _ = drawn("tcg_ex", 4, "har")
    together, split, server = compare_templates(config, layout)
    assert (together.template, together.chosen, together.relative) == ("tcg_ex", True, 1.0)
    assert split.relative == pytest.approx(1 / 5.46, rel=1e-3)
    assert (split.why, split.why_not) == ("sending experience takes 7 times the work", "")
    assert (server.relative, server.why) == (None, "in no table of the paper")
    assert "all_reduce does not run in template parameter_server" in server.why_not
    config, layout, _ = drawn("tcg", 3, "local", "serving")
    pair = compare_templates(config, layout)[1]
    assert pair.relative == pytest.approx(1 / 2.58, rel=1e-2)
    assert "pairs a simulator GMI with an agent GMI" in pair.why_not
    (alone,) = compare_templates(*drawn("decoupled", 2, "mpr", "async")[:2])
    assert alone.relative is None


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (("tcg_ex", 3, "har"), ["shared memory of GMIs 0-2", "ring of GMIs 0,3"]),
        (("tcg_ex", 2, "mrr"), ["ring of GMIs 1,3", "last ring of GMIs 0,3", "50 % of SMs"]),
        (("decoupled", 2, "mpr", "async"), ["GMIs 0-1 to GMIs 2-3: experience", "70.0 GiB"]),
        (("tdg_ex", 3, "mrr"), ["GMI 5 to GMIs 3-4: policy, experience back"]),
        (("tdg", 4, "local", "serving", "mig", 1), ["1g.35gb at 6", "GMI 2 to GMI 3: obs"]),
        (("tcg_ex", 3, "har", "sync", "green"), ["5 of 16 SM groups"]),
        (("tcg_ex", 2, "har", "sync", "direct"), ["▒▒▒  GMI 3  all SMs"]),
    ],
)  # fmt: skip
def test_the_drawings_show_shares_rings_and_channels(arguments, lines):
    _, layout, plan = drawn(*arguments)
    assert max(map(len, layout_lines(layout, plan, 78))) <= 78
    text = "\n".join(layout_lines(layout, plan))
    assert [line in text for line in lines] == [True] * len(lines), text
    root = ElementTree.fromstring(draw_layout(layout, plan))
    words = [element.text for element in root.iter() if element.text]
    assert all(words.count(f"GMI {gmi.gmi_id}") == 1 for gmi in layout.gmis)
    width, height = (float(root.get(key)) for key in ("width", "height"))
    for element in root.iter("{http://www.w3.org/2000/svg}rect"):
        x, y, wide, high = (float(element.get(k, "0")) for k in ("x", "y", "width", "height"))
        assert min(x, y) >= 0
        assert x + wide <= width + 0.1
        assert y + high <= height + 0.1


def test_bars_of_a_device_lie_side_by_side():
    for arguments in (("tcg_ex", 5, "har"), ("tdg", 4, "local", "serving", "mig", 1)):
        _, layout, _ = drawn(*arguments)
        spans = spans_of(layout)
        for ids in layout.mpl:
            ends = [0.0, *(spans[i].begin + spans[i].width for i in ids)]
            assert all(spans[i].begin >= end - 1e-9 for i, end in zip(ids, ends, strict=False))
            assert ends[-1] <= 1 + 1e-9


def test_plan_draws_the_layout_and_writes_it(config, capsys):
    picture, written = config.parent / "a.svg", config.parent / "a.yaml"
    files = ["--svg", str(picture), "--layout", str(written)]
    ring = ["--set", "comm.reduction=har"]  # auto goes by what was measured here
    assert main.main(["plan", str(config), "--no-measure", *files, *ring]) == 0
    out = capsys.readouterr().out
    for piece in ("tcg_ex (this)     1.00", "ring of GMIs 0-1", "█", f"picture: {picture}"):
        assert piece in out
    ElementTree.parse(picture)
    layout = layout_of(load_config(config), Topology.from_cores(CORES, 2))
    assert from_yaml(written.read_text(), layout.topology, 2) == layout
    assert main.main(["plan", str(config), "--json", "--no-measure"]) == 0
    found = json.loads(capsys.readouterr().out)
    known = [row["template"] for row in found["templates"]]
    assert known == ["tcg_ex", "tdg_ex", "parameter_server"]
    assert found["backend"] is None
    assert main.main(["plan", str(config), "--svg", str(config / "no" / "a.svg")]) == 2
    assert "its folder is not there" in capsys.readouterr().err
    for option in ("--svg", "--layout"):
        assert main.main(["plan", str(config), "--no-measure", option, str(config.parent)]) == 2
        told = f"{option} {config.parent}: it is a folder. Give the path of a file.\n"
        assert capsys.readouterr() == ("", told)
    before = config.read_text()
    assert main.main(["plan", str(config), "--no-measure", "--layout", str(config)]) == 2
    assert "the plan is made from it" in capsys.readouterr().err
    assert config.read_text() == before
    assert main.main(["plan", str(config), "--no-measure", "--svg", "/proc/a.svg"]) == 2
    assert "--svg /proc/a.svg: " in capsys.readouterr().err


def test_a_round_of_whole_episodes_has_no_samples_that_are_known(config, capsys):
    config.write_text(TEXT.replace("{network: [8, 8], horizon: 16, minibatches: 1, epochs: 1}",
                                   "{name: es, population: 16}"))  # fmt: skip
    assert main.main(["plan", str(config), "--no-measure"]) == 0
    out = capsys.readouterr().out
    assert re.search("a round +the episodes of 16 policies, by all GMIs", out)
    for word in ("samples an iteration", "minibatches", "noise scale", "iterations"):
        assert word not in out


@pytest.mark.parametrize(
    ("gmis", "updates", "text"),
    [
        (1, 1, "1 for each step in all GMIs, of 64 kept samples in each GMI"),
        (2, 1, "1 for 2 steps in all GMIs"),
        (2, 2, "1 for each step"),
        (2, 6, "3 for each step"),
        (2, 0.5, "1 for 4 steps"),
    ],
)
def test_updates_of_a_replay_are_told_for_the_steps_of_all_gmis(
    config, capsys, gmis, updates, text
):
    algorithm = f"{{name: dqn, horizon: 8, updates_per_row: {updates}}}"
    config.write_text(TEXT.replace("{network: [8, 8], horizon: 16, minibatches: 1, epochs: 1}",
                                   algorithm))  # fmt: skip
    changes = ["--set", "hardware.num_gpus=1", "--set", f"layout.gmi_per_gpu={gmis}"]
    assert main.main(["plan", str(config), "--no-measure", *changes]) == 0
    assert re.search(f"minibatches +{text}", capsys.readouterr().out)


def test_the_age_of_segments_is_told_where_it_counts(capsys):
    """A replay keeps steps however old they are."""
    for example, limited in (("apex_lunarlander", False), ("async_cartpole", True)):
        path = f"{ROOT}/examples/{example}.yaml"
        assert main.main(["plan", path, "--no-measure"]) == 0
        out = capsys.readouterr().out
        assert "under way on a link at most" in out
        assert ("updates old at most" in out) == limited


def test_a_class_that_is_not_loaded_has_a_plan(config, capsys):
    config.write_text(TEXT.replace("{network: [8, 8], horizon: 16, minibatches: 1, epochs: 1}",
                                   "{class: 'nowhere:Own', horizon: 16}"))  # fmt: skip
    assert main.main(["plan", str(config), "--no-measure"]) == 0
    assert re.search("algorithm +Own", capsys.readouterr().out)


def test_the_reason_of_auto_is_told():
    config, layout, _ = drawn("tcg_ex", 4, "har")
    assert backend_reason(config, layout).startswith("backend mps: 4 GMIs on each GPU")
    assert backend_reason(*drawn("tcg_ex", 4, "har", backend="direct")[:2]) is None
