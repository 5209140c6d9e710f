"""Says how large what crosses from host to host is: segments of experience, and policies back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gmi_drl.placement import Config, Layout, UpdateSize

from .planning import ask_role, runtime_for_calls

if TYPE_CHECKING:
    from gmi_drl.roles import DRL_role

_NUMBER_BYTES: Final = 4  # of float32


@dataclass(frozen=True)
class ExperienceAcross:
    """Says what hosts that only sample send to those that train, and get back.

    Sizes are of the tensors alone, before compression; None where they are not known, and
    `unknown` says why.
    """

    sampling_hosts: int
    training_hosts: int
    steps: int  # of a segment
    num_env: int
    update_samples: int  # of all trainers, by which there is a version of the policy
    segment_bytes: int | None
    policy_bytes: int | None  # of a version, to each host that only samples
    unknown: str = ""


def experience_across(
    config: Config, layout: Layout, agent: type[DRL_role] | str = "gmi_drl.roles:Agent"
) -> ExperienceAcross | None:
    """Returns what crosses between the hosts of a layout; None where no experience does.

    Sizes are asked of `agent`, the class that samples, in a process of its own, for seconds.
    """
    cluster = config.cluster
    if cluster is None or not cluster.sampling_hosts:
        return None
    with runtime_for_calls():
        sizes, unknown = ask_role("segment size", sizes_of, config, layout, agent)
    segment_bytes, policy_bytes = sizes or (None, None)
    return ExperienceAcross(
        sampling_hosts=cluster.sampling_hosts,
        training_hosts=cluster.training_hosts,
        steps=config.algorithm.horizon,
        num_env=config.env.num_env,
        update_samples=UpdateSize.of(config, layout).samples,
        segment_bytes=segment_bytes,
        policy_bytes=policy_bytes,
        unknown=unknown,
    )


def sizes_of(config: Config, layout: Layout, agent: type[DRL_role] | str) -> tuple[int, int] | None:
    """Builds what an agent acts with; returns the bytes of its segments and of its policy.

    None if they are not known.
    """
    import torch

    from gmi_drl.roles.algorithms import with_settings
    from gmi_drl.roles.evaluators.first_priorities import FirstPriorities
    from gmi_drl.roles.policies.flat_parameters import FlatParameters, PublishedPolicy
    from gmi_drl.roles.role.acting import ActingRole
    from gmi_drl.roles.role.manager import GMI_manager, GmiContext
    from gmi_drl.roles.role.role import load_role
    from gmi_drl.roles.samples.codec import STATS_FIELD, segment_channels, segment_columns

    role_class, spec = load_role(agent), layout.holding("agent")[0]
    if not issubclass(role_class, ActingRole):
        return None
    GMI_manager.bind(GmiContext(spec.gmi_id, layout, with_settings(config)))
    try:
        role = role_class(spec.gmi_id, "+".join(spec.roles), spec.gpu_id)
        role.build_for_spaces()
        batch, algorithm = role.batch(1), role.algorithm
        generator = torch.Generator(batch["reward"].device)
        first = FirstPriorities.wanted(algorithm, batch, generator, role.stacking)
        priorities = None if first is None else first.priorities
        columns = segment_columns(batch, algorithm.segment_fields, priorities)
        last = torch.empty(1, role.observed.width, dtype=role.observed.dtype)
        channels = segment_channels(batch, columns, last)
        nbytes = {channel.name: channel.nbytes(config.algorithm.horizon, 1) for channel in channels}
        stats_bytes = nbytes.pop(STATS_FIELD)  # of a segment, and not of each environment
        published = PublishedPolicy(FlatParameters(role.policy.network), role.normalizers)
        segment_bytes = config.env.num_env * sum(nbytes.values()) + stats_bytes
        return segment_bytes, _NUMBER_BYTES * published.numel
    finally:
        GMI_manager.bind(None)
