"""What all roles that act have in common: environments, a policy, and how it acts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
from gymnasium import spaces
from torch import Tensor

from gmi_drl.placement import AlgorithmConfig, hidden_sizes
from gmi_drl.roles.envs.errors import EnvSpecError
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.envs.spaces import space_faults
from gmi_drl.roles.errors import CheckpointError
from gmi_drl.roles.graphs import Graph, Pool, graphs_on
from gmi_drl.roles.role.role import DRL_role
from gmi_drl.roles.samples.collector import Collector
from gmi_drl.roles.state import checkpoint

from .check_policy import check_policy
from .description import compare, described
from .normalize import Normalizers, RunningNormalizer
from .policy import ActorCritic, distribution_for, observation_width

_LEARNERS: Final = {"normalize_value"}  # of a policy's description: what acting does not need


class ActingRole(DRL_role):
    """A role with environments or a policy. Override `make_env` or `make_policy` to change them.

    Agents and trainers of one run must be given the same policy.
    """

    _its_pool: Pool | None = None
    _description: dict[str, Any]  # of the policy, from when it is built

    def make_env(self, num_env: int | None = None, seed: int = 0) -> VecEnv:
        """The environments of this GMI; `num_env` and `seed` are given for evaluation."""
        return self.mgr.make_env(num_env, seed)

    def make_policy(self, env: VecEnv, generator: torch.Generator) -> ActorCritic:
        """The network to act with; every GMI must build the same one from `generator`.

        A torch.nn.Module of float32 parameters, with A the numbers of an action (1 for Discrete)
        and P those of its distribution (A for a Box, the choices for Discrete):

        - `forward(observation [B, D])` gives [B, P + 1]: P distribution parameters (means, or
          logits), then the value; D is the width of an observation vector;
        - `distribution`: as `policy.distribution_for(env.action_space)` makes it;
        - `log_std`: a parameter [A] for a Box, [0] for Discrete;
        - `map_value(scale, shift)`: makes the value that comes out scale * value + shift.

        Only parameters are saved and shared, no buffers. PolicyError tells what is missing.
        """
        return policy_of(self.mgr.config.algorithm, env, generator)

    def _build_policy(self, env: VecEnv) -> tuple[ActorCritic, Normalizers]:
        """The policy and its normalisers as all GMIs begin with them, on this GMI's device."""
        config, device = self.mgr.config, self.mgr.context.device
        shared = torch.Generator().manual_seed(config.run.seed)  # the same on every GMI
        if faults := space_faults(config.env.id, env.observation_space, env.action_space):
            raise EnvSpecError(faults)
        obs_dim = observation_width(env.observation_space)
        policy = self.make_policy(env, shared)
        if type(self).make_policy is not ActingRole.make_policy:
            maker = f"{type(self).__name__}.make_policy"
            check_policy(policy, maker, obs_dim, env.action_space)
        policy = policy.to(device)
        normalizers = Normalizers.of(config.algorithm, obs_dim, device)
        self._description = described(policy, env, normalizers)
        return policy, normalizers

    def _collector_of(
        self, env: VecEnv, policy: ActorCritic, normalizers: Normalizers
    ) -> Collector:
        """What collects a horizon at a time in `env`, with random numbers of this GMI alone."""
        algorithm = self.mgr.config.algorithm
        return Collector(
            env,
            policy,
            normalizers.observations,
            normalizers.values,
            horizon=algorithm.horizon,
            gamma=algorithm.gamma,
            reward_scale=algorithm.reward_scale,
            bootstrap_time_limit=algorithm.bootstrap_time_limit,
            generator=torch.Generator(self.mgr.context.device).manual_seed(self.mgr.seed(1)),
            pool=self._pool(env.device),
        )

    def _pool(self, device: torch.device) -> Pool | None:
        """Where all work of this GMI, which is on `device`, is captured; None if it is not."""
        if self._its_pool is None and graphs_on(device, self.mgr.config.run.capture):
            self._its_pool = Pool(device)
        return self._its_pool

    def _check_no_params(self, params: dict[str, object]) -> None:
        if params:
            names = ", ".join(sorted(params))
            raise TypeError(f"{type(self).__name__}.GMI_run takes no parameter {names}.")


