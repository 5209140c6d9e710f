"""What `gmi-drl plan` says of a reduction, and that a launch follows and keeps it."""

import json
import re

import pytest
from rich.console import Console

from gmi_drl import cli, launch, runtime
from gmi_drl.comm.capability import LinkFacts
from gmi_drl.comm.links import Link
from gmi_drl.comm.plan import ReductionPlan
from gmi_drl.comm.project import decide, project_all
from gmi_drl.comm.stages import key_of, stages_of
from gmi_drl.gradient_size import asked, assumed
from gmi_drl.placement import ConfigError, Device, Topology, load_config, reducing, tcg_ex
from gmi_drl.plan_tables import print_reduction
from gmi_drl.planning import faults_of
from gmi_drl.preload import PRELOAD
from gmi_drl.reduction import notes_of, reduction_of

TEXT = """\
version: 1
run: {name: pole, total_steps: 64, eval_episodes: 0}
env: {id: CartPole-v1, num_env: 2}
algorithm: {network: [8, 8], horizon: 16, minibatches: 1, epochs: 1}
hardware: {num_gpus: 2}
"""
# 4 observations, 2 logits and a value: 5 * 8 + 9 * 8 + 9 * 3, and 6 loss parts.
NUMEL = 40 + 72 + 27 + 6


@pytest.fixture(scope="module", autouse=True)
def _one_runtime_for_all():
    """Starting it, with torch, takes longer than all that is tested here."""
    runtime.init(PRELOAD)
    runtime.preloaded(60)
    yield
    runtime.shutdown()


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "pole.yaml"
    path.write_text(TEXT)
    return path


def test_plan_measures_what_is_missing_and_shows_both_answers(config, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(config.parent))
    assert cli.main(["plan", str(config), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    plan = found["reduction"]
    assert found["layout"]["template"] == "tcg_ex"
    assert plan["gradient"]["numel"] == NUMEL
    assert plan["algorithm_1"]["strategy"] == "mrr"
    assert plan["strategy"] == plan["fastest"]
    times = {row["strategy"]: row["measured_s"] for row in plan["strategies"]}
    assert min(times["mpr"], times["mrr"], times["har"]) == times[plan["fastest"]]
    assert "measured 2 links" in plan["notes"][0]

    assert cli.main(["plan", str(config), "--no-measure"]) == 0  # what is known by now
    out = capsys.readouterr().out
    for piece in (f"used               {plan['fastest']}: ", "by Algorithm 1     mrr: 1 GMI on"):
        assert piece in out
    assert "measured 2 links" not in out


def test_without_measuring_nothing_is_known_of_a_new_machine(config, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(config.parent))
    assert cli.main(["plan", str(config), "--no-measure"]) == 0
    out = capsys.readouterr().out
    assert "used               mrr: Algorithm 1, since links are not measured" in out
    assert "mpr       -        -         shared memory of 2" in out
    assert list(config.parent.iterdir()) == [config]


def synthetic():
    """The plan of 8 GMIs on 2 GPUs, with links that were made up."""
    gpus = [Device(i, "gpu", "H200", (0, 1, 2, 3), f"GPU-{i}", 132, 141 << 30) for i in range(2)]
    layout = tcg_ex(Topology(tuple(gpus)), 4, 64, "direct")
    facts = LinkFacts("gpu", (2, 28, 9), False, (False, False), True)
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
    assert asked(loaded).numel == NUMEL
    broken = asked(load_config(config, ["env.adapter=isaacgym"]))
    assert "isaacgym" in broken.assumed
    # The paper's Ant: 60 observations, 8 actions with a deviation each, and the value.
    assert broken.numel == assumed(loaded, "").numel == 61 * 8 + 72 + 9 * 9 + 8 + 6


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
    assert notes_of(result.folder) == []


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
