"""A3C-ES: evolution over what A3C makes of its policies; see ppo_es.py.

Each member has two evaluators, whose gradients are applied as they come: asynchronous inside, and
evaluated from outside. CartPole, a minute or two on two cores:

    python examples/rl/a3c_es.py
"""

from typing import Any

import numpy as np

from gmi_drl import rl, runtime

MEMBERS, GRADIENTS, NOISE, STEPS = 4, 64, 0.02, 200_000
SETTINGS = {
    "network": [64, 64], "activation": "tanh", "horizon": 8, "learning_rate": 1e-3,
    "schedule": "constant", "normalize_observation": False, "normalize_value": False,
    "reward_scale": 0.1,
}  # fmt: skip


class Member:
    """An optimizer, and what it makes of the parameters that it is given."""

    def __init__(self, seed: int) -> None:
        evaluators = [
            rl.Evaluator("CartPole-v1", rl.A2C, num_env=4, seed=seed, settings=SETTINGS)
            for _ in range(2)
        ]
        self.optimizer = rl.AsyncGradients(rl.A2C, evaluators)

    def parameters(self) -> np.ndarray:
        return self.optimizer.graph.acting()["parameters"]

    def evaluated(self, parameters: np.ndarray) -> float:
        """Plays 20 episodes greedily."""
        state = self.optimizer.state_dict()
        state["weights"]["parameters"] = parameters
        self.optimizer.load_state_dict(state)
        return self.optimizer.evaluate()["eval_return"]

    def trained(self, parameters: np.ndarray, seed: int) -> tuple[float, np.ndarray, int]:
        """Trains the parameters and noise: the mean return meanwhile, what came of them, steps."""
        noise = NOISE * np.random.default_rng(seed).standard_normal(len(parameters))
        state = self.optimizer.state_dict()
        state["weights"]["parameters"] = (parameters + noise).astype(np.float32)
        self.optimizer.load_state_dict({**state, "episodes": []})  # those of this generation count
        before = self.optimizer.steps
        for _ in range(GRADIENTS):
            told: dict[str, Any] = self.optimizer.step()
        return told["return_mean"] or 0.0, self.parameters(), self.optimizer.steps - before


def main(steps: int = STEPS, seed: int = 0) -> float:
    runtime.init(["gmi_drl.rl"])
    make = runtime.remote(num_threads=1)(Member).remote
    members = [make(seed * MEMBERS + number) for number in range(MEMBERS)]
    parameters, taken, generation = runtime.get(members[0].parameters.remote()), 0, 0
    while taken < steps:
        seeds = np.random.SeedSequence((seed, generation)).generate_state(MEMBERS).tolist()
        asked = [m.trained.remote(parameters, s) for m, s in zip(members, seeds, strict=True)]
        results = sorted(runtime.get(asked), key=lambda result: -result[0])  # in whatever order
        better = results[: MEMBERS // 2]
        parameters = np.mean([after for _, after, _ in better], axis=0)
        taken += sum(steps for *_, steps in results)
        generation, score = generation + 1, np.mean([score for score, *_ in better])
        print(f"generation {generation}, {taken:>7,} steps: return {score:.1f} of the better half")
    score = runtime.get(members[0].evaluated.remote(parameters))
    print(f"evaluation: {score:.1f} of 500")
    runtime.shutdown()
    return score


if __name__ == "__main__":
    main()
