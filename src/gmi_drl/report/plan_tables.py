"""Prints a plan as tables: devices, GMIs, templates, the reduction, and the layout drawn."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gmi_drl.comm.links.links import LINK_KINDS
from gmi_drl.comm.plan.project import duration_text
from gmi_drl.launcher.view.tables import print_folded, print_table
from gmi_drl.launcher.watch.noise_watch import why_none
from gmi_drl.placement import (
    CONVOLUTIONAL,
    Config,
    Device,
    GmiSpec,
    Layout,
    UpdateSize,
    check,
    counted,
    format_cores,
    hidden_sizes,
    is_own_network,
)
from gmi_drl.placement.config.config import LayoutConfig
from gmi_drl.placement.costs import PAPER
from gmi_drl.placement.reduction import reducing
from gmi_drl.placement.templates import Template, templates_of

from .layout_picture import layout_lines

if TYPE_CHECKING:
    from rich.console import Console

    from gmi_drl.comm.links.host_links import HostsReduction
    from gmi_drl.comm.links.links import LinkKey
    from gmi_drl.comm.plan.plan import ReductionPlan
    from gmi_drl.launcher.plan.experience import ExperienceAcross


@dataclass(frozen=True)
class TemplateRow:
    """Compares one template of the config's mode. None: Tables 4 and 5 do not have it."""

    template: str
    chosen: bool
    relative: float | None  # throughput, that of the best being 1
    why: str
    why_not: str  # why it cannot run here; "" when it can


def compare_templates(config: Config, layout: Layout) -> list[TemplateRow]:
    """Compares the templates of the config's mode by GMI-DRL's Tables 3 to 5.

    With the paper's constants, which do not depend on the number of trainers, the numbers say what
    the paper found, on its simulators and GPUs; bench/templates.py measures them.
    """
    templates = templates_of(config.mode)
    throughputs = {t.name: t.cost.throughput(PAPER) for t in templates if t.cost is not None}
    best = max(throughputs.values(), default=1.0)
    return [
        TemplateRow(
            template.name,
            template.name == layout.template,
            throughputs[template.name] / best if template.name in throughputs else None,
            _cost_text(template),
            "" if template.name == layout.template else _why_not(config, layout, template.name),
        )
        for template in templates
    ]


def _cost_text(template: Template) -> str:
    cost = template.cost
    if cost is None:
        return "in no table of the paper"
    if template.is_split:
        what = "experience" if cost.trains else "observations and actions"
        sends_s = cost.com_s(PAPER)
        sends = sends_s / (cost.iteration_s(PAPER) - sends_s)
        return f"sending {what} takes {sends:.3g} times the work"
    between = "nothing is sent between GMIs" + (" but gradients" if cost.trains else "")
    split = next(other.cost for other in templates_of(template.mode) if other.is_split)
    penalty = 0.0 if split is None else cost.penalty(split, PAPER)
    return f"{between}, for {100 * penalty:.0f} % more of a device"


def _why_not(config: Config, layout: Layout, name: str) -> str:
    most = max(map(len, layout.mpl))
    settings = LayoutConfig.model_validate({"template": name, "gmi_per_gpu": most})
    config_with = config.model_copy(update={"layout": settings})
    faults = check(config_with, layout.topology.of_host(0))
    return faults[0].rule if faults else ""


def print_plan(console: Console, config: Config, layout: Layout) -> None:
    """Prints devices, GMIs, and the size of an update."""
    on_gpu = any(device.kind == "gpu" for device in layout.topology.devices)
    several = layout.hosts > 1
    rows = []
    for device, ids in zip(layout.topology.devices, layout.mpl, strict=True):
        row = [*[str(device.host)] * several, str(device.index), device.name]
        gpu_cells = [str(device.sm_count or "-"), _memory(device)] * on_gpu
        rows.append([*row, format_cores(device.cores), *gpu_cells, ", ".join(map(str, ids))])
    columns = [*["host"] * several, "device", "name", "cores", *["SMs", "memory"] * on_gpu, "GMIs"]
    print_table(console, "Devices", columns, rows)
    rows = []
    for gmi in layout.gmis:
        row = [str(gmi.gmi_id), *[str(layout.host_of(gmi.gmi_id))] * several, str(gmi.gpu_id)]
        row += [", ".join(gmi.roles), gmi.backend, format_cores(gmi.cores), *[_sms(gmi)] * on_gpu]
        rows.append([*row, str(gmi.num_env or "-")])
    columns = ["GMI", *["host"] * several, "device", "roles", "backend", "cores", *["SMs"] * on_gpu]
    print_table(console, f"GMIs (template {layout.template})", [*columns, "num_env"], rows)
    title = "Serving" if config.mode == "serving" else "Training"
    print_table(console, title, ["what", "value"], _training(config, layout))


