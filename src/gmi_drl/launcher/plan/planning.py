"""Makes the Layout and the reduction that a config means on this machine, or lists what is against.

`check`, `plan` and `launch` all come through here.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from gmi_drl import runtime
from gmi_drl.comm.links.host_links import HostsReduction, reduction_across
from gmi_drl.comm.plan.capability import LinkFacts, fault
from gmi_drl.comm.plan.plan import Measure, ReductionPlan, facts_of, is_open, plan_reduction
from gmi_drl.gmi import DiscoveryError, discover
from gmi_drl.gmi.usage.processes import HostMemory, host_memory
from gmi_drl.launcher.callbacks.loading import logger_faults
from gmi_drl.placement import (
    AUTO,
    Config,
    ConfigError,
    Fault,
    Layout,
    Topology,
    check,
    config_of_host,
    experience_faults,
    format_cores,
    hidden_sizes,
    layout_of,
    simplest,
)
from gmi_drl.placement.checks.memory import Sizes, memory_faults
from gmi_drl.placement.faults import listed
from gmi_drl.placement.reduction import reducing
from gmi_drl.placement.resolve import choose_backend
from gmi_drl.roles.envs import check_env
from gmi_drl.roles.envs.wrappers import named_faults
from gmi_drl.roles.policies import PARAMETER_MULTIPLE
from gmi_drl.runtime.store.alignment import round_up

from .wiring import wires_fault

if TYPE_CHECKING:
    from gmi_drl.roles import DRL_role

    from .user_code import UserCodeReport

T = TypeVar("T")

_DEADLINE: Final = timedelta(seconds=60)
_TAIL: Final = 7  # means of the loss parts and a squared norm, which travel with the gradient
# Where the environment cannot be asked: observations and actions of the paper's Ant.
_OBS_DIM, _ACT_DIM = 60, 8
PRELOAD: Final = ("torch", "gymnasium", "gmi_drl.comm.reducers.mrr", "gmi_drl.roles.role.acting")


# Lists the faults of a config on devices. The selector's also says of `auto` what can be tuned.
Check: TypeAlias = Callable[[Config, Topology], list[Fault]]
# The devices and memory of each host; None: the memory is as this machine's.
Hosts: TypeAlias = Sequence[tuple[Topology, HostMemory | None]]


def find_devices(config: Config, without: Collection[str] = ()) -> Topology:
    """Returns the devices the config may use; DiscoveryError when they are not there.

    GPUs with the UUIDs of `without` are lost to it.
    """
    hardware = config.hardware
    topology = discover(
        hardware.num_gpus, hardware.backend, hardware.cores,
        allow_create=hardware.allow_create, without=without,
    )  # fmt: skip
    devices = [dataclasses.replace(device, share=hardware.gpu_share) for device in topology.devices]
    return dataclasses.replace(topology, devices=tuple(devices))


def faults_of(
    config: Config, tried: UserCodeReport | None = None, check_config: Check = check
) -> list[Fault | str]:
    """Lists why this machine cannot run `config`.

    `tried` is what came of its environment and roles; None: nobody has made one.
    """
    return _plan(config, tried, check_config)[0]


def planned(
    config: Config, source: str | None = None, check_config: Check = check, hosts: Hosts = ()
) -> Layout:
    """Returns the Layout of `config` on this machine; ConfigError with every reason against it.

    Or on the hosts that are given; without them they are taken to be as this machine. A config that
    says `auto` is checked and refused: tuning resolves it first.
    """
    faults, layout = _plan(config, None, check_config, hosts)
    if layout is None:
        unresolved = unresolved_faults(config) if config.cluster is None else []
        raise ConfigError([*faults, *unresolved], source)
    return layout


def faults_anywhere(config: Config) -> list[Fault | str]:
    """Lists the faults that neither other devices nor another placement would mend."""
    env = config.env
    faults = check_env(env.id, env.adapter, env.options)
    return [
        *faults, *named_faults(env.wrappers), *policy_faults(config), *logger_faults(config)
    ]  # fmt: skip


def policy_faults(config: Config) -> list[Fault]:
    """Lists why there is no policy to serve."""
    policy = config.run.policy
    if policy is None or Path(policy).exists():
        return []
    remedy = "Give the folder of a run, or of one of its checkpoints; or leave it out."
    return [Fault("run.policy", policy, "there is no such folder", remedy)]


def _plan(
    config: Config, tried: UserCodeReport | None, check_config: Check, hosts: Hosts = ()
) -> tuple[list[Fault | str], Layout | None]:
    """Returns all faults, and the layout where there are none.

    Devices are looked at once: what other processes hold of them changes.
    """
    if tried is None:  # the least sizes of environment and network, if roles make no others
        others, sizes = faults_anywhere(config), None if config.roles else Sizes()
    else:
        others = [*tried.faults, *policy_faults(config), *logger_faults(config)]
        sizes = tried.sizes
    try:
        hosts = hosts or [(find_devices(config), None)] * config.hosts
        if fault := _unlike_fault(config, [topology for topology, _ in hosts]):
            return [fault, *others], None
        plans = [
            _plan_host(config_of_host(config, rank), topology, memory, sizes, check_config)
            for rank, (topology, memory) in enumerate(hosts)
        ]
    except DiscoveryError as error:
        anywhere = [f for f in check(config, discover()) if not f.where.startswith("hardware")]
        return [str(error), *anywhere, *others], None
    merged = _merged([faults for faults, _ in plans])
    layouts = [layout for _, layout in plans if layout is not None]
    if merged or len(layouts) < len(plans):
        return [*merged, *others], None
    layout = Layout.joined(layouts)
    faults: list[Fault | str] = [*experience_faults(config, layout), *others]
    return faults, layout if config.is_resolved and not faults else None


def _unlike_fault(config: Config, hosts: Sequence[Topology]) -> Fault | None:
    """Tells that some of the hosts have GPUs, and others have none.

    None where these are all those that only sample.
    """
    lacking = [
        host
        for host, topology in enumerate(hosts)
        if all(device.kind == "cpu" for device in topology.devices)
    ]
    training = len(hosts) if config.cluster is None else config.cluster.training_hosts
    if len(lacking) in (0, len(hosts)) or lacking == [*range(training, len(hosts))]:
        return None
    subject = (
        f"host {lacking[0]} has"
        if len(lacking) == 1
        else f"hosts {listed([*map(str, lacking)])} have"
    )
    return Fault(
        "hardware.backend", config.hardware.backend,
        f"{subject} no GPU that can be used, and the others have",
        "Use cpu, by which all train on their cores, or hosts that are alike; with template "
        "decoupled, cluster.trainer_hosts can say how many have GPUs and train.",
    )  # fmt: skip


def _plan_host(
    config: Config,
    topology: Topology,
    memory: HostMemory | None,
    sizes: Sizes | None,
    check_config: Check,
) -> tuple[list[Fault | str], Layout | None]:
    """Returns the faults of a host's config on its devices, and its layout if it has one.

    `memory`: that of the host; None: this one's.
    """
    faults: list[Fault | str] = [*check_config(config, topology)]
    if faults or (not config.is_resolved and check(config, topology)):
        return faults, None
    layout = layout_of(simplest(config), topology)
    of_several = config.cluster is not None
    fault = reduction_fault(config, layout) or wires_fault(layout, of_several_hosts=of_several)
    if fault:
        faults = [fault]
    elif sizes is not None:
        host = memory or host_memory()
        faults = [*memory_faults(simplest(config), layout, sizes, host.of_bytes, host.whose)]
    return faults, layout


def _merged(hosts: Sequence[Sequence[Fault | str]]) -> list[Fault | str]:
    """Returns the faults of all hosts; one that not all of them have names its hosts."""
    ranks_with: dict[str, list[int]] = {}  # by the fault's text
    for host, faults in enumerate(hosts):
        for text in dict.fromkeys(map(str, faults)):
            ranks_with.setdefault(text, []).append(host)
    common = [fault for fault in hosts[0] if len(ranks_with[str(fault)]) == len(hosts)]
    return common + [
        f"host{'s' * (len(ranks) > 1)} {format_cores(ranks)}: {text}"
        for text, ranks in ranks_with.items()
        if len(ranks) < len(hosts)
    ]


def unresolved_faults(config: Config) -> list[Fault]:
    """Lists each key that says `auto`, and what to do where nothing is measured."""
    keys = {"env.num_env": config.env.num_env, "layout.gmi_per_gpu": config.layout.gmi_per_gpu}
    rule = "no record that still holds says what is best here"
    remedy = "Run gmi-drl tune, or give a number."
    return [Fault(key, "auto", rule, remedy) for key, value in keys.items() if value == AUTO]


def backend_reason(config: Config, layout: Layout) -> str | None:
    """Tells why `hardware.backend: auto` became what it is, "backend mps: ...".

    None where it was given, and on groups of cores, where there is no choice.
    """
    topology = layout.topology
    if config.hardware.backend != "auto" or all(d.kind == "cpu" for d in topology.devices):
        return None
    backend, reason = choose_backend(config.mode, topology, max(map(len, layout.mpl)))
    if any(gmi.backend != backend for gmi in layout.gmis):
        return None  # a layout file says so
    return f"backend {backend}: {reason}"


def reduction_of(
    config: Config,
    layout: Layout,
    measure: Measure = "needed",
    *,
    ask_size: bool = False,
    trainer: type[DRL_role] | str = "gmi_drl.roles:Trainer",
) -> ReductionPlan:
    """Returns the plan, and in its notes what was measured and assumed.

    May start processes, for seconds. The gradient's size is asked of `trainer`, the class that
    trains, where the choice depends on it, or with `ask_size`. ConfigError when `comm.reduction`
    cannot run here.
    """
    facts = facts_of(layout)
    if refusal := reduction_fault(config, layout, facts):
        raise ConfigError([refusal])
    strategy, deterministic = config.comm.reduction, config.run.deterministic
    several = sum(map(len, reducing(layout))) > 1  # of this host
    open_choice = is_open(strategy, layout, facts, deterministic)
    measures = several and (measure in ("missing", "anew") or (measure == "needed" and open_choice))
    asks = (several and open_choice) or (ask_size and (several or config.cluster is not None))
    numel, assumption_reason = assumed(config), ""
    with ExitStack() as stack:  # calls in other processes need a runtime
        if measures or asks:
            stack.enter_context(runtime_for_calls())
        if asks:
            size, assumption_reason = ask_role("gradient size", numel_of, config, layout, trainer)
            numel = size or numel
        plan = plan_reduction(
            strategy, layout, numel, wire=config.comm.wire, measure=measure,
            repeatable=deterministic, facts=facts,
        )  # fmt: skip
    if not assumption_reason:
        return plan
    note = (
        f"the gradient's size is assumed ({numel:,} numbers, for the observations of the paper's "
        f"Ant): {assumption_reason}"
    )
    return dataclasses.replace(plan, notes=(*plan.notes, note))


def across_hosts(config: Config, numel: int) -> HostsReduction | None:
    """Returns how hosts combine gradients of so many numbers; None where one host trains.

    By what was measured between hosts that one of this machine's runs has had, if it was.
    """
    cluster = config.cluster
    if cluster is None or cluster.training_hosts < 2:
        return None
    near = cluster.address.rpartition(":")[0].strip("[]")
    trusted, repeatable = cluster.network == "trusted", config.run.deterministic
    return reduction_across(
        cluster.training_hosts, numel, near, config.comm.wire,
        trusted=trusted, repeatable=repeatable,
    )  # fmt: skip


@contextmanager
def runtime_for_calls() -> Iterator[None]:
    """Has a runtime for calls in other processes; one that was there before stays."""
    if runtime.is_initialized():
        yield
        return
    runtime.init(PRELOAD)
    try:
        yield
    finally:
        runtime.shutdown()


class _Caller:
    """The actor of `ask_actor`."""

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)


def ask_actor(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function that may import torch and the user's code, in a process of its own.

    The call is repeated once if that process dies; ActorRuntimeError says why it has no result.
    Needs a running runtime.
    """
    actor: Any = runtime.remote(_Caller).options(name=name, max_restarts=1).remote()
    try:
        return runtime.get(actor.call.remote(function, *arguments), timeout=_DEADLINE)
    finally:
        runtime.kill(actor)


