"""Runs a config, or looks at it and at the machine: launch, resize, check, plan, doctor, envs."""

from __future__ import annotations

import dataclasses
import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from gmi_drl.launcher.view.tables import cut, print_table, printable_lines

from .app import (
    FAILED,
    INTERRUPTED,
    AsJson,
    BadPath,
    ConfigFile,
    Overrides,
    Plain,
    Quiet,
    command,
    console_for,
    print_json,
    refuse_no_file,
    status,
    view_for,
    write_file,
)

if TYPE_CHECKING:
    from gmi_drl.comm.plan.plan import Measure
    from gmi_drl.placement import Config

_SPACE: Final = 60  # characters of one that are shown


class Keep(StrEnum):
    """Names the rules of tune.keep."""

    update = "update"
    gradient_steps = "gradient_steps"
    none = "none"


_Measured: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--measure/--no-measure",
        help="Measure all links anew, or none; else those that are not known.",
        show_default=False,
    ),
]


@command
def launch(
    config: Annotated[
        Path | None,
        typer.Argument(
            help="A YAML file; or, with --set mode=serving, the folder of a run whose policy is "
            "served. Not needed with --resume."
        ),
    ] = None,
    overrides: Overrides = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Go on with the run in this folder.")
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Record a trace of each GMI: run.profile=true.")
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Train N seeds, from run.seed on, and compare them."),
    ] = None,
    parallel: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            min=1,
            help="With --seeds: share the devices out among so many at a time.",
            show_default="as hardware.num_gpus allows; cores: 1",
        ),
    ] = None,
    quiet: Quiet = False,
    plain: Plain = False,
) -> int:
    """Train what CONFIG says, or go on with an earlier run."""
    if (config is None) == (resume is None):
        raise typer.BadParameter("give a config, or --resume and the folder of a run")
    if seeds is not None and resume is not None:
        raise typer.BadParameter(
            "--seeds begins new runs. Go on with each by --resume FOLDER, then `gmi-drl compare`."
        )
    if parallel is not None and seeds is None:
        raise typer.BadParameter("--parallel is for --seeds, which is not given")
    from gmi_drl import launching

    all_overrides = [*(overrides or []), *(["run.profile=true"] if profile else [])]
    if seeds is not None:
        assert config is not None
        return _launch_seeds(config, seeds, parallel, all_overrides, quiet, plain)
    result = launching.launch(
        config,
        overrides=all_overrides,
        resume=resume,
        view=view_for(quiet, plain),
        keep_gcs=True,  # the runtime was started for this run alone
    )
    if not quiet:
        from gmi_drl.report.run_list import print_result

        print_result(console_for(plain), result)
    return 0 if result.state == "finished" else INTERRUPTED


@command
def resize(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that trains.")],
    overrides: Overrides = None,
    keep: Annotated[
        Keep, typer.Option(help="What an update keeps, as tune.keep has it.")
    ] = Keep.update,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0, help="Seconds to wait for it.")
    ] = 300.0,
    quiet: Quiet = False,
) -> int:
    """Give a run that trains other GMIs, environments or devices, without ending it."""
    from gmi_drl.resizing import resize as resized

    def say(text: str) -> None:
        if not quiet:
            print(text, flush=True)

    answer = resized(run, overrides or [], keep=keep.value, timeout_s=timeout_s, say=say)
    say(f"done: {answer.text}, after a pause of {answer.pause_s:.2f} s")
    return 0


def _launch_seeds(
    config: Path, seeds: int, parallel: int | None, words: list[str], quiet: bool, plain: bool
) -> int:
    from gmi_drl import launching
    from gmi_drl.report.comparison.groups import print_comparison
    from gmi_drl.seeds.launch import resume_commands, summary

    view = view_for(quiet, plain)
    result = launching.launch(config, overrides=words, seeds=seeds, parallel=parallel, view=view)
    if not quiet:
        console = console_for(plain)
        if result.comparison is not None:
            print_comparison(console, result.comparison)
        lines = [summary(result), *resume_commands(result)]
        for line in [*lines, *([f"comparison: {result.page}"] if result.page else [])]:
            console.out(printable_lines(line), highlight=False)
    return {"finished": 0, "stopped": INTERRUPTED}.get(result.state, FAILED)


