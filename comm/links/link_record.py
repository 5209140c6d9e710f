"""Keeps what was measured on this machine in $XDG_CACHE_HOME/gmi-drl/links.json.

One file for all machines that share it, by fingerprint: hardware and versions; and for all sets of
hosts that they were in, by addresses (see `host_links`). It is replaced whole. Who measures links
of a machine holds a lock beside it: two at once would measure each other.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from gmi_drl.comm.group.group import WIRES
from gmi_drl.placement.topology import Topology
from gmi_drl.runtime.cache_files import cache_folder, replace_file

from .links import LINK_KINDS, Link, LinkKey

_FORMAT: Final = 1
# Of a home directory that a cluster shares, and as many sets of hosts; the oldest goes.
_MAX_MACHINES: Final = 32


def record_path() -> Path:
    """Returns where the record is."""
    return cache_folder() / "links.json"


def load(path: Path, fingerprint: Mapping[str, str]) -> tuple[dict[LinkKey, Link], str]:
    """Loads the links of this machine, and what the user should know of the file.

    A missing file is silent; a damaged one, or one that knows other machines only, is not.
    """
    try:
        known = machines(path)
    except FileNotFoundError:
        return {}, ""
    except OSError as error:
        return {}, f"{path} cannot be read ({error.strerror}); links are measured anew"
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return {}, f"{path} is damaged ({type(error).__name__}: {error}); links are measured anew"
    for machine in known:
        if machine["fingerprint"] == dict(fingerprint):
            return machine["links"], ""
    others = [machine["fingerprint"] for machine in known]
    comparable = [other for other in others if _is_machine(other) == _is_machine(fingerprint)]
    if not comparable:
        return {}, ""
    own = set(fingerprint.items())
    nearest = max(comparable, key=lambda other: len(own & other.items()))
    different = next((k for k in fingerprint if nearest.get(k) != fingerprint[k]), "machine")
    return {}, (
        f"{path} was measured with {different} {nearest.get(different, 'unknown')}, and here it is "
        f"{fingerprint.get(different, 'unknown')}; links are measured anew"
    )


def store(path: Path, fingerprint: Mapping[str, str], links: Mapping[LinkKey, Link]) -> str:
    """Adds links to the record; returns what went wrong, or "". Never raises OSError."""
    try:
        other_machines = [m for m in machines(path) if m["fingerprint"] != dict(fingerprint)]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        other_machines = []
    known_links, _ = load(path, fingerprint)
    this_machine = {
        "fingerprint": dict(fingerprint),
        "measured": time.time(),  # of the calendar: for people, and to drop the oldest
        "links": {**known_links, **links},
    }
    kept = sorted([*other_machines, this_machine], key=lambda machine: machine["measured"])
    is_machine = _is_machine(fingerprint)
    alike = [entry for entry in kept if _is_machine(entry["fingerprint"]) == is_machine]
    dropped = alike[:-_MAX_MACHINES]
    entries = [
        {**machine, "links": [asdict(key) | asdict(link) for key, link in machine["links"].items()]}
        for machine in kept
        if machine not in dropped
    ]
    text = json.dumps({"format": _FORMAT, "machines": entries}, indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text)
    except OSError as error:
        return f"{path} cannot be written ({error.strerror}); links will be measured again"
    return ""


def _is_machine(fingerprint: Mapping[str, str]) -> bool:
    """Tells a machine from a set of hosts, by whether it has a processor."""
    return "processor" in fingerprint


def machines(path: Path) -> list[dict[str, Any]]:
    """Reads every machine of the file, or set of hosts, its links as Link by LinkKey."""
    data = json.loads(path.read_text(encoding="utf-8"))
    if data["format"] != _FORMAT:
        raise ValueError(f"format {data['format']!r} is not {_FORMAT}")
    return [
        {
            "fingerprint": {str(k): str(v) for k, v in machine["fingerprint"].items()},
            "measured": float(machine["measured"]),
            "links": dict(_link(entry) for entry in machine["links"]),
        }
        for machine in data["machines"]
    ]


def _link(entry: dict[str, Any]) -> tuple[LinkKey, Link]:
    key = LinkKey(**{name: entry[name] for name in LinkKey.__dataclass_fields__})
    link = Link(**{name: entry[name] for name in Link.__dataclass_fields__})
    link = replace(link, samples=tuple((int(n), float(s)) for n, s in link.samples))
    numbers = (link.alpha_s, link.beta_s_per_byte, link.residual)
    counts = (key.ranks, key.at_once, key.devices, key.cores)
    is_known = key.kind in LINK_KINDS and key.wire in WIRES and isinstance(key.backend, str)
    if not is_known or any(type(n) is not int for n in counts):
        raise ValueError(f"{key} is no link")
    are_numbers = all(type(n) in (int, float) and 0 <= n < float("inf") for n in numbers)
    if not are_numbers or not link.seconds(1):
        raise ValueError(f"alpha, beta, residual {numbers} of {key}")
    return key, link


def fingerprint(topology: Topology, nccl: Sequence[int] | None) -> dict[str, str]:
    """Returns what measured times depend on besides a link's key: hardware, and versions."""
    gpus = [device.uuid or device.name for device in topology.devices if device.kind == "gpu"]
    return {
        "processor": processor(),
        "cpus": str(os.cpu_count()),
        "gpus": " ".join(gpus) or "none",
        "torch": version_of("torch"),
        "nccl": ".".join(map(str, nccl)) if nccl else "none",
        "gmi-drl": version_of("gmi-drl"),
    }


def processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def version_of(package: str) -> str:
    """Returns the version of a package that is installed, or "unknown"."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"
