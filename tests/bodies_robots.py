"""Barkour by MJX beside Barkour by mujoco_warp; runs in a process of its own, see bodies_mjx.py."""

import torch

from gmi_drl.roles.envs import make_env


def barkour_by_two_adapters():
    ours, theirs = (
        make_env(
            "Barkour-v0",
            2,
            adapter=adapter,
            seed=4,
            options={"frame_skip": 2},
            max_episode_steps=12,
        )
        for adapter in ("mjx", "warp")
    )
    assert torch.equal(ours.reset(), theirs.reset())
    generator = torch.Generator().manual_seed(1)
    ended = 0
    for action in torch.rand(40, 2, 12, generator=generator) * 2 - 1:
        step, other = ours.step(action), theirs.step(action)
        assert torch.allclose(step.final_observation, other.final_observation, atol=1e-3)
        assert torch.allclose(step.reward, other.reward, atol=1e-5)
        assert torch.equal(step.truncated, other.truncated)
        ended += int(step.truncated.sum())
    assert ended == 6
    commands = step.observation[:, 9:12]
    assert torch.equal(commands, other.observation[:, 9:12])
    assert ours.unstable_steps == 0
