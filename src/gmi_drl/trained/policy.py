"""Loads the policy of a run, to act by it in any program.

    policy = gmi_drl.load_policy("runs/ant/2026-11-26_06-48-46")
    action = policy.act(observation)

It starts no process. N = environments, D = numbers of an observation, A = numbers of an action row,
S = numbers of what the policy remembers of an environment (0 for most).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from gymnasium import Space
from gymnasium.spaces import Discrete, MultiDiscrete
from numpy.typing import NDArray
from torch import Tensor, nn

from gmi_drl.errors import GmiDrlError
from gmi_drl.launcher.folder.run_folder import RunFolder
from gmi_drl.placement import Config, Layout, load_config
from gmi_drl.roles import DRL_role, GMI_manager, GmiContext, load_role
from gmi_drl.roles.algorithms import with_settings
from gmi_drl.roles.envs.agents import AgentGroup, rows_of
from gmi_drl.roles.envs.errors import EnvError
from gmi_drl.roles.envs.flatten import Flattener, part_at, unflattened_action
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.envs.spaces import Leaf, action_columns, leaves
from gmi_drl.roles.envs.spaces import Path as SpacePath
from gmi_drl.roles.loading import OUR_CLASSES, classes_of, importable
from gmi_drl.roles.policies.description import load_policy as load_weights
from gmi_drl.roles.policies.league import LeaguePolicy
from gmi_drl.roles.policies.policy import GreedyActor, SamplingActor
from gmi_drl.roles.policies.policy_map import NormalizerMap, PolicyMap
from gmi_drl.roles.policies.structure import structured_space
from gmi_drl.roles.role.acting import ActingRole
from gmi_drl.roles.samples.batch import Batch, env_action
from gmi_drl.roles.state import checkpoint as checkpoints

if TYPE_CHECKING:
    from gmi_drl.roles.policies.normalize import RunningNormalizer
    from gmi_drl.roles.policies.policy import Policy

_MOST_SHOWN: Final = 80  # characters of a value in an error


class PolicyNotLoaded(GmiDrlError, RuntimeError):
    """Says why the policy of a run cannot be loaded."""

    command_exit_code = 2


class PolicyFailed(PolicyNotLoaded):
    """Says what failed while the policy of a run was used, of its own code or of what wrote it."""

    command_exit_code = 1


class PolicyModule(nn.Module):
    """Is a trained policy as a function: observations in, what the environments take out."""

    def __init__(
        self, policy: Policy, normalizer: RunningNormalizer | None, action_space: Space[Any]
    ) -> None:
        super().__init__()
        self.network, self._policy, self.normalizer = policy.network, policy, normalizer
        self.state_columns = policy.state_columns
        self.to_env = env_action(action_space, next(policy.network.parameters()).device)

    def forward(self, observation: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the most likely actions, and the states [N, S] after them.

        `observation` [N, D] is as environments show it, and `state` [N, S] zero where an episode
        begins. Actions are what `VecEnv.step` takes: [N] for a Discrete, else [N, A].
        """
        inputs = observation.to(torch.float32)
        if self.normalizer is not None:
            inputs = self.normalizer.normalize(inputs)
        if not self.state_columns:
            return self.to_env(self._policy.mode(inputs)), state
        next_state = state.clone()  # `mode` updates it in place
        return self.to_env(self._policy.mode(inputs, next_state)), next_state


class ActorAlone(ActingRole):
    """Is a role of this package that only acts, as all of them act alike; imports no other."""

    def GMI_run(self, **params: Any) -> None:
        raise AssertionError("a role that is made of a run's folder is not run")


@dataclass(frozen=True)
class Origin:
    """Says where a policy is from."""

    folder: RunFolder
    checkpoint: Path
    config: Config
    layout: Layout
    steps: int  # environment steps that it was trained with

    @property
    def import_path(self) -> Path:
        """Returns where the modules lie that the config names."""
        return self.folder.import_path()

    @property
    def env_id(self) -> str:
        return self.config.env.id