@command
def check(config: ConfigFile, overrides: Overrides = None) -> int:
    """List every fault of CONFIG on this machine."""
    from gmi_drl.launcher.folder.run_folder import folder_faults
    from gmi_drl.launcher.plan.planning import faults_of
    from gmi_drl.launcher.plan.user_code import try_user_code
    from gmi_drl.placement import ConfigError, counted, load_config
    from gmi_drl.placement.config.load import with_places
    from gmi_drl.selector.search.faults import section_faults
    from gmi_drl.selector.tune.space import auto_faults

    notes: list[str] = []
    faults: list[object] = []
    try:
        loaded: Config | None = load_config(config, overrides or [])
    except ConfigError as error:
        faults, loaded = list(error.faults), error.partial
    if loaded is not None:
        report = try_user_code(loaded, config.resolve().parent)
        report = dataclasses.replace(
            report, faults=with_places(report.faults, config, overrides or [])
        )
        faults += [*faults_of(loaded, report, auto_faults), *section_faults(loaded)]
        faults += folder_faults(loaded)
        notes = report.notes
    if faults:
        print(f"{config}: {counted(len(faults), 'fault')}", file=sys.stderr)
        for fault in faults:
            print(f"  {printable_lines(fault)}", file=sys.stderr)
        return FAILED
    print("\n".join([f"{config}: no faults", *(f"  {note}" for note in notes)]))
    return 0


@command
def plan(
    config: ConfigFile,
    overrides: Overrides = None,
    measure: _Measured = None,
    as_json: AsJson = False,
    layout: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the layout as YAML, to edit and name in a config."
        ),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a picture of the layout.")
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="MACHINE",
            help="Project it on machines that are not here: dgx-a100, 32xdgx-h100, my-box.yaml.",
        ),
    ] = None,
) -> int:
    """Show the devices, GMIs and reduction of CONFIG, and what the templates promise.

    What a reduction takes is measured in a few seconds, once per machine, and kept. With --on
    nothing is measured: throughput, efficiency and cost of other machines are projected.
    """
    if on is not None:
        if measure is not None or layout is not None or svg is not None:
            raise typer.BadParameter("--on projects; leave out --measure, --layout and --svg")
        return _plan_on(config, overrides or [], on, as_json)

    from gmi_drl.launcher.plan.experience import experience_across
    from gmi_drl.launcher.plan.planning import across_hosts, backend_reason, planned, reduction_of
    from gmi_drl.placement import load_config
    from gmi_drl.placement.layout_yaml import to_yaml
    from gmi_drl.report import plan_tables
    from gmi_drl.report.layout_picture import draw_layout
    from gmi_drl.roles.loading import classes_of, importable
    from gmi_drl.selector.tune.space import auto_faults

    outputs = [(option, file) for option, file in (("--layout", layout), ("--svg", svg)) if file]
    for option, file in outputs:
        refuse_no_file(option, file)
        if file.resolve() == config.resolve():
            raise BadPath(f"{option} {file}: the plan is made from it. Give another.")
    folder = config.resolve().parent
    resolved, notes = _resolved(load_config(config, overrides or []), folder)
    with importable(folder):
        gmis = planned(resolved, str(config), auto_faults)
    host = gmis if resolved.cluster is None else gmis.of_host(0)  # those that train are alike
    crosses = resolved.sampling_hosts > 0
    if layout is not None and crosses:
        rule = "a layout file says the GMIs of one host, and by cluster.trainer_hosts they differ"
        raise BadPath(f"--layout {layout}: {rule}. Leave it out.")
    if resolved.cluster is not None:
        notes.append("the hosts are taken to be as this machine; launch asks them")
    console, reason = console_for(), backend_reason(resolved, gmis)
    if not as_json:
        plan_tables.print_plan(console, resolved, gmis)
        for line in notes:
            console.out(line, highlight=False)
    with importable(folder):
        classes, trainers = classes_of(resolved, gmis, None), gmis.holding("trainer")
        options = {"trainer": classes[trainers[0].roles[-1]]} if trainers else {}
        reduction = reduction_of(resolved, host, _links(measure), ask_size=True, **options)
        across = across_hosts(resolved, reduction.numel)
        experience = experience_across(resolved, gmis, classes["agent"]) if crosses else None
    rows = plan_tables.compare_templates(resolved, gmis)
    if layout is not None:
        write_file("--layout", layout, to_yaml(host))
    if svg is not None:
        write_file("--svg", svg, draw_layout(gmis, reduction))
    if as_json:
        answer = {
            "layout": json.loads(gmis.to_json()),
            "tuned": notes,
            "backend": reason,
            "templates": rows,
            "reduction": reduction.as_json(),
            **({} if across is None else {"across_hosts": across}),
            **({} if experience is None else {"experience_across": experience}),
        }
        print_json(answer)
        return 0
    plan_tables.print_templates(console, resolved.mode, rows)
    plan_tables.print_reduction(console, reduction, host, across)
    if experience is not None:
        plan_tables.print_experience(console, experience)
    plan_tables.print_layout(console, gmis, reduction, reason)
    for label, path in (("layout", layout), ("picture", svg)):
        if path is not None:
            console.out(f"{label}: {path}", highlight=False)
    return 0


