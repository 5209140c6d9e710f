"""Tries the user's code that a config names.

Role classes are imported, and a batch of the environment is made, reset and stepped, in a process
of its own, with a deadline.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.placement import ConfigError, CustomAlgorithmConfig, load_config, settings_of
from gmi_drl.placement.checks.memory import Sizes
from gmi_drl.placement.config.algorithms import mode_faults

from .child_process import ChildFailed, ask

if TYPE_CHECKING:
    import torch

    from gmi_drl.placement import AlgorithmConfig, Config
    from gmi_drl.roles import DRL_role
    from gmi_drl.roles.envs import VecEnv

_DEADLINE = timedelta(seconds=60)
_NUM_ENV: Final = 2
_STEPS: Final = 4
_ON_DEVICE: Final = ("warp", "mjx", "isaacgym")  # to make these takes a GPU, and minutes


@dataclass(frozen=True)
class UserCodeReport:
    """Says what came of an environment and of the roles."""

    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what was not looked at
    sizes: Sizes | None = None  # None: they are not known


def try_user_code(config: Config, folder: Path, deadline: timedelta = _DEADLINE) -> UserCodeReport:
    """Finds what is wrong with the config's environment and role classes, and their sizes.

    Modules beside the config file are in `folder`. Blocks for `deadline`, or several where that
    passes, and leaves nothing of what the code has started.
    """
    text = json.dumps(config.model_dump(mode="json"))
    try:
        answer = ask(__name__, "try_here", [text, str(folder)], deadline)
    except ChildFailed as failed:
        faults = role_faults(config, folder, deadline) + algorithm_faults(config, folder, deadline)
        if faults:  # it is one of these
            return UserCodeReport(faults)
        what = f"env.id={config.env.id!r}: to import, make, reset and step it:"
        remedy = "See what it waits for." if failed.late else "Try it in Python."
        return UserCodeReport([f"{what} {failed}. {remedy}"])
    sizes = answer.pop("sizes", None)
    return UserCodeReport(**answer, sizes=None if sizes is None else Sizes(**sizes))


def try_here(text: str, folder: str) -> dict[str, Any]:
    """Returns the fields of a `UserCodeReport`; called in the child."""
    from gmi_drl.roles import load_role
    from gmi_drl.roles.envs import EnvError, check_env, choose_adapter, make_env
    from gmi_drl.roles.policies import distribution_for, observation_width
    from gmi_drl.roles.role.closing import Closing

    sys.path.insert(0, folder)
    config = load_config(json.loads(text))
    env, adapter = config.env, choose_adapter(config.env.id, config.env.adapter)
    faults = check_env(env.id, env.adapter, env.options)
    for name, role in config.roles.items():
        if problem := role_problem(role.class_, folder):
            faults.append(role_fault(name, role.class_, problem))
    settings, wrong = checked_settings(config, folder)
    config = config.model_copy(update={"algorithm": settings})
    faults += wrong
    if faults:
        return {"faults": faults}
    classes = [load_role(role.class_, Path(folder)) for role in config.roles.values()]
    if maker := next((name for name in map(_maker_of_envs, classes) if name), ""):
        return {"notes": [f"environments are made by {maker}, and were not looked at"]}
    if adapter in _ON_DEVICE:
        if adapter == "isaacgym" or choose_adapter(env.id) == "gymnasium":
            return {"notes": [f"adapter {adapter}: the environment was not made"]}
        envs = make_env(env.id, 1)  # of the same spaces
        faults, notes = [], [f"adapter {adapter}: the environment was not made on a GPU"]
    else:
        try:
            envs = make_env(
                env.id, _NUM_ENV, adapter=env.adapter, options=env.options,
                max_episode_steps=env.max_episode_steps,
            )  # fmt: skip
            faults, notes = list(_faults(env.id, envs)), []
        except EnvError as error:
            return {"faults": str(error).splitlines()}
    if faults:
        return {"faults": faults}
    own_network = any(map(_makes_policy, classes))
    faults, more = _policy_told(config, envs, own_network)
    notes += more
    distribution = distribution_for(envs.action_space)
    sizes = {
        "observation": observation_width(envs.observation_space),
        "action": distribution.action_columns,
        "parameters": distribution.parameters,
        "has_own_network": own_network,
    }
    closing = Closing()
    closing.later(envs.close)
    closing.all_within()  # one that raises or hangs is no fault: it does not fail a run
    return {"faults": faults, "notes": notes, "sizes": sizes}


def role_faults(config: Config, folder: Path, deadline: timedelta = _DEADLINE) -> list[str]:
    """Lists why roles of the config cannot be loaded; `folder` has modules that it names."""
    faults = []
    for name, role in config.roles.items():
        if problem := _problem_elsewhere(role.class_, folder, deadline):
            faults.append(role_fault(name, role.class_, problem))
    return faults


def role_fault(name: str, reference: str, problem: str) -> str:
    """Words the fault of a role whose class has a problem."""
    return f"roles.{name}={reference!r}; {problem}"


def algorithm_faults(config: Config, folder: Path, deadline: timedelta = _DEADLINE) -> list[str]:
    """Lists what is wrong with an algorithm of the user's: its class, and the settings it has."""
    if not isinstance(config.algorithm, CustomAlgorithmConfig):
        return []
    text = json.dumps(config.model_dump(mode="json"))
    try:
        return list(ask(__name__, "algorithm_problems", [text, str(folder)], deadline))
    except ChildFailed as failed:
        return [f"algorithm.class={config.algorithm.class_!r}; {_importing(failed, deadline)}"]


