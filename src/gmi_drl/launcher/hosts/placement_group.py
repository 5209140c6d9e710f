"""Sets aside on a Ray cluster what the hosts of a launch need, in a placement group."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from gmi_drl.gmi.backends.backend import CORE_BACKENDS
from gmi_drl.placement import ClusterConfig, Config, counted

from .head import RayHead
from .messages import HostsError

Bundle: TypeAlias = Mapping[str, float]  # Ray's resources of one host, by name


def bundles_of(config: Config, nodes: Sequence[Mapping[str, Any]]) -> list[Bundle]:
    """Returns what is set aside on each host: a core for the agent, and the GPUs that are used.

    Where some hosts only sample, those that train have GPUs although these may have none.
    """
    cluster, hardware = config.cluster, config.hardware
    assert cluster is not None
    gpus = sorted((node["Resources"].get("GPU", 0.0) for node in nodes), reverse=True)

    def bundle(hosts: int) -> Bundle:
        """Returns what the `hosts` nodes with the most GPUs have, each."""
        least_gpus = gpus[:hosts][-1] if gpus else 0.0
        if hardware.backend in CORE_BACKENDS or (hardware.backend == "auto" and not least_gpus):
            return {"CPU": 1}
        return {"CPU": 1, "GPU": float(hardware.num_gpus or least_gpus or 1)}  # which may come yet

    training = [bundle(cluster.training_hosts)] * cluster.training_hosts
    return training + [bundle(cluster.hosts)] * cluster.sampling_hosts


def placement_group(cluster: ClusterConfig, head: RayHead, bundles: Sequence[Bundle]) -> Any:
    """Sets a bundle aside on each of the hosts that are wanted, and waits for them."""
    from ray.util.placement_group import placement_group as make_group
    from ray.util.placement_group import remove_placement_group

    group = head.ask(lambda: make_group([*map(dict, bundles)], strategy="STRICT_SPREAD"))
    deadline_s = time.monotonic() + cluster.wait_s
    try:
        while not group.wait(timeout_seconds=1):
            head.check()
            if time.monotonic() > deadline_s:
                raise head.ask(lambda: _missing(cluster, bundles))
    except BaseException:
        if head.answers():
            with suppress(Exception):
                remove_placement_group(group)
        raise
    return group


def _missing(cluster: ClusterConfig, bundles: Sequence[Bundle]) -> HostsError:
    """Says what the hosts that are there lack."""
    from ray._private import state

    from gmi_drl.runtime.engines.ray import nodes

    by_node = state.available_resources_per_node()
    texts = []
    for node in nodes.hosts():
        total, free = node["Resources"], by_node.get(node["NodeID"], {})
        amounts = ", ".join(
            f"{free.get(key, 0.0):g} of {total.get(key, 0.0):g} {key}" for key in bundles[0]
        )
        texts.append(f"{node['NodeManagerAddress']} has {amounts} free")
    wishes = [" and ".join(f"{amount:g} {key}" for key, amount in one.items()) for one in bundles]
    training, sampling = wishes[0], wishes[-1]
    needs = f"each wants {training}"
    if training != sampling:
        needs = f"each that trains wants {training}, and each that only samples {sampling}"
    return HostsError(
        value=f"cluster.hosts={cluster.hosts}",
        rule=f"{needs}, and after {cluster.wait_s:g} s the cluster at {cluster.address} "
        f"has {counted(len(texts), 'host')}: {'; '.join(texts)}",
        remedy="Add hosts, end what holds them, or lower cluster.hosts.",
    )