def _plan_on(source: Path, overrides: list[str], on: str, as_json: bool) -> int:
    """Projects a config on machines that are not here."""
    from gmi_drl.launcher.plan.planning import unresolved_faults
    from gmi_drl.placement import ConfigError, check, layout_of, load_config
    from gmi_drl.report import forecast_tables
    from gmi_drl.selector.forecast.forecast import forecast, ladder
    from gmi_drl.selector.forecast.hardware import machine_of

    config = load_config(source, overrides)
    hardware, hosts = machine_of(on)
    topology = hardware.topology(config.hardware.num_gpus)
    if faults := [*check(config, topology), *unresolved_faults(config)]:
        raise ConfigError(faults, f"{source} on {hardware.name}")
    work, rows = forecast(config, layout_of(config, topology), hardware, ladder(hosts))
    if as_json:
        print_json(forecast_tables.as_json(hardware, work, rows))
    else:
        forecast_tables.print_forecast(console_for(), hardware, work, rows)
    return 0


def _resolved(config: Config, import_path: Path) -> tuple[Config, list[str]]:
    """Returns the config with what tuning has found for `auto`, if it has, and notes of it."""
    if config.is_resolved:
        return config, []
    from gmi_drl.selector.tune.tuning import recalled

    return recalled(config, beside=import_path) or (config, [])


@command
def doctor(measure: _Measured = None, as_json: AsJson = False) -> int:
    """Show what of this machine works for GMIs, why not otherwise, and what to do about it.

    Exit code 0: all works that is here; 1: something is broken.
    """
    from .doctor import diagnose, print_diagnosis

    console = console_for()
    if as_json:
        diagnosis = diagnose(_links(measure))
        print_json(diagnosis.as_json())
    else:
        with console.status("looking at the driver") as status:
            diagnosis = diagnose(_links(measure), status.update)
        print_diagnosis(console, diagnosis)
    return 0 if diagnosis.works else FAILED


def _links(measure: bool | None) -> Measure:
    """Says which links `--measure` measures."""
    return "missing" if measure is None else "anew" if measure else "no"


@command
def envs(text: Annotated[str, typer.Argument(help="Only ids that have this in them.")] = "") -> int:
    """List the environments that this machine can run, with adapters; with TEXT, spaces too."""
    from gmi_drl.placement import counted
    from gmi_drl.placement.faults import install
    from gmi_drl.roles.envs.listing import known_envs, lacking

    known = []
    with status(looking := "looking at each of them") as say:
        for env in known_envs(text):
            known.append(env)
            say(f"{looking}: {env.env_id}")
    runnable = [env for env in known if not env.fault]
    broken = [env for env in known if env.fault]
    columns, rows = ["id", "adapters"], [[env.env_id, ", ".join(env.adapters)] for env in runnable]
    if text:
        columns += ["observation", "action"]
        for row, env in zip(rows, runnable, strict=True):
            row += [cut(env.observation, _SPACE), cut(env.action, _SPACE)]
    if rows:
        print_table(console_for(), counted(len(rows), "environment"), columns, rows)
    for env in broken if text else ():
        print(f"{env.env_id}: {env.fault}")
    if not text:
        print("`gmi-drl envs TEXT` shows what is seen and done in those with TEXT in their ids")
    if broken and not text:
        print(f"{len(broken)} more cannot be made here: `gmi-drl envs TEXT` tells why")
    for extra in lacking():
        print(f"more with {install(extra)}")
    if not text or runnable:
        return 0
    print(f"no environment that can be run here has {text!r} in its id", file=sys.stderr)
    return FAILED
