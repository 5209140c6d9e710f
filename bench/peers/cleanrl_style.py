"""Runs a whole PPO training job written in one plain file, as single-file projects do.

Written for this benchmark after the well-known recipe (one network, one rollout buffer, one loop;
a finished episode, ended or cut off, is not bootstrapped). `--vec sync` steps Gymnasium's
environments one after the other in this process, `--vec envpool` steps EnvPool's on all cores.
Prints one JSON line.
"""

from __future__ import annotations

import warnings
from typing import Any

from _job import Settings, Stopwatch, evaluation, limit_threads, parse, vector_env

SETTINGS = parse(("sync", "envpool"), __doc__)
limit_threads(SETTINGS.threads)

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

if SETTINGS.vec == "envpool":
    import envpool  # noqa: F401 - else --check says so

_ACTIVATIONS = {"elu": nn.ELU, "tanh": nn.Tanh, "relu": nn.ReLU}


class Moments:
    """Running mean and variance over the first axis, merged batch by batch (Chan et al.)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean = np.zeros(shape, np.float64)
        self.var = np.ones(shape, np.float64)
        self.count = 1e-4

    def update(self, batch: np.ndarray) -> None:
        mean, var, count = batch.mean(0), batch.var(0), len(batch)
        delta, total = mean - self.mean, self.count + count
        self.var = (
            self.var * self.count + var * count + delta**2 * self.count * count / total
        ) / total
        self.mean = self.mean + delta * count / total
        self.count = total


class Environments:
    """`n_envs` environments of either library, with normalised observations and rewards."""

    def __init__(self, settings: Settings, seed: int, training: bool = True) -> None:
        self.settings, self.training = settings, training
        n = settings.n_envs if training else 1
        self.env, self._first, self.observation_space, self.action_space = vector_env(
            settings, n, seed
        )
        self.discrete = hasattr(self.action_space, "n")
        self.observed = Moments(self.observation_space.shape)
        self.returned = Moments(())
        self.discounted = np.zeros(n)
        self.running = np.zeros(n)  # returns of the episodes under way

    def first(self) -> np.ndarray:
        """Returns the observation after the reset."""
        return self._observation(self._first)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[float]]:
        """Returns observation, scaled reward, done, and the returns of episodes that ended."""
        if not self.discrete:
            low, high = self.action_space.low, self.action_space.high
            # EnvPool expects the dtype of the space
            action = np.clip(action, low, high).astype(self.action_space.dtype)
        observation, reward, terminated, truncated, _ = self.env.step(action)
        done = np.logical_or(terminated, truncated)
        self.running += reward
        ended = self.running[done].tolist()
        self.running[done] = 0.0
        if self.settings.normalize_reward and self.training:
            self.discounted = self.discounted * self.settings.gamma + reward
            self.returned.update(self.discounted)
            self.discounted[done] = 0.0
            reward = np.clip(reward / np.sqrt(self.returned.var + 1e-8), -10, 10)
        return self._observation(observation), reward, done, ended

    def _observation(self, observation: np.ndarray) -> np.ndarray:
        if not self.settings.normalize_observation:
            return observation.astype(np.float32)
        if self.training:
            self.observed.update(observation)
        scaled = (observation - self.observed.mean) / np.sqrt(self.observed.var + 1e-8)
        return np.clip(scaled, -10, 10).astype(np.float32)


def _layer(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    """Gaussian or categorical policy, and value, on one trunk or two."""

    def __init__(self, settings: Settings, inputs: int, actions: int, discrete: bool) -> None:
        super().__init__()
        self.discrete, self.shared = discrete, settings.trunk == "shared"
        self.trunk = self._body(settings, inputs)
        self.value_trunk = self.trunk if self.shared else self._body(settings, inputs)
        self.mean = _layer(settings.hidden[-1], actions, 0.01)
        self.value = _layer(settings.hidden[-1], 1, 1.0)
        self.log_std = nn.Parameter(torch.full((actions,), settings.init_log_std))

    @staticmethod
    def _body(settings: Settings, inputs: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for size in settings.hidden:
            layers += [_layer(inputs, size, 2**0.5), _ACTIVATIONS[settings.activation]()]
            inputs = size
        return nn.Sequential(*layers)

    def forward(self, observation: torch.Tensor) -> tuple[torch.distributions.Distribution, Any]:
        hidden = self.trunk(observation)
        value = self.value(hidden if self.shared else self.value_trunk(observation)).squeeze(-1)
        if self.discrete:
            return torch.distributions.Categorical(
                logits=self.mean(hidden), validate_args=False
            ), value
        normal = torch.distributions.Normal(
            self.mean(hidden), self.log_std.exp(), validate_args=False
        )
        return torch.distributions.Independent(normal, 1, validate_args=False), value


def train(settings: Settings, envs: Environments, agent: Agent, stopwatch: Stopwatch) -> None:
    """Runs the loop: roll out, estimate advantages, update."""
    optimizer = torch.optim.Adam(agent.parameters(), settings.learning_rate, eps=1e-5)
    t, n = settings.horizon, settings.n_envs
    shape = envs.observation_space.shape
    observations = torch.zeros(t, n, *shape)
    actions = torch.zeros((t, n) if envs.discrete else (t, n, *envs.action_space.shape))
    log_probs, rewards, dones, values = (torch.zeros(t, n) for _ in range(4))
    observation = torch.from_numpy(envs.first())
    done = torch.zeros(n)
    for iteration in range(settings.iterations):
        stopwatch.iteration(iteration * settings.batch)
        if settings.schedule == "linear":
            remaining = 1.0 - iteration / settings.iterations
            optimizer.param_groups[0]["lr"] = remaining * settings.learning_rate
        for step in range(t):
            observations[step], dones[step] = observation, done
            with torch.no_grad():
                policy, value = agent(observation)
                action = policy.sample()
                log_probs[step], values[step] = policy.log_prob(action), value
            actions[step] = action
            following, reward, ended, returns = envs.step(action.numpy())
            rewards[step] = torch.from_numpy(np.asarray(reward, np.float32))
            observation, done = torch.from_numpy(following), torch.from_numpy(ended).float()
            for episode_return in returns:
                stopwatch.episode(episode_return)
        with torch.no_grad():
            _, last_value = agent(observation)
            advantages, running = torch.zeros(t, n), torch.zeros(n)
            for step in reversed(range(t)):
                next_value, alive = (
                    (last_value, 1.0 - done)
                    if step == t - 1
                    else (values[step + 1], 1.0 - dones[step + 1])
                )
                delta = rewards[step] + settings.gamma * next_value * alive - values[step]
                running = delta + settings.gamma * settings.lam * alive * running
                advantages[step] = running
        flat = (
            observations.flatten(0, 1),
            actions.flatten(0, 1),
            log_probs.flatten(),
            advantages.flatten(),
            (advantages + values).flatten(),
            values.flatten(),
        )
        update(settings, agent, optimizer, flat)
    stopwatch.stop(settings.iterations * settings.batch)


def update(
    settings: Settings,
    agent: Agent,
    optimizer: torch.optim.Optimizer,
    flat: tuple[torch.Tensor, ...],
) -> None:
    """Makes `epochs` passes over the iteration's samples in shuffled minibatches."""
    for _ in range(settings.epochs):
        for index in torch.randperm(settings.batch).split(settings.minibatch):
            observation, action, log_prob, advantage, target, old_value = (x[index] for x in flat)
            policy, value = agent(observation)
            ratio = (policy.log_prob(action) - log_prob).exp()
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
            policy_loss = -torch.min(advantage * ratio, advantage * clipped).mean()
            bounded = old_value + (value - old_value).clamp(-settings.clip, settings.clip)
            value_loss = 0.5 * torch.max((value - target) ** 2, (bounded - target) ** 2).mean()
            loss = policy_loss + settings.value_coef * value_loss
            if settings.entropy_coef:
                loss = loss - settings.entropy_coef * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), settings.max_grad_norm)
            optimizer.step()


