"""Lists the adapters, chooses one for an environment, and checks what it is asked for.

Imports no torch, so that a launcher may ask; for the options of a MuJoCo id it imports mujoco.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from gymnasium.envs.registration import EnvSpec, load_env_creator, registry
from gymnasium.error import DependencyNotInstalled
from pydantic import ValidationError

from gmi_drl.placement import EnvConfig
from gmi_drl.placement.config.schema import explain
from gmi_drl.placement.faults import close_names, install
from gmi_drl.roles.games import GAMES, OPEN_SPIEL, game_faults

from .options import parse_options, unknown_arguments, unknown_options
from .torch_envs.options import OPTIONS as TORCH_OPTIONS
from .wrappers import wrapper_faults

MUJOCO_IDS = (
    "Ant-v5", "HalfCheetah-v5", "Hopper-v5", "Humanoid-v5", "HumanoidStandup-v5",
    "InvertedDoublePendulum-v5", "InvertedPendulum-v5", "Pusher-v5", "Reacher-v5", "Swimmer-v5",
    "Walker2d-v5",
)  # fmt: skip
ROBOT_IDS = (
    "Barkour-v0",
    "FrankaCabinet-v0",
    "ShadowHand-v0",
)  # of adapter mujoco, too; Gymnasium has them not
TORCH_IDS = tuple(TORCH_OPTIONS)
WARP_IDS = ("Ant-v5", "BallBalance-v0", "HalfCheetah-v5", "Humanoid-v5", *ROBOT_IDS)
MJX_IDS = ("Ant-v5", "BallBalance-v0", "Barkour-v0", "HalfCheetah-v5", "Humanoid-v5")
# What EnvPool takes that the config says with keys of its own, or that would change what a step is.
_SAID_ELSEWHERE: Final = {
    "num_envs", "num_threads", "batch_size", "seed", "env_seed", "max_episode_steps",
    "gym_reset_return_info", "base_path",
}  # fmt: skip
# What Gymnasium's environments take that a batch has no use for.
RENDERING = (
    "render_mode", "width", "height", "camera_id", "camera_name", "default_camera_config",
    "max_geom", "visual_options",
)  # fmt: skip


class Family(NamedTuple):
    """Says which package registers the ids that begin so."""

    begins: str
    module: str
    extra: str  # of gmi-drl, that has the package
    register: str = ""  # the function of the module that registers them, if importing does not


FAMILIES: Final = (
    Family("ALE/", "ale_py", "atari"),
    Family("MinAtar/", "minatar.gym", "minatar", "register_envs"),
    Family("popgym-", "popgym", "popgym"),
)


class Adapter(NamedTuple):
    """Describes one way to step environments, as code that makes a `VecEnv` of a `VecEnvSpec`."""

    make: str  # module:callable in this folder; imported when environments are made
    check: Callable[[str, str, Mapping[str, Any]], list[str]]  # of adapter, env_id, options
    ids: Collection[str] = ()
    options: str = ""  # module:mapping in this folder, of the options' dataclass by id
    packages: Mapping[str, str] = {}  # module -> package that has it
    compiles: Literal["", "made", "reset"] = ""  # when it compiles its kernels


def load(reference: str) -> Any:
    """Returns what `reference`, module:name in this folder, names."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(f".{module}", __package__), name)


def choose_adapter(env_id: str, adapter: str = "auto") -> str:
    """Returns the adapter that runs `env_id`.

    `auto` is batched tensor code where we have it, then batched MuJoCo, then Gymnasium's vectors.
    """
    if adapter != "auto":
        return adapter
    if env_id.startswith(OPEN_SPIEL):
        return "game"
    preferred = ("torch", "mujoco", "game")
    return next((name for name in preferred if env_id in ADAPTERS[name].ids), "gymnasium")


