"""Running moments: merged shards equal the whole batch."""

import torch

from gmi_drl.roles.policies.normalize import RunningNormalizer, batch_moments, merge_moments


def moments(batch):
    return batch_moments(batch, torch.zeros(1 + 2 * batch.shape[1], dtype=torch.float64))


def test_shards_merge_to_the_moments_of_the_whole():
    data = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)) * 5 + 100
    shards = torch.stack([moments(part) for part in data.double().split([400, 350, 249, 1])])
    whole = moments(data.double())
    assert torch.allclose(merge_moments(shards), whole, rtol=1e-12)


def test_an_empty_shard_changes_nothing():
    whole = moments(torch.randn(10, 2, dtype=torch.float64))
    assert torch.equal(merge_moments(torch.stack([torch.zeros(5).double(), whole])), whole)


def test_normalizes_to_zero_mean_and_unit_variance_over_several_updates():
    data = torch.randn(600, 4, generator=torch.Generator().manual_seed(1)) * 3 - 7
    normalizer = RunningNormalizer(4, clip=10.0)
    for part in data.split(200):
        normalizer.update(moments(part))
    rows = normalizer.normalize(data)
    assert torch.allclose(rows.mean(0), torch.zeros(4), atol=1e-5)
    assert torch.allclose(rows.var(0, correction=0), torch.ones(4), atol=1e-5)
    assert torch.allclose(normalizer.denormalize(rows), data, atol=1e-4)


def test_before_any_data_it_is_the_identity():
    rows = torch.tensor([[1.5, -2.0]])
    assert torch.equal(RunningNormalizer(2, clip=10.0).normalize(rows), rows)


def test_outliers_are_clipped():
    assert RunningNormalizer(1, clip=10.0).normalize(torch.tensor([[1e6]])).item() == 10.0


def test_state_survives_a_round_trip():
    normalizer = RunningNormalizer(3, clip=10.0)
    normalizer.update(moments(torch.randn(50, 3)))
    copy = RunningNormalizer(3, clip=10.0)
    copy.load_state_dict(normalizer.state_dict())
    assert torch.equal(copy.mean, normalizer.mean)
    assert torch.equal(copy.inv_std, normalizer.inv_std)
