"""Environments of several agents, by the interfaces of PettingZoo and without it."""

import numpy as np
from gymnasium import spaces


class Meadow:
    """Agents that see (number, step), and are paid what they choose times their number plus one.

    `sheep_*` choose one of three, `wolf_*` two numbers; sheep i leaves after i + 2 steps, sheep
    `late` comes at its step, and all are gone after `length` steps.
    """

    def __init__(self, sheep=2, wolves=1, length=6, late=None):
        self.possible_agents = [
            *(f"sheep_{i}" for i in range(sheep)), *(f"wolf_{i}" for i in range(wolves))
        ]  # fmt: skip
        self._length, self._late = length, late
        self.seeds, self.given = [], []

    def observation_space(self, agent):
        width = 2 if agent.startswith("sheep") else 3
        return spaces.Box(-np.inf, np.inf, (width,), np.float32)

    def action_space(self, agent):
        if agent.startswith("sheep"):
            return spaces.Discrete(3)
        return spaces.Box(-2.0, 2.0, (2,), np.float32)

    def reset(self, seed=None, options=None):
        self.seeds.append(seed)
        self._step = 0
        self.agents = [agent for agent in self.possible_agents if agent != self._late]
        return self._seen(self.agents), {}

    def _seen(self, agents):
        return {
            agent: np.array(
                [self.possible_agents.index(agent), self._step, 7][
                    : 2 if agent.startswith("sheep") else 3
                ],
                dtype=np.float32,
            )
            for agent in agents
        }

    def _left(self, agent):
        return agent.startswith("sheep") and self._step >= int(agent.split("_")[1]) + 2

    def step(self, actions):
        assert set(actions) == set(self.agents), (actions, self.agents)
        self.given.append(actions)
        for agent, action in actions.items():
            assert self.action_space(agent).contains(action), (agent, action)
        self._step += 1
        acted = self.agents
        rewards = {
            agent: float(np.sum(actions[agent])) * (self.possible_agents.index(agent) + 1)
            for agent in acted
        }
        terminated = {agent: self._left(agent) for agent in acted}
        truncated = {agent: self._step >= self._length for agent in acted}
        self.agents = [a for a in acted if not (terminated[a] or truncated[a])]
        if self._late is not None and self._step == 1:
            self.agents.append(self._late)
        return self._seen({*acted, *self.agents}), rewards, terminated, truncated, {}

    def close(self):
        pass


