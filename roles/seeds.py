"""Seeds of random numbers: of one GMI or evaluator alone, by what they are drawn for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from torch import Generator, Tensor

ENVIRONMENTS: Final = 0
ACTIONS: Final = 1
EVALUATION: Final = 2  # of the environments at the end, the same however often a run was resumed
DRAWS: Final = 5  # of minibatches
GOALS: Final = 6  # of the environment that says what goals are worth; nothing is drawn from it
LOSSES: Final = 7  # of the noise of losses that give first priorities
OTHERS: Final = 14  # of torch's own generator, from which code of the user's may draw


def seed_of(
    run: int, number: int, stream: int, lives: int = 0, resumed: int = 0, copy: int = 0
) -> int:
    """Returns the seed of a stream of the GMI or evaluator with this number, of a run's seed.

    One that was restarted has other seeds than in its `lives` before, and one of a run that goes on
    from the checkpoint of iteration `resumed` others than before: it shall not see the same again.
    Nor shall one that goes on from several others' checkpoints, which may be of one iteration: see
    `Pause.copy`.
    """
    later = [lives, resumed, copy]
    while later and not later[-1]:
        later.pop()
    entropy = (run, number, stream, *later)
    return int(np.random.SeedSequence(entropy).generate_state(1)[0])


def draw_on(generator: Generator, state: Tensor) -> None:
    """Has a generator draw on from a checkpoint's `state`, if that is of the same kind of device.

    Those of a CPU and of a GPU do not fit each other: it then draws on from its own seed, which is
    another one after a resume.
    """
    if state.shape == generator.get_state().shape:
        generator.set_state(state)