def check_env(
    env_id: str,
    adapter: str = "auto",
    options: Mapping[str, Any] | None = None,
    wrappers: Sequence[Any] = (),
) -> list[str]:
    """Returns every reason `make_env` would refuse, one sentence each with value, rule, remedy."""
    if adapter not in ("auto", *ADAPTERS):
        names = ", ".join(("auto", *ADAPTERS))
        return [f"env.adapter={adapter!r}; known: {names}. Leave it out for auto."]
    try:  # as a config file is read
        EnvConfig.model_validate({"id": env_id, "wrappers": wrappers})
    except ValidationError as error:
        return [str(fault) for fault in explain(error, {}, prefix=("env",))]
    chosen = choose_adapter(env_id, adapter)
    faults = ADAPTERS[chosen].check(chosen, env_id, options or {})
    if wrappers and chosen == "pettingzoo":
        faults.append(
            f"env.wrappers={list(wrappers)}: they wrap environments of one agent, and adapter "
            "pettingzoo has several. Wrap it in a function of yours, env.id: module:function."
        )
    return [*faults, *wrapper_faults(wrappers, chosen)]


def time_limit(env_id: str, asked: int | None) -> int | None:
    """Returns the steps of an episode at most: those asked for, else the registered ones."""
    spec = None if asked else find_spec(env_id)
    return asked or (spec.max_episode_steps if spec else None)


def find_spec(env_id: str) -> EnvSpec | None:
    """Returns Gymnasium's entry for `env_id`.

    "module:Id" imports the registering module first, and so does an id of `FAMILIES`.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    elif name not in registry and (family := _family(name)):
        register_family(family)
    return registry.get(name)


def register_family(family: Family) -> None:
    """Has a family's package register its ids, if it is installed and has not done so."""
    if absent({family.module: ""}) or any(env_id.startswith(family.begins) for env_id in registry):
        return
    module = importlib.import_module(family.module)
    if family.register:
        getattr(module, family.register)()


def _family(env_id: str) -> Family | None:
    return next((family for family in FAMILIES if env_id.startswith(family.begins)), None)


def _unknown_id(env_id: str, adapter: str) -> str:
    ids = () if adapter == "gymnasium" else sorted(ADAPTERS[adapter].ids)
    if names := [name for name, entry in ADAPTERS.items() if env_id in entry.ids]:
        offer = f"has {', '.join(ids)}" if ids else "does not have it"
        return (
            f"env.id={env_id!r}: adapter {adapter} {offer}. "
            f"Use adapter: {' or '.join(names)}, or another id."
        )
    all_ids = {env_id for entry in ADAPTERS.values() for env_id in entry.ids}
    near = _closest_ids(env_id, ids) or _closest_ids(env_id, all_ids)
    hint = f" Close: {', '.join(near)}." if near else ""
    if not ids:
        remedy = _registration_hint(env_id)
        return f"env.id={env_id!r} is not a registered environment.{hint} {remedy}"
    return (
        f"env.id={env_id!r}: adapter {adapter} has {', '.join(ids)}.{hint} Use one of "
        "these, or adapter: gymnasium for an id that a module of yours registers."
    )


def newest_ids(ids: Iterable[str]) -> list[str]:
    """Returns the ids in order; of ids that differ in their version alone only the newest."""
    newest: dict[str, str] = {}
    for env_id in sorted(ids, key=_version):
        newest[_name(env_id)] = env_id
    return sorted(newest.values())


def _version(env_id: str) -> int:
    match = re.search(r"-v(\d+)$", env_id)
    return int(match[1]) if match else -1


def _closest_ids(env_id: str, known: Iterable[str]) -> list[str]:
    """Returns up to three ids that are most like `env_id`, with or without their versions."""
    ids = sorted(known, reverse=True)  # the newest version first
    by_name: dict[str, list[str]] = {}
    for known_id in ids:
        by_name.setdefault(_name(known_id), []).append(known_id)
    alike = [like for name in close_names(_name(env_id), by_name) for like in by_name[name][:2]]
    return list(dict.fromkeys([*alike, *close_names(env_id, ids)]))[:3]


def _name(env_id: str) -> str:
    return re.sub(r"-v\d+$", "", env_id)


