"""Makes the Layout that a config means on this machine, or lists every reason why there is none.

`check`, `plan` and `launch` all come through here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from gmi_drl.gmi import DiscoveryError, discover
from gmi_drl.gmi.usage.processes import host_memory
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
from gmi_drl.placement.checks.memory import Sizes, memory_faults
from gmi_drl.placement.resolve import choose_backend
from gmi_drl.roles.envs import check_env

from .reduction import reduction_fault
from .wiring import wires_fault

if TYPE_CHECKING:
    from .user_code import UserCodeReport


@contextmanager
def importable(folder: Path | None) -> Iterator[None]:
    """Lets this process import what is in `folder`, before all else: as GMIs do."""
    if folder is None or str(folder) in sys.path:
        yield
        return
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


# Lists the faults of a config on devices. The selector's also says of `auto` what can be tuned.
Check: TypeAlias = Callable[[Config, Topology], list[Fault]]


def find_devices(config: Config) -> Topology:
    """Returns the devices the config may use; DiscoveryError when they are not there."""
    hardware = config.hardware
    return discover(
        hardware.num_gpus, hardware.backend, hardware.cores, allow_create=hardware.allow_create
    )


def faults_of(
    config: Config, tried: UserCodeReport | None = None, check_config: Check = check
) -> list[Fault | str]:
    """Lists why this machine cannot run `config`.

    `tried` is what came of its environment and roles; None: nobody has made one.
    """
    return _plan(config, tried, check_config)[0]


def planned(config: Config, source: str | None = None, check_config: Check = check) -> Layout:
    """Returns the Layout of `config` on this machine; ConfigError with every reason against it.

    A config that says `auto` is checked and refused: tuning resolves it first.
    """
    faults, layout = _plan(config, None, check_config)
    if layout is None:
        raise ConfigError([*faults, *unresolved_faults(config)], source)
    return layout


def faults_anywhere(config: Config) -> list[Fault | str]:
    """Lists what no other devices, and no other placement, would mend."""
    env = config.env
    return [*check_env(env.id, env.adapter, env.options), *policy_faults(config)]


def policy_faults(config: Config) -> list[Fault]:
    """Lists why there is no policy to serve."""
    policy = config.run.policy
    if policy is None or Path(policy).exists():
        return []
    remedy = "Give the folder of a run, or of one of its checkpoints; or leave it out."
    return [Fault("run.policy", policy, "there is no such folder", remedy)]


def _plan(
    config: Config, tried: UserCodeReport | None, check_config: Check
) -> tuple[list[Fault | str], Layout | None]:
    """Returns all faults, and the layout where there are none.

    Devices are looked at once: what other processes hold of them changes.
    """
    if tried is None:  # the least sizes of environment and network, if roles make no others
        others, sizes = faults_anywhere(config), None if config.roles else Sizes()
    else:
        others, sizes = [*tried.faults, *policy_faults(config)], tried.sizes
    try:
        topology = find_devices(config)
        faults, layout = check_config(config, topology), None
        if not faults and (config.is_resolved or not check(config, topology)):
            layout = layout_of(simplest(config), topology)
            if fault := reduction_fault(config, layout) or wires_fault(layout):
                faults = [fault]
            elif sizes is not None:
                has = host_memory()
                faults = memory_faults(simplest(config), layout, sizes, has.of_bytes, has.whose)
    except DiscoveryError as error:
        faults = [f for f in check(config, discover()) if not f.where.startswith("hardware")]
        return [str(error), *faults, *others], None
    runs = config.is_resolved and not faults and not others
    return [*faults, *others], layout if runs else None


def unresolved_faults(config: Config) -> list[Fault]:
    """Lists each key that says `auto`, and what to do where nothing is measured."""
    keys = {"env.num_env": config.env.num_env, "layout.gmi_per_gpu": config.layout.gmi_per_gpu}
    rule = "no record that still holds says what is fastest here"
    remedy = "Run gmi-drl tune, or give a number."
    return [Fault(key, "auto", rule, remedy) for key, value in keys.items() if value == AUTO]


def backend_reason(config: Config, layout: Layout) -> str | None:
    """Tells why `hardware.backend: auto` became what it is, "backend mps: ...".

    None where it was given, and on groups of cores, where there is no choice.
    """
    topology = layout.topology
    if config.hardware.backend != "auto" or all(d.kind == "cpu" for d in topology.devices):
        return None
    chosen, why = choose_backend(config.mode, topology, max(map(len, layout.mpl)))
    if any(gmi.backend != chosen for gmi in layout.gmis):
        return None  # a layout file says so
    return f"backend {chosen}: {why}"
