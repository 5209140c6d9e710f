"""Identifies what a measured throughput depends on: which record is that of a config.

Two keys. A question's key has what tuning was asked: all that it holds, and which of `num_env` and
`gmi_per_gpu` were free. An answer's key has one resolved config: what a run of it is held against,
whoever wrote it. Both have the machine and the versions of what runs on it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import gmi_drl
from gmi_drl.comm.links.link_record import processor, version_of
from gmi_drl.launcher.plan.user_modules import digest_of_file, digests_beside
from gmi_drl.placement import AUTO, Config, Topology, format_cores
from gmi_drl.placement.resolve import backend_of
from gmi_drl.selector.tune.space import most_samples

# What runs decides how fast: torch, the simulators, and this.
_PACKAGES: Final = ("gmi-drl", "torch", "numpy", "gymnasium", "mujoco")
_IF_THERE: Final = ("warp-lang", "mujoco-warp", "jax", "jaxlib", "mujoco-mjx")  # extras
_WITHOUT_EXTRAS: Final = ("torch", "mujoco")  # adapters that import none of these


def identity(config: Config, topology: Topology, beside: Path) -> dict[str, Any]:
    """Returns all that a record of tuning this config on these devices depends on, as JSON's types.

    Modules in the config's folder `beside` count with what is in them. Looks at no device, and
    imports nothing that is named.
    """
    problem = _problem(config, beside)
    searched = {"num_env": config.env.num_env, "gmi_per_gpu": config.layout.gmi_per_gpu}
    problem["free"] = [name for name, value in searched.items() if value == AUTO] or list(searched)
    for section, key in (("env", "num_env"), ("layout", "gmi_per_gpu")):
        if searched[key] == AUTO:  # else it is what the choice is held against
            problem[section].pop(key, None)
    problem["tune"] = config.tune.model_dump(mode="json", exclude={"budget_s", "race_s"})
    problem["unusable"] = sorted(name for name, _ in topology.unusable)
    problem["most_samples"] = most_samples(config, topology)
    return {"problem": problem, "machine": _machine(topology), "versions": _versions_of(config)}


def answer_key(config: Config, topology: Topology, beside: Path) -> str:
    """Returns the key of a resolved config; how it was found, and its name, are no part of it."""
    problem = _problem(config, beside)
    if config.layout.file is None:
        problem["hardware"]["backend"] = backend_of(config, topology)
    return digest_of(
        {"problem": problem, "machine": _machine(topology), "versions": _versions_of(config)}
    )


def digest_of(facts: Mapping[str, Any]) -> str:
    """Returns a digest of facts, which is the same for equal ones."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Words what differs in machine or versions, "torch 2.12 then, 2.13 now"; "" for nothing."""
    for part in ("versions", "machine"):
        old = before.get(part, {})
        for name in dict.fromkeys([*now[part], *old]):
            old_value, value = old.get(name), now[part].get(name)
            if old_value != value:
                return f"{name} {_short(old_value)} then, {_short(value)} now"
    return ""


@functools.cache
def versions() -> dict[str, str]:
    """Finds the versions of what runs, without importing it; absent extras are not named."""
    found = {name: version_of(name) for name in (*_PACKAGES, *_IF_THERE)}
    installed = {k: v for k, v in found.items() if k in _PACKAGES or v != "unknown"}
    return {"python": ".".join(platform.python_version_tuple()[:2]), **installed}


def _versions_of(config: Config) -> dict[str, str]:
    """Returns the versions, without extras for environments on a GPU where these are not."""
    from gmi_drl.roles.envs import choose_adapter

    if config.roles or choose_adapter(config.env.id, config.env.adapter) not in _WITHOUT_EXTRAS:
        return versions()
    return {name: version for name, version in versions().items() if name not in _IF_THERE}


def machine_text(topology: Topology) -> str:
    """Returns the machine for people: its name, processor and devices."""
    names = Counter(device.name for device in topology.devices if device.kind == "gpu")
    cores = sorted({core for device in topology.devices for core in device.cores})
    gpus = [f"{count} x {name}" for name, count in names.items()]
    return ", ".join([platform.node(), processor(), f"cores {format_cores(cores)}", *gpus])


def commit() -> str | None:
    """Returns the commit of this program, where it runs from a checkout that git knows."""
    root = Path(gmi_drl.__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        git = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"],
            capture_output=True, text=True, timeout=5, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return git.stdout.strip()


def _problem(config: Config, beside: Path) -> dict[str, Any]:
    """Returns what runs: the config without how long, its name, and how it was found."""
    problem = config.model_dump(mode="json", exclude={"version", "run", "tune", "search"})
    problem["run"] = {"deterministic": config.run.deterministic, "capture": config.run.capture}
    if config.layout.file is not None:  # what it says, wherever it lies
        problem["layout"] = {"text": digest_of_file(Path(config.layout.file))}
    problem["modules"] = digests_beside(config, beside)
    return problem


def _machine(topology: Topology) -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": processor(),
        "memory": f"{memory / 2**30:.0f} GiB",
        "devices": [
            {
                "name": device.name if device.kind == "gpu" else "cores",
                "cores": len(device.cores), "sm_count": device.sm_count,
                "mem_bytes": device.mem_bytes,
                "capability": device.capability and list(device.capability),
                "mig": [mig.profile for mig in device.mig],
            }
            for device in topology.devices
        ],
        "links": [list(row) for row in topology.links],
    }  # fmt: skip


def _short(value: Any) -> str:
    if isinstance(value, list):
        names = [item.get("name", "?") if isinstance(item, dict) else str(item) for item in value]
        return f"{len(value)} x {', '.join(dict.fromkeys(names))}"
    return "unknown" if value is None else str(value)
