"""Roles that act or train, with what users override: environments, network and loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch

from gmi_drl.placement import AlgorithmConfig, Config, Layout
from gmi_drl.placement.faults import closest
from gmi_drl.roles.algorithms import algorithm_class, with_settings
from gmi_drl.roles.algorithms.algorithm import Algorithm, Losses
from gmi_drl.roles.algorithms.by_policy import by_policy
from gmi_drl.roles.algorithms.self_play import against_itself
from gmi_drl.roles.envs.agents import AgentGroup
from gmi_drl.roles.envs.errors import EnvSpecError
from gmi_drl.roles.envs.protocol import Stacking, VecEnv
from gmi_drl.roles.envs.spaces import space_faults
from gmi_drl.roles.errors import PolicyError, RoleError
from gmi_drl.roles.graphs import Pool, graphs_on
from gmi_drl.roles.policies.actor_critic import observation_width
from gmi_drl.roles.policies.description import described
from gmi_drl.roles.policies.flat_parameters import FlatParameters
from gmi_drl.roles.policies.normalize import Normalizers
from gmi_drl.roles.policies.policy import Policy
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.collector import Collector
from gmi_drl.roles.samples.frames import Observed
from gmi_drl.roles.threads import is_all_ours, model_products, rows_at_once, threads_for

from .manager import GMI_manager, GmiContext
from .role import DRL_role


class ActingRole(DRL_role):
    """A role with environments or a policy. Override `make_env`, `make_policy` or `loss`.

    Agents and trainers of one run must be given the same policy.
    """

    # For a class with a `loss` of its own: whether it does the same operations on its arguments
    # each time, with no Python value that changes, and reads no tensor's value in Python. Then it
    # is captured as a CUDA graph (`run.capture`).
    capturable_loss: ClassVar[bool] = False
    loss_stats: ClassVar[tuple[str, ...]] = ()  # what its `stats` have besides the algorithm's

    policy: Policy
    normalizers: Normalizers
    algorithm: Algorithm
    description: dict[str, Any]  # of the policy, as checkpoints keep it
    observed: Observed  # how batches keep observations
    stacking: Stacking | None  # how observations are stacks of frames
    come_and_go: bool  # whether rows are agents, which are not always there
    rows_of_env: int  # that a policy is given of each environment at once: 1, or its agents
    _shared_pool: Pool | None = None

    def make_env(self, num_env: int | None = None, seed: int = 0) -> VecEnv:
        """Returns the environments of this GMI; `num_env` and `seed` are given for evaluation."""
        return self.mgr.make_env(num_env, seed)

    def make_policy(self, env: VecEnv, generator: torch.Generator) -> Any:
        """Returns the network to act with, the same in every GMI: `generator` draws its weights.

        For algorithms of the actor-critic kind a torch.nn.Module of float32 parameters whose
        `forward(observation [B, D])` gives [B, P + 1]: P distribution parameters, then the value;
        with `distribution`, `log_std` and `map_value` as docs/writing-a-role.md has them. Only
        parameters are saved and shared, no buffers. PolicyError tells what is missing.
        """
        settings = self.mgr.config.algorithm
        return algorithm_class(settings).make_network(settings, env, generator)

    def loss(self, *args: Any) -> Losses:
        """Returns the loss of one minibatch, by the algorithm's function.

        The arguments (see `algorithms.ppo.ppo_loss`) are the same tensors each time, with other
        numbers.
        """
        losses: Losses = algorithm_class(self.mgr.config.algorithm).loss(*args)
        return losses

    def build(self, env: VecEnv) -> None:
        """Makes the policy, its normalisers and the algorithm as all GMIs begin with them."""
        config = self.mgr.config
        shared = torch.Generator().manual_seed(config.run.seed)  # the same on every GMI
        groups: Sequence[AgentGroup] = getattr(env, "groups", ())
        if len(groups) > 1:
            algorithms = {group.policy: self._make_algorithm(group, shared) for group in groups}
            self.algorithm = by_policy(groups, algorithms)
            self.description = {
                f"{group.policy}: {key}": value
                for group in groups
                for key, value in self._description_of(algorithms[group.policy], group).items()
            }
        else:
            if faults := space_faults(config.env.id, env.observation_space, env.action_space):
                raise EnvSpecError(*faults)
            self.algorithm = self._make_algorithm(env, shared)
            if config.multi_agent is not None and config.multi_agent.self_play is not None:
                league = config.multi_agent.self_play
                self.algorithm = against_itself(self.algorithm, env, league)
            self.description = self._description_of(self.algorithm, env)
        self.policy, self.normalizers = self.algorithm.policy, self.algorithm.normalizers
        self.observed = Observed.of(env, observation_width(env.observation_space), self.algorithm)
        self.stacking = getattr(env, "stacking", None)
        self.come_and_go = hasattr(env, "present")
        self.rows_of_env = max((len(group.agents) for group in groups), default=1)

    def build_with_env(self) -> VecEnv:
        """Builds as `build` does, and returns this GMI's environments, which are closed later.

        RoleError unless there are as many as the layout says, by which steps are counted.
        """
        env, count = self.make_env(), self.mgr.context.spec.num_env
        self.mgr.close_later(env.close)
        rows_are_agents = bool(getattr(env, "groups", ()))
        if env.num_env % count if rows_are_agents else env.num_env != count:
            raise RoleError(
                f"{type(self).__name__}.make_env gave {env.num_env} environments to GMI "
                f"{self.GMI_id}, which has {count} in the layout. Give as many, or set env.num_env."
            )
        self.build(env)
        return env

    def _make_algorithm(self, env: Any, shared: torch.Generator) -> Algorithm:
        """Makes an algorithm with a policy of its own, for what has the spaces of environments."""
        settings, device = self.mgr.config.algorithm, self.mgr.context.device
        kind = algorithm_class(settings)
        width = observation_width(env.observation_space)
        network = self.make_policy(env, shared)
        if self.overrides("make_policy"):
            maker = f"{type(self).__name__}.make_policy"
            kind.check_network(network, maker, width, env, settings)
            _check_memory(network, maker, settings)
        policy = kind.make_policy(network.to(device), settings)
        normalizers = Normalizers.of(settings, width, device)
        loss = self.loss if self.overrides("loss") else None
        if loss is not None and kind.loss is None:
            raise RoleError(
                f"{type(self).__name__}.loss: {kind.__name__} has no loss function that a role may "
                "replace. Derive from it and write `losses` instead."
            )
        if loss is not None:
            _check_arguments(loss, kind)
        algorithm = kind(settings, policy, normalizers, loss)
        algorithm.stats = (*algorithm.stats, *self.loss_stats)
        return algorithm

    @staticmethod
    def _description_of(algorithm: Algorithm, env: Any) -> dict[str, Any]:
        return described(algorithm.policy.network, env, algorithm.normalizers)

    def overrides(self, name: str) -> bool:
        """Tells whether this class has a method `name` of its own."""
        return getattr(type(self), name) is not getattr(ActingRole, name)

    @contextmanager
    def use_threads(self) -> Iterator[None]:
        """Has this block compute with as many threads as the network built keeps busy, on a CPU.

        What code of the user's computes for a row is not known: with a network or an algorithm of
        theirs, it keeps a thread a core.
        """
        context, threads_before = self.mgr.context, torch.get_num_threads()
        is_known = not self.overrides("make_policy") and is_all_ours(context.config.algorithm)
        if context.device.type == "cpu" and is_known:
            rows = rows_at_once(context.config, context.layout, self.GMI_id) * self.rows_of_env
            model = model_products(context.config.algorithm, self.observed.width)
            torch.set_num_threads(threads_for(rows, self.policy.network, threads_before, model))
        try:
            yield
        finally:
            torch.set_num_threads(threads_before)

    def batch(self, num_env: int) -> Batch:
        """Returns the buffers of a horizon of `num_env` environments for this role's policy."""
        algorithm, horizon = self.algorithm, self.mgr.config.algorithm.horizon
        return Batch.allocate(
            horizon, num_env, self.observed, self.policy, self.mgr.context.device,
            filled=algorithm.filled, recorded=algorithm.recorded, bootstrap=algorithm.bootstrap,
            come_and_go=self.come_and_go,
        )  # fmt: skip

    def collector(self, env: VecEnv, batch: Batch) -> Collector:
        """Returns the collector of horizons in `env`, with random numbers of this GMI alone."""
        agents = self.mgr.layout.holding("agent")
        first = sum(gmi.num_env for gmi in agents if gmi.gmi_id < self.GMI_id)
        total = sum(gmi.num_env for gmi in agents)
        rows = env.num_env // self.mgr.layout.gmi(self.GMI_id).num_env  # of each: its agents
        self.algorithm.explore_as(range(first * rows, first * rows + env.num_env), total * rows)
        generator = torch.Generator(self.mgr.context.device).manual_seed(self.mgr.seed(1))
        return Collector(env, self.algorithm, batch, generator, pool=self.pool(env.device))

    def pool(self, device: torch.device) -> Pool | None:
        """Returns the pool that this GMI's work on `device` is captured in; None if it is not."""
        if self._shared_pool is None and graphs_on(device, self.mgr.config.run.capture):
            self._shared_pool = Pool(device)
        return self._shared_pool

    def loss_is_capturable(self) -> bool:
        """Tells whether the loss may be captured; warns where an overridden one may not."""
        if self.capturable_loss or not self.overrides("loss"):
            return True
        if graphs_on(self.mgr.context.device, self.mgr.config.run.capture):
            self.mgr.warn(
                f"{type(self).__name__}.loss may depend on more than its arguments, so updates are "
                "not captured as CUDA graphs, which is slower. If it does not, say "
                "`capturable_loss = True` in the class."
            )
        return False

    def build_for_spaces(self) -> None:
        """Builds as `build` does, in a GMI that has no environments of its own."""
        with self.mgr.closed_after(self.make_env(1, seed=4)) as env:
            self.build(env)

    def check_no_params(self, params: dict[str, object]) -> None:
        """Raises RoleError for parameters, of which the roles of this package take none."""
        parameters = inspect.signature(self.GMI_run).parameters.values()
        accepted = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
        for name in params:  # the first will do
            sections = self.mgr.config.roles.items()
            owner = next((role for role, section in sections if name in section.params), self.role)
            suggestion = closest(name, accepted)
            raise RoleError(
                f"roles.{owner}.params.{name}: {type(self).__name__}.GMI_run takes no parameter "
                f"{name}, but {', '.join(accepted) or 'none'}."
                f"{f' Did you mean {suggestion}?' if suggestion else ''}"
            )