class TrainedPolicy:
    """A policy that acts and does not learn."""

    def __init__(
        self,
        role: ActingRole,
        origin: Origin,
        structure: Space[Any],
        action_space: Space[Any],
        groups: Sequence[AgentGroup] = (),
        policy: Policy | None = None,
        normalizer: RunningNormalizer | None = None,
        together: TrainedPolicy | None = None,
    ) -> None:
        """`structure` is the space of observations before they become vectors.

        `groups`: of agents, where there are several. `policy`, `normalizer`: instead of the role's,
        for the first of `groups`; `together` acts for all agents then.
        """
        if policy is None:
            policy, normalizer = role.policy, role.normalizers.observations
        self.origin, self._role, self._groups = origin, role, tuple(groups)
        self.observation_space, self.action_space = structure, action_space
        self.module = PolicyModule(policy, normalizer, self.action_space).eval()
        self._flattener = Flattener(structure, origin.env_id)
        self._state: Tensor | None = None
        self._together = together or self

    @property
    def policy_ids(self) -> list[str]:
        """Returns the names of its policies, where it has several; each is `of_policy`."""
        return [group.policy for group in self._groups] if len(self._groups) > 1 else []

    def of_policy(self, policy_id: str | None) -> TrainedPolicy:
        """Returns the one policy of this name; PolicyNotLoaded if it is not clear which that is."""
        names = [group.policy for group in self._groups]
        policy, normalizer = self._role.policy, self._role.normalizers.observations
        if policy_id is None and len(names) < 2:
            return self
        if policy_id not in names:
            rule = f"it has {', '.join(names)}" if names else "its environment has one agent"
            remedy = "Give one of these as policy_id." if names else "Leave policy_id out."
            raise PolicyNotLoaded(
                f"policy_id={policy_id!r}: no policy of {self.origin.folder.path}; {rule}. {remedy}"
            )
        if not isinstance(policy, PolicyMap):
            return self
        group = self._groups[names.index(policy_id)]
        if isinstance(normalizer, NormalizerMap):
            normalizer = normalizer.normalizers[policy_id]
        return TrainedPolicy(
            self._role, self.origin, group.structured_space, group.action_space, [group],
            policy=policy.policies[policy_id], normalizer=normalizer, together=self,
        )  # fmt: skip

    def use_threads(self) -> AbstractContextManager[None]:
        """Runs a block with as many threads as its GMI: their number decides the last bits."""
        return self._role.use_threads()

    @torch.no_grad()
    def seen(self, count: int, num_env: int = 8) -> tuple[Tensor, Tensor]:
        """Returns `count` observations [B, D] that it meets, and the states [B, S] before them.

        All agents act, in environments as those that it was trained in.
        """
        module, observations, states, collected = self._together.module, [], [], 0
        with importable(self.origin.import_path), closing(self.make_env(num_env)) as env:
            rows, width = self._rows_of(env), self._flattener.flat.shape[0]
            observation = env.reset()
            state = torch.zeros(len(observation), module.state_columns, device=self.device)
            while collected < count:
                observations.append(observation[rows, :width].clone())
                states.append(state[rows])
                collected += len(observations[-1])
                action, state = module(observation, state)
                step = env.step(action)
                done = step.terminated | step.truncated
                state = state.masked_fill(done[:, None], 0.0)
                observation = step.observation
        return torch.cat(observations)[:count], torch.cat(states)[:count]

    def _rows_of(self, env: VecEnv) -> slice:
        """Returns the rows of an environment that it acts for."""
        groups = self._together._groups
        if self._together is self:
            return slice(None)
        names = [group.policy for group in groups]
        return rows_of(groups, env.num_env)[names.index(self._groups[0].policy)]

    @property
    def normalizer(self) -> RunningNormalizer | None:
        """Returns what observations are normalised by, if they are."""
        return self.module.normalizer

    @property
    def description(self) -> dict[str, Any]:
        """Returns spaces, shapes and settings, as checkpoints keep them."""
        return self._role.description

    @property
    def device(self) -> torch.device:
        return self._role.mgr.context.device

    def act(self, observation: Any, began: Any = None) -> Any:
        """Returns the most likely action for an observation, or actions for a batch of them.

        Observations are as the environment gives them: arrays, tensors, or dicts and tuples of
        these; actions are of the same kind, as the environment takes them. A policy that remembers
        begins anew where `began` [N] is true, at the first call after `reset`, and where the
        number of observations changes. ValueError where something does not fit.
        """
        rows, single = self._rows(observation)
        state = self._state
        if state is None or len(state) != len(rows):
            state = self._zeros(len(rows))
        actions, self._state = self._forward(rows, self._masked(state, began, "began"))
        return self._as_observed(actions, single, observation)

    def reset(self) -> None:
        """Forgets what the policy remembers: episodes begin."""
        self._state = None

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
    ) -> tuple[Any, Any]:
        """Returns actions and the states after them, as Stable-Baselines3's models do.

        So the policy goes where those go, such as `evaluate_policy`. It keeps nothing itself.
        ValueError for `deterministic=False`: `gmi-drl evaluate --stochastic` draws actions.
        """
        if not deterministic:
            raise ValueError(
                "deterministic=False; must be True, as this policy gives its most likely action. "
                "To draw actions as in training, use gmi_drl.evaluate(run, stochastic=True)."
            )
        rows, single = self._rows(observation)
        initial = self._zeros(len(rows))
        if state is not None and self.module.state_columns:
            initial = self._checked_state(state, len(rows))
        actions, after = self._forward(rows, self._masked(initial, episode_start, "episode_start"))
        saved = (after.cpu().numpy(),) if self.module.state_columns else None
        return self._as_observed(actions, single, observation), saved

    def make_env(self, num_env: int = 1, gmi_id: int | None = None) -> VecEnv:
        """Makes environments as those that it was trained in, wrappers and all.

        `gmi_id`: with the seeds by which this GMI of the run evaluates. Close them when done.
        """
        with importable(self.origin.import_path):
            if gmi_id is None:
                return self._role.make_env(num_env)
            return _role_of(self.origin, gmi_id, self.device).make_env(num_env, seed=2)

    def actor(
        self,
        num_env: int,
        generator: torch.Generator | None = None,
        index: int = 0,
        num_actors: int = 1,
    ) -> GreedyActor | SamplingActor:
        """Returns what acts in `num_env` environments, or rows of agents.

        With a generator it draws actions as in training. PolicyNotLoaded if it draws none there.
        `index`: of `num_actors` alike, whose environments explore as all of a training's do.
        """
        role, normalizer = self._role, self._role.normalizers.observations
        policy = role.policy
        if generator is None:
            return GreedyActor(policy, normalizer)
        if not policy.noise_columns:
            raise PolicyNotLoaded(
                f"a policy of {self.origin.config.algorithm.name} draws no actions when it acts: "
                "training explores by parameters or games that it draws itself. Leave --stochastic "
                "out."
            )
        numbers = range(index * num_env, (index + 1) * num_env)
        role.algorithm.explore_as(numbers, num_actors * num_env)
        role.algorithm.before_sampling(self.origin.steps)
        if isinstance(policy, LeaguePolicy):  # whose snapshots were not loaded
            policy = policy.alone
        batch = Batch.allocate(1, num_env, role.observed, policy, self.device)
        return SamplingActor(policy, normalizer, batch, generator)

    def _zeros(self, count: int) -> Tensor:
        return torch.zeros(count, self.module.state_columns, device=self.device)

    def _masked(self, state: Tensor, began: Any, name: str) -> Tensor:
        """Returns a state [N, S] that is zero where episodes begin."""
        if began is None:
            return state
        mask = _array(began)
        if mask is None or mask.size != len(state):
            raise ValueError(
                f"{name} {_shown(began)}; must be true or false for each of the {len(state)} "
                "observations. Give one for each."
            )
        starts = torch.from_numpy(mask.astype(bool).reshape(-1, 1)).to(state.device)
        return state.masked_fill(starts, 0.0)

    def _checked_state(self, state: Any, count: int) -> Tensor:
        """Returns the state [N, S] that `predict` is given."""
        shape = (count, self.module.state_columns)
        array = _array(state[0]) if isinstance(state, tuple | list) and len(state) == 1 else None
        if array is None or array.shape != shape:
            raise ValueError(
                f"state {_shown(state)}; must be what predict gave for as many observations, an "
                f"array of shape {shape} in a tuple. Give that, or None where episodes begin."
            )
        return torch.as_tensor(array, dtype=torch.float32, device=self.device)

    @torch.no_grad()
    def _forward(self, rows: Tensor, state: Tensor) -> tuple[Any, Tensor]:
        """Returns actions [N, ...] in the structure of their space, and the states after them."""
        actions, next_state = self.module(rows, state)
        return unflattened_action(
            self.action_space,
            actions.cpu().numpy().reshape(len(rows), action_columns(self.action_space)),
        ), next_state

    def _rows(self, observation: Any) -> tuple[Tensor, bool]:
        """Returns observations as vectors [N, D], and whether it is one alone."""
        arrays = _mapped(observation, _array)
        batches = {_batch_shape(arrays, *leaf) for leaf in leaves(self.observation_space)}
        batch = batches.pop()
        if batch is None or batches:
            raise self._misfit(observation)
        single, count = not batch, batch[0] if batch else 1
        if single:
            arrays = _mapped(arrays, lambda part: part[None])
        flat = self._flattener.flat
        rows = np.zeros((count, *flat.shape), dtype=flat.dtype)
        try:
            self._flattener.write(arrays, rows)
        except EnvError:  # a choice that there is not
            raise self._misfit(observation) from None
        return torch.from_numpy(rows).to(self.device), single

    def _misfit(self, observation: Any) -> ValueError:
        return ValueError(
            f"an observation {_shown(observation)}; must be of {self.observation_space}, or a "
            f"batch of these. It is of {self.origin.env_id} with its wrappers: see make_env."
        )

    @staticmethod
    def _as_observed(actions: Any, single: bool, observation: Any) -> Any:
        """Returns actions in the form of the observation: one or a batch, in numpy or torch."""
        if single:
            actions = _mapped(actions, lambda part: part[0])
        tensors = list(_tensors(observation))
        if not tensors:
            return actions
        return _mapped(actions, lambda part: torch.as_tensor(part, device=tensors[0].device))