class Actor:
    """Acts in its most likely way with a policy that does not change."""

    def __init__(self, policy: ActorCritic, normalizer: RunningNormalizer | None) -> None:
        self._policy, self._normalizer = policy, normalizer

    @torch.no_grad()
    def act(self, observation: Tensor) -> Tensor:
        """The policy's action rows [N, A] for raw observations [N, D]."""
        seen = observation.to(torch.float32)  # images are bytes
        if self._normalizer is not None:
            seen = self._normalizer.normalize(seen)
        return self._policy.distribution.mode(self._policy(seen)[:, :-1])


class CapturedActor(Actor):
    """Acts as an `Actor` does, by CUDA graphs: one for each shape of observations, captured when it
    first comes. Actions are this object's own, until the next ones for observations of that shape.
    """

    def __init__(
        self, policy: ActorCritic, normalizer: RunningNormalizer | None, pool: Pool
    ) -> None:
        super().__init__(policy, normalizer)
        self._pool = pool
        self._held: dict[torch.Size, tuple[Tensor, Tensor, Graph]] = {}

    @torch.no_grad()
    def act(self, observation: Tensor) -> Tensor:
        if observation.shape not in self._held:
            self._held[observation.shape] = self._capture(observation)
        seen, action, graph = self._held[observation.shape]
        seen.copy_(observation)
        graph()
        return action

    def _capture(self, observation: Tensor) -> tuple[Tensor, Tensor, Graph]:
        seen, action = observation.clone(), super().act(observation).clone()
        act = super().act

        def work() -> None:
            action.copy_(act(seen))

        return seen, action, Graph(work, seen.device, pool=self._pool, name="acting")


def policy_of(
    settings: AlgorithmConfig, env: VecEnv, generator: torch.Generator | None = None
) -> ActorCritic:
    """The network of a config for the spaces of `env`, where no role makes another."""
    return ActorCritic(
        observation_width(env.observation_space),
        distribution_for(env.action_space),
        hidden_sizes(settings.network),
        settings.activation,
        settings.init_log_std,
        generator,
        settings.precision,
    )


def action_columns(space: spaces.Space) -> int:  # type: ignore[type-arg]
    """The numbers of a policy's action row in this space."""
    return distribution_for(space).action_columns


def load_policy(
    path: Path, policy: ActorCritic, normalizers: Normalizers, description: dict[str, Any]
) -> str:
    """Make `policy`, which `description` is of, that of a checkpoint or of a run's newest one.

    What to warn of, if anything. CheckpointError unless it is whole, and of a policy like this one.
    """
    found = checkpoint.find(path)
    its = found.manifest.get("policy") or {}
    # Nobody asks for a value.
    told = compare(
        found,
        {**description, **{key: its[key] for key in _LEARNERS & its.keys()}},
        (
            f"Serve it with the env and algorithm sections of its run: gmi-drl launch {path} --set "
            "mode=serving takes them."
        ),
    )
    shared = found.load("shared")
    parameters = [p for _, p in sorted(policy.named_parameters())]
    stored, mine = shared["parameters"], sum(p.numel() for p in parameters)
    if stored.numel() != mine:
        raise CheckpointError(
            f"run.policy: {found.folder} holds a policy of {stored.numel():,} parameters; this "
            f"config's has {mine:,}. Use the env and algorithm sections of the run that wrote it."
        )
    with torch.no_grad():
        parts = stored.split([parameter.numel() for parameter in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.copy_(part.view_as(parameter))
    statistics = shared.get("observation_normalizer")
    if (normalizers.observations is None) != (statistics is None):
        raise CheckpointError(
            f"run.policy: {found.folder} was trained with normalize_observation "
            f"{str(statistics is not None).lower()}. Set algorithm.normalize_observation so."
        )
    if normalizers.observations is not None:
        normalizers.observations.load_state_dict(statistics)
    return told
