"""Holds a run's gradient noise scale against its updates, and says once when they fit badly."""

from __future__ import annotations

import math
from typing import Any, Final

from gmi_drl.launcher.folder.run_folder import RunFolder
from gmi_drl.launcher.view.view import RunView
from gmi_drl.launcher.watch.watch import Propose, Watch
from gmi_drl.placement import (
    ActorCriticConfig,
    Config,
    CustomAlgorithmConfig,
    Layout,
    ReplayConfig,
    UpdateSize,
)

# Between a noise scale and what is held against it. It jumps tenfold where it is large, and in a
# run of CartPole that learns well it goes from a tenth of a minibatch to a tenth of an update.
FACTOR: Final = 16.0
# Iterations in a row that have one: more than twice those that the averages are of, so that
# neither the first few nor an excursion counts.
SETTLED: Final = 50
_WHERE: Final = "docs/noise-scale.md"


def why_none(config: Config, layout: Layout) -> str:
    """Tells why a run that trains has no noise scale; "" where it has one, or nothing is said."""
    if not _is_known(config, layout):
        return ""
    if config.algorithm.resolved_optimizer == "parameter_server":
        return f"each GMI that trains has a piece of the gradient, and none the whole ({_WHERE})"
    if UpdateSize.of(config, layout).has_noise_scale:
        return ""
    return f"one GMI takes one gradient step an update, and nothing to compare it with ({_WHERE})"


def _is_known(config: Config, layout: Layout) -> bool:
    """Tells whether the samples of an update are known beforehand; a user's class does not say.

    Nor is it where a round is a number of episodes; those of ES and ARS differentiate nothing.
    """
    algorithm = config.algorithm
    is_own = isinstance(algorithm, CustomAlgorithmConfig)
    return bool(layout.holding("trainer")) and not is_own and not algorithm.whole_episodes


class NoiseFit:
    """Tells when the noise scale has left what batches are fit for. Pure; each side once.

    They are fit from a sixteenth of `smallest`, a minibatch, to sixteen times `largest`, an update;
    both are samples over all GMIs.
    """

    def __init__(self, smallest: int, largest: int) -> None:
        self._low, self._high = smallest / FACTOR, largest * FACTOR
        self._streak = 0  # iterations one after the other: below zero those that were too low
        self.said: set[str] = set()

    def take(self, noise_scale: float | None) -> str:
        """Takes in an iteration's noise scale; returns "above" or "below" once it is so for long.

        None, where it is too large to be told, does not count and does not interrupt.
        """
        if noise_scale is None:
            return ""
        side = (noise_scale > self._high) - (noise_scale < self._low)
        self._streak = self._streak + side if side and self._streak * side >= 0 else side
        if abs(self._streak) < SETTLED:
            return ""
        name = "above" if side > 0 else "below"
        if name in self.said:
            return ""
        self.said.add(name)
        return name


class NoiseWatch(Watch):
    """Says on `screen`, once a run and side, that the noise scale does not fit, and what would.

    It is written to run.json as well, so that a run that goes on does not repeat it. Where it is
    not known what an update is, nothing is said. `propose` is for runs that resize themselves,
    which are told once a layout and side.
    """

    def __init__(
        self,
        screen: RunView,
        folder: RunFolder,
        config: Config,
        layout: Layout,
        propose: Propose | None = None,
    ) -> None:
        self._screen, self._folder, self._config = screen, folder, config
        self._propose = propose
        self._fit: NoiseFit | None = None
        if _is_known(config, layout):
            self._batches = batches_of(config, layout)
            self._fit = NoiseFit(*self._batches)
            if propose is None:
                said = folder.entries("noise_notes")
                self._fit.said.update(str(entry.get("side")) for entry in said)

    def show(self, record: dict[str, Any]) -> None:
        """Takes in a record; those that are no iteration say nothing of noise."""
        noise_scale = record.get("noise_scale")
        if self._fit is None or record.get("kind") != "iteration":
            return
        if noise_scale is not None and not isinstance(noise_scale, float):
            return  # a role of the user's may report anything
        if side := self._fit.take(noise_scale):
            assert noise_scale is not None
            say = larger if side == "above" else smaller
            message, ways = say(noise_scale, self._config, *self._batches)
            message = f"{message} Try {' or '.join(ways)} ({_WHERE})"
            if self._propose is not None:
                message += f". {self._propose(side, ways)}"
            self._screen.show({"kind": "note", "message": message})
            iteration = record.get("iteration")
            self._folder.add_entry(
                "noise_notes", side=side, noise_scale=noise_scale, iteration=iteration, text=message
            )


def batches_of(config: Config, layout: Layout) -> tuple[int, int]:
    """Returns the samples of a minibatch and of an update; what is kept is drawn by minibatches."""
    size = UpdateSize.of(config, layout)
    replays = isinstance(config.algorithm, ReplayConfig)
    return size.minibatch, size.minibatch if replays else size.samples


def larger(
    noise_scale: float, config: Config, minibatch: int, update: int
) -> tuple[str, list[str]]:
    """Returns what to say of a noise scale far above an update, and settings that would fit.

    The nearest, of which each would do; the first keeps all environments as they are.
    """
    algorithm, times = config.algorithm, noise_scale / update
    grown = 2 ** _doublings(times)
    if isinstance(algorithm, ReplayConfig):
        ways = [f"algorithm.batch_size={algorithm.batch_size * grown}"]
    elif config.mode == "async":
        ways = [f"experience.batch_segments={config.experience.batch_segments * grown}"]
    else:
        ways = [f"algorithm.horizon={algorithm.horizon * grown}"]
        ways.append(f"env.num_env={config.env.num_env * grown}")
    text = (
        f"the gradient noise scale, {noise_scale:,.0f} samples, is {times:,.0f} times an update of "
        f"{update:,}: larger ones would learn as much from each sample."
    )
    return text, ways


def smaller(
    noise_scale: float, config: Config, minibatch: int, update: int
) -> tuple[str, list[str]]:
    """Returns what to say of one far below a minibatch, and the nearest setting that would fit."""
    algorithm, times = config.algorithm, minibatch / max(noise_scale, 1.0)
    parts = 2 ** _doublings(times)
    if isinstance(algorithm, ReplayConfig):
        way = f"algorithm.batch_size={max(1, algorithm.batch_size // parts)}"
    else:
        assert isinstance(algorithm, ActorCriticConfig)
        num_env, minibatches = config.env.num_env, algorithm.minibatches
        per_env = algorithm.horizon  # samples that can be shared out; whole segments cannot
        rows = num_env * (config.experience.batch_segments if config.mode == "async" else per_env)
        while parts > 1 and rows % (minibatches * parts):
            parts //= 2
        way = f"algorithm.minibatches={minibatches * parts}"
        if parts == 1:
            way = f"env.num_env={max(1, num_env // 2)}"
    text = (
        f"the gradient noise scale, {noise_scale:,.0f} samples, is 1/{times:,.0f} of a minibatch "
        f"of {minibatch:,}: smaller ones would learn more from each sample."
    )
    return text, [way]


def _doublings(times: float) -> int:
    """Returns the doublings that bring a ratio within `FACTOR`; one at least."""
    return max(1, math.ceil(math.log2(times / FACTOR)))