def _registration_hint(env_id: str) -> str:
    """Tells how an id that nobody has registered is registered."""
    module, _, name = env_id.rpartition(":")
    namespace, slash, _ = name.rpartition("/")
    if module and callable(getattr(sys.modules.get(module), name, None)):
        return (
            f"{module} has {name}, and has not registered it: have it call gymnasium.register; or, "
            "of several agents, set env.adapter: pettingzoo."
        )
    if "." in name and _makes_agents(name):
        return "It is a module of several agents: set env.adapter: pettingzoo."
    if (family := _family(name)) and absent({family.module: ""}):
        return f"{install(family.extra)} adds the package that has it."
    if any(known_id.startswith(f"{namespace}/") for known_id in registry):
        return f"`gmi-drl envs {namespace}/` lists those of this machine."
    if slash:
        return (
            f"Nothing has registered the namespace {namespace}: install the package that does, "
            f"and write its module before the id, module:{namespace}/Id."
        )
    return (
        "Write module:Id for one that a module of yours registers. gmi-drl envs lists those of "
        "this machine."
    )


def _makes_agents(module: str) -> bool:
    """Tells whether a module makes environments of several agents, as PettingZoo's do."""
    try:
        return callable(load("agents:factory_of")(module))
    except Exception:  # whatever importing someone's module raises
        return False


def absent(packages: Mapping[str, str]) -> list[str]:
    """Returns the packages of `packages` whose modules are not installed."""
    return [
        package
        for module, package in packages.items()
        if importlib.util.find_spec(module.partition(".")[0]) is None
        or importlib.util.find_spec(module) is None
    ]


def _check_tasks(adapter: str, env_id: str, options: Mapping[str, Any]) -> list[str]:
    """Returns the faults of one of our own tasks: its id, its packages, its options."""
    if env_id not in ADAPTERS[adapter].ids:
        return [_unknown_id(env_id, adapter)]
    key = f"env.id={env_id!r}" if adapter == choose_adapter(env_id) else f"env.adapter={adapter}"
    if missing := absent(ADAPTERS[adapter].packages):
        return [
            f"{key} needs the package {package}, which is not installed. {install(adapter)}."
            for package in missing
        ]
    label, kind = f"env {env_id}", load(ADAPTERS[adapter].options)[env_id]
    warp_names = _warp_only_options(env_id, kind, options)
    own_options = {k: v for k, v in options.items() if k not in RENDERING and k not in warp_names}
    return [
        *(
            f"{label}: option {name!r} is about rendering, which a batch does not do. "
            "Leave it out, or use adapter: gymnasium."
            for name in options
            if name in RENDERING
        ),
        *parse_options(kind, own_options, label)[1],
        *(
            f"{label}: {name!r} is an option of adapter warp. Leave it out, or use adapter: warp."
            for name in sorted(warp_names)
        ),
    ]


def _warp_only_options(env_id: str, kind: type[Any], options: Mapping[str, Any]) -> set[str]:
    """Returns the names in `options` that adapter warp has for this id, and `kind` has not."""
    unknown = options.keys() - {field.name for field in dataclasses.fields(kind)}
    warp = ADAPTERS["warp"]
    if not unknown or env_id not in warp.ids or absent({"mujoco": "mujoco"}):
        return set()
    return unknown & {field.name for field in dataclasses.fields(load(warp.options)[env_id])}


def _check_gymnasium(adapter: str, env_id: str, options: Mapping[str, Any]) -> list[str]:
    try:
        spec = find_spec(env_id)
    except Exception as error:  # whatever importing someone's module raises
        module = env_id.rpartition(":")[0]
        return [
            f"env.id={env_id!r}: module {module} does not import ({type(error).__name__}: "
            f"{error}). Install it, or put it beside the config file."
        ]
    if spec is None:
        return [_unknown_id(env_id, adapter)]
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
        if isinstance(error, DependencyNotInstalled) and "box2d" in str(spec.entry_point):
            fault = f"env.id={env_id!r} needs Box2D, which is not installed. {install('box2d')}."
            return [*faults, fault]
        return [
            *faults,
            f"env.id={env_id!r} cannot be loaded: {error}. Install the package it comes from.",
        ]
    if creator is None:
        return faults
    if not callable(creator):
        return [
            *faults,
            f"env.id={env_id!r}: its entry point is of type {type(creator).__name__}; must be a "
            "class or function that makes the environment. Register it with one.",
        ]
    return faults + unknown_arguments(f"env {env_id}", creator, options, ["vectorization"])


