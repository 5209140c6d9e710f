"""A3C-ES: evolution over policies that A3C trains, with the driver of ppo_es.py.

Each member has two evaluators, whose gradients are applied as they come: it is asynchronous inside,
and evaluated from outside. CartPole, a minute or two on two cores:

    python examples/rl/a3c_es.py
"""

import ppo_es

from gmi_drl import rl

SETTINGS = {
    "network": [64, 64], "activation": "tanh", "horizon": 8, "learning_rate": 1e-3,
    "schedule": "constant", "normalize_observation": False, "normalize_value": False,
    "reward_scale": 0.1,
}  # fmt: skip


class Member(ppo_es.Member):
    """A3C, and what it makes of the policy that it is given."""

    iterations = 64  # gradients of a generation
    settings = SETTINGS

    def __init__(self, seed: int) -> None:
        evaluators = [
            rl.Evaluator(self.env, rl.A2C, num_env=4, seed=seed, settings=self.settings)
            for _ in range(2)
        ]
        self.optimizer = rl.AsyncGradients(rl.A2C, evaluators)


def main(steps: int = ppo_es.STEPS, seed: int = 0) -> float:
    return ppo_es.main(steps, seed, Member)


if __name__ == "__main__":
    main()
