"""PPO-ES: evolution over policies that PPO trains, as in RLlib's paper (section 5.3).

Members are actors, each with a PPO optimizer of its own, which is itself evaluated. In a generation
each begins with the present policy plus noise, trains it, and is scored by the returns it reaches.
The next policy is the mean of the better half. CartPole, whose returns are 500 at most, a minute or
two on two cores:

    python examples/rl/ppo_es.py
"""

from typing import Any

import numpy as np

from gmi_drl import rl, runtime

Policy = dict[str, np.ndarray]  # parameters, and statistics of what is normalized

MEMBERS, NOISE, STEPS = 4, 0.02, 200_000
SETTINGS = {
    "network": [64, 64], "activation": "tanh", "horizon": 64, "learning_rate": 1e-3, "epochs": 10,
    "minibatches": 2, "schedule": "constant", "normalize_observation": False,
    "normalize_value": False, "reward_scale": 0.1,
}  # fmt: skip


class Member:
    """An optimizer, and what it makes of the policy that it is given."""

    env = "CartPole-v1"
    iterations = 4  # of a generation
    settings = SETTINGS

    def __init__(self, seed: int) -> None:
        evaluator = rl.Evaluator(self.env, rl.PPO, num_env=8, seed=seed, settings=self.settings)
        self.optimizer = rl.Local(rl.PPO, [evaluator])

    def policy(self) -> Policy:
        return self.optimizer.graph.acting()

    def be(self, policy: Policy) -> None:
        """Goes on from another policy, and counts the returns of its episodes alone."""
        state = self.optimizer.state_dict()
        weights = state["weights"] | policy
        self.optimizer.load_state_dict(state | {"weights": weights, "episodes": []})

    def evaluated(self, policy: Policy) -> float:
        """Plays 20 episodes greedily."""
        self.be(policy)
        return self.optimizer.evaluate()["eval_return"]

    def trained(self, policy: Policy, seed: int) -> tuple[float, Policy, int]:
        """Trains the policy and noise: the mean return meanwhile, what came of it, steps."""
        parameters, before = policy["parameters"], self.optimizer.steps
        noise = NOISE * np.random.default_rng(seed).standard_normal(len(parameters))
        self.be(policy | {"parameters": (parameters + noise).astype(np.float32)})
        for _ in range(self.iterations):
            told: dict[str, Any] = self.optimizer.step()
        score = told["return_mean"]  # None: no episode has ended
        score = -np.inf if score is None else score
        return score, self.policy(), self.optimizer.steps - before


def main(steps: int = STEPS, seed: int = 0, member: type[Member] = Member) -> float:
    runtime.init(["gmi_drl.rl"])
    make = runtime.remote(num_threads=1)(member).remote
    members = [make(seed * MEMBERS + number) for number in range(MEMBERS)]
    policy, taken, generation = runtime.get(members[0].policy.remote()), 0, 0
    while taken < steps:
        seeds = np.random.SeedSequence((seed, generation)).generate_state(MEMBERS).tolist()
        asked = [m.trained.remote(policy, s) for m, s in zip(members, seeds, strict=True)]
        results = sorted(runtime.get(asked), key=lambda result: -result[0])  # in whatever order
        better = results[: MEMBERS // 2]
        policy = {name: np.mean([its[name] for _, its, _ in better], axis=0) for name in policy}
        taken += sum(steps for *_, steps in results)
        generation, score = generation + 1, np.mean([score for score, *_ in better])
        print(f"generation {generation}, {taken:>7,} steps: return {score:.1f} of the better half")
    score = runtime.get(members[0].evaluated.remote(policy))
    print(f"evaluation: {score:.1f}")
    runtime.shutdown()
    return score


if __name__ == "__main__":
    main()