def _memory(device: Device) -> str:
    """Words what a GPU has, and what others hold of it, which GMIs do not get."""
    if not device.mem_bytes:
        return "-"
    held = f" ({device.held_bytes / 2**30:.1f} held by others)" if device.held_bytes else ""
    share = f", {100 * device.share:.3g} % for this run" if device.share < 1 else ""
    return f"{device.mem_bytes / 2**30:.0f} GiB{held}{share}"


def _sms(gmi: GmiSpec) -> str:
    if gmi.mig is not None:
        return gmi.mig.profile
    return f"{gmi.sm_percent} %" if gmi.sm_percent else "shared"


def _training(config: Config, layout: Layout) -> list[list[str]]:
    algorithm, experience = config.algorithm, config.experience
    total = sum(gmi.num_env for gmi in layout.gmis)
    total_steps = f"{config.run.total_steps:,}"
    sizes = ":".join(map(str, hidden_sizes(algorithm.network)))
    if algorithm.network in CONVOLUTIONAL:
        sizes = f"{algorithm.network}, {sizes}"
    is_own = is_own_network(algorithm.network)
    rows = [
        ["environment", f"{config.env.id}, {total} in all"],
        ["policy", str(algorithm.network) if is_own else f"{sizes} {algorithm.activation}"],
    ]
    if algorithm.layer_norm:
        rows[1][1] += ", layer norm"
    if not getattr(algorithm, "share_layers", True):
        rows[1][1] += ", and as many of the value"
    if (recurrent := getattr(algorithm, "recurrent", None)) is not None:
        rows[1][1] += f", {recurrent.cell} {recurrent.size}"
    if config.mode == "serving":
        rows[1][1] += f", of {config.run.policy}" if config.run.policy else ", of random weights"
        return [*rows, ["steps", total_steps]]
    if config.mode == "async":
        segment = f"{counted(algorithm.horizon, 'step')} of "
        segment += counted(config.env.num_env, "environment")
        limits = f"{experience.capacity} under way on a link at most"
        if not algorithm.kept_steps:  # what is kept may be old
            limits += f", {experience.max_policy_lag} updates old at most"
        rows.append(["segments", f"{segment}, {limits}, channels {experience.channels}"])
    if algorithm.whole_episodes:
        text = algorithm.update_text(0, 0, "")
        return [*rows, ["algorithm", algorithm.name], ["a round", text], ["steps", total_steps]]
    update = UpdateSize.of(config, layout)
    per_trainer = update.samples // update.trainers
    where = "GMI" if update.trainers == len(layout.gmis) else "trainer"
    iterations = -(-config.run.total_steps // update.samples)
    return [
        *rows,
        ["algorithm", algorithm.name],
        ["samples an iteration", f"{update.samples:,} ({per_trainer:,} in each {where})"],
        ["minibatches", algorithm.update_text(per_trainer, update.trainers, where)],
        *([["noise scale", f"none: {why}"]] if (why := why_none(config, layout)) else []),
        ["iterations", f"{iterations:,} for {total_steps} steps"],
    ]


def print_reduction(
    console: Console, plan: ReductionPlan, layout: Layout, across: HostsReduction | None = None
) -> None:
    """Prints what reduces gradients, and the numbers it was chosen by.

    `layout` is that of one host, and `across` says how several combine what each has.
    """
    count = sum(map(len, reducing(layout)))
    rows = [["used" if across is None else "on a host", f"{plan.strategy}: {plan.why}"]]
    size = f"{plan.numel:,} numbers, {plan.nbytes / 1024:,.0f} KiB"
    if across is not None:
        rows += _rows_across(across, size)
    if count < 2:
        notes = [["note", note] for note in plan.notes] if across is not None else []
        print_folded(console, "Reduction", ["what", "value"], rows + notes)
        return
    rows += [
        ["by measured links", plan.fastest or "not known: links are not measured"],
        ["by Algorithm 1", f"{plan.paper}: {plan.paper_why}"],
        ["gradient", f"{size}, sent as {plan.wire}"],
        *(["note", note] for note in plan.notes),
    ]
    print_folded(console, f"Reduction among {counted(count, 'GMI')}", ["what", "value"], rows)
    rows = []
    for row in plan.rows:
        runs_on = row.why_not or " + ".join(map(_name, row.links))
        rows.append([row.strategy, _time(row.paper_s), _time(row.measured_s), runs_on])
    columns = ["strategy", "Table 2", "measured", "runs on, or why not"]
    print_folded(console, "Strategies (time of one reduction)", columns, rows)
    rows = []
    for key, link in sorted(plan.links.items()):
        speed = "-" if math.isinf(link.bandwidth) else f"{link.bandwidth / 1e9:.3g} GB/s"
        error = f"{100 * link.residual:.0f} %"
        rows.append([_name(key), duration_text(link.alpha_s), speed, error])
    if rows:
        columns = ["link", "alpha", "bandwidth", "error of the fit"]
        print_folded(console, "Links (alpha + bytes / bandwidth)", columns, rows)


def _rows_across(across: HostsReduction, size: str) -> list[list[str]]:
    """Words how hosts combine what each has, and how long that takes where it was measured."""
    sent = f"{across.sent_bytes / 1024:,.0f} KiB"
    text = f"{size} by the first trainer of each, in {LINK_KINDS[across.way]}; "
    text += f"a host sends {sent} each time"
    rows = [[f"between {across.count} hosts", text]]
    if (between := across.measured) is None:
        note = "not known: hosts measure them when they train together"
        if across.repeatable:
            note = "not measured: run.deterministic leaves nothing to a clock"
        return [*rows, ["links between hosts", note]]
    seconds = {way: link.seconds(across.nbytes) for way, link in between.links.items()}
    times = [f"{LINK_KINDS[way]} {duration_text(time_s)}" for way, time_s in seconds.items()]
    rate = across.sent_bytes / seconds[across.way] / 1e6
    day = time.strftime("%Y-%m-%d", time.localtime(between.measured_s))
    text = f"{', '.join(times)}, so {rate:.3g} MB/s from each host for that long; "
    text += f"measured on {day} between {', '.join(between.addresses)}"
    return [*rows, ["links between hosts", text]]


def print_experience(console: Console, across: ExperienceAcross) -> None:
    """Prints what experience crosses from host to host, and what policy comes back."""
    senders, receivers = (
        counted(n, "host") for n in (across.sampling_hosts, across.training_hosts)
    )
    send = "sends" if across.sampling_hosts == 1 else "send"
    rows = [["between hosts", f"{senders} {send} to the trainers of {receivers}"]]
    if across.segment_bytes is None or across.policy_bytes is None:
        rows.append(["size", f"not known: {across.unknown}"])
    else:
        step_bytes = across.segment_bytes / (across.steps * across.num_env)
        answer_bytes = across.policy_bytes / across.update_samples
        segment = f"{counted(across.steps, 'step')} of {counted(across.num_env, 'environment')}"
        rows += [
            ["a segment", f"{across.segment_bytes / 1e3:,.1f} KB, {segment}"],
            ["a step", f"{step_bytes:,.0f} bytes, {step_bytes * 1e4 / 1e6:.3g} MB/s for each "
             "10,000 steps/s that these hosts sample"],
            ["a policy", f"{across.policy_bytes / 1e3:,.1f} KB to each of these hosts, at most "
             f"{answer_bytes * 1e4 / 1e6:.3g} MB/s for each 10,000 steps/s that are trained on"],
        ]  # fmt: skip
    print_folded(console, "Experience", ["what", "value"], rows)


def print_templates(console: Console, mode: str, templates: Sequence[TemplateRow]) -> None:
    """Prints what the papers' model says of each template of the mode."""
    rows = []
    for row in templates:
        why = row.why + (f"; not with this config: {row.why_not}" if row.why_not else "")
        relative = "-" if row.relative is None else f"{row.relative:.2f}"
        rows.append([f"{row.template}{' (this)' if row.chosen else ''}", relative, why])
    title = f"Templates of mode {mode} (throughput by the paper's constants)"
    print_folded(console, title, ["template", "relative", "why"], rows)


def print_layout(console: Console, layout: Layout, plan: ReductionPlan, reason: str | None) -> None:
    """Prints the layout drawn, and why its backend was chosen."""
    console.out(f"Layout ({reason})" if reason else "Layout", highlight=False)
    for line in layout_lines(layout, plan, console.width - 2):
        console.out(f"  {line}", highlight=False)


def _name(key: LinkKey) -> str:
    return f"{LINK_KINDS[key.kind]} {str(key).partition(' ')[2]}"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else duration_text(seconds)
