"""A3C as the paper has it: workers send gradients. Two processes, CartPole, about a minute.

python examples/rl/a3c.py
"""

from gmi_drl import rl

STEPS = 200_000


def main(steps: int = STEPS) -> float:
    settings = {"network": [64, 64], "activation": "tanh", "horizon": 8, "learning_rate": 1e-3}
    evaluators = [
        rl.Evaluator.remote(env="CartPole-v1", algorithm=rl.A2C, num_env=4, settings=settings)
        for _ in range(2)
    ]
    optimizer = rl.AsyncGradients(rl.A2C, evaluators, total_steps=steps)
    while optimizer.steps < steps:
        told = optimizer.step()
        if told["updates"] % 200 == 0:
            print(f"{told['steps']:>8,} steps: return {told['return_mean']:.1f}, lag {told['lag']}")
    score = optimizer.evaluate()["eval_return"]
    print(f"evaluation: {score:.1f} of 500")
    optimizer.close()
    return score


if __name__ == "__main__":
    main()