def _problem_elsewhere(reference: str, folder: Path, deadline: timedelta) -> str:
    try:
        return str(ask(__name__, "role_problem", [reference, str(folder)], deadline))
    except ChildFailed as failed:
        return _importing(failed, deadline)


def _importing(failed: ChildFailed, deadline: timedelta) -> str:
    if failed.late:
        return (
            f"importing it has not ended after {deadline.total_seconds():g} s. "
            'Put what it runs under `if __name__ == "__main__":`.'
        )
    return f"importing it ended the process ({failed}). Try to import it in Python."


def role_problem(reference: str, folder: str) -> str:
    """Returns what is wrong with one class, or ""; called in the child."""
    from gmi_drl.roles import RoleLoadError, load_role

    try:
        load_role(reference, Path(folder))
    except RoleLoadError as error:
        return str(error)
    return ""


def algorithm_problems(text: str, folder: str) -> list[str]:
    """Lists what is wrong with the algorithm of a config; called in the child."""
    return checked_settings(load_config(json.loads(text)), folder)[1]


def checked_settings(config: Config, folder: str) -> tuple[AlgorithmConfig, list[str]]:
    """Returns the settings of the algorithm, as its class has them, and what is wrong with them."""
    from gmi_drl.roles import RoleLoadError
    from gmi_drl.roles.role.role import load_class

    section = config.algorithm
    if not isinstance(section, CustomAlgorithmConfig):
        return section, []
    try:
        settings = settings_of(load_class(section.class_, Path(folder), "algorithm"), section)
    except RoleLoadError as error:
        return section, [f"algorithm.class={section.class_!r}; {error}"]
    except ConfigError as error:
        return section, [str(fault) for fault in error.faults]
    return settings, [str(fault) for fault in mode_faults(settings, config.mode)]


def _policy_told(config: Config, env: VecEnv, own_network: bool) -> tuple[list[str], list[str]]:
    """Why the policy of `run.policy` cannot be served in `env`, and what to say of it otherwise.

    One that is not there is told without an environment.
    """
    from gmi_drl.roles.algorithms import algorithm_class
    from gmi_drl.roles.errors import CheckpointError
    from gmi_drl.roles.policies import observation_width
    from gmi_drl.roles.policies.description import described, load_policy
    from gmi_drl.roles.policies.normalize import Normalizers

    path = config.run.policy
    if config.mode != "serving" or path is None or not Path(path).exists():
        return [], []
    if own_network:
        return [], ["a role makes the policy: it was not compared with that of run.policy"]
    network = algorithm_class(config.algorithm).make_network(config.algorithm, env, None)
    normalizers = Normalizers.of(config.algorithm, observation_width(env.observation_space))
    description = described(network, env, normalizers)
    try:
        note = load_policy(Path(path), network, normalizers, description)
    except CheckpointError as error:
        return [str(error)], []
    return [], [note] if note else []


def _maker_of_envs(role: type[DRL_role]) -> str:
    """The role's name, if it makes its environments itself, or none; else nothing."""
    from gmi_drl.roles.role.acting import ActingRole

    ours = issubclass(role, ActingRole) and role.make_env is ActingRole.make_env
    return "" if ours else role.__name__


def _makes_policy(role: type[DRL_role]) -> bool:
    from gmi_drl.roles.role.acting import ActingRole

    return not issubclass(role, ActingRole) or role.make_policy is not ActingRole.make_policy


def _faults(env_id: str, env: VecEnv) -> Iterator[str]:
    """What keeps a policy from being trained on it; EnvError where its code raises."""
    import torch

    from gmi_drl.roles.envs.spaces import space_faults
    from gmi_drl.roles.policies import distribution_for
    from gmi_drl.roles.samples.batch import env_action

    if faults := space_faults(env_id, env.observation_space, env.action_space):
        yield from faults
        return
    distribution = distribution_for(env.action_space)
    to_env = env_action(env.action_space, env.device)
    generator = torch.Generator().manual_seed(0)
    if bad := list(_not_finite(env_id, "reset", "observation", env.reset(seed=0))):
        yield from bad
        return
    for _ in range(_STEPS):
        shape = (env.num_env, distribution.parameters)
        params, noise = torch.zeros(shape), torch.zeros(env.num_env, distribution.noise_columns)
        distribution.noise(shape[:1], torch.zeros(shape[1]), generator, noise)
        out = torch.zeros(env.num_env, distribution.action_columns)
        step = env.step(to_env(distribution.sample(params, noise, out)))
        bad = [
            *_not_finite(env_id, "step", "observation", step.final_observation),
            *_not_finite(env_id, "step", "reward", step.reward),
        ]
        if bad:
            yield from bad
            return


def _not_finite(env_id: str, what: str, part: str, given: torch.Tensor) -> Iterator[str]:
    if not bool(given.isfinite().all()):
        yield (
            f"env {env_id}: {what} gave {'an' if part[0] == 'o' else 'a'} {part} that is not "
            "finite; a policy cannot learn from it. Clip it, or look at the physics."
        )
