"""Lists every reason a config cannot run on the devices there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from gmi_drl.placement.config.algorithms import ALGORITHMS, mode_faults
from gmi_drl.placement.config.config import Config
from gmi_drl.placement.config.section import AUTO
from gmi_drl.placement.faults import ABSENT, ConfigError, Fault, closest, counted, listed
from gmi_drl.placement.layout import Layout, LayoutError
from gmi_drl.placement.reduction import shape_fault
from gmi_drl.placement.resolve import backend_of, layout_of, shape_of, simplest
from gmi_drl.placement.templates import TEMPLATES, Template, decoupled, templates_of
from gmi_drl.placement.topology import Topology

from .layout import gmi_faults, layout_faults

OF_SELF_PLAY: Final = ("ppo", "a2c", "pg")  # of these, against snapshots of itself
OF_AGENTS: Final = ("ppo", "a2c", "pg", "mappo", "dqn", "sac", "td3", "ddpg", "vdn", "qmix")
_WITH_AGENTS: Final = ("all_reduce", "replay")  # optimizers that train where agents act
# The optimizers by which hosts train together, by template.
_ON_HOSTS: Final = {
    "tcg_ex": ("all_reduce", "replay"),
    "decoupled": ("async_samples", "apex"),
}


def check(config: Config, topology: Topology) -> list[Fault]:
    """Returns all faults of the placement; empty when the config can run.

    `topology` is what `discover` found for the config's hardware section, of one host if there are
    several: then the config is that of the host (`config_of_host`), and what agents send to other
    hosts is left to `experience_faults`. Where the config says `auto`, its simplest meaning is
    checked.
    """
    faults, layout = [*_unresolved_on_hosts(config), *_devices(config, topology)], None
    config = simplest(config)
    template_faults: list[Fault] = []
    if config.layout.file is None:
        template_faults += _template_mode(config.template, config)
        faults += config.template.shape_faults(shape_of(config, topology))
        faults += _cores(config, topology)
    if not faults:
        try:
            layout = layout_of(config, topology)
        except ConfigError as error:  # faults of the layout's file
            faults += [fault for fault in error.faults if isinstance(fault, Fault)]
        except LayoutError as error:
            rule, separator, remedy = str(error).partition(". ")
            faults.append(Fault("layout", ABSENT, rule if separator else str(error), remedy))
    crosses = config.sampling_hosts > 0
    template = config.template if layout is None else TEMPLATES[layout.template]
    if layout is not None:
        if config.layout.file is not None:
            faults += _template_mode(template, config)
        if crosses:  # GMIs have their peers on other hosts
            faults += layout_faults(layout, config.hardware)
        else:
            faults += layout_faults_of(config, layout)
    trainers = _counts(config, topology, layout, "trainer")
    agents = _counts(config, topology, layout, "agent")
    return [
        *template_faults,
        *_policy(config),
        *_optimizer(config, template, trainers),
        *_agents(config, template),
        *_hosts(config, template.name),
        *_on_loss(config, topology),
        *faults,
        *learning_faults(config, *((0, 0) if crosses else (sum(agents), sum(trainers)))),
        *_reduction(config, [range(count) for count in trainers if count]),
        *(_roles(config, template) if layout is not None or config.layout.file is None else ()),
    ]


def layout_faults_of(config: Config, layout: Layout) -> list[Fault]:
    """Lists the faults of a layout from a file, which may have been edited or damaged."""
    hosts = [layout.of_host(host) for host in range(layout.hosts)] if layout.hosts > 1 else [layout]
    gangs = [layout] if config.sampling_hosts else hosts  # with the peers of their GMIs
    return [
        *(fault for host in hosts for fault in layout_faults(host, config.hardware)),
        *(fault for gang in gangs for fault in gmi_faults(gang, config.env.num_env)),
        *_training_hosts(config, layout),
    ]


def experience_faults(config: Config, layout: Layout) -> list[Fault]:
    """Lists the faults of learning from what other hosts send, in the layout of all hosts.

    Empty where none do, as `check` lists these.
    """
    if not config.sampling_hosts:
        return []
    links = Counter(target.gmi_id for _, target in decoupled.channels(layout))
    trainers = layout.holding("trainer")
    fewest_links = min(links[trainer.gmi_id] for trainer in trainers)
    return learning_faults(config, len(layout.holding("agent")), len(trainers), fewest_links)


def _training_hosts(config: Config, layout: Layout) -> Iterator[Fault]:
    """Yields a fault unless as many hosts of a layout train as the config says."""
    cluster = config.cluster
    if cluster is None or layout.hosts != cluster.hosts:
        return
    count = len({layout.host_of(gmi.gmi_id) for gmi in layout.holding("trainer")})
    if count not in (0, cluster.training_hosts):
        yield Fault(
            "cluster.trainer_hosts", cluster.trainer_hosts,
            f"the layout has trainers on {counted(count, 'host')}",
            "Give as many, or begin a new run.",
        )  # fmt: skip


def _policy(config: Config) -> Iterator[Fault]:
    if config.run.policy is not None and config.mode != "serving":
        yield Fault(
            "run.policy", config.run.policy, f"it is served, and the mode is {config.mode}",
            "Set mode: serving; to train on, use gmi-drl launch --resume.",
        )  # fmt: skip


def _optimizer(config: Config, template: Template, trainers: Sequence[int]) -> Iterator[Fault]:
    """Yields faults of optimizers that need agents apart from, or together with, trainers."""
    settings = config.algorithm
    known = settings.optimizer != "auto" or bool(settings.optimizers_in(config.mode))
    wanted = settings.resolved_optimizer if known and config.mode == "sync" else ""
    if wanted and (wanted == "parameter_server") != (template.name == "parameter_server"):
        yield Fault(
            "layout.template", template.name,
            f"optimizer {wanted} {'needs' if wanted == 'parameter_server' else 'does not run in'} "
            "template parameter_server",
            "Set both to parameter_server, or neither.",
        )  # fmt: skip
        return
    if wanted in ("population", "tree_search") and template.is_split:
        activity = "tries policies" if wanted == "population" else "plays games"
        yield Fault(
            "layout.template", template.name,
            f"under {wanted} each GMI {activity} in environments of its own",
            "Use tcg_ex.",
        )  # fmt: skip
        return
    if wanted not in ("local", "async_gradients") or config.env.adapter == "pettingzoo":
        return
    payload = "samples" if wanted == "local" else "gradients"
    if not template.is_split:
        yield Fault(
            "layout.template", template.name,
            f"under {wanted} agents send {payload} to a trainer, and here each GMI is both",
            "Use tdg_ex, or an algorithm and optimizer that train together: a2c, all_reduce.",
        )  # fmt: skip
    elif wanted == "async_gradients" and sum(trainers) > 1:
        yield Fault(
            "algorithm.optimizer", wanted,
            f"one GMI holds the parameters, and the layout has {counted(sum(trainers), 'trainer')}",
            "Set hardware.num_gpus: 1, or give a layout file with one trainer.",
        )  # fmt: skip


def _agents(config: Config, template: Template) -> Iterator[Fault]:
    """Yields faults of environments with several agents, and of keys for these alone."""
    settings = config.algorithm
    if config.env.adapter != "pettingzoo":
        if config.multi_agent is not None:
            yield Fault(
                "multi_agent", ", ".join(config.multi_agent.policies),
                f"it is for several agents, and adapter {config.env.adapter} has one",
                "Set env.adapter: pettingzoo, or leave it out.",
            )  # fmt: skip
        return
    rule = "the environment has several agents"
    if settings.name not in OF_AGENTS and settings.name in ALGORITHMS:
        yield Fault(
            "algorithm.name", settings.name, f"{rule}, who are trained by {listed(OF_AGENTS)}",
            f"Use {listed(OF_AGENTS, 'or')}.",
        )  # fmt: skip
    elif settings.name in ALGORITHMS and settings.resolved_optimizer not in _WITH_AGENTS:
        fitting = next(optimizer for optimizer in settings.optimizers if optimizer in _WITH_AGENTS)
        yield Fault(
            "algorithm.optimizer", settings.resolved_optimizer,
            f"{rule}, who are trained in the GMI that acts for them",
            f"Set algorithm.optimizer: {fitting}, and mode: sync.",
        )  # fmt: skip
    is_self_play = config.multi_agent is not None and config.multi_agent.self_play is not None
    if is_self_play and settings.name not in OF_SELF_PLAY and settings.name in ALGORITHMS:
        yield Fault(
            "algorithm.name", settings.name,
            f"against itself a policy is trained by {listed(OF_SELF_PLAY)}",
            f"Use {listed(OF_SELF_PLAY, 'or')}, or leave multi_agent.self_play out.",
        )  # fmt: skip
    policies = () if config.multi_agent is None else config.multi_agent.policies
    if settings.kept_steps and len(policies) > 1:
        yield Fault(
            "algorithm.name", settings.name,
            f"agents who learn from kept steps share one policy, and there are "
            f"{', '.join(policies)}",
            "Use ppo, or one policy.",
        )  # fmt: skip
    if template.name != "tcg_ex":
        yield Fault(
            "layout.template", template.name, f"{rule}, who are trained where they act",
            "Use tcg_ex, in mode sync.",
        )  # fmt: skip
    if config.run.video_every:
        yield Fault(
            "run.video_every", config.run.video_every, "films are of environments of one agent",
            "Set it to 0.",
        )  # fmt: skip
    if getattr(settings, "recurrent", None) is not None:
        yield Fault(
            "algorithm.recurrent", "lstm or gru",
            f"{rule}, who come and go, and their policies keep no state", "Leave it out.",
        )  # fmt: skip


def _unresolved_on_hosts(config: Config) -> Iterator[Fault]:
    """Yields a fault for each `auto` on several hosts, as tuning measures one machine."""
    if config.cluster is None:
        return
    keys = {"env.num_env": config.env.num_env, "layout.gmi_per_gpu": config.layout.gmi_per_gpu}
    for key, value in keys.items():
        if value == AUTO:
            yield Fault(
                key, "auto", "it is tuned on one machine, and cluster has several",
                "Run gmi-drl tune on one of the hosts without cluster, and write the number.",
            )  # fmt: skip


def one_machine_faults(config: Config, command: str) -> list[Fault]:
    """Returns the fault of a command that does not run on a cluster, if the config names one."""
    if config.cluster is None:
        return []
    rule, remedy = f"{command} is for one machine", "Leave out cluster."
    return [Fault("cluster.address", config.cluster.address, rule, remedy)]


def _hosts(config: Config, template: str) -> Iterator[Fault]:
    """Yields what hosts cannot do together."""
    cluster = config.cluster
    if cluster is None:
        return
    settings = config.algorithm
    optimizer = settings.optimizer
    if optimizer == "auto":  # "": another fault tells, or its class is not loaded yet
        optimizer = next(iter(settings.optimizers_in(config.mode)), "")
    if template not in _ON_HOSTS:
        yield Fault(
            "layout.template", template,
            f"hosts of a cluster train together in {listed(tuple(_ON_HOSTS))} alone",
            f"Use {listed(tuple(_ON_HOSTS), 'or')}; or leave out cluster.",
        )  # fmt: skip
    elif optimizer and optimizer not in _ON_HOSTS[template]:
        yield Fault(
            "algorithm.optimizer", optimizer,
            f"in template {template} hosts of a cluster train together by "
            f"{listed(_ON_HOSTS[template])} alone",
            f"Use an algorithm that runs under {listed(_ON_HOSTS[template], 'or')}; or leave out "
            "cluster.",
        )  # fmt: skip
    elif settings.dropped_agents and cluster.hosts > 1:
        yield Fault(
            "algorithm.drop_slowest", settings.dropped_agents,
            "who has sampled first is told by a clock, and each host has its own",
            "Leave it out, or cluster.",
        )  # fmt: skip
    yield from _trainer_hosts(config, template)


def _trainer_hosts(config: Config, template: str) -> Iterator[Fault]:
    """Yields why some of the hosts cannot train for all, if it is meant so."""
    count = None if config.cluster is None else config.cluster.trainer_hosts
    if count is None:
        return
    if config.layout.file is not None:
        yield Fault(
            "cluster.trainer_hosts", count,
            "layout.file says the GMIs of one host, and all hosts have these",
            "Use template decoupled, or leave it out.",
        )  # fmt: skip
    elif template != decoupled.name:
        yield Fault(
            "cluster.trainer_hosts", count,
            f"in template {template} each host trains on what it samples",
            "Use template decoupled, in mode async; or leave it out.",
        )  # fmt: skip


def _on_loss(config: Config, topology: Topology) -> Iterator[Fault]:
    """Yields why the run could not continue with fewer hosts, if it is meant to."""
    cluster = config.cluster
    if cluster is None:
        return
    if cluster.hosts_min > cluster.hosts:
        yield Fault(
            "cluster.hosts_min", cluster.hosts_min,
            f"the run has {counted(cluster.hosts, 'host')}", f"Use {cluster.hosts} or fewer.",
        )  # fmt: skip
    elif cluster.on_loss == "shrink" and config.layout.file is not None:
        yield Fault(
            "cluster.on_loss", "shrink", "layout.file says what GMIs there are",
            "Use a template, or on_loss: wait or fail.",
        )  # fmt: skip
    elif (
        cluster.on_loss == "shrink"
        and cluster.hosts_min <= cluster.training_hosts < cluster.hosts
        and config.layout.trainer_gpus >= len(topology.devices)
    ):
        yield Fault(
            "cluster.hosts_min", cluster.hosts_min,
            "with so few hosts all of them train, on every device, and none is left to sample",
            f"Use {cluster.training_hosts + 1} or more"
            + (", or fewer layout.trainer_gpus." if topology.devices[1:] else "."),
        )  # fmt: skip


def _template_mode(template: Template, config: Config) -> Iterator[Fault]:
    if template.mode != config.mode:
        names = " or ".join(t.name for t in templates_of(config.mode))
        alternative = ", leave it out," if config.layout.file is None else " in the layout's file,"
        yield Fault(
            "layout.template", template.name,
            f"it is of mode {template.mode}, and the mode is {config.mode}",
            f"Use {names}{alternative} or set mode: {template.mode}.",
        )  # fmt: skip


def _devices(config: Config, topology: Topology) -> Iterator[Fault]:
    num_gpus, count = config.hardware.num_gpus, len(topology.devices)
    if not count:
        yield Fault("hardware", 0, "no device was found", "Use backend cpu, or auto.")
    elif num_gpus is not None and num_gpus > count:
        yield Fault(
            "hardware.num_gpus", num_gpus, f"the machine has {counted(count, 'device')}",
            f"Use {count} or fewer, or leave it out for all.",
        )  # fmt: skip
    backend = config.hardware.backend
    kinds = {device.kind for device in topology.devices}
    if backend not in ("auto", "cpu") and "cpu" in kinds:
        yield Fault("hardware.backend", backend, "there is no GPU", "Use cpu, or auto.")
    if backend == "cpu" and "gpu" in kinds:
        yield Fault("hardware.backend", backend, "the devices are GPUs", "Use direct, or auto.")


def _cores(config: Config, topology: Topology) -> Iterator[Fault]:
    """Yields a fault where a group has fewer cores than GMIs."""
    groups = [device for device in topology.devices if device.kind == "cpu"]
    if not groups or backend_of(config, topology) != "cpu":
        return
    total = sum(len(group.cores) for group in groups)
    if any(not group.cores for group in groups):
        yield Fault(
            "hardware.num_gpus", len(groups),
            f"the machine has {counted(total, 'core')}, and each group needs one",
            f"Use {total} or fewer.",
        )  # fmt: skip
        return
    per_gpu = config.layout.gmi_per_gpu
    smallest = min(groups, key=lambda group: len(group.cores))
    fits, template = len(smallest.cores), config.template
    remedy = f"Use {fits} or fewer"
    if fits < template.least_gmis:
        remedy = f"Template {template.name} has {template.least_gmis} or more: use another one, "
        remedy += "or more cores (hardware.cores)"
    if per_gpu > fits:
        yield Fault(
            "layout.gmi_per_gpu", per_gpu,
            f"device {smallest.index} has {fits} of the {total} cores, and each GMI needs one",
            remedy + (", or lower hardware.num_gpus." if groups[1:] else "."),
        )  # fmt: skip


def _reduction(config: Config, mpl: Sequence[Sequence[int]]) -> Iterator[Fault]:
    """Yields what the layout's shape forbids; `gmi_drl.comm.plan.capability` checks hardware."""
    strategy = config.comm.reduction
    if strategy == "auto" or sum(map(len, mpl)) < 2:  # one GMI is always local
        return
    if rule_and_remedy := shape_fault(strategy, mpl):
        yield Fault("comm.reduction", strategy, *rule_and_remedy)


