"""Reads a hardware file: what a host and its network do, each figure with its unit and source.

    version: 1
    name: my-box
    device: {name: NVIDIA L40S, count: 4, sm_count: 142, mem_gib: 45, capability: "8.9"}
    figures:
      infer_step_us: {value: 220, basis: assumed, source: as an H100, low: 110, high: 440}
      ...
    tasks:
      Ant-v5: {adapter: warp, observation: 105, action: 8, step_us: {...}, env_step_ns: {...}}

`basis` is measured, published or assumed; `low` and `high` bound what is not known, and the spread
of a projection comes of them. Files with names are in `machines/`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from gmi_drl.placement import ConfigError, Device, Fault, Topology
from gmi_drl.placement.config.yaml_text import read_yaml
from gmi_drl.placement.faults import ABSENT, closest

Basis: TypeAlias = Literal["measured", "published", "assumed"]
BASES: Final = ("measured", "published", "assumed")
_MACHINES: Final = Path(__file__).parent / "machines"

# Every figure: its unit is the end of its name. Those of the last two groups may be absent: a
# machine of one GPU has no links within it, and one whose network is not described is one host.
DEVICE_FIGURES: Final = {
    "infer_step_us": "a step of the policy, whatever num_env is",
    "infer_env_parameter_ps": "more for each environment, and each parameter of the network",
    "update_us": "a gradient step, whatever its samples are",
    "update_sample_parameter_ps": "more for each sample, and each parameter",
    "crowding_percent": "more of the fixed times, for each further GMI at work on the GPU",
    "reduce_us": "a reduction among GMIs of one GPU",
    "reduce_each_mb_us": "more for each MB of gradient",
    "experience_us": "sending a segment to a trainer",
    "experience_each_mb_us": "more for each MB of it",
    "jitter_percent": "standard deviation of a GMI's times from one to the next, of their mean",
    "spread_percent": "the same among GPUs of a kind",
    "failures_per_host_day": "losses of a host",
    "recovery_s": "from a loss to training again, without what is trained twice",
    "price_usd_per_gpu_hour": "what an hour of a GPU costs",
}
WITHIN_FIGURES: Final = {
    "within_base_us": "an all-reduce, whatever its ranks are",
    "within_step_us": "a step of it from GPU to GPU of a host",
    "within_bandwidth_gb_per_s": "what a GPU sends to another one of its host",
}
BETWEEN_FIGURES: Final = {
    "between_step_us": "a step of it from host to host",
    "between_bandwidth_gb_per_s": "what a host sends to another one",
    "hosts_max": "hosts that these figures were said of",
}
FIGURES: Final = {**DEVICE_FIGURES, **WITHIN_FIGURES, **BETWEEN_FIGURES}
TASK_FIGURES: Final = {
    "step_us": "a step of the simulator, whatever num_env is",
    "env_step_ns": "more for each environment",
}
_UNITS: Final = re.compile(
    r"_(ps|ns|us|ms|s|percent|[gm]b_per_s|[gm]bit_per_s|per_host_day|usd_per_gpu_hour)$"
)
_DEVICE_KEYS: Final = ("name", "count", "sm_count", "mem_gib", "capability")


@dataclass(frozen=True)
class Figure:
    """Holds one number of a hardware file."""

    value: float
    basis: Basis
    source: str
    low: float
    high: float

    def drawn(self, rng: np.random.Generator) -> Figure:
        """Returns it with a value from its range, most likely near `value`."""
        if self.low == self.high:
            return self
        return replace(self, value=float(rng.triangular(self.low, self.value, self.high)))


@dataclass(frozen=True)
class TaskCosts:
    """Holds what one environment costs on the device."""

    adapter: str
    observation: int
    action: int
    figures: Mapping[str, Figure]  # of TASK_FIGURES


@dataclass(frozen=True)
class Hardware:
    """Describes hosts that are alike, each with `count` GPUs that are alike."""

    name: str
    device: str
    count: int
    sm_count: int
    mem_bytes: int
    capability: tuple[int, int]
    figures: Mapping[str, Figure]
    tasks: Mapping[str, TaskCosts]

    def __getitem__(self, key: str) -> float:
        return self.figures[key].value

    @property
    def hosts_max(self) -> int:
        """Returns how many hosts there are figures for."""
        return int(self["hosts_max"]) if "hosts_max" in self.figures else 1

    def drawn(self, rng: np.random.Generator) -> Hardware:
        """Returns one of the machines that this one may be: each figure from its range."""
        return replace(
            self,
            figures={key: figure.drawn(rng) for key, figure in self.figures.items()},
            tasks={
                key: replace(
                    task, figures={name: figure.drawn(rng) for name, figure in task.figures.items()}
                )
                for key, task in self.tasks.items()
            },
        )

    def topology(self, num_gpus: int | None = None) -> Topology:
        """Returns the devices of one host, for the layout of a config."""
        cores = 8  # of each GPU; no GMI of a GPU is limited by them here
        return Topology(
            tuple(
                Device(
                    index=index, kind="gpu", name=self.device,
                    cores=tuple(range(index * cores, (index + 1) * cores)),
                    sm_count=self.sm_count, mem_bytes=self.mem_bytes,
                    capability=self.capability, compute_mode="default", mig_mode=False,
                )
                for index in range(min(num_gpus or self.count, self.count))
            )
        )  # fmt: skip


def known_machines() -> list[str]:
    """Lists the machines that have a file here."""
    return sorted(path.stem for path in _MACHINES.glob("*.yaml"))


def machine_of(text: str) -> tuple[Hardware, int]:
    """Reads `--on`: dgx-a100, 32xdgx-h100, my-hardware.yaml or 4xmy-hardware.yaml.

    Returns the hardware and the number of hosts; ConfigError with every fault.
    """
    match = None if Path(text).is_file() else re.fullmatch(r"(\d+)x(.+)", text)
    count, name = (int(match[1]), match[2]) if match else (1, text)
    if Path(name).suffix in (".yaml", ".yml") or "/" in name:
        path = Path(name)
    else:
        path = _MACHINES / f"{name}.yaml"
    known = known_machines()
    if not path.is_file():
        remedy = f"Use {', '.join(known)}, or the path of a hardware file that ends in .yaml."
        raise ConfigError([Fault("--on", text, "no such machine", remedy)])
    hardware = read_hardware(path)
    if count < 1:
        raise ConfigError([Fault("--on", text, "one host or more", f"Use 1x{name}.")])
    if count > hardware.hosts_max:
        rule = f"{hardware.name} has network figures for {hardware.hosts_max} hosts"
        if "hosts_max" not in hardware.figures:
            rule = f"{hardware.name} has no figures of a network, so it is one host"
        remedy = f"Use {hardware.hosts_max} or fewer, or write {', '.join(BETWEEN_FIGURES)} of it."
        raise ConfigError([Fault("--on", text, rule, remedy)])
    return hardware, count


def read_hardware(path: Path) -> Hardware:
    """Reads a hardware file; ConfigError with every fault of it."""
    try:
        document, _, unread = read_yaml(path.read_text(encoding="utf-8"), str(path))
    except (OSError, ValueError) as error:
        raise ConfigError([Fault(str(path), ABSENT, f"it cannot be read: {error}",
                                 "Write YAML.")]) from None  # fmt: skip
    faults = unread or list(_faults(document))
    if faults:
        raise ConfigError(faults, str(path))
    device = document["device"]
    major, _, minor = str(device["capability"]).partition(".")
    return Hardware(
        name=document["name"],
        device=device["name"],
        count=device["count"],
        sm_count=device["sm_count"],
        mem_bytes=round(device["mem_gib"] * 2**30),
        capability=(int(major), int(minor or 0)),
        figures={key: _figure(entry) for key, entry in document["figures"].items()},
        tasks={
            env_id: TaskCosts(
                task["adapter"], task["observation"], task["action"],
                {key: _figure(task[key]) for key in TASK_FIGURES},
            )
            for env_id, task in document["tasks"].items()
        },
    )  # fmt: skip


def _figure(entry: Mapping[str, Any]) -> Figure:
    value = float(entry["value"])
    low, high = float(entry.get("low", value)), float(entry.get("high", value))
    return Figure(value, entry["basis"], entry["source"], low, high)


def _faults(document: Any) -> Iterator[Fault]:
    """Lists what is wrong with a file's content."""
    if not isinstance(document, dict):
        yield Fault("the file", ABSENT, "it has no keys", "Write version, name, device, figures "
                    "and tasks.")  # fmt: skip
        return
    if document.get("version") != 1:
        yield Fault("version", document.get("version", ABSENT), "must be 1", "Write version: 1.")
    yield from _keys(document, "", ("version", "name", "device", "figures", "tasks"))
    if not isinstance(document.get("name", ""), str):
        yield Fault("name", document["name"], "must be text", "Give the machine a name.")
    device = document.get("device", {})
    if not isinstance(device, dict):
        yield Fault("device", device, "must have keys", f"Write {', '.join(_DEVICE_KEYS)}.")
    else:
        yield from _keys(device, "device.", _DEVICE_KEYS)
        for key in {"count", "sm_count", "mem_gib"} & device.keys():
            if not _is_number(device[key]) or device[key] < 1:
                yield Fault(f"device.{key}", device[key], "must be 1 or more", "Give a number.")
        for key in {"count", "sm_count"} & device.keys():
            if isinstance(device[key], float):
                yield Fault(f"device.{key}", device[key], "must be a whole number", "Round it.")
        if not re.fullmatch(r"\d+\.\d+", str(device.get("capability", "0.0"))):
            yield Fault("device.capability", device["capability"], "must be as 8.0", "Quote it.")
    figures = document.get("figures", {})
    several = isinstance(device, dict) and device.get("count") != 1
    yield from _figures(figures, "figures", FIGURES, _required(figures, several))
    tasks = document.get("tasks", {})
    if not isinstance(tasks, dict) or not tasks:
        yield Fault("tasks", tasks, "must name an environment or more", "Write Ant-v5: {...}.")
        return
    for env_id, task in tasks.items():
        where = f"tasks.{env_id}"
        if not isinstance(task, dict):
            yield Fault(where, task, "must have keys", f"Write {', '.join(TASK_FIGURES)}.")
            continue
        shape_keys = ("adapter", "observation", "action")
        yield from _keys({key: 0 for key in task if key in shape_keys}, f"{where}.", shape_keys)
        for key in ("observation", "action"):
            if key in task and (type(task[key]) is not int or task[key] < 1):
                yield Fault(f"{where}.{key}", task[key], "must be a whole number", "Count them.")
        costs = {key: entry for key, entry in task.items() if key not in shape_keys}
        yield from _figures(costs, where, TASK_FIGURES, set(TASK_FIGURES))


