"""A parameter server: workers send gradients when they have them, and none waits for the slowest.

    python examples/runtime/parameter_server.py

The server is killed halfway. It comes back with the weights it had, each gradient applied once.
"""

import os
import signal
from typing import Any

import numpy as np

from gmi_drl import runtime

NUM_FEATURES, NUM_WORKERS, NUM_UPDATES = 20, 3, 600
TRUE_WEIGHTS = np.random.default_rng(0).standard_normal(NUM_FEATURES)


@runtime.remote(max_restarts=-1, checkpoint_every=50)
class Server:
    """Holds the weights."""

    def __init__(self) -> None:
        self.weights = np.zeros(NUM_FEATURES)
        self.num_updates = 0

    def update(self, gradient: np.ndarray) -> np.ndarray:
        """Takes a step, and gives the new weights."""
        self.weights = self.weights - 0.05 * gradient
        self.num_updates += 1
        return self.weights

    def state(self) -> tuple[np.ndarray, int]:
        return self.weights, self.num_updates

    save = state

    def restore(self, state: tuple[np.ndarray, int]) -> None:
        self.weights, self.num_updates = state


@runtime.remote
class Worker:
    """Has data of its own."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)

    def gradient(self, weights: np.ndarray) -> np.ndarray:
        """Of the squared error on fresh samples."""
        features = self.generator.standard_normal((64, NUM_FEATURES))
        error = features @ (weights - TRUE_WEIGHTS)
        return features.T @ error / len(error)


def main(**engine: Any) -> None:
    runtime.init(**{"num_cpus": 2} | engine)
    server = Server.remote()
    workers = [Worker.remote(seed) for seed in range(NUM_WORKERS)]

    # References are enough to say what goes where: a gradient travels from its worker to the
    # server, and the new weights back, without a stop in this process.
    weights, _ = runtime.get(server.state.remote())
    running = {server.update.remote(w.gradient.remote(weights)): w for w in workers}
    for number in range(NUM_UPDATES - NUM_WORKERS):
        (done,), _ = runtime.wait(list(running))
        worker = running.pop(done)
        running[server.update.remote(worker.gradient.remote(done))] = worker
        if number == NUM_UPDATES // 2:
            pid = runtime.process_id(server)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
    runtime.wait(list(running), num_returns=len(running))

    weights, num_updates = runtime.get(server.state.remote())
    print(f"{num_updates} updates, {len(runtime.deaths(server))} death of the server")
    print(f"largest error of a weight: {np.abs(weights - TRUE_WEIGHTS).max():.0e}")
    runtime.shutdown()


if __name__ == "__main__":
    main()
