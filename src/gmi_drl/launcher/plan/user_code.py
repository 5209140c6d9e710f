"""Tries the user's code that a config names.

In a process of its own, with a deadline: classes are imported, a batch of the environment stepped.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.gmi import DiscoveryError
from gmi_drl.launcher.callbacks.loading import callback_problems, named_callbacks
from gmi_drl.placement import (
    AUTO,
    CONVOLUTIONAL,
    ConfigError,
    CustomAlgorithmConfig,
    Layout,
    LayoutError,
    config_of_host,
    is_own_network,
    layout_of,
    load_config,
)
from gmi_drl.placement.checks.memory import Sizes

from .child_process import ChildFailed, ask
from .planning import find_devices

if TYPE_CHECKING:
    import torch

    from gmi_drl.placement import Config
    from gmi_drl.roles import DRL_role
    from gmi_drl.roles.envs import VecEnv

_DEADLINE = timedelta(seconds=60)
_NUM_ENV: Final = 2
_STEPS: Final = 4


@dataclass(frozen=True)
class UserCodeReport:
    """Holds what trying the environment and the classes of the user has shown."""

    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what was not looked at
    sizes: Sizes | None = None  # None: they are not known


def try_user_code(config: Config, folder: Path, deadline: timedelta = _DEADLINE) -> UserCodeReport:
    """Finds what is wrong with the config's environment and role classes, and their sizes.

    Modules beside the config file are in `folder`. Blocks for at most `deadline`, or several of
    them where it passes, and leaves no process of that code behind.
    """
    try:
        answer = ask(__name__, "try_here", [config.model_dump(mode="json"), str(folder)], deadline)
    except ChildFailed as failed:
        if faults := class_faults(config, folder, deadline):  # a class is at fault
            return UserCodeReport(faults)
        what = f"env.id={config.env.id!r}: to import, make, reset and step it:"
        remedy = "See what it waits for." if failed.late else "Try it in Python."
        return UserCodeReport([f"{what} {failed}. {remedy}"])
    sizes = answer.pop("sizes", None)
    return UserCodeReport(**answer, sizes=None if sizes is None else Sizes(**sizes))


def names_user_code(config: Config) -> bool:
    """Tells whether a config names environments, wrappers, networks or classes of the user's."""
    algorithm, env = config.algorithm, config.env
    return (
        bool(config.roles or config.run.callbacks)
        or isinstance(algorithm, CustomAlgorithmConfig)
        or is_own_network(algorithm.network)
        or ":" in env.id
        or env.adapter == "pettingzoo"  # whose agents are known when it is made
        or any(":" in name for entry in env.wrappers for name in _names_in(entry))
    )


def _names_in(entry: str | dict[str, Any]) -> list[str]:
    return [entry] if isinstance(entry, str) else list(entry)


def try_here(
    settings: dict[str, Any],
    folder: str,
    layout: Layout | None = None,
    roles: Sequence[type[DRL_role]] = (),
) -> dict[str, Any]:
    """Returns the fields of a `UserCodeReport` on a config; called in a process of its own.

    `roles` are classes beside those that the config names.
    """
    from gmi_drl.roles import RoleError, load_role
    from gmi_drl.roles.algorithms import algorithm_class
    from gmi_drl.roles.envs import EnvError, make_env
    from gmi_drl.roles.envs.adapters import ADAPTERS, check_env, choose_adapter
    from gmi_drl.roles.role.closing import Closing

    sys.path.insert(0, folder)
    config = load_config(settings)
    env, adapter = config.env, choose_adapter(config.env.id, config.env.adapter)
    faults = check_env(env.id, env.adapter, env.options, env.wrappers)
    for name, role in config.roles.items():
        faults += role_problems(name, role.class_, folder)
    for reference, options in named_callbacks(config):
        faults += callback_problems(reference, options, folder)
    custom = isinstance(config.algorithm, CustomAlgorithmConfig)
    config, settings_faults = _with_settings(config, folder, layout or _local_layout(config))
    faults += settings_faults
    if faults:
        return {"faults": faults}
    named = [role.class_ for role in config.roles.values()]
    classes = [*roles, *(load_role(role, Path(folder)) for role in named)]
    if env_makers := [role.__name__ for role in classes if not _inherits(role, "make_env")]:
        return {"notes": [f"environments are made by {env_makers[0]}, and were not looked at"]}
    own_network = not all(_inherits(role, "make_policy") for role in classes)
    compiles = ADAPTERS[adapter].compiles != ""  # which takes a GPU, and minutes
    if adapter == "isaacgym" or (compiles and choose_adapter(env.id) == "gymnasium"):
        return {"notes": [f"adapter {adapter}: the environment was not made"]}
    closing = Closing()  # close() that raises or hangs is no fault: it does not fail a run
    try:
        if compiles:  # the Gymnasium environment of that id has the same spaces
            envs = make_env(env.id, 1, wrappers=env.wrappers)
        else:
            envs = make_env(
                env.id, _NUM_ENV, adapter=env.adapter, options=env.options,
                max_episode_steps=env.max_episode_steps, wrappers=env.wrappers,
                multi_agent=config.multi_agent, of_team=config.algorithm.of_team,
            )  # fmt: skip
        closing.later(envs.close)
        faults = [] if compiles else [*_league_faults(config, envs), *_env_faults(env.id, envs)]
        if not (faults or own_network or custom):
            algorithm = config.algorithm
            smallest = algorithm  # with a small network, if it needs no image: the same spaces
            if algorithm.network not in CONVOLUTIONAL and not is_own_network(algorithm.network):
                smallest = algorithm.model_copy(update={"network": (1,)})
            for group in _space_groups(envs):
                algorithm_class(algorithm).make_network(smallest, group, None)
        if faults:
            return {"faults": faults}
        faults, notes = _policy_faults(config, envs, own_network)
        if compiles:
            notes.insert(0, f"adapter {adapter}: the environment was not made on a GPU")
        return {"faults": faults, "notes": notes, "sizes": _sizes_of(envs, own_network)}
    except (EnvError, RoleError) as error:
        return {"faults": str(error).splitlines()}
    finally:
        closing.all_briefly()