def _check_envpool(adapter: str, env_id: str, options: Mapping[str, Any]) -> list[str]:
    if absent(ADAPTERS[adapter].packages):
        return [
            f"env.adapter=envpool needs the package envpool, which is not installed. "
            f"{install(adapter)}, or choose another adapter."
        ]
    envpool = importlib.import_module("envpool")
    ids = envpool.list_all_envs()
    if env_id not in ids:
        close = _closest_ids(env_id, ids)
        hint = f" Close: {', '.join(close)}." if close else ""
        return [
            f"env.id={env_id!r}: EnvPool does not have it.{hint} Use one of "
            "envpool.list_all_envs(), or another adapter."
        ]
    keys = set(envpool.make_spec(env_id).config._fields) - _SAID_ELSEWHERE
    return unknown_options(f"env {env_id}", options, keys)


def _check_game(adapter: str, env_id: str, options: Mapping[str, Any]) -> list[str]:
    return [*game_faults(env_id), *unknown_options(f"env {env_id}", options, ())]


def _check_isaacgym(adapter: str, env_id: str, options: Mapping[str, Any]) -> list[str]:
    return [
        f"env.adapter=isaacgym needs the package {name}, which is not installed. Install Isaac Gym "
        "Preview 4 and IsaacGymEnvs (both from NVIDIA, Python 3.8), or choose another adapter."
        for name in absent(ADAPTERS[adapter].packages)
    ]


def _check_pettingzoo(adapter: str, env_id: str, options: Mapping[str, Any]) -> list[str]:
    try:
        factory = load("agents:factory_of")(env_id)
    except Exception as error:  # whatever importing someone's module raises
        return [
            f"env.id={env_id!r} of adapter pettingzoo is not found ({type(error).__name__}: "
            f"{error}); must be a module that has parallel_env or env, or module:function that "
            "makes an environment. Install its package, or put the module beside the config file. "
            f"{install('multi_agent')} adds PettingZoo and mpe2."
        ]
    if not callable(factory):
        return [
            f"env.id={env_id!r} of adapter pettingzoo is a {type(factory).__name__}; must be a "
            "class or a function that makes an environment. Name that."
        ]
    return unknown_arguments(f"env {env_id}", factory, options)


ADAPTERS: Final[Mapping[str, Adapter]] = {
    "mujoco": Adapter(
        make="mujoco.vec:MujocoVecEnv",
        ids=(*MUJOCO_IDS, *ROBOT_IDS),
        check=_check_tasks,
        options="mujoco.tasks:OPTIONS",
        packages={"mujoco": "mujoco"},
    ),
    "gymnasium": Adapter(
        make="gymnasium:GymnasiumVecEnv", ids=registry.keys(), check=_check_gymnasium
    ),
    "torch": Adapter(
        make="torch_envs.make:make_torch_env",
        ids=TORCH_IDS,
        check=_check_tasks,
        options="torch_envs.options:OPTIONS",
    ),
    "warp": Adapter(
        make="warp.vec:WarpVecEnv",
        ids=WARP_IDS,
        check=_check_tasks,
        options="on_device.tasks:WARP_OPTIONS",
        packages={"mujoco": "mujoco", "warp": "warp-lang", "mujoco_warp": "mujoco-warp"},
        compiles="made",
    ),
    "mjx": Adapter(
        make="mjx.vec:MjxVecEnv",
        ids=MJX_IDS,
        check=_check_tasks,
        options="on_device.tasks:MJX_OPTIONS",
        packages={"mujoco": "mujoco", "jax": "jax", "mujoco.mjx": "mujoco-mjx"},
        compiles="reset",
    ),
    "envpool": Adapter(
        make="envpool:EnvPoolVecEnv", check=_check_envpool, packages={"envpool": "envpool"}
    ),
    "game": Adapter(make="games:GameVecEnv", ids=tuple(GAMES), check=_check_game),
    "isaacgym": Adapter(
        make="isaacgym:IsaacGymVecEnv",
        check=_check_isaacgym,
        packages={"isaacgym": "isaacgym", "isaacgymenvs": "isaacgymenvs"},
    ),
    "pettingzoo": Adapter(make="pettingzoo.team:make_pettingzoo", check=_check_pettingzoo),
}
