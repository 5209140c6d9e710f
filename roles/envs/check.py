"""Which adapter runs an environment, and every reason it cannot.

Imports no torch, so that a launcher may ask; for the options of a MuJoCo id it imports mujoco.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from gmi_drl.placement.extras import install

from .options import T, closest, parse_options, unknown_option
from .torch_envs.options import OPTIONS as TORCH_OPTIONS

ADAPTERS = ("auto", "mujoco", "gymnasium", "torch", "warp", "mjx", "isaacgym")
MUJOCO_IDS = (
    "Ant-v5",
    "HalfCheetah-v5",
    "Hopper-v5",
    "Humanoid-v5",
    "HumanoidStandup-v5",
    "InvertedDoublePendulum-v5",
    "InvertedPendulum-v5",
    "Pusher-v5",
    "Reacher-v5",
    "Swimmer-v5",
    "Walker2d-v5",
)
ROBOT_IDS = ("Barkour-v0", "ShadowHand-v0")  # of adapter mujoco, too; Gymnasium has them not
TORCH_IDS = tuple(TORCH_OPTIONS)
WARP_IDS = ("Ant-v5", "BallBalance-v0", "HalfCheetah-v5", "Humanoid-v5", *ROBOT_IDS)
MJX_IDS = ("Ant-v5", "BallBalance-v0", "Barkour-v0", "HalfCheetah-v5", "Humanoid-v5")
_WARP_PACKAGES = {"mujoco": "mujoco", "warp": "warp-lang", "mujoco_warp": "mujoco-warp"}
_MJX_PACKAGES = {"mujoco": "mujoco", "jax": "jax", "mujoco.mjx": "mujoco-mjx"}
_ON_DEVICE = {"warp": (WARP_IDS, _WARP_PACKAGES), "mjx": (MJX_IDS, _MJX_PACKAGES)}
# What Gymnasium's environments take that a batch has no use for.
RENDERING = (
    "render_mode",
    "width",
    "height",
    "camera_id",
    "camera_name",
    "default_camera_config",
    "max_geom",
    "visual_options",
)


def choose_adapter(env_id: str, adapter: str = "auto") -> str:
    """The adapter that runs `env_id`: batched tensor code where we have it, then batched MuJoCo,
    then Gymnasium's vectors."""
    if adapter != "auto":
        return adapter
    if env_id in TORCH_IDS:
        return "torch"
    return "mujoco" if env_id in (*MUJOCO_IDS, *ROBOT_IDS) else "gymnasium"


def check_env(
    env_id: str, adapter: str = "auto", options: Mapping[str, Any] | None = None
) -> list[str]:
    """Every reason `make_env` would refuse, one sentence each with value, rule and remedy."""
    options = options or {}
    if adapter not in ADAPTERS:
        return [f"env.adapter={adapter!r}; known: {', '.join(ADAPTERS)}. Leave it out for auto."]
    return _CHECKS[choose_adapter(env_id, adapter)](env_id, options)


def find_spec(env_id: str) -> EnvSpec | None:
    """Gymnasium's entry for `env_id`; "module:Id" imports the module that registers it first."""
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    return gymnasium.envs.registration.registry.get(name)


def _having(env_id: str) -> list[str]:
    """The adapters that have `env_id`."""
    known = {
        "mujoco": (*MUJOCO_IDS, *ROBOT_IDS),
        "gymnasium": gymnasium.envs.registration.registry,
        "torch": TORCH_IDS,
        "warp": WARP_IDS,
        "mjx": MJX_IDS,
    }
    return [adapter for adapter, ids in known.items() if env_id in ids]


def _unknown_id(env_id: str, adapter: str, known: tuple[str, ...]) -> str:
    everything = {
        *known,
        *MUJOCO_IDS,
        *ROBOT_IDS,
        *TORCH_IDS,
        *gymnasium.envs.registration.registry,
    }
    if others := _having(env_id):
        its = f"has {', '.join(sorted(known))}" if known else "does not have it"
        return (
            f"env.id={env_id!r}: adapter {adapter} {its}. "
            f"Use adapter: {' or '.join(others)}, or another id."
        )
    near = _closest_ids(env_id, known) or _closest_ids(env_id, everything)
    hint = f" Close: {', '.join(near)}." if near else ""
    if adapter == "gymnasium":
        return f"env.id={env_id!r} is not a registered environment.{hint} {_registering(env_id)}"
    return (
        f"env.id={env_id!r}: adapter {adapter} has {', '.join(sorted(known))}.{hint} Use one of "
        "these, or adapter: gymnasium for an id that a module of yours registers."
    )


