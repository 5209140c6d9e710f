"""Learning with an algorithm of the user's: what is done for it, whatever it leaves out."""

import pytest
import torch

from device_only import RecordedPool
from gmi_drl.comm import solo_group
from gmi_drl.placement import PPOConfig
from gmi_drl.roles.algorithms.algorithm import Algorithm, Losses, checked
from gmi_drl.roles.errors import RoleError
from gmi_drl.roles.optimizers.learner import Learner
from gmi_drl.roles.policies.actor_critic import ActorCritic, ActorCriticPolicy
from gmi_drl.roles.policies.distributions import Normal
from gmi_drl.roles.policies.normalize import Normalizers, RunningNormalizer
from gmi_drl.roles.samples.batch import Batch

SETTINGS = PPOConfig(minibatches=2, epochs=1, schedule="constant")


class Rows(Algorithm):
    """Trains on rows, and shares no moments."""

    stats = ("loss",)
    filled = ("wanted",)

    def postprocess(self, batch, moments):
        assert moments.shape == (1, 0)
        batch["wanted"].copy_(batch["reward"] * 2)

    def losses(self, batch):
        loss = (self.policy.network(batch["observation"])[:, -1] - batch["wanted"]).square().mean()
        return Losses(loss, {"loss": loss})


def test_a_learning_rate_that_follows_nothing_is_told():
    network = ActorCritic(2, Normal(1), [8])
    algorithm = Rows(PPOConfig(), ActorCriticPolicy(network), Normalizers(None, None))
    with pytest.raises(RoleError, match="`stats` have no kl"):
        Learner(algorithm, torch.Generator())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda loss: loss, r"Rows.losses gave a Tensor; must .* Return Losses\(total, stats\)."),
        (Losses, "Rows.losses gave stats none; loss, kl lack. Give all"),
    ],
)
def test_an_algorithm_is_told_what_its_losses_lack(given, words):
    algorithm = Rows(SETTINGS, None, Normalizers(None, None))
    algorithm.stats = ("loss", "kl")
    with pytest.raises(RoleError, match=words):
        checked(algorithm, given(torch.zeros((), requires_grad=True)))


def test_a_batch_tells_which_columns_it_has():
    policy = ActorCriticPolicy(ActorCritic(2, Normal(1), [8]))
    batch = Batch.allocate(4, 3, 2, policy, torch.device("cpu"), bootstrap=("observation",))
    segments = batch.segments(None, ("action", "reward"))
    for minibatch, name, said in (
        (batch.flat(), "observatoin", "observation, action, .* Did you mean observation?"),
        (batch.flat(), "rewards", "whole_segments = True .*: segments have reward"),
        (batch.flat(), "observations", "whole_segments = True .*: segments have observations"),
        (segments, "observation", "it has observations, action, reward. Did you mean observations"),
        (segments, "eligibility", "it has observations, action, reward.'"),
    ):
        with pytest.raises(KeyError, match=said):
            minibatch[name]


@pytest.mark.parametrize("pool", [None, RecordedPool], ids=["anew", "captured"])
@pytest.mark.parametrize("normalized", [True, False])
def test_rows_are_postprocessed_and_observations_learned_without_moments_of_its_own(
    normalized, pool
):
    network = ActorCritic(2, Normal(1), [8], generator=torch.Generator().manual_seed(0))
    policy = ActorCriticPolicy(network)
    seen = RunningNormalizer(2, clip=10.0) if normalized else None
    batch = Batch.allocate(4, 3, 2, policy, torch.device("cpu"), filled=Rows.filled)
    batch["reward"].fill_(1.5)
    batch["raw_observation"].fill_(7.0)
    learner = Learner(
        Rows(SETTINGS, policy, Normalizers(seen, None)),
        torch.Generator().manual_seed(0),
        batch,
        static=pool is not None,
        pool=pool and pool(),
    )
    learner.connect(solo_group())
    for _ in range(2):
        learner.update(batch)
    assert (batch["wanted"] == 3.0).all()
    assert learner.stats()["loss"] > 0
    assert seen is None or seen.mean.tolist() == [7.0, 7.0]
    learner.close()
