"""Defines the config's section `cluster`: the hosts that train together."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from .section import Int, Seconds, Section, broken


class ClusterConfig(Section):
    """Hosts of a Ray cluster that train together: see [several hosts](hosts.md)."""

    address: str
    """The cluster, as `host:port`: what `ray start --head` has printed."""
    hosts: Int = Field(ge=1, le=4096)
    """Hosts of the run, each with the devices and GMIs that this config says."""
    trainer_hosts: Int | None = Field(default=None, ge=1)
    """Template `decoupled`: so many hosts, the first by address, hold trainers, on
    `layout.trainer_gpus` devices each; the others only simulate and infer, and send experience to
    those. `null`, and where there are no more hosts: all."""
    hosts_min: Int = Field(default=1, ge=1, le=4096)
    """With `on_loss: shrink`, the fewest hosts to go on with; at most `hosts`."""
    on_loss: Literal["fail", "shrink", "wait"] = "fail"
    """When a host is lost the run ends (`fail`), goes on with those that are left and takes one
    that comes back in again (`shrink`), or waits for as many as it had, at most `wait_s` (`wait`).
    """
    network: Literal["private", "trusted"] = "private"
    """How sums travel between hosts: encrypted and authenticated (`private`), or also by gloo in
    plain tcp, where that is faster and only you reach the network (`trusted`)."""
    interface: str = Field(default="", max_length=15)
    """With `network: trusted`, the interface of each host that gloo uses, as `eth1`; by default
    that of the address by which the host has joined the cluster."""
    trusted: bool = False
    """Join a cluster without token authentication, on which whoever reaches its port can run any
    code. For networks where only you are."""
    wait_s: Seconds = Field(default=300.0, gt=0, le=604_800)
    """Seconds that the cluster may take to have so many hosts free; or a time as `5m`."""

    @property
    def training_hosts(self) -> int:
        """The hosts that hold trainers, the first ones."""
        return min(self.trainer_hosts or self.hosts, self.hosts)

    @property
    def sampling_hosts(self) -> int:
        """The hosts that hold none: they sample for the trainers of the others."""
        return self.hosts - self.training_hosts

    @field_validator("interface")
    @classmethod
    def _check_interface(cls, value: str, info: ValidationInfo) -> str:
        if value and info.data.get("network") == "private":
            raise broken(
                "is for network: trusted, and network is private", "Leave one of them out."
            )
        return value

    @field_validator("address")
    @classmethod
    def _check_address(cls, value: str) -> str:
        if not re.fullmatch(r"[^\s/]+:[0-9]{1,5}", value):
            raise broken(
                "must be host:port", "Write what `ray start --head` prints: 10.0.0.1:6379."
            )
        return value
