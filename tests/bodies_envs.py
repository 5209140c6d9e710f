"""Our batch and Gymnasium's environments on the same actions, side by side."""

import gymnasium
import numpy as np
import torch

from gmi_drl.roles.envs import make_env


def largest_difference(env_id, *, steps, seed, num_env=3, options=None, limit=None, threads=1):
    """(observation, reward, episodes ended): the largest absolute differences, through resets,
    seeded alike and nothing copied over. Ends of episodes must agree exactly."""
    options = options or {}
    ours = make_env(
        env_id, num_env, adapter="mujoco", options=options, seed=seed, threads=threads,
        dtype=torch.float64, max_episode_steps=limit,
    )  # fmt: skip
    refs = [gymnasium.make(env_id, max_episode_steps=limit, **options) for _ in range(num_env)]
    rng = np.random.default_rng(seed)
    high = ours.action_space.high
    firsts = [ref.reset(seed=seed + i)[0] for i, ref in enumerate(refs)]
    observation, reward, ended = difference(ours.reset(), firsts), 0.0, 0
    for _ in range(steps):
        action = rng.uniform(-1.1, 1.1, (num_env, len(high))) * high  # beyond the bounds as well
        step = ours.step(torch.from_numpy(action))
        seen = [ref.step(a) for ref, a in zip(refs, action, strict=True)]
        observation = max(observation, difference(step.final_observation, [s[0] for s in seen]))
        reward = max(reward, difference(step.reward, [s[1] for s in seen]))
        assert step.terminated.tolist() == [s[2] for s in seen]
        assert step.truncated.tolist() == [s[3] for s in seen]
        for i, s in enumerate(seen):
            if s[2] or s[3]:
                ended += 1
                observation = max(observation, difference(step.observation[i], refs[i].reset()[0]))
            else:
                assert torch.equal(step.observation[i], step.final_observation[i])
    ours.close()
    for ref in refs:
        ref.close()
    return observation, reward, ended


def difference(ours, theirs):
    return float(np.abs(ours.numpy() - np.asarray(theirs)).max())