def _check_memory(network: Any, maker: str, settings: AlgorithmConfig) -> None:
    """Raises PolicyError unless a network remembers where the config says so, and only there."""
    remembers = getattr(network, "state_columns", 0) > 0
    if remembers != (getattr(settings, "recurrent", None) is not None):
        fault = "it keeps no state, and algorithm.recurrent is given"
        if remembers:
            fault = "it keeps a state, and algorithm.recurrent is not given"
        base = "gmi_drl.roles.policies.RecurrentActorCritic"
        raise PolicyError(maker, type(network).__name__, [fault], base)


def _check_arguments(loss: Callable[..., Losses], kind: type[Algorithm]) -> None:
    """Raises RoleError unless a role's `loss` takes the arguments of its algorithm's loss."""
    parameters = inspect.signature(kind.loss).parameters.values()
    required = [parameter.name for parameter in parameters if parameter.default is parameter.empty]
    if any(parameter.kind is not parameter.POSITIONAL_OR_KEYWORD for parameter in parameters):
        return  # how many it takes is not known
    try:
        inspect.signature(loss).bind(*required)
    except TypeError as error:
        raise RoleError(
            f"{loss.__qualname__}: {error}. {kind.__name__} gives it {len(required)}; write it as "
            f"loss({', '.join(['self', *required])})."
        ) from None


def gradient_numel(role_class: type[DRL_role], config: Config, layout: Layout) -> int | None:
    """Returns the numbers that GMIs reduce for each minibatch: see `bucket_numel`.

    Makes the role of the layout's first trainer outside a run, with one environment, and has it
    build its own network. None for a class that reduces no such gradient.
    """
    from gmi_drl.roles.optimizers.gradient_step import bucket_numel  # agents need none

    if not issubclass(role_class, ActingRole):
        return None
    spec = layout.holding("trainer")[0]
    context = GmiContext(spec.gmi_id, layout, with_settings(config))
    GMI_manager.bind(context)
    try:
        role = role_class(spec.gmi_id, "+".join(spec.roles), spec.gpu_id)
        role.build_for_spaces()
        return bucket_numel(FlatParameters(role.policy.network), role.algorithm.stats)
    finally:
        GMI_manager.bind(None)
