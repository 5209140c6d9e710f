"""Ape-X from Python: two evaluators explore, and this process has the replay and trains.

Each environment explores with an epsilon of its own. CartPole by DQN, two minutes on two cores:

    python examples/rl/apex.py
"""

import torch

from gmi_drl import rl

STEPS = 80_000
SETTINGS = {
    "network": [128, 128], "activation": "relu", "horizon": 16, "learning_rate": 1e-3,
    "schedule": "linear", "max_grad_norm": 10.0, "reward_scale": 0.1, "batch_size": 64,
    "updates_per_row": 0.25, "target_every": 128, "n_step": 3, "sampler": "prioritized",
    "epsilon": 0.4, "epsilon_alpha": 7.0, "epsilon_steps": 10_000,
}  # fmt: skip


def main(steps: int = STEPS) -> float:
    torch.set_num_threads(1)  # evaluators use the other core
    evaluators = [
        rl.Evaluator.remote(env="CartPole-v1", algorithm=rl.DQN, num_env=8, settings=SETTINGS)
        for _ in range(2)
    ]
    optimizer = rl.Apex(rl.DQN, evaluators, total_steps=steps)
    while optimizer.steps < steps:
        told = optimizer.step()
        if told["steps"] % 8_192 == 0:
            print(f"{told['steps']:>7,} steps, {told['updates']:>6,} updates: "
                  f"return {told['return_mean']:.1f}, lag {told['lag']}")  # fmt: skip
    score = optimizer.evaluate()["eval_return"]
    print(f"evaluation: {score:.1f} of 500")
    optimizer.close()
    return score


if __name__ == "__main__":
    main()