def reduction_fault(config: Config, layout: Layout, facts: LinkFacts | None = None) -> Fault | None:
    """Tells why the hardware cannot run the `comm.reduction` that is asked for, if it cannot."""
    strategy, mpl = config.comm.reduction, reducing(layout)
    if strategy == "auto" or sum(map(len, mpl)) < 2:
        return None
    reasons = fault(strategy, mpl, facts or facts_of(layout))
    return None if reasons is None else Fault("comm.reduction", strategy, *reasons)


def ask_role(
    name: str,
    function: Callable[[Config, Layout, type[DRL_role] | str], T | None],
    config: Config,
    layout: Layout,
    role: type[DRL_role] | str,
) -> tuple[T | None, str]:
    """Returns what a function says of a role's class, asked as by `ask_actor`; or None, and why."""
    try:
        answer = ask_actor(name, _with_path, list(sys.path), function, config, layout, role)
    except runtime.ActorRuntimeError as error:
        return None, str(error).strip().splitlines()[-1]
    return answer, f"role {role} says nothing of it" if answer is None else ""


def _with_path(path: Sequence[str], function: Callable[..., T], *arguments: Any) -> T:
    """Calls a function where modules are found in the folders of `path` first."""
    sys.path[:0] = [folder for folder in path if folder not in sys.path]
    return function(*arguments)


def numel_of(config: Config, layout: Layout, trainer: type[DRL_role] | str) -> int | None:
    """Builds what one GMI trains; returns the numbers that `trainer` reduces, with padding.

    None if it is not known.
    """
    from gmi_drl.roles.role.acting import gradient_numel
    from gmi_drl.roles.role.role import load_role

    return gradient_numel(load_role(trainer), config, layout)


def assumed(config: Config) -> int:
    """Returns the size with the observations and actions of the paper's Ant."""
    sizes = [_OBS_DIM, *hidden_sizes(config.algorithm.network), _ACT_DIM + 1]
    parameters = [_ACT_DIM]  # deviations, then weights and biases of each layer
    for inputs, outputs in itertools.pairwise(sizes):
        parameters += [inputs * outputs, outputs]
    return sum(round_up(count, PARAMETER_MULTIPLE) for count in parameters) + _TAIL