def load_policy(
    run: Path | str,
    *,
    policy_id: str | None = None,
    checkpoint: int | None = None,
    overrides: Iterable[str] = (),
    device: str | torch.device = "cpu",
) -> TrainedPolicy:
    """Loads what a run has trained, by its newest checkpoint.

    `run` is its folder, or a checkpoint's; `checkpoint` is the iteration of another one. Of a run
    of several policies (`multi_agent`), `policy_id` says which. `overrides` are `section.key=value`
    strings, such as `env.adapter=mujoco` for a run of an adapter that is not here. RunFolderError,
    CheckpointError, ConfigError, EnvSpecError or PolicyNotLoaded say why it cannot be done.
    """
    loaded = load_all(run, checkpoint=checkpoint, overrides=overrides, device=device)
    return loaded.of_policy(policy_id)


def load_all(
    run: Path | str,
    *,
    checkpoint: int | None = None,
    overrides: Iterable[str] = (),
    device: str | torch.device = "cpu",
) -> TrainedPolicy:
    """Loads a run as `load_policy` does, with all of its policies where it has several.

    Those act together in the environments that `make_env` makes.
    """
    folder = RunFolder.existing(Path(run))
    where = Path(run)
    if checkpoint is not None:
        if where.resolve() != folder.path:
            raise PolicyNotLoaded(
                f"{where} with checkpoint {checkpoint}: one of them says which checkpoint. Give "
                f"{folder.path} and the iteration, or that path alone."
            )
        where = checkpoints.folder_of(folder.path / "checkpoints", checkpoint)
        if not where.is_dir():
            raise PolicyNotLoaded(_no_checkpoint(folder, checkpoint))
    saved = checkpoints.find(where, ["shared"])
    config = load_config(folder.path / "config.yaml", list(overrides))
    if config.mode == "serving":
        raise PolicyNotLoaded(
            f"{folder.path} is a run that served a policy, and trained none. Give the run that "
            f"trained it: {config.run.policy or 'it served one that was not trained'}."
        )
    steps = int(saved.manifest.get("steps", 0))
    origin = Origin(folder, saved.folder, config, folder.layout(), steps)
    device = _usable_device(device)
    with importable(origin.import_path):
        first = origin.layout.holding("trainer")[0]  # those that train are those that evaluate
        role = _role_of(origin, first.gmi_id, device)
        with closing(role.make_env(1, seed=4)) as env:
            role.build(env)
            structure, action_space = structured_space(env), env.action_space
            groups = getattr(env, "groups", ())
    load_weights(saved.folder, role.policy.network, role.normalizers, role.description)
    return TrainedPolicy(role, origin, structure, action_space, groups)


