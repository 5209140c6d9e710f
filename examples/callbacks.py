"""Callbacks: keep the best checkpoint, and stop when returns no longer grow.

python examples/callbacks.py
gmi-drl launch examples/cartpole.yaml --set 'run.callbacks=[callbacks:KeepBest]'
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gmi_drl
from gmi_drl.launcher.callbacks.callback import EndedRun, StartedRun


class KeepBest(gmi_drl.Callback):
    """Copies the checkpoint with the best return so far to `best/` of the run's folder."""

    def on_start(self, run: StartedRun) -> None:
        self.folder, self.best, self.now = run.folder, float("-inf"), float("-inf")

    def on_iteration(self, iteration: int, metrics: Mapping[str, Any]) -> None:
        self.now = metrics["return_mean"] if metrics["return_mean"] is not None else self.now

    def on_checkpoint(self, path: Path) -> None:
        if self.now > self.best:
            self.best = self.now
            shutil.rmtree(self.folder / "best", ignore_errors=True)
            shutil.copytree(path, self.folder / "best")


class Plateau(gmi_drl.Callback):
    """Stops a run whose return has not grown by a tenth in so many iterations."""

    def __init__(self, patience: int = 30) -> None:
        self.patience, self.since = patience, 0
        self.best: float | None = None

    def on_start(self, run: StartedRun) -> None:
        self.run = run

    def on_iteration(self, iteration: int, metrics: Mapping[str, Any]) -> None:
        mean = metrics["return_mean"]
        if mean is not None and (self.best is None or mean > self.best + 0.1 * abs(self.best)):
            self.best, self.since = mean, iteration
        if self.best is not None and iteration - self.since >= self.patience:
            self.run.request_stop(f"return {self.best:.1f} since iteration {self.since}")

    def on_end(self, end: EndedRun) -> None:
        print(f"{end.state}; the best return was {self.best}")


if __name__ == "__main__":
    result = gmi_drl.launch(
        Path(__file__).parent / "cartpole.yaml",
        overrides=["run.total_steps=60000", "run.checkpoint_every=5"],
        callbacks=[KeepBest(), Plateau()],
    )
    print(f"best checkpoint: {result.folder / 'best'}")