@torch.no_grad()
def judge(settings: Settings, trained: Environments, agent: Agent) -> list[float]:
    """Returns the returns of `evaluate` episodes of the policy's mean (or likeliest) action."""
    envs = Environments(settings, settings.seed + 10_000, training=False)
    envs.observed = trained.observed
    returns: list[float] = []
    observation = envs.first()
    while len(returns) < settings.evaluate:
        hidden = agent.trunk(torch.from_numpy(observation))
        action = agent.mean(hidden)
        chosen = action.argmax(-1) if envs.discrete else action
        observation, _, _, ended = envs.step(chosen.numpy())
        returns += ended
    return returns


def main(settings: Settings) -> None:
    """Trains, evaluates if asked for, and prints the line."""
    torch.set_num_threads(settings.threads)
    torch.manual_seed(settings.seed)
    envs = Environments(settings, settings.seed)
    size = int(envs.action_space.n) if envs.discrete else int(np.prod(envs.action_space.shape))
    agent = Agent(settings, int(np.prod(envs.observation_space.shape)), size, envs.discrete)
    stopwatch = Stopwatch(settings)
    train(settings, envs, agent, stopwatch)
    extra: dict[str, Any] = {}
    if settings.evaluate:
        extra["evaluation"] = evaluation(judge(settings, envs, agent))
    packages = ["gymnasium", "torch", *(["envpool"] if settings.vec == "envpool" else [])]
    stopwatch.print_result("cleanrl", *packages, **extra)


if __name__ == "__main__" and not SETTINGS.check:
    warnings.simplefilter("ignore")
    main(SETTINGS)
