"""Changes what environments show and pay: wrappers of a whole batch, named in a config.

    env:
      wrappers: [clip_reward, frame_stack: {count: 4}, "my_module:MyWrapper": {scale: 2.0}]

The first is the innermost. One of Gymnasium's own kind wraps each environment of adapter
`gymnasium`, below all wrappers of the batch. Imports torch only where one is made.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import gymnasium

from gmi_drl.placement.faults import closest

from .errors import env_error
from .options import unknown_arguments, unknown_options

if TYPE_CHECKING:
    from .protocol import VecEnv

# The class in `batch_wrappers` and its options, by name.
_NAMED: Final = {
    "clip_reward": ("ClipReward", ("low", "high")),
    "frame_stack": ("FrameStack", ("count",)),
    "keep_numbers": ("KeepNumbers", ("places",)),
}


class Wrapper(NamedTuple):
    """Names a wrapper as a config does, with its options."""

    name: str
    options: Mapping[str, Any]

    @classmethod
    def of(cls, entry: str | Mapping[str, Mapping[str, Any] | None]) -> Wrapper:
        """Returns the wrapper of an entry: a name, or one name with its options."""
        if isinstance(entry, str):
            return cls(entry, {})
        ((name, options),) = entry.items()
        return cls(name, options or {})

    @property
    def where(self) -> str:
        return f"env.wrappers: {self.name}"

    @property
    def is_ours(self) -> bool:
        """Tells whether it is one of this package's, and no class of a module."""
        return ":" not in self.name


def named_faults(entries: Sequence[Any]) -> list[str]:
    """Returns what is wrong with those wrappers of a config that are this package's."""
    faults: list[str] = []
    for wrapper in map(Wrapper.of, entries):
        if not wrapper.is_ours:
            continue
        if wrapper.name not in _NAMED:
            near = closest(wrapper.name, _NAMED)
            hint = f"Did you mean {near}?" if near else "Write module:Class for one of yours."
            faults.append(f"{wrapper.where}; known: {', '.join(_NAMED)}. {hint}")
        else:
            faults += unknown_options(wrapper.where, wrapper.options, _NAMED[wrapper.name][1])
    return faults


def wrapper_faults(entries: Sequence[Any], adapter: str) -> list[str]:
    """Returns why these wrappers cannot be put around environments of an adapter.

    Imports the modules of those that are not this package's.
    """
    faults, outer = named_faults(entries), ""
    for wrapper in map(Wrapper.of, entries):
        if wrapper.is_ours:
            outer = wrapper.name
            continue
        try:
            kind = _class_of(wrapper.name)
        except Exception as error:  # whatever importing someone's module raises
            faults.append(
                f"{wrapper.where} does not import ({type(error).__name__}: {error}). Install it, "
                "or put its module beside the config file."
            )
            continue
        if not callable(kind):
            faults.append(
                f"{wrapper.where} is a {type(kind).__name__}; must be a class that wraps "
                "environments. Name one."
            )
            continue
        if not _is_gymnasium_wrapper(kind):
            outer = wrapper.name
        elif adapter != "gymnasium":
            faults.append(
                f"{wrapper.where} wraps one environment of Gymnasium's, and adapter {adapter} has "
                "a batch of its own. Use adapter: gymnasium, or derive it from "
                "gmi_drl.roles.envs.EnvWrapper."
            )
        elif outer:
            faults.append(
                f"{wrapper.where} wraps one environment, and comes behind {outer}, which wraps "
                "the batch of them. Name it before."
            )
        faults += unknown_arguments(wrapper.where, kind, wrapper.options, first=1)
    return faults


def single_wrappers(entries: Sequence[Any]) -> list[Callable[[Any], Any]]:
    """Returns the functions that wrap one environment of Gymnasium's, the innermost first."""
    pairs = [(_class_of(wrapper.name), wrapper.options) for wrapper in map(Wrapper.of, entries)]
    return [partial(kind, **options) for kind, options in pairs if _is_gymnasium_wrapper(kind)]


def wrapped(env: VecEnv, env_id: str, entries: Sequence[Any]) -> VecEnv:
    """Returns the batch in those wrappers that wrap batches; closes it if one of them raises."""
    for wrapper in map(Wrapper.of, entries):
        kind, name = _class_of(wrapper.name), f"{env_id} in {wrapper.name}"
        if _is_gymnasium_wrapper(kind):
            continue
        try:
            env = kind(env, **wrapper.options)
        except Exception as error:
            env.close()
            raise env_error(name, "wrapper", error) from error
        if not wrapper.is_ours:
            from .batch_wrappers import WatchedBatch

            env = WatchedBatch(env, name)
    return env


def _class_of(name: str) -> Any:
    module, _, attribute = name.rpartition(":")
    if module:
        return getattr(importlib.import_module(module), attribute)
    return getattr(importlib.import_module(".batch_wrappers", __package__), _NAMED[name][0])


def _is_gymnasium_wrapper(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, gymnasium.Wrapper)
