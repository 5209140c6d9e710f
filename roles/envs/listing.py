"""Lists the environments that this machine can run, with their adapters and spaces."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import gymnasium
from gymnasium import spaces
from gymnasium.envs.registration import registry

from . import check_env, make_env
from .adapters import ADAPTERS, FAMILIES, absent, choose_adapter, newest_ids, register_family

_ADAPTERS_OF_GYM: Final = {"GymV21Environment-v0", "GymV26Environment-v0"}  # no environments


@dataclass(frozen=True)
class KnownEnv:
    """An environment by its id, and how it is run here; or, in `fault`, why it is not."""

    env_id: str
    adapters: tuple[str, ...]  # the one that `auto` takes first
    observation: str = ""  # and action: of those that were made
    action: str = ""
    fault: str = ""


def known_envs(text: str = "") -> Iterator[KnownEnv]:
    """Yields the newest versions of all ids that have `text` in them, each made to see its spaces.

    Without a text they are hundreds: none is made, and faults are those that are known before.
    """
    for family in FAMILIES:
        if not absent({family.module: ""}):
            register_family(family)
    ids = {*registry, *(env_id for adapter in ADAPTERS.values() for env_id in adapter.ids)}
    ids -= _ADAPTERS_OF_GYM
    pool = _envpool_ids()
    if text:
        ids |= pool
    shown = {*newest_ids(ids), *ADAPTERS["game"].ids}  # EnvPool has namesakes of the games
    for env_id in sorted(name for name in shown if text.lower() in name.lower()):
        yield _known(env_id, env_id in pool, made=bool(text))


def lacking() -> list[str]:
    """Returns the extras whose families of environments are not installed."""
    extras = [family.extra for family in FAMILIES if absent({family.module: ""})]
    extras += ["envpool"] if absent({"envpool": ""}) else []
    return extras + (["box2d"] if absent({"Box2D": ""}) else [])


def _envpool_ids() -> set[str]:
    if absent({"envpool": ""}):
        return set()
    return set(import_module("envpool").list_all_envs())


def _known(env_id: str, pooled: bool, made: bool) -> KnownEnv:
    chosen = choose_adapter(env_id)
    if pooled and env_id not in registry:
        chosen = "envpool"
    other_adapters = [
        name
        for name, adapter in ADAPTERS.items()
        if env_id in adapter.ids and not absent(adapter.packages)
    ]
    adapters = tuple(dict.fromkeys([chosen, *other_adapters, *(["envpool"] if pooled else [])]))
    try:
        with _silent():
            if not made:
                return KnownEnv(env_id, adapters, fault=" ".join(check_env(env_id, chosen)))
            env = make_env(env_id, 1, adapter=chosen)
            try:
                space = getattr(env, "structured_space", env.observation_space)
                return KnownEnv(env_id, adapters, _text(space), _text(env.action_space))
            finally:
                env.close()
    except Exception as error:  # whatever making someone's environment raises
        said = str(error).strip() or type(error).__name__
        return KnownEnv(env_id, adapters, fault=said.splitlines()[-1])


@contextmanager
def _silent() -> Iterator[None]:
    level = gymnasium.logger.min_level
    gymnasium.logger.min_level = gymnasium.logger.ERROR
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        gymnasium.logger.min_level = level


def _text(space: spaces.Space[Any]) -> str:
    """Returns a space in few words: what a policy sees or does, and not its bounds."""
    if isinstance(space, spaces.Dict):
        return f"Dict of {', '.join(f'{key} {_text(part)}' for key, part in space.items())}"
    if isinstance(space, spaces.Tuple):
        return f"Tuple of {', '.join(map(_text, space))}"
    if isinstance(space, spaces.Box):
        sizes = " x ".join(map(str, space.shape)) or "1"
        floating = space.dtype is not None and space.dtype.kind == "f"
        return f"Box {sizes}" + ("" if floating else f" {space.dtype}")
    if isinstance(space, spaces.Discrete):
        return f"Discrete {space.n}"
    if isinstance(space, spaces.MultiDiscrete):
        return f"MultiDiscrete {' x '.join(map(str, space.nvec.ravel()))}"
    return str(space)