def _usable_device(device: str | torch.device) -> torch.device:
    """Returns a device that is here; PolicyNotLoaded otherwise."""
    rule = "no device of torch's"
    with suppress(RuntimeError):
        chosen = torch.device(device)
        if chosen.type == "cpu" or (
            chosen.type == "cuda" and (chosen.index or 0) < torch.cuda.device_count()
        ):
            return chosen
        rule = "no such device can be used here"
    raise PolicyNotLoaded(f"device={str(device)!r}: {rule}. Use cpu, or cuda where there is a GPU.")


def _role_of(origin: Origin, gmi_id: int, device: torch.device) -> ActingRole:
    """Makes the role of a GMI of the run, in this process and alone."""
    config, layout = with_settings(origin.config), origin.layout
    spec = layout.gmi(gmi_id)
    reference = classes_of(config, layout, None)[spec.roles[-1]]
    role: type[DRL_role] = ActorAlone
    if reference not in OUR_CLASSES:
        role = load_role(reference, origin.import_path)
    if not issubclass(role, ActingRole):
        raise PolicyNotLoaded(
            f"{origin.folder.path}: its {spec.roles[-1]} is a {role.__name__}, which has no policy "
            "that is known here. Derive it from gmi_drl.Holistic, Trainer or Agent."
        )
    context = GmiContext(gmi_id, layout, config, device=device)
    GMI_manager.bind(context)
    try:
        return role(gmi_id, "+".join(spec.roles), spec.gpu_id)
    finally:
        GMI_manager.bind(None)


