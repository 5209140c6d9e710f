"""Compares the model of `gmi-drl plan --on` with what was measured or published, row by row.

Every row says what the model was fitted to and what it foretold; rows that it was fitted to are not
among them. `error` is foretold over measured, less one.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from report import GPU_RESULTS, RESULTS, rows_of

from gmi_drl.comm.links.links import fit
from gmi_drl.placement import Config, costs, layout_of, load_config
from gmi_drl.placement.templates import TEMPLATES
from gmi_drl.selector.forecast.chance import simulate_async, sync_iteration_s
from gmi_drl.selector.forecast.hardware import Figure, Hardware, machine_of
from gmi_drl.selector.forecast.model import (
    LinearCost,
    Phases,
    Work,
    all_reduce_s,
    phases_of,
    work_of,
)

Row = dict[str, Any]
_H100: Final = GPU_RESULTS / "nvidia-h100-80gb-hbm3"
_DRY: Final = GPU_RESULTS / "dry-cpu"
_HORIZON: Final = 16  # of the suite, and of the tuner's grid
_STEPS: Final = 16  # gradient steps: 4 minibatches, 4 epochs


def row_of(group: str, name: str, unit: str, measured: float, foretold: float, by: str) -> Row:
    """Returns a row; `by` says what the model had been fitted to."""
    return {
        "group": group, "name": name, "unit": unit, "measured": float(f"{measured:.6g}"),
        "foretold": float(f"{foretold:.6g}"), "error": round(foretold / measured - 1, 4),
        "fitted_to": by,
    }  # fmt: skip


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Returns the median error of all rows, and of each group."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(abs(row["error"]))
    all_errors = [abs(row["error"]) for row in rows]
    return {
        "rows": len(rows),
        "median": round(statistics.median(all_errors), 4),
        "median_of_group_medians": round(
            statistics.median(statistics.median(errors) for errors in groups.values()), 4
        ),
        "largest": round(max(all_errors), 4),
        "groups": {
            name: {"rows": len(errors), "median": round(statistics.median(errors), 4),
                   "largest": round(max(errors), 4)}
            for name, errors in groups.items()
        },
    }  # fmt: skip


# One H100: the committed hardware file, which three cells of the suite were fitted to.


def h100_rows() -> list[Row]:
    """Foretells the H100's cells that the file was not fitted to."""
    hardware, _ = machine_of("nvidia-h100")
    fitted = "Ant alone with 4,096 and 16,384 environments, and 4 GMIs with 16,384"
    files = [("Ant-v5", "suite.json"), ("Ant-v5", "suite-num-env.json"),
             ("Ant-v5", "suite-async.json"),
             ("BallBalance-v0", "suite-ballbalance.json")]  # fmt: skip
    used = {  # fitted to; also the first of BallBalance, and repeats of these on another day
        "training/4 GMIs, 4096 in all/exclusive#0", "training/4 GMIs, 16384 in all/exclusive#0",
        "training/4 GMIs, 16384 in all/mps-uncapped#0",
        "num_env/ant 4096/exclusive#0", "num_env/ant 16384/exclusive#0",
        "num_env/ant 16384/4 mps#0",
    }  # fmt: skip
    rows = []
    for env_id, file in files:
        for cell in json.loads((_H100 / file).read_text())["cells"]:
            what = cell["what"]
            captured = what.get("capture") is not False and what.get("backend") != "green"
            if "steps_per_s" not in cell or not captured or cell["key"] in used:
                continue
            foretold = _suite_rate(hardware, env_id, what)
            name = f"{env_id} {cell['key'].removesuffix('#0')}"
            basis = fitted if env_id == "Ant-v5" else f"{fitted}; the simulation, BallBalance alone"
            rows.append(row_of("H100", name, "steps/s", cell["steps_per_s"], foretold, basis))
    launch = json.loads((_H100 / "ant-launch.json").read_text())
    config = _config("Ant-v5", 4096, minibatches=2)
    rows.append(
        row_of("H100", "examples/paper/ant.yaml, a whole run", "steps/s", launch["steps_per_s"],
               _sync_rate(config, hardware), fitted)
    )  # fmt: skip
    update = next(
        entry for entry in json.loads((_H100 / "update.json").read_text())
        if entry["name"] == "update/fp32/captured"
    )  # fmt: skip
    phases = _phases(_config("Ant-v5", 4096), hardware)
    rows.append(
        row_of("H100", "one update of 65,536 samples", "s", update["value"],
               phases.gradient_steps * phases.update_s, fitted)
    )  # fmt: skip
    return rows


