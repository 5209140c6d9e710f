"""GAE against hand-worked numbers and the definition in float64."""

import torch

from gmi_drl.roles.returns import gae


def by_definition(reward, value, done, last_value, gamma, lam):
    """A_t = sum_l (gamma lam)^l delta_{t+l}, summed up to the end of the episode."""
    horizon, envs = reward.shape
    values = torch.cat([value, last_value[None]]).double()
    advantage = torch.zeros(horizon, envs, dtype=torch.float64)
    for n in range(envs):
        for t in range(horizon):
            weight = 1.0
            for k in range(t, horizon):
                alive = 1.0 - float(done[k, n])
                delta = float(reward[k, n]) + gamma * alive * values[k + 1, n] - values[k, n]
                advantage[t, n] += weight * delta
                if not alive:
                    break
                weight *= gamma * lam
    return advantage


def test_hand_worked_three_steps():
    # gamma = lam = 0.5; deltas: 1 + .5*2 - 1 = 1; 1 + .5*3 - 2 = .5; 1 + .5*4 - 3 = 0
    column = torch.tensor([[1.0], [1.0], [1.0]])
    value = torch.tensor([[1.0], [2.0], [3.0]])
    out = torch.empty(3, 1)
    gae(column, value, torch.zeros(3, 1), torch.tensor([4.0]), 0.5, 0.5, out)
    assert torch.allclose(out, torch.tensor([[1.0 + 0.25 * 0.5], [0.5], [0.0]]))


def test_an_ended_episode_takes_nothing_from_the_next_one():
    reward = torch.tensor([[0.0], [100.0]])
    done = torch.tensor([[1.0], [0.0]])
    out = torch.empty(2, 1)
    gae(reward, torch.zeros(2, 1), done, torch.tensor([50.0]), 0.9, 0.9, out)
    assert out[0].item() == 0.0


def test_equals_the_definition_on_random_data():
    generator = torch.Generator().manual_seed(0)
    reward, value = torch.randn(2, 64, 5, generator=generator)
    done = (torch.rand(64, 5, generator=generator) < 0.1).float()
    last = torch.randn(5, generator=generator)
    out = torch.empty(64, 5)
    gae(reward, value, done, last, 0.99, 0.95, out)
    wanted = by_definition(reward, value, done, last, 0.99, 0.95)
    assert (out.double() - wanted).abs().max() < 2e-6 * wanted.abs().max()
