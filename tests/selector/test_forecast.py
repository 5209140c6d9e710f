"""Forecasts of machines that are not here: what they stand on, and what they refuse."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from gmi_drl.cli import main
from gmi_drl.placement import ConfigError, layout_of, load_config
from gmi_drl.report.forecast_tables import span
from gmi_drl.selector.forecast import chance
from gmi_drl.selector.forecast.forecast import forecast, ladder
from gmi_drl.selector.forecast.hardware import known_machines, machine_of, read_hardware
from gmi_drl.selector.forecast.model import all_reduce_s, phases_of, work_of
from gmi_drl.selector.forecast.search import best_candidates

ROOT = Path(__file__).resolve().parents[2]
H100 = ROOT / "bench" / "results" / "gpu" / "nvidia-h100-80gb-hbm3"
MACHINES = ROOT / "selector" / "forecast" / "machines"


def config_of(num_env=4096, gmis=1, **sections):
    return load_config(
        {
            "version": 1,
            "env": {"id": "Ant-v5", "adapter": "warp", "num_env": num_env},
            "algorithm": {"network": "ant", "horizon": 16, "minibatches": 4, "epochs": 4},
            "layout": {"gmi_per_gpu": gmis},
            **sections,
        }
    )


def projected(machine, hosts, config=None, tries=20):
    config = config or config_of()
    hardware, _ = machine_of(machine)
    layout = layout_of(config, hardware.topology(config.hardware.num_gpus))
    return forecast(config, layout, hardware, hosts, tries)[1]


@pytest.mark.parametrize(("num_env", "side"), [(4096, "4096"), (16384, "16384")])
def test_what_it_was_fitted_to_comes_out_again(num_env, side):
    cells = {cell["key"]: cell for cell in json.loads((H100 / "suite.json").read_text())["cells"]}
    measured = cells[f"training/4 GMIs, {side} in all/exclusive#0"]["steps_per_s"]
    config, (hardware, _) = config_of(num_env), machine_of("nvidia-h100")
    work = work_of(config, layout_of(config, hardware.topology()), hardware)
    phases = phases_of(work, hardware, 1)
    assert work.samples / (phases.rollout_s + phases.training_s) == pytest.approx(
        measured, rel=0.01
    )


def test_every_machine_here_can_be_read_and_says_where_its_figures_are_from():
    assert {"dgx-a100", "dgx-h100", "nvidia-h100"} <= set(known_machines())
    for name in known_machines():
        hardware, _ = machine_of(name)
        for _, figure in hardware.figures.items():
            assert figure.low <= figure.value <= figure.high
            if figure.basis == "measured" and "bench/" in figure.source:
                assert (ROOT / figure.source.partition(":")[0]).exists()


def test_more_hosts_make_more_steps_and_less_of_each():
    rows = projected("dgx-h100", [1, 4, 64])
    assert [row.gpus for row in rows] == [8, 32, 512]
    rates, shares = [row.steps_per_s[1] for row in rows], [row.efficiency[1] for row in rows]
    assert rates == sorted(rates)
    assert shares[0] == 1.0
    assert shares == sorted(shares, reverse=True)
    assert [row.learned for row in rows] == sorted((row.learned for row in rows), reverse=True)
    assert rows[-1].dominating == "simulate"
    assert rows[-1].limiting == "waiting for the slowest"
    assert all(row.steps_per_s[0] < row.steps_per_s[1] < row.steps_per_s[2] for row in rows)


@pytest.mark.parametrize("gmis", [1, 4])
def test_a_gmi_that_is_alone_waits_for_nobody(gmis):
    (row,) = projected("nvidia-h100", [1], config_of(gmis=gmis))
    assert (row.seconds["waiting for the slowest"] > 0) == (gmis > 1)
    assert row.limiting == ("waiting for the slowest" if gmis > 1 else None)


@pytest.mark.parametrize(("count", "deviation", "slowest"), [(8, 0.05, 1.07), (256, 0.2, 1.72)])
def test_the_slowest_of_many_is_as_much_later_as_computed_elsewhere(count, deviation, slowest):
    rng = np.random.default_rng(0)
    many = [
        chance.sync_iteration_s(1, 0, 0, devices=count, gmis=1, spread=0, jitter=deviation, rng=rng)
        for _ in range(20)
    ]
    assert np.mean(many) == pytest.approx(slowest, abs=0.03)


def test_where_all_are_alike_nobody_waits():
    rng = np.random.default_rng(0)
    alike = {"devices": 8, "gmis": 2, "spread": 0.0, "jitter": 0.0, "rng": rng}
    assert chance.sync_iteration_s(1.0, 0.1, 4, **alike) == pytest.approx(1.4)


@pytest.mark.parametrize(
    ("rollout_s", "update_s", "rate"), [(1.0, 0.01, 3.0), (1.0, 1.0, 1.0), (0.1, 0.5, 2.0)]
)
def test_asynchronous_training_is_as_fast_as_its_slower_side(rollout_s, update_s, rate):
    result = chance.simulate_async(
        agents=3, trainers=1, groups=1, rollout_s=rollout_s, send_s=0.0, update_s=update_s,
        capacity=2, batch=1, spread=0.0, jitter=0.0, rng=np.random.default_rng(0),
    )  # fmt: skip
    assert result.segments_per_s == pytest.approx(rate, rel=0.03)
    assert result.lags.min() >= 0
    # Where agents are ahead, each has what it sends, what is on its way, and what it collects.
    assert result.lags.max() <= 3 * (2 + 1) + 1


@pytest.mark.parametrize("groups", [12, 48])
def test_the_lag_of_many_hosts_is_that_of_all_and_not_of_the_slowest(monkeypatch, groups):
    def simulated():
        return chance.simulate_async(
            agents=6, trainers=2, groups=groups, rollout_s=0.25, send_s=0.001, update_s=0.02,
            capacity=3, batch=1, spread=0.015, jitter=0.03, rng=np.random.default_rng(0),
        )  # fmt: skip

    some = simulated()
    monkeypatch.setattr(chance, "_SIMULATED", groups)
    every = simulated()
    assert some.segments_per_s == pytest.approx(every.segments_per_s, rel=0.02)
    shares = [10, 50, 90]
    assert np.percentile(some.lags, shares) == pytest.approx(
        np.percentile(every.lags, shares), abs=1
    )
    assert some.lags.mean() == pytest.approx(every.lags.mean(), rel=0.05)


def test_trainers_of_many_hosts_wait_for_the_slowest_gpu_among_theirs():
    result = chance.simulate_async(
        agents=4, trainers=2, groups=32, rollout_s=0.01, send_s=0.0, update_s=0.1, capacity=4,
        batch=1, spread=0.05, jitter=0.0, rng=np.random.default_rng(0),
    )  # fmt: skip
    # The largest of 64 normal numbers is 2.4 deviations above their mean.
    assert result.segments_per_s / 64 == pytest.approx(10 / (1 + 2.4 * 0.05), rel=0.04)


class CountingRandom:
    """Draws numbers, and not without end."""

    def __init__(self):
        self.rng, self.drawn = np.random.default_rng(0), 0

    def exponential(self, mean):
        self.drawn += 1
        assert self.drawn < 100_000
        return self.rng.exponential(mean)


def test_a_day_ends_where_hosts_are_lost_faster_than_they_come_back():
    share = chance.share_that_counts(
        failures_per_day=25_600, recovery_s=60, checkpoint_s=1, rng=CountingRandom()
    )
    assert share < 0.01


def test_losses_of_hosts_cost_what_they_take_back():
    shares = [
        chance.share_that_counts(
            failures_per_day=10, recovery_s=60, checkpoint_s=600, rng=np.random.default_rng(seed)
        )
        for seed in range(200)
    ]
    assert np.mean(shares) == pytest.approx(1 - 10 * (60 + 300) / 86_400, abs=0.004)


def test_a_large_reduction_is_a_ring_and_a_small_one_among_many_hosts_a_tree():
    hardware, _ = machine_of("dgx-h100")
    assert all_reduce_s(hardware, 1, 1, 1e6) == 0
    small = [all_reduce_s(hardware, 8, hosts, 1e3) for hosts in (2, 16, 256)]
    # One step up and one down for each doubling of the hosts.
    assert np.diff(small) == pytest.approx([2 * 3 * 5e-6, 2 * 4 * 5e-6])
    ring_s = 2 * 31 / 32 / hardware["between_bandwidth_gb_per_s"]
    assert all_reduce_s(hardware, 8, 4, 1e9) == pytest.approx(ring_s, rel=0.01)


def test_asynchronous_training_is_projected_with_its_lag():
    config = config_of(
        512, mode="async", layout={"template": "decoupled", "trainer_gpus": 2},
        algorithm={"name": "impala", "network": "ant", "horizon": 16},
    )  # fmt: skip
    rows = projected("dgx-h100", [1, 8], config, tries=5)
    assert all(row.lag is not None and row.lag[0] <= row.lag[1] <= row.lag[2] for row in rows)
    assert rows[1].steps_per_s[1] > 6 * rows[0].steps_per_s[1]


def test_the_hosts_that_are_shown_are_powers_of_two_and_the_last():
    assert ladder(1) == [1]
    assert ladder(48) == [1, 2, 4, 8, 16, 32, 48]


def edited(tmp_path, change):
    document = yaml.safe_load((MACHINES / "dgx-a100.yaml").read_text())
    change(document)
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d["figures"].update(update=d["figures"].pop("update_us")),
         "figures.update; unknown key. Did you mean figures.update_us?"),
        (lambda d: d["figures"].update(update_ms=d["figures"].pop("update_us")),
         "figures.update_ms; unknown key. Did you mean figures.update_us?"),
        (lambda d: d["tasks"]["Ant-v5"].update(step=d["tasks"]["Ant-v5"].pop("step_us")),
         "tasks.Ant-v5.step; unknown key; tasks.Ant-v5 has adapter, observation"),
        (lambda d: d["figures"].pop("jitter_percent"), "figures.jitter_percent; missing. Add it"),
        (lambda d: d["figures"]["recovery_s"].pop("source"),
         "recovery_s.source; missing. Add it: Where the number is from"),
        (lambda d: d["figures"]["recovery_s"].update(basis="felt"),
         "must be one of measured, published"),
        (lambda d: d["figures"]["recovery_s"].update(low=1e9), "must rise"),
        (lambda d: d["figures"].pop("hosts_max"),
         "figures; lacks hosts_max. Write all of between_step_us"),
        (lambda d: d["figures"]["between_bandwidth_gb_per_s"].update(value=0, low=0),
         "between_bandwidth_gb_per_s; value=0 must be above 0"),
        (lambda d: d["figures"].update(infer_step_us=220),
         "infer_step_us=220; must be a section with keys value, basis, source"),
        (lambda d: d.update(figures=None),
         "figures=None; must be a section with keys infer_step_us"),
        (lambda d: [d["figures"].pop(key) for key in [*d["figures"]][-6:]],
         "figures; lacks within_base_us, within_step_us, within_bandwidth_gb_per_s. Write"),
        (lambda d: d["figures"]["recovery_s"].update(low=-1), "must be 0 or more. Correct it."),
        (lambda d: d.pop("device"), "device; missing. Add it, a section with name, count"),
    ],
)  # fmt: skip
def test_a_hardware_file_with_a_fault_says_what_and_where(tmp_path, change, says):
    with pytest.raises(ConfigError) as told:
        read_hardware(edited(tmp_path, change))
    assert says in str(told.value)


def test_a_hardware_file_is_read_as_a_config_is(tmp_path):
    path = edited(tmp_path, lambda document: document["figures"].pop("recovery_s"))
    text = path.read_text()
    figure = "{value: 1e2, basis: assumed, source: a guess}"
    path.write_text(text.replace("figures:\n", f"figures:\n  recovery_s: {figure}\n"))
    assert read_hardware(path)["recovery_s"] == 100
    path.write_text(text.replace("figures:\n", f"figures:\n  update_us: {figure}\n"))
    with pytest.raises(ConfigError, match=r"update_us.*twice"):
        read_hardware(path)


@pytest.mark.parametrize(
    ("on", "more", "says"),
    [
        ("dgx-h200", [], "no such machine. Use dgx-a100, dgx-h100, nvidia-h100"),
        ("512xdgx-a100", [], "dgx-a100 has network figures for 256 hosts. Use 256 or fewer"),
        ("2xnvidia-h100", [], "no figures of a network"),
        (
            "dgx-a100",
            ["env.id=Hopper-v5", "env.adapter=mujoco"],
            "has no figures of it. Use Ant-v5",
        ),
        ("dgx-a100", ["env.adapter=mujoco"], "has figures of adapter warp"),
        ("dgx-a100", ["env.num_env=auto"], "auto"),
        ("dgx-a100", ["algorithm.drop_slowest=1"], "drop_slowest=1; it is not projected"),
    ],
)
def test_what_cannot_be_projected_is_told(on, more, says, capsys):
    words = [word for one in more for word in ("--set", one)]
    config = str(ROOT / "examples" / "paper" / "ant.yaml")
    assert main.main(["plan", config, "--on", on, *words]) == 2
    assert says in capsys.readouterr().err


def test_plan_on_other_machines_says_that_nothing_was_measured(capsys):
    config = str(ROOT / "examples" / "paper" / "humanoid.yaml")
    assert main.main(["plan", config, "--on", "2xdgx-a100"]) == 0
    said = capsys.readouterr().out
    assert said.count("projected, not measured") == 2
    assert "assumed" in said
    assert main.main(["plan", config, "--on", "2xdgx-a100", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["projected"] is True
    assert [row["hosts"] for row in answer["hosts"]] == [1, 2]
    assert main.main(["plan", config, "--on", "dgx-a100", "--no-measure"]) == 2


def test_a_search_on_the_model_finds_what_the_model_says_is_best(capsys):
    config = str(ROOT / "examples" / "paper" / "ant.yaml")
    assert main.main(["tune", config, "--on", "2xdgx-h100", "--objective", "steps"]) == 0
    said = capsys.readouterr().out
    assert "projected, not measured" in said
    assert "2 hosts of dgx-h100, by steps" in said
    loaded, (hardware, hosts) = load_config(config), machine_of("dgx-h100")
    best = best_candidates(loaded, hardware, hosts)
    worth = [one.worth(loaded.tune.objective) for one in best]
    assert worth == sorted(worth, reverse=True)
    assert len({(c.candidate.row.gmi_per_gpu, c.candidate.num_env) for c in best}) == len(best)
    for other in (["--budget", "5m"], ["--again"], ["--show"]):
        assert main.main(["tune", config, "--on", "dgx-h100", *other]) == 2


def test_layouts_that_serve_are_compared_by_what_they_serve(tmp_path, capsys):
    config = config_of(mode="serving")
    best = best_candidates(config, *machine_of("4xdgx-h100"))
    rates = [one.steps_per_s for one in best]
    assert rates == sorted(rates, reverse=True)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_unset=True)))
    assert main.main(["tune", str(path), "--on", "4xdgx-h100"]) == 0
    assert "4 hosts of dgx-h100, by steps (projected" in capsys.readouterr().out


def test_a_file_whose_name_begins_like_a_count_is_that_file(tmp_path, monkeypatch):
    edited(tmp_path, lambda document: None).rename(tmp_path / "2xmine.yaml")
    monkeypatch.chdir(tmp_path)
    assert machine_of("2xmine.yaml")[1] == 1
    assert machine_of("2x2xmine.yaml")[1] == 2


def test_hosts_that_only_sample_are_not_projected():
    cluster = {"address": "10.0.0.1:6379", "hosts": 2, "trainer_hosts": 1}
    config = config_of(mode="async", cluster=cluster, algorithm={"name": "impala"})
    with pytest.raises(ConfigError, match=r"cluster.trainer_hosts=1; .* hosts do that are alike"):
        projected("dgx-h100", [2], config)


def test_rates_are_told_in_the_unit_that_they_round_to():
    assert span((999.4, 999.6, 999_499.0)) == "1 k (999-999 k)"
    assert span((999_600.0, 1.25e6, 999_999_999.0)) == "1.25 M (1 M-1 G)"