def _config(
    env_id: str, num_env: int, gmis: int = 1, mode: str = "sync", minibatches: int = 4
) -> Config:
    return load_config({
        "version": 1, "mode": mode,
        "env": {"id": env_id, "adapter": "warp", "num_env": num_env},
        "algorithm": {
            "network": "ant", "horizon": _HORIZON, "minibatches": minibatches, "epochs": 4
        },
        "layout": {"gmi_per_gpu": gmis},
    })  # fmt: skip


def _phases(config: Config, hardware: Hardware) -> Phases:
    return phases_of(_work(config, hardware), hardware, 1)


def _work(config: Config, hardware: Hardware) -> Work:
    return work_of(config, layout_of(config, hardware.topology()), hardware)


def _sync_rate(config: Config, hardware: Hardware) -> float:
    work, phases = _work(config, hardware), _phases(config, hardware)
    seconds = sync_iteration_s(
        phases.rollout_s, phases.update_s, phases.gradient_steps, devices=1, gmis=work.trainers,
        spread=0, jitter=hardware["jitter_percent"] / 100, rng=np.random.default_rng(0),
    )  # fmt: skip
    return float(work.samples / (seconds + phases.gradient_steps * phases.reduce_s))


def _suite_rate(hardware: Hardware, env_id: str, what: Mapping[str, Any]) -> float:
    if what["mode"] == "async":  # an agent and a trainer on one GPU, of which the trainer is idle
        phases = _phases(_config(env_id, what["num_env"]), hardware)
        trained = _phases(_config(env_id, what["num_env"], minibatches=1), hardware)
        result = simulate_async(
            agents=1, trainers=1, groups=1, rollout_s=phases.rollout_s,
            send_s=1e-6 * hardware["experience_us"], update_s=trained.update_s, capacity=2,
            batch=1, spread=0, jitter=0.003, rng=np.random.default_rng(0),
        )  # fmt: skip
        return result.segments_per_s * what["num_env"] * _HORIZON
    config = _config(env_id, what["num_env"], what["gmis"], what["mode"])
    if what["mode"] == "serving":
        phases = _phases(config, hardware)
        return what["gmis"] * what["num_env"] * _HORIZON / phases.rollout_s
    return _sync_rate(config, hardware)


# CPU cores: lines through two numbers of environments foretell the others.


class Cores:
    """Models a GMI on cores: a line for each phase, from two measured points of a grid."""

    def __init__(
        self, points: Mapping[int, Mapping[str, Any]], gmis: int, fitted: Sequence[int]
    ) -> None:
        self.gmis = gmis
        self.simulate, self.infer = (self._line(points, phase, fitted, _HORIZON, 1.0)
                                     for phase in ("simulate", "infer"))  # fmt: skip
        samples = _HORIZON / 4  # of a minibatch, per environment
        self.update, self.reduce = (self._line(points, phase, fitted, _STEPS, samples)
                                    for phase in ("train", "reduce"))  # fmt: skip

    def _line(
        self, points: Mapping[int, Mapping[str, Any]], phase: str, fitted: Sequence[int],
        times: int, rows: float,
    ) -> LinearCost:  # fmt: skip
        seconds = []
        for num_env in fitted:
            point = points[num_env]
            iteration_s = self.gmis * num_env * _HORIZON / point["steps_per_s"]
            seconds.append((round(num_env * rows), [point["phases"][phase] * iteration_s / times]))
        link = fit(seconds)
        return LinearCost(link.alpha_s, link.beta_s_per_byte)

    def rate(
        self, num_env: int, horizon: int = _HORIZON, steps: int = _STEPS,
        minibatch: int | None = None,
    ) -> float:  # fmt: skip
        """Returns steps/s of all GMIs; `minibatch` is in samples of one GMI."""
        samples = 4 * num_env if minibatch is None else minibatch
        rollout_s = horizon * (self.simulate.seconds(num_env) + self.infer.seconds(num_env))
        training_s = steps * (self.update.seconds(samples) + self.reduce.seconds(samples))
        return self.gmis * num_env * horizon / (rollout_s + training_s)


