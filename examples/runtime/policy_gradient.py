"""A reinforcement-learning loop that learns from whichever simulator is ready.

    python examples/runtime/policy_gradient.py

Episodes differ in length, so a barrier after each round would leave simulators idle. `wait` returns
those that are done, which get new weights. One simulator is killed halfway; the others go on.
"""

import os
import signal
from typing import Any

import gymnasium
import numpy as np

from gmi_drl import runtime

NUM_SIMULATORS, NUM_UPDATES, EPISODES = 3, 240, 4


def probabilities(observations: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Of pushing the cart to the right."""
    return 1 / (1 + np.exp(-observations @ weights))


@runtime.remote(max_restarts=-1, checkpoint_every=10)
class Simulator:
    """Plays CartPole with the weights it is sent.

    Without checkpoints, all that it has ever played would be played again after a crash, and the
    weights it has played with be kept for that.
    """

    def __init__(self, seed: int) -> None:
        self.env = gymnasium.make("CartPole-v1")
        self.generator = np.random.default_rng(seed)

    def rollout(self, weights: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Some episodes: observations, and whether it pushed to the right."""
        episodes = []
        for _ in range(EPISODES):
            observation, _ = self.env.reset(seed=int(self.generator.integers(2**31)))
            observations, actions, over = [], [], False
            while not over:
                action = int(self.generator.random() < probabilities(observation, weights))
                observations.append(observation)
                actions.append(action)
                observation, _, terminated, truncated, _ = self.env.step(action)
                over = terminated or truncated
            episodes.append((np.array(observations), np.array(actions)))
        return episodes

    def save(self) -> np.random.Generator:
        return self.generator

    def restore(self, generator: np.random.Generator) -> None:
        self.generator = generator


class Learner:
    """REINFORCE, in this process; what a batch has on average is its baseline."""

    def __init__(self) -> None:
        self.weights = np.zeros(4)
        self.returns: list[int] = []

    def learn(self, episodes: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        observations = np.concatenate([episode[0] for episode in episodes])
        actions = np.concatenate([episode[1] for episode in episodes])
        to_go = np.concatenate([np.arange(len(episode[1]), 0, -1) for episode in episodes])
        advantages = (to_go - to_go.mean()) / to_go.std()
        surprise = actions - probabilities(observations, self.weights)
        self.weights = self.weights + 2 * observations.T @ (surprise * advantages) / len(actions)
        self.returns += [len(episode[1]) for episode in episodes]
        return self.weights


def main(**engine: Any) -> None:
    runtime.init(**{"num_cpus": 2} | engine)
    learner = Learner()
    simulators = [Simulator.remote(seed) for seed in range(NUM_SIMULATORS)]
    weights = runtime.put(learner.weights)
    running = {simulator.rollout.remote(weights): simulator for simulator in simulators}

    for number in range(NUM_UPDATES):
        (done,), _ = runtime.wait(list(running))
        simulator = running.pop(done)
        weights = runtime.put(learner.learn(runtime.get(done)))
        running[simulator.rollout.remote(weights)] = simulator
        if number == NUM_UPDATES // 2:
            pid = runtime.process_id(simulators[0])
            assert pid is not None
            os.kill(pid, signal.SIGKILL)

    first, last = np.mean(learner.returns[:40]), np.mean(learner.returns[-40:])
    print(f"return: {first:.0f} at first, {last:.0f} at last")
    print("simulators killed and back:", len(runtime.deaths(simulators[0])))
    runtime.shutdown()


if __name__ == "__main__":
    main()