def _closest_ids(env_id: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """The ids that are most like `env_id`, or whose names without the version are."""
    ids = sorted(known, reverse=True)  # the newest version first
    by_name: dict[str, list[str]] = {}
    for one in ids:
        by_name.setdefault(_name(one), []).append(one)
    alike = [found for name in closest(_name(env_id), by_name) for found in by_name[name][:2]]
    return list(dict.fromkeys([*alike, *closest(env_id, ids)]))[:limit]


def _name(env_id: str) -> str:
    return re.sub(r"-v\d+$", "", env_id)


def _registering(env_id: str) -> str:
    """How an id that nobody has registered is registered."""
    name = env_id.rpartition(":")[2]
    namespace, slash, _ = name.rpartition("/")
    if namespace == "ALE":
        lacks = importlib.util.find_spec("ale_py") is None
        return (
            f"The package ale-py registers it: {'pip install ale-py, and ' if lacks else ''}write "
            f"ale_py:{name}. It shows images, and a policy here takes a one-dimensional Box: add "
            "env.options.obs_type: ram."
        )
    if slash:
        return (
            f"Nothing has registered the namespace {namespace}: install the package that does, "
            f"and write its module before the id, module:{namespace}/Id."
        )
    return (
        "Write module:Id for one that a module of yours registers. Those of this machine: "
        "python -c 'import gymnasium; gymnasium.pprint_registry()'."
    )


def _check_mujoco(env_id: str, options: Mapping[str, Any]) -> list[str]:
    known = (*MUJOCO_IDS, *ROBOT_IDS)
    if env_id not in known:
        return [_unknown_id(env_id, "mujoco", known)]
    if importlib.util.find_spec("mujoco") is None:
        return [
            f"env.id={env_id!r} needs the package mujoco, which is not installed. "
            f"{install('mujoco')}."
        ]
    from .mujoco.tasks import TASKS

    return _check_task(env_id, TASKS[env_id].Options, options)


def _check_on_device(adapter: str, env_id: str, options: Mapping[str, Any]) -> list[str]:
    known, packages = _ON_DEVICE[adapter]
    if env_id not in known:
        return [_unknown_id(env_id, adapter, known)]
    if missing := _missing(adapter, packages):
        return missing
    kinds = importlib.import_module(f".{adapter}.options", __package__).OPTIONS
    return _check_task(env_id, kinds[env_id], options)


def _missing(adapter: str, packages: Mapping[str, str]) -> list[str]:
    """What is not there of `packages`, module -> package; a module's parent stands before it."""
    return [
        f"env.adapter={adapter} needs the package {package}, which is not installed. "
        f"{install(adapter)}."
        for name, package in packages.items()
        if importlib.util.find_spec(name.partition(".")[0]) is None
        or importlib.util.find_spec(name) is None
    ]


def _check_task(env_id: str, kind: type[Any], options: Mapping[str, Any]) -> list[str]:
    """Faults in the options of a task whose dataclass is `kind`."""
    where = f"env {env_id}"
    drawing = [
        f"{where}: option {name!r} is about rendering, which a batch does not do. "
        "Leave it out, or use adapter: gymnasium."
        for name in options
        if name in RENDERING
    ]
    rest = {k: v for k, v in options.items() if k not in RENDERING}
    parsed, faults = _parsed(env_id, kind, rest)
    found: list[str] = drawing + faults + parsed.faults(where)
    return found


def _only_of_warp(env_id: str, kind: type[Any], options: Mapping[str, Any]) -> set[str]:
    """The names in `options` that adapter warp has for this id, and `kind` has not."""
    unknown = options.keys() - {field.name for field in dataclasses.fields(kind)}
    if not unknown or env_id not in WARP_IDS or importlib.util.find_spec("mujoco") is None:
        return set()
    from .warp.options import OPTIONS

    return unknown & {field.name for field in dataclasses.fields(OPTIONS[env_id])}


def _parsed(env_id: str, kind: type[T], options: Mapping[str, Any]) -> tuple[T, list[str]]:
    where, others = f"env {env_id}", _only_of_warp(env_id, kind, options)
    parsed, faults = parse_options(
        kind, {k: v for k, v in options.items() if k not in others}, where
    )
    return parsed, faults + [
        f"{where}: {name!r} is an option of adapter warp. Leave it out, or use adapter: warp."
        for name in sorted(others)
    ]


def _check_torch(env_id: str, options: Mapping[str, Any]) -> list[str]:
    if env_id not in TORCH_IDS:
        return [_unknown_id(env_id, "torch", TORCH_IDS)]
    return _parsed(env_id, TORCH_OPTIONS[env_id], options)[1]


def _check_gymnasium(env_id: str, options: Mapping[str, Any]) -> list[str]:
    try:
        spec = find_spec(env_id)
    except Exception as error:  # whatever importing someone's module raises
        module = env_id.rpartition(":")[0]
        return [
            f"env.id={env_id!r}: module {module} does not import ({type(error).__name__}: "
            f"{error}). Install it, or put it beside the config file."
        ]
    if spec is None:
        return [_unknown_id(env_id, "gymnasium", ())]
    faults = []
    vectorization = options.get("vectorization", "sync")
    if vectorization not in ("sync", "async"):
        faults.append(
            f"env {env_id}: vectorization={vectorization!r}; must be sync or async. "
            "Leave it out for sync."
        )
    try:
        entry = spec.entry_point
        creator = load_env_creator(entry) if isinstance(entry, str) else entry
    except Exception as error:  # whatever importing someone's package raises
        return [
            *faults,
            f"env.id={env_id!r} cannot be loaded: {error}. Install the package it comes from.",
        ]
    if creator is None:
        return faults
    parameters = inspect.signature(creator).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return faults
    return faults + [
        unknown_option(f"env {env_id}", name, {"vectorization", *parameters})
        for name in options
        if name not in parameters and name != "vectorization"
    ]


def _check_isaacgym(env_id: str, options: Mapping[str, Any]) -> list[str]:
    return [
        f"env.adapter=isaacgym needs the package {name}, which is not installed. Install Isaac Gym "
        "Preview 4 and IsaacGymEnvs (both from NVIDIA, Python 3.8), or choose another adapter."
        for name in ("isaacgym", "isaacgymenvs")
        if importlib.util.find_spec(name) is None
    ]


_CHECKS: Final[dict[str, Callable[[str, Mapping[str, Any]], list[str]]]] = {
    "mujoco": _check_mujoco,
    "torch": _check_torch,
    "warp": partial(_check_on_device, "warp"),
    "mjx": partial(_check_on_device, "mjx"),
    "gymnasium": _check_gymnasium,
    "isaacgym": _check_isaacgym,
}