_GRIDS: Final = {"ant": (16, 256), "humanoid": (16, 256), "cartpole": (16, 256)}


def core_rows() -> list[Row]:
    """Foretells the tuner's grids, and whole jobs of another shape on the same cores."""
    results = rows_of(RESULTS / "selector.json")
    rows: list[Row] = []
    models: dict[tuple[str, int], Cores] = {}
    for task, fitted in _GRIDS.items():
        row = results.get(f"figure10/{task}", results[f"real/{task}"])
        for gmis in (1, 2):
            points = {point["num_env"]: point for point in row.get("points", row.get("grid", []))
                      if point["gmi_per_gpu"] == gmis and "phases" in point}  # fmt: skip
            models[task, gmis] = model = Cores(points, gmis, fitted)
            for num_env, point in points.items():
                if num_env not in fitted:
                    rows.append(
                        row_of("cores, num_env", f"{task}, {gmis} GMIs of {num_env}", "steps/s",
                               point["steps_per_s"], model.rate(num_env),
                               f"the same with {fitted[0]} and {fitted[1]}")
                    )  # fmt: skip
    jobs = rows_of(RESULTS / "train_throughput.json")
    for task in ("ant", "humanoid"):
        for way, gmis in (("one_gmi_two_cores", 1), ("two_gmis_one_core_each", 2)):
            job = jobs[f"{task}/{way}"]
            foretold = models[task, gmis].rate(16 // gmis, 128, 20, 512 // gmis)
            rows.append(
                row_of("cores, other jobs", f"train_throughput {task}/{way}", "steps/s",
                       job["value"], foretold, "the tuner's grid at 16 and 256")
            )  # fmt: skip
    return rows + _dry_rows()


def _dry_rows() -> list[Row]:
    """Foretells two devices, and asynchronous training, from one GMI on one core."""
    cells = {cell["key"]: cell for cell in json.loads((_DRY / "suite.json").read_text())["cells"]}
    rows = []
    points = {16: cells["num_env/ant 32/2 cpu#0"], 256: cells["num_env/ant 512/2 cpu#0"]}
    model = Cores(points, 2, (16, 256))
    fitted = "2 GMIs of 16 and 256, one core each"
    for key, num_env in (
        ("training/2 GMIs/cpu#0", 128),
        ("training/2 GMIs/cpu#1", 128),
        ("precision/training/2 cpu fp32#0", 128),
        ("tuner/ant, 256 environments/choice of tune#0", 128),
        ("devices/sync/2 devices#0", 256),
        ("training/2 GMIs, as many environments in each/cpu#0", 256),
    ):
        measured = cells[key]["steps_per_s"]
        rows.append(row_of("cores, suite", f"BallBalance {key}", "steps/s", measured,
                           model.rate(num_env), fitted))  # fmt: skip
    single = cells["devices/sync/one device#0"]
    iteration_s = 256 * _HORIZON / single["steps_per_s"]
    rollout_s = iteration_s * (single["phases"]["simulate"] + single["phases"]["infer"])
    deviation = single["error"] * math.sqrt(single["iterations"])
    reduce_s = _mpr(2).seconds(250_000)
    two_s = sync_iteration_s(
        rollout_s, (iteration_s - rollout_s) / _STEPS, _STEPS, devices=2, gmis=1, spread=0,
        jitter=deviation, rng=np.random.default_rng(0),
    )  # fmt: skip
    rows.append(
        row_of("cores, suite", "BallBalance devices/sync, 2 devices from one", "steps/s",
               cells["devices/sync/2 devices#0"]["steps_per_s"],
               2 * 256 * _HORIZON / (two_s + _STEPS * reduce_s),
               "one device, and the reduction alone")
    )  # fmt: skip
    serving = cells["devices/serving/one device#0"]["steps_per_s"]
    rows.append(row_of("cores, suite", "BallBalance devices/serving, 2 devices from one", "steps/s",
                       cells["devices/serving/2 devices#0"]["steps_per_s"], 2 * serving,
                       "one device"))  # fmt: skip
    for channels in ("ucc", "mcc", "joined"):
        cell = cells[f"experience/channels/{channels}#0"]
        result = simulate_async(
            agents=1, trainers=1, groups=1, capacity=2, batch=1, spread=0, jitter=0.05,
            rollout_s=_HORIZON * (model.simulate.seconds(64) + model.infer.seconds(64)),
            send_s=1e-4, update_s=model.update.seconds(64 * _HORIZON), rng=np.random.default_rng(0),
        )  # fmt: skip
        rows.append(row_of("cores, async", f"BallBalance, {channels}, steps", "steps/s",
                           cell["steps_per_s"], result.segments_per_s * 64 * _HORIZON,
                           fitted))  # fmt: skip
        rows.append(row_of("cores, async", f"BallBalance, {channels}, policy lag", "updates",
                           cell["policy_lag_mean"], float(result.lags.mean()), fitted))  # fmt: skip
    return rows


def _times_of_reduction() -> dict[tuple[str, int], float]:
    """Returns the microseconds of each strategy (mpr as k2, k4, k8) and size."""
    times: dict[tuple[str, int], float] = {}
    for name, row in rows_of(RESULTS / "reduction.json").items():
        *head, size, peer = name.split("/")
        nbytes = int(size.removesuffix("B"))
        times[head[-1] if head[0] != "strategies" else f"{head[-1]} {peer}", nbytes] = (
            row["peer"] if head[0] == "strategies" else row["value"]
        )
    return times


def _mpr(ranks: int) -> LinearCost:
    times = _times_of_reduction()
    link = fit([(size, [1e-6 * times[f"k{ranks}", size]]) for size in (4_000, 3_000_000)])
    return LinearCost(link.alpha_s, link.beta_s_per_byte)


def reduction_rows() -> list[Row]:
    """Foretells reductions of other sizes than the two that a link was fitted to."""
    times, rows = _times_of_reduction(), []
    for strategy in sorted({name for name, _ in times}):
        link = fit([(size, [1e-6 * times[strategy, size]]) for size in (4_000, 3_000_000)])
        for size in sorted(nbytes for name, nbytes in times if name == strategy):
            if size not in (4_000, 3_000_000):
                inside = size < 3_000_000
                label = f"mpr {strategy}" if strategy.startswith("k") else strategy
                rows.append(
                    row_of("reduction" if inside else "reduction, beyond what was fitted",
                           f"{label}, {size / 1e6:g} MB", "us", times[strategy, size],
                           1e6 * link.seconds(size), "4 kB and 3 MB")
                )  # fmt: skip
    return rows


def host_rows() -> list[Row]:
    """Foretells hosts in network namespaces of one machine: more bytes, and ten times the delay.

    Sleeps stand for all computing: an iteration is the sleeps and what the model adds to them.
    """
    results, rows = rows_of(RESULTS / "hosts.json"), []
    ours_us = {
        int(name.split("/")[1].removesuffix("B")): row["value"]
        for name, row in results.items() if name.startswith("2x2/") and name.endswith("/gloo")
    }  # fmt: skip
    ends = min(ours_us), max(ours_us)
    link = fit([(size, [1e-6 * ours_us[size]]) for size in ends])
    size_basis = " and ".join(f"{size / 1e6:g} MB" for size in ends)
    for size, measured in sorted(ours_us.items()):
        if size not in ends:
            rows.append(row_of("hosts, reduction", f"2 hosts of 2 GMIs, {size / 1e6:g} MB", "us",
                               measured, 1e6 * link.seconds(size), size_basis))  # fmt: skip
    for name, row in results.items():
        if (nearer := results.get(name.replace("/1000us/", "/100us/"), row)) is row:
            continue
        shape, _, _, sleeps, *factor = name.split("/")
        hosts, apart = int(shape.partition("x")[0]), bool(factor)
        crossings = 1 if hosts == 2 else 2  # docs/reduction.md: steps among 2, and among 3 and 4
        reduce_us = nearer["reduction_us"] + (1_000 - 100) * crossings
        title = f"{hosts} hosts, {sleeps}" + (f", agents apart, {factor[0]} times" if apart else "")
        delay_basis = "the same with 0.1 ms one way"
        rows.append(row_of("hosts, reduction", f"{title}, 1 ms one way, a reduction", "us",
                           row["reduction_us"], reduce_us, delay_basis))  # fmt: skip
        steps, step_s = int(sleeps.split("x")[0]), 1e-3 * float(sleeps.split("x")[1][:-2])
        alone_s, together_s = (
            _asleep_s(count, steps, step_s, reduces_s, float(factor[0]) if apart else None)
            for count, reduces_s in ((1, 0.0), (hosts, 1e-6 * reduce_us))
        )
        rows.append(row_of("hosts, training", f"{title}, 1 ms one way, kept",
                           "of one host's throughput", row["value"], alone_s / together_s,
                           delay_basis))  # fmt: skip
    return rows


def _asleep_s(
    hosts: int, steps: int, step_s: float, reduce_s: float, factor: float | None
) -> float:
    """Returns the seconds of an iteration; `factor`: an agent's sleep over its trainer's."""
    rng = np.random.default_rng(0)
    if factor is None:
        iteration_s = sync_iteration_s(
            0.0, step_s, steps, devices=hosts, gmis=1, spread=0, jitter=0, rng=rng
        )
        return iteration_s + steps * reduce_s
    result = simulate_async(
        agents=1, trainers=1, groups=hosts, rollout_s=factor * steps * step_s, send_s=0.0,
        update_s=steps * (step_s + reduce_s), capacity=2, batch=1, spread=0, jitter=0, rng=rng,
    )  # fmt: skip
    return hosts / result.segments_per_s


def template_rows() -> list[Row]:
    """Foretells how much faster roles are together than apart, from the times of those apart."""
    return [
        row_of("templates", f"{name}, together over apart", "times", row["ratio"],
               row["model_held"], "the times of roles apart")
        for name, row in rows_of(RESULTS / "templates.json").items()
    ]  # fmt: skip


def wait_rows(measured: Sequence[Mapping[str, float]], asked: Mapping[str, float]) -> list[Row]:
    """Foretells iterations of processes that sleep: the slowest of them, and the reduction."""
    rows = []
    for waits in measured:
        processes, late_s = int(waits["processes"]), 1e-6 * waits["oversleep_us"]
        steps = int(asked["steps"])
        reduce_s = _mpr(processes).seconds(asked["nbytes"]) if processes > 1 else 0.0
        slowest_s = sync_iteration_s(
            asked["rollout_s"], asked["step_s"], steps, devices=processes, gmis=1, spread=0,
            jitter=waits["deviation"], rng=np.random.default_rng(0),
        )  # fmt: skip
        foretold_s = slowest_s + (1 + steps) * late_s + steps * reduce_s
        rows.append(
            row_of("waiting", f"{processes} processes, deviation {waits['deviation']:g}", "ms",
                   waits["iteration_ms"], 1e3 * foretold_s,
                   "deviations as asked for, one sleeper alone, reductions alone")
        )  # fmt: skip
    return rows


# Published figures.

# FPS of a whole training on 4 GPUs of a host and on 4 such hosts (Isaac Lab's page of benchmarks),
# and from the tasks' files: environments of a GPU, horizon, reductions of an iteration, and the
# parameters of the network.
_ISAAC_LAB: Final = {
    "Cartpole": (950e3, 3.5e6, 4096, 32, 64, 1_350),
    "Cartpole camera": (90e3, 260e3, 1024, 64, 128, 2_730_000),
    "G1 rough": (250e3, 960e3, 4096, 24, 20, 651_000),
    "Shadow hand": (390e3, 1.8e6, 8192, 16, 20, 509_000),
}
_NETWORKS: Final = {  # between hosts, assumed, as the page has none: (us a step, GB/s)
    "InfiniBand, 200 Gbit/s": (5.0, 20.0),
    "Ethernet, 100 Gbit/s, TCP": (25.0, 10.0),
    "Ethernet, 25 Gbit/s, TCP": (25.0, 2.5),
}
_DEVIATION: Final = 0.05  # of a GPU's iteration, assumed


def isaac_lab() -> list[Row]:
    """Foretells the step from one host to four, from the FPS of one."""
    rows = []
    for network, (step_us, gb_per_s) in _NETWORKS.items():
        hardware = _with_links(step_us, gb_per_s)
        for task, (fps_1, fps_4, num_env, horizon, reductions, parameters) in _ISAAC_LAB.items():
            samples = 4 * num_env * horizon
            one_host_s = samples / fps_1
            added_s = reductions * (
                all_reduce_s(hardware, 4, 4, 4 * parameters)
                - all_reduce_s(hardware, 4, 1, 4 * parameters)
            )
            slowest = [
                np.mean([
                    sync_iteration_s(1.0, 0.0, 0, devices=devices, gmis=1, spread=0,
                                     jitter=_DEVIATION, rng=np.random.default_rng(seed))
                    for seed in range(40)
                ])
                for devices in (4, 16)
            ]  # fmt: skip
            foretold = one_host_s / (one_host_s * slowest[1] / slowest[0] + added_s)
            rows.append({
                "network": network, "task": task, "published": round(fps_4 / fps_1 / 4, 3),
                "foretold": round(float(foretold), 3),
                "within": bool(abs(foretold - fps_4 / fps_1 / 4) <= 0.1),
            })  # fmt: skip
    return rows


def _with_links(step_us: float, gb_per_s: float) -> Hardware:
    base, _ = machine_of("dgx-a100")
    figures = {}
    for key, value in (
        ("within_step_us", 2.5), ("within_bandwidth_gb_per_s", 20.0), ("within_base_us", 30.0),
        ("between_step_us", step_us), ("between_bandwidth_gb_per_s", gb_per_s),
    ):  # fmt: skip
        figures[key] = Figure(value=value, basis="assumed", source="L40 by PCIe")
    device = base.device.model_copy(update={"count": 4, "sm_count": 142, "capability": "8.9"})
    changes = {"device": device, "figures": base.figures.model_copy(update=figures)}
    return base.model_copy(update=changes)


def paper() -> list[Row]:
    """Computes the paper's own figures from its constants, and from this model of its machine."""
    rows: list[Row] = []

    def say(name: str, published: str, foretold: float, by: str) -> None:
        rows.append({"name": name, "published": published, "foretold": float(f"{foretold:.4g}"),
                     "by": by})  # fmt: skip

    constants = "Tables 3 to 5 with the paper's constants"
    for names, penalty, ratio in (
        (("tcg", "tdg"), "16 %", "2.5 times"), (("tcg_ex", "tdg_ex"), "50 %", "5 times")
    ):  # fmt: skip
        together, split = (TEMPLATES[name].cost for name in names)
        pair = " against ".join(names)
        say(f"more of a device, {pair}", penalty, together.penalty(split, costs.PAPER), constants)
        say(f"throughput, {pair}", ratio, together.ratio(split, costs.PAPER), constants)
    hardware, _ = machine_of("dgx-a100")
    alone, packed = (
        _work(_config("Ant-v5", 4096 // gmis, gmis, minibatches=2), hardware) for gmis in (1, 4)
    )
    phases = {work: phases_of(work, hardware, 1) for work in (alone, packed)}
    packed_phases = phases[packed]
    work_s = packed_phases.rollout_s + packed.gradient_steps * packed_phases.update_s
    # Table 2 for 8 GPUs with 4 GMIs each: 12 GB/s through the host, 200 GB/s by NVLink.
    plain_s = packed.gradient_steps * costs.ring(32, packed.gradient_bytes, 12e9)
    clever_s = packed.gradient_steps * costs.har(4, 8, packed.gradient_bytes, 12e9, 200e9)
    table_2 = "Table 2, of bandwidths alone, for Ant on 8 x 4 GMIs with 12 and 200 GB/s"
    say("gain of HAR over MPR, %", "0.07 to 2.5 %",
        100 * ((work_s + plain_s) / (work_s + clever_s) - 1), table_2)  # fmt: skip
    say("time for communication, %", "16 %", 100 * plain_s / (work_s + plain_s), table_2)
    reduce_s = packed.gradient_steps * packed_phases.reduce_s
    say("time for communication, %", "16 %", 100 * reduce_s / (work_s + reduce_s),
        "this model, with latencies")  # fmt: skip
    seconds = {work: times.rollout_s + times.training_s for work, times in phases.items()}
    say("training, 4 GMIs on each GPU over one process", "1.86 times, at most 2.81",
        seconds[alone] / seconds[packed],
        "this model, where the one process is captured; the paper's is not")  # fmt: skip
    return rows