def _no_checkpoint(folder: RunFolder, iteration: int) -> str:
    paths = checkpoints.all_in(folder.path / "checkpoints")
    numbers = ", ".join(str(int(path.name.partition("_")[2])) for path in paths) or "none"
    return (
        f"checkpoint {iteration}: {folder.path} has no such one. Give an iteration that it has: "
        f"{numbers}."
    )


def _array(part: Any) -> NDArray[Any] | None:
    """Returns numbers as an array; None for what is no array of numbers."""
    try:
        array = part.detach().cpu().numpy() if isinstance(part, Tensor) else np.asarray(part)
    except (TypeError, ValueError):  # lists of different lengths
        return None
    return array if array.dtype.kind in "biuf" else None


def _batch_shape(arrays: Any, path: SpacePath, leaf: Leaf) -> tuple[int, ...] | None:
    """Returns () of one observation and (N,) of a batch; None where a part does not fit."""
    try:
        part = part_at(arrays, path)
    except (KeyError, IndexError, TypeError):
        return None
    shape = leaf.shape or ()
    if not isinstance(part, np.ndarray) or part.ndim - len(shape) not in (0, 1):
        return None
    batch_dims = part.ndim - len(shape)
    is_choice = isinstance(leaf, Discrete | MultiDiscrete)
    fits = part.shape[batch_dims:] == shape and not (is_choice and part.dtype.kind == "f")
    return part.shape[:batch_dims] if fits else None


def _shown(value: Any) -> str:
    """Returns a value for an error: an array's shape, or the beginning of what it is."""
    array = _array(value)
    text = " ".join(repr(value).split())
    if array is not None and array.ndim:
        return f"of shape {array.shape}, {array.dtype}"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]} ..."


def _mapped(structure: Any, change: Callable[[Any], Any]) -> Any:
    """Returns dicts and tuples with each of their parts changed."""
    if isinstance(structure, Mapping):
        return {key: _mapped(part, change) for key, part in structure.items()}
    if isinstance(structure, tuple):
        return tuple(_mapped(part, change) for part in structure)
    return change(structure)


def _tensors(structure: Any) -> Iterator[Tensor]:
    if isinstance(structure, Mapping):
        for part in structure.values():
            yield from _tensors(part)
    elif isinstance(structure, tuple):
        for part in structure:
            yield from _tensors(part)
    elif isinstance(structure, Tensor):
        yield structure
