"""From a config to the Layout it means on this machine, or every reason why there is none.

`check`, `plan` and `launch` all come through here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gmi_drl.gmi import DiscoveryError, discover
from gmi_drl.gmi.usage.processes import host_memory
from gmi_drl.launcher.wire.wiring import wires_fault
from gmi_drl.placement import (
    AUTO,
    Config,
    ConfigError,
    Fault,
    Layout,
    Topology,
    check,
    layout_of,
    simplest,
)
from gmi_drl.placement.backends import choose_backend
from gmi_drl.placement.checks.memory import Sizes, memory_faults
from gmi_drl.roles.envs import check_env
from gmi_drl.selector.search.faults import section_faults
from gmi_drl.selector.tune.space import space_of

from .env_check import Tried
from .reduction import reduction_fault


def find_devices(config: Config) -> Topology:
    """The devices the config may use; DiscoveryError when they are not there."""
    hardware = config.hardware
    return discover(
        hardware.num_gpus, hardware.backend, hardware.cores, allow_create=hardware.allow_create
    )


def faults_of(config: Config, tried: Tried | None = None) -> list[Fault | str]:
    """What `check` lists: why this machine cannot run `config`, and what is wrong with its search.

    `tried`: what came of its environment and roles; None: nobody has made one. Without its devices,
    the rest is still looked at. The section `search` is ignored by what runs otherwise, so
    `planned` does too.
    """
    if tried is None:
        others, sizes = faults_anywhere(config), _least(config)
    else:
        others, sizes = [*tried.faults, *policy_faults(config)], tried.sizes
    return [*_looked_at(config, others, sizes)[0], *section_faults(config)]


def planned(config: Config, source: str | None = None) -> Layout:
    """The Layout of `config` on this machine; ConfigError with every reason it cannot run.

    A config that says `auto` is no more than looked at: tuning settles it first.
    """
    faults, layout = _looked_at(config, faults_anywhere(config), _least(config))
    if layout is None:
        raise ConfigError([*faults, *unsettled_faults(config)], source)
    return layout


def _least(config: Config) -> Sizes | None:
    """The least sizes of environment and network, where nobody has made them; None if roles may
    make others."""
    return None if config.roles else Sizes()


def faults_anywhere(config: Config) -> list[Fault | str]:
    """What no other devices, and no other placement, would mend."""
    env = config.env
    return [*check_env(env.id, env.adapter, env.options), *policy_faults(config)]


def policy_faults(config: Config) -> list[Fault]:
    """Why there is no policy to serve."""
    policy = config.run.policy
    if policy is None or Path(policy).exists():
        return []
    remedy = "Give the folder of a run, or of one of its checkpoints; or leave it out."
    return [Fault("run.policy", policy, "there is no such folder", remedy)]


def _looked_at(
    config: Config, others: Sequence[Fault | str], sizes: Sizes | None
) -> tuple[list[Fault | str], Layout | None]:
    """All faults, `others` among them, and the layout where there are none.

    `sizes`: of environment and network, for what memory they take; None: they are not known.
    Devices are looked at once: what other processes hold of them changes.
    """
    try:
        topology = find_devices(config)
        found, layout = _checked(config, topology), None
        if not found and (config.is_resolved or not check(config, topology)):
            layout = layout_of(simplest(config), topology)
            if fault := reduction_fault(config, layout) or wires_fault(layout):
                found = [fault]
            elif sizes is not None:
                has = host_memory()
                found = memory_faults(simplest(config), layout, sizes, has.of_bytes, has.whose)
    except DiscoveryError as error:
        found = [f for f in check(config, discover()) if not f.where.startswith("hardware")]
        return [str(error), *found, *others], None
    faults = [*found, *others]
    return faults, layout if config.is_resolved and not faults else None


def _checked(config: Config, topology: Topology) -> list[Fault]:
    """Where the config says `auto`: nothing as long as tuning has a candidate that can run."""
    found = check(config, topology)
    if config.is_resolved:
        return found
    try:
        space_of(config, topology)
    except ConfigError as error:
        return found or [fault for fault in error.faults if isinstance(fault, Fault)]
    return []


def unsettled_faults(config: Config) -> list[Fault]:
    """One for each key that says `auto`: what to do where nothing is measured."""
    keys = {"env.num_env": config.env.num_env, "layout.gmi_per_gpu": config.layout.gmi_per_gpu}
    rule = "no record that still holds says what is fastest here"
    remedy = "Run gmi-drl tune, or give a number."
    return [Fault(key, "auto", rule, remedy) for key, value in keys.items() if value == AUTO]


def backend_reason(config: Config, layout: Layout) -> str | None:
    """Why `hardware.backend: auto` became what it is, "backend mps: ..."; None where it was given.

    And on groups of cores, where there is no choice.
    """
    topology = layout.topology
    if config.hardware.backend != "auto" or all(d.kind == "cpu" for d in topology.devices):
        return None
    chosen, why = choose_backend(config.mode, topology, max(map(len, layout.mpl)))
    if any(gmi.backend != chosen for gmi in layout.gmis):
        return None  # a layout file says so
    return f"backend {chosen}: {why}"