def _counts(config: Config, topology: Topology, layout: Layout | None, role: str) -> list[int]:
    """Returns how many GMIs of each device hold a role, as placed or by the template."""
    if layout is not None:
        return [len(gmis) for gmis in layout.mpl_of(role)]
    if config.layout.file is not None:
        return []
    planned = config.template.planned(shape_of(config, topology))
    return [sum(role in roles for roles in device) for device in planned]


def _roles(config: Config, template: Template) -> Iterator[Fault]:
    role_names = [role for roles in template.gmis for role in roles]
    for name, role in config.roles.items():
        key = f"roles.{name}"
        if name not in role_names:
            suggestion = closest(name, role_names)
            yield Fault(
                key, role.class_, f"template {template.name} has the roles {', '.join(role_names)}",
                f"Did you mean {suggestion}?" if suggestion else "Use one of them.",
            )  # fmt: skip
        elif name not in template.class_roles:
            holder = next(roles for roles in template.gmis if name in roles)[-1]
            yield Fault(
                key, role.class_,
                f"template {template.name} plays all roles of a GMI with one class, named by its "
                f"{holder}",
                f"Move it to roles.{holder}.",
            )  # fmt: skip


def learning_faults(
    config: Config, agents: int, trainers: int, links: int | None = None
) -> list[Fault]:
    """Returns the faults of learning with this many GMIs that hold an agent, and a trainer.

    0: it is not known how many. `links`: those of a trainer; None: one from each agent.
    """
    wrong_mode = list(mode_faults(config.algorithm, config.mode))
    learns = config.mode != "serving" and not wrong_mode
    return [
        *wrong_mode,
        *(config.algorithm.faults(config, agents, trainers) if learns else ()),
        *_capacity(config, agents if links is None else links, trainers),
        *_compressed(config),
    ]


def _capacity(config: Config, links: int, trainers: int) -> Iterator[Fault]:
    """Yields a fault unless the links to a trainer have room for its batches.

    Each link needs one segment more, which a killed agent may leave there in part.
    """
    if config.mode != "async":
        return
    batch, capacity = config.experience.batch_segments, config.experience.capacity
    have_peers = trainers > 1 or (config.cluster is not None and config.cluster.training_hosts > 1)
    needed = batch * (2 if have_peers else 1)
    segments = (capacity - 1) * links
    if links > 0 and segments < needed:
        extra = ", and hold each until the next has begun" if have_peers else ""
        yield Fault(
            "experience.capacity", capacity,
            f"trainers take batches of {batch} segments{extra}, and the links of {links} agents "
            f"hold {segments}, beside one more each that is being sent",
            f"Use {-(-needed // links) + 1} or more, or lower batch_segments.",
        )  # fmt: skip


def _compressed(config: Config) -> Iterator[Fault]:
    """Yields a fault for compressed channels other than observations, which are not bytes."""
    if names := [name for name in config.experience.lz4 if name != "observation"]:
        yield Fault(
            "experience.lz4", names, "only the channel observation is compressed, if it is uint8",
            "Use [observation], or leave it out.",
        )  # fmt: skip