def _required(figures: Any, several: bool) -> set[str]:
    """Returns the figures that there must be: of a group that is begun, all."""
    required = set(DEVICE_FIGURES)
    keys = set(figures) if isinstance(figures, dict) else set()
    if several or keys & {*WITHIN_FIGURES, *BETWEEN_FIGURES}:
        required |= set(WITHIN_FIGURES)
    if keys & set(BETWEEN_FIGURES):
        required |= set(BETWEEN_FIGURES)
    return required


def _keys(given: Mapping[str, Any], prefix: str, known: tuple[str, ...]) -> Iterator[Fault]:
    for key in given:
        if key not in known:
            yield Fault(f"{prefix}{key}", ABSENT, "no such key", _suggestion(str(key), known))
    for key in known:
        if key not in given:
            yield Fault(f"{prefix}{key}", ABSENT, "is missing", "Write it.")


def _figures(
    figures: Any, where: str, known: Mapping[str, str], required: set[str]
) -> Iterator[Fault]:
    if not isinstance(figures, dict):
        yield Fault(where, figures, "must have keys", f"Write {', '.join(known)}.")
        return
    unnamed = {_stem(key): key for key in known}
    present = set()
    for key, entry in figures.items():
        place = f"{where}.{key}"
        if key not in known:
            right_key = unnamed.get(_stem(str(key)))
            if right_key is not None:
                present.add(right_key)
                unit = "has no unit" if _stem(str(key)) == key else "has another unit"
                yield Fault(place, ABSENT, unit, f"Write {right_key}: {known[right_key]}.")
            else:
                yield Fault(place, ABSENT, "no such figure", _suggestion(str(key), tuple(known)))
            continue
        present.add(key)
        yield from _entry_faults(place, entry, above_zero="bandwidth" in key or key == "hosts_max")
    for key in sorted(required - present):
        yield Fault(f"{where}.{key}", ABSENT, "is missing", f"Write it: {known[key]}.")


