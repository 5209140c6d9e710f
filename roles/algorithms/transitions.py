"""Makes the steps of a batch the transitions that values are learned from."""

from __future__ import annotations

import torch

from gmi_drl.roles.samples.batch import Batch


def make_transitions(batch: Batch, gamma: float, n_step: int, bootstrap_time_limit: bool) -> None:
    """Makes each row a transition of `n_step` steps, of fewer where the batch ends.

    `reward` becomes the discounted sum of theirs, `next_observation` what followed the last of
    them, and `discount` the weight of its value: 0 where the episode was over. What happened after
    the first action is not corrected for the policy of now, as in Rainbow (Hessel et al., 2018,
    section 3).
    """
    reward, done = batch["reward"], batch["done"].bool()
    # What was cut by a time limit could have gone on.
    over = batch["terminated"] if bootstrap_time_limit else done
    first = torch.arange(len(done), device=done.device).unsqueeze(-1)
    last, goes_on, each = first.repeat(1, done.shape[1]), ~done, reward.clone()
    for k in range(1, min(n_step, len(done))):
        # Rows t that have a step t + k, and whether it is of the same episode.
        goes_on = goes_on[: len(done) - k]
        reward[:-k] += torch.where(goes_on, gamma**k * each[k:], 0.0)
        last[:-k] += goes_on
        goes_on = goes_on & ~done[k:]
    after = (gamma ** (last - first + 1)).to(reward.dtype)
    batch["discount"].copy_(after.masked_fill(over.gather(0, last), 0.0))
    if n_step > 1:
        following = batch["next_observation"]
        following.copy_(following.gather(0, last.unsqueeze(-1).expand_as(following)))