class Countdown:
    """Two agents take turns to take one or two of five; who takes the last has won.

    Rewards come at the end alone, to both.
    """

    possible_agents = ("first", "second")

    def observation_space(self, agent):
        return spaces.Box(0, 5, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self._left = 5
        self.agents = list(self.possible_agents)
        self.agent_selection = "first"
        self._paid = dict.fromkeys(self.agents, 0.0)
        self._over = False

    def observe(self, agent):
        return np.array([self._left], dtype=np.float32)

    def last(self):
        agent = self.agent_selection
        return self.observe(agent), self._paid[agent], self._over, False, {}

    def step(self, action):
        agent = self.agent_selection
        other = "second" if agent == "first" else "first"
        if self._over:
            assert action is None
            self.agents.remove(agent)
        else:
            self._left -= 1 + action
            if self._left <= 0:
                self._over = True
                self._paid = {agent: 1.0, other: -1.0}
        self.agent_selection = other

    def close(self):
        pass


class Abrupt(Countdown):
    """The same, whose agents are all gone at once when it is over, and which `tells` so or not."""

    def __init__(self, tells):
        self._tells, self.terminations = tells, {}

    def step(self, action):
        super().step(action)
        if self._over:
            self._cumulative_rewards = self._paid
            self.terminations = dict.fromkeys(self.possible_agents, self._tells)
            self.agents = []


class Toll:
    """Two agents take turns, of which each is paid 1; their next turn tells of it, as AECEnv's.

    The first is over after `length` turns of both, if that is given, and `stays` nevertheless.
    """

    possible_agents = ("first", "second")

    def __init__(self, length=None, stays=False):
        self._length, self._stays = length, stays

    def observation_space(self, agent):
        return spaces.Box(0, 100, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self._turns = 0
        self.agents = list(self.possible_agents)
        self.agent_selection = "first"
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)

    def observe(self, agent):
        return np.array([self._turns], dtype=np.float32)

    def last(self):
        agent = self.agent_selection
        over = self._turns == self._length
        return self.observe(agent), self._cumulative_rewards[agent], over, False, {}

    def step(self, action):
        agent = self.agent_selection
        if action is None:
            if not self._stays:
                self.agents.remove(agent)
        else:
            self._turns += 1
            self._cumulative_rewards[agent] = 1.0
        self.agent_selection = "second" if agent == "first" else "first"

    def close(self):
        pass


class Telling(Meadow):
    """A `Meadow` that goes on paying those who have left, and telling that they have."""

    def step(self, actions):
        seen, rewards, terminated, truncated, _ = super().step(actions)
        gone = [agent for agent in self.possible_agents if agent not in actions]
        paid, over = dict.fromkeys(gone, 50.0), dict.fromkeys(gone, True)
        return seen | self._seen(gone), rewards | paid, terminated | over, truncated, {}


class Matching:
    """`count` agents who each see a bit, and are paid 1 for naming it; ten steps."""

    def __init__(self, count=2):
        self.possible_agents = [f"agent_{i}" for i in range(count)]

    def observation_space(self, agent):
        return spaces.Box(0, 1, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._step, self.agents = 0, list(self.possible_agents)
        return self._drawn(), {}

    def _drawn(self):
        self._bits = {agent: int(self._random.integers(2)) for agent in self.possible_agents}
        return {agent: np.array([bit], np.float32) for agent, bit in self._bits.items()}

    def step(self, actions):
        rewards = {agent: float(actions.get(agent) == self._bits[agent]) for agent in self.agents}
        self._step += 1
        ended = dict.fromkeys(self.agents, self._step == 10)
        seen = self._drawn()
        if self._step == 10:
            self.agents = []
        return seen, rewards, dict.fromkeys(ended, False), ended, {}

    def close(self):
        pass


class Faulty(Matching):
    """The same, which `raises` in reset or the second step, or pays `paid` then."""

    def __init__(self, raises=None, paid=1.0):
        super().__init__()
        self._raises, self._reward = raises, paid

    def reset(self, seed=None, options=None):
        if self._raises == "reset":
            raise KeyError("map")
        return super().reset(seed)

    def step(self, actions):
        if self._raises == "step" and self._step:
            raise KeyError("map")
        seen, rewards, *rest = super().step(actions)
        if self._step > 1:
            rewards["agent_1"] = self._reward
        return seen, rewards, *rest


class Envy(Matching):
    """The same, but each is paid the bit that the next one sees, whatever they do."""

    def step(self, actions):
        names = self.possible_agents
        paid = {
            agent: float(self._bits[names[(i + 1) % len(names)]]) for i, agent in enumerate(names)
        }
        seen, _, terminated, truncated, info = super().step(actions)
        return seen, paid, terminated, truncated, info


class Level(Matching):
    """The same, but each is paid 1, whatever they do."""

    def step(self, actions):
        seen, paid, *rest = super().step(actions)
        return seen, dict.fromkeys(paid, 1.0), *rest


class Lonely(Matching):
    """The same, but the last of the agents that there may be never comes."""

    def reset(self, seed=None, options=None):
        seen, info = super().reset(seed)
        self.agents.pop()
        return seen, info


class Lingering(Matching):
    """The same, but the first agent's episode ends after three steps, and it stays in `agents`."""

    def step(self, actions):
        seen, paid, terminated, truncated, info = super().step(actions)
        terminated["agent_0"] = self._step >= 3
        return seen, paid, terminated, truncated, info


class Numbered(Matching):
    """The same, with agents that have numbers for names."""

    def __init__(self):
        self.possible_agents = [0, 1]


class Shades(Matching):
    """The same, whose bits are said to be bytes, and are none."""

    def observation_space(self, agent):
        return spaces.Box(0, 255, (1,), np.uint8)


class Damped(Meadow):
    """A `Meadow` that changes the actions that it is given."""

    def step(self, actions):
        outcome = super().step(actions)
        for agent in actions:
            if agent.startswith("wolf"):
                actions[agent] *= 0.5
        return outcome


class Counted(Matching):
    """The same, whose choices are counted from 1."""

    def action_space(self, agent):
        return spaces.Discrete(2, start=1)

    def step(self, actions):
        return super().step({agent: action - 1 for agent, action in actions.items()})