def _suggestion(key: str, known: tuple[str, ...]) -> str:
    """Names what may have been meant."""
    suggestion = closest(key, known)
    return f"Did you mean {suggestion}?" if suggestion else f"Use one of {', '.join(known)}."


def _stem(key: str) -> str:
    """Returns a figure's name without its unit."""
    return _UNITS.sub("", key) or key


def _entry_faults(place: str, entry: Any, above_zero: bool) -> Iterator[Fault]:
    example = "Write {value: 1.5, basis: assumed, source: why, low: 1, high: 2}."
    if not isinstance(entry, dict):
        yield Fault(place, entry, "must say its value, basis and source", example)
        return
    for key in entry.keys() - {"value", "basis", "source", "low", "high"}:
        yield Fault(f"{place}.{key}", ABSENT, "no such key", example)
    if entry.get("basis") not in BASES:
        yield Fault(f"{place}.basis", entry.get("basis", ABSENT), f"must be {', '.join(BASES)}",
                    example)  # fmt: skip
    if not isinstance(entry.get("source"), str) or not entry["source"].strip():
        yield Fault(f"{place}.source", ABSENT, "is missing", "Say where the number is from.")
    value = entry.get("value")
    numbers: list[Any] = [entry.get("low", value), value, entry.get("high", value)]
    if not all(_is_number(number) and number >= 0 for number in numbers):
        yield Fault(f"{place}.value", value, "must be a number, 0 or more", example)
    elif above_zero and not all(numbers):
        yield Fault(f"{place}.value", value, "must be above 0, and so its low", example)
    elif sorted(numbers) != numbers:
        yield Fault(place, ABSENT, "low, value and high must rise", "Put them in this order.")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and np.isfinite(value)