def _sizes_of(env: VecEnv, own_network: bool) -> dict[str, Any]:
    """Returns the fields of the `Sizes` of an environment and its policy."""
    from gmi_drl.roles.policies import distribution_for, observation_width

    distributions = [distribution_for(group.action_space) for group in _space_groups(env)]
    stacking = getattr(env, "stacking", None)
    return {
        "observation": observation_width(env.observation_space),
        "observation_bytes": 1 if env.observation_space.dtype == "uint8" else 4,
        "frames": 1 if stacking is None else stacking.count,
        "action": max(distribution.action_columns for distribution in distributions),
        "parameters": max(distribution.parameters for distribution in distributions),
        "agents": max(env.num_env // _NUM_ENV, 1),  # a team is one row
        "has_own_network": own_network,
    }


def _local_layout(config: Config) -> Layout | None:
    """Returns the layout by which an algorithm of the user's is checked; hosts are as this one."""
    with suppress(DiscoveryError, ConfigError, LayoutError):  # each a fault that planning tells
        if config.is_resolved and isinstance(config.algorithm, CustomAlgorithmConfig):
            here = find_devices(config)
            hosts = [config_of_host(config, host) for host in range(config.hosts)]
            return Layout.joined([layout_of(on_host, here) for on_host in hosts])
    return None


def class_faults(config: Config, folder: Path, deadline: timedelta = _DEADLINE) -> list[str]:
    """Lists why classes that the config names cannot be loaded, each in a process of its own.

    Those of roles and callbacks, whose modules may lie in `folder`, and of the algorithm, with its
    settings.
    """
    checks: list[tuple[str, str, list[Any]]] = [
        (f"roles.{name}={role.class_!r}", "role_problems", [name, role.class_])
        for name, role in config.roles.items()
    ]
    if isinstance(config.algorithm, CustomAlgorithmConfig):
        what = f"algorithm.class={config.algorithm.class_!r}"
        checks.append((what, "algorithm_problems", [config.model_dump(mode="json")]))
    checks += [
        (f"run.callbacks={reference!r}", "callback_problems", [reference, options])
        for reference, options in named_callbacks(config)
    ]
    faults: list[str] = []
    for what, function, arguments in checks:
        try:
            faults += ask(__name__, function, [*arguments, str(folder)], deadline)
        except ChildFailed as failed:
            problem = f"importing it ended the process ({failed}). Try to import it in Python."
            if failed.late:
                problem = (
                    f"importing it has not ended after {deadline.total_seconds():g} s. "
                    'Put what it runs under `if __name__ == "__main__":`.'
                )
            faults.append(f"{what}; {problem}")
    return faults


def role_problems(name: str, reference: str, folder: str) -> list[str]:
    """Lists what is wrong with the class of a role; called in the child."""
    from gmi_drl.roles import RoleLoadError, load_role

    try:
        load_role(reference, Path(folder))
    except RoleLoadError as error:
        return [f"roles.{name}={reference!r}; {error}"]
    return []


def algorithm_problems(settings: dict[str, Any], folder: str) -> list[str]:
    """Lists what is wrong with the algorithm of a config; called in the child."""
    return _with_settings(load_config(settings), folder)[1]


def _with_settings(
    config: Config, folder: str, layout: Layout | None = None
) -> tuple[Config, list[str]]:
    """Returns the config with the algorithm's settings, and what is wrong with them."""
    from gmi_drl.roles import RoleLoadError
    from gmi_drl.roles.algorithms import with_settings

    try:
        return with_settings(config, Path(folder), layout), []
    except RoleLoadError as error:
        return config, [str(error)]
    except ConfigError as error:
        return config, [str(fault) for fault in error.faults]


def _policy_faults(config: Config, env: VecEnv, own_network: bool) -> tuple[list[str], list[str]]:
    """Says why the policy of `run.policy` cannot be served in `env`, or else what to note of it.

    A policy whose folder does not exist is a fault of `planning.policy_faults`.
    """
    from gmi_drl.roles.algorithms import algorithm_class
    from gmi_drl.roles.errors import CheckpointError
    from gmi_drl.roles.policies import observation_width
    from gmi_drl.roles.policies.description import described, load_policy
    from gmi_drl.roles.policies.normalize import Normalizers

    policy_path = config.run.policy
    if config.mode != "serving" or policy_path is None or not Path(policy_path).exists():
        return [], []
    if own_network:
        return [], ["a role makes the policy: it was not compared with that of run.policy"]
    network = algorithm_class(config.algorithm).make_network(config.algorithm, env, None)
    normalizers = Normalizers.of(config.algorithm, observation_width(env.observation_space))
    description = described(network, env, normalizers)
    try:
        load_policy(Path(policy_path), network, normalizers, description)
    except CheckpointError as error:
        return [str(error)], []
    return [], []


def _league_faults(config: Config, env: VecEnv) -> list[str]:
    """Says why a policy that is trained against itself would not play against all snapshots."""
    from gmi_drl.roles.algorithms.self_play import league_faults

    league = None if config.multi_agent is None else config.multi_agent.self_play
    if league is None or config.mode == "serving":
        return []
    num_env = None if config.env.num_env == AUTO else config.env.num_env
    return league_faults(league, len(getattr(env, "agents", ())), num_env)


def _inherits(role: type[DRL_role], method: str) -> bool:
    """Tells whether a role makes its environments, or its policy, as ours do."""
    from gmi_drl.roles.role.acting import ActingRole

    default = getattr(ActingRole, method)
    return issubclass(role, ActingRole) and getattr(role, method) is default


def _env_faults(env_id: str, env: VecEnv) -> Iterator[str]:
    """Yields what keeps a policy from being trained in `env`; EnvError where its code raises."""
    import torch

    from gmi_drl.roles.envs.spaces import space_faults
    from gmi_drl.roles.samples.batch import env_action

    for group in _space_groups(env):
        if faults := space_faults(env_id, group.observation_space, group.action_space):
            yield from faults
            return
    to_env = env_action(env.action_space, env.device)
    generator = torch.Generator().manual_seed(0)
    with _raising_env_error(env_id, "reset"):
        first = env.reset(seed=0)
    shape = (env.num_env, *(env.observation_space.shape or ()))
    if len(_space_groups(env)) == 1 and tuple(first.shape) != shape:
        yield (
            f"env {env_id}: reset gave observations of shape {list(first.shape)}; must be of shape "
            f"{list(shape)}, by num_env and observation_space. A wrapper that changes the shape "
            "sets observation_space too."
        )
        return
    if problems := list(_finite_faults(env_id, "reset gave an observation", first)):
        yield from problems
        return
    for _ in range(_STEPS):
        action = to_env(_random_actions(env, generator))
        with _raising_env_error(env_id, "step"):
            step = env.step(action)
        problems = [
            *_finite_faults(env_id, "step gave an observation", step.final_observation),
            *_finite_faults(env_id, "step gave a reward", step.reward),
        ]
        if problems:
            yield from problems
            return
    yield from _finite_faults(env_id, "its second reset gave an observation", env.reset())


def _space_groups(env: VecEnv) -> Sequence[Any]:
    """Returns what has the spaces of policies: the groups of agents, or the environment."""
    groups: Sequence[Any] = getattr(env, "groups", ())
    return groups if len(groups) > 1 else [env]


def _random_actions(env: VecEnv, generator: torch.Generator) -> torch.Tensor:
    """Returns action rows [N, A] as new policies draw them."""
    import torch

    from gmi_drl.roles.envs.agents import rows_of
    from gmi_drl.roles.policies import distribution_for

    groups = _space_groups(env)
    distributions = [distribution_for(group.action_space) for group in groups]
    columns = max(distribution.action_columns for distribution in distributions)
    actions = torch.zeros(env.num_env, columns)
    several = len(groups) > 1
    row_slices = rows_of(groups, env.num_env) if several else [slice(0, env.num_env)]
    for rows, distribution in zip(row_slices, distributions, strict=True):
        count = rows.stop - rows.start
        params = torch.zeros(count, distribution.parameters)
        noise = torch.zeros(count, distribution.noise_columns)
        distribution.noise((count,), torch.zeros(distribution.parameters), generator, noise)
        distribution.sample(params, noise, actions[rows, : distribution.action_columns])
    return actions


@contextmanager
def _raising_env_error(env_id: str, what: str) -> Iterator[None]:
    """Raises an EnvError that names the line, also where a wrapper of the batch raised."""
    from gmi_drl.roles.envs import EnvError
    from gmi_drl.roles.envs.errors import EnvRaised

    try:
        yield
    except EnvError:
        raise
    except Exception as error:
        raise EnvRaised.of(env_id, what, error) from error


def _finite_faults(env_id: str, what: str, given: torch.Tensor) -> Iterator[str]:
    if not bool(given.isfinite().all()):
        yield (
            f"env {env_id}: {what} that is not finite; a policy cannot learn from it. Clip it, or "
            "look at the physics."
        )
