"""IMPALA from Python: two evaluators sample all the time, and this process trains by V-trace.

CartPole on two cores: python examples/rl/impala.py
"""

import torch

from gmi_drl import rl

STEPS = 400_000
SETTINGS = {"network": [64, 64], "activation": "tanh", "horizon": 20, "learning_rate": 1e-3}


def main(steps: int = STEPS) -> float:
    torch.set_num_threads(1)  # evaluators use the other core
    evaluators = [
        rl.Evaluator.remote(env="CartPole-v1", algorithm=rl.IMPALA, num_env=16, settings=SETTINGS)
        for _ in range(2)
    ]
    optimizer = rl.AsyncSamples(rl.IMPALA, evaluators, total_steps=steps)
    while optimizer.steps < steps:
        told = optimizer.step()
        if told["updates"] % 100 == 0:
            print(f"{told['steps']:>8,} steps: return {told['return_mean']:.1f}, lag {told['lag']}")
    score = optimizer.evaluate()["eval_return"]
    print(f"evaluation: {score:.1f} of 500")
    optimizer.close()
    return score


if __name__ == "__main__":
    main()
