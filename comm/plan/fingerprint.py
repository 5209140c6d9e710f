"""What identifies a machine in the record of links: what measured times depend on."""

from __future__ import annotations

import os
import platform
from importlib import metadata

from gmi_drl.placement.topology import Topology

from .capability import LinkFacts


def fingerprint(topology: Topology, facts: LinkFacts) -> dict[str, str]:
    """What measured times depend on besides a link's key: hardware, and versions."""
    gpus = [device.uuid or device.name for device in topology.devices if device.kind == "gpu"]
    return {
        "processor": processor(),
        "cpus": str(os.cpu_count()),
        "gpus": " ".join(gpus) or "none",
        "torch": version_of("torch"),
        "nccl": ".".join(map(str, facts.nccl)) if facts.nccl else "none",
        "gmi-drl": version_of("gmi-drl"),
    }


def processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"
