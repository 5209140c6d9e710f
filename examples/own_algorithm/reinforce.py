"""An algorithm of your own: REINFORCE, which runs under two optimizers.

gmi-drl launch examples/own_algorithm/reinforce.yaml            # fresh batches of all GMIs
gmi-drl launch examples/own_algorithm/reinforce_async.yaml      # segments that agents send
"""

import torch
from pydantic import Field

from gmi_drl.placement import AlgorithmConfig
from gmi_drl.roles.algorithms import Algorithm, Losses


class Settings(AlgorithmConfig):
    """The keys that all algorithms have, and one more."""

    optimizers = ("all_reduce", "async_samples")
    entropy_coef: float = Field(default=0.01, ge=0, description="Weight of the entropy bonus.")


class Reinforce(Algorithm):
    """Makes actions more likely by the return that followed them (Williams, 1992)."""

    Settings = Settings
    stats = ("policy_loss", "entropy", "return")
    whole_segments = True  # returns are summed along time
    capturable = False

    def losses(self, batch):
        network, settings = self.policy.network, self.settings
        parameters = network(batch["observations"][:-1])[..., :-1]  # the last column is a value
        dist, log_std = network.distribution, network.log_std
        log_prob = dist.log_prob(parameters, log_std, batch["action"])
        returns, following = torch.empty_like(batch["reward"]), torch.zeros_like(batch["reward"][0])
        for t in reversed(range(len(returns))):
            following = batch["reward"][t] + settings.gamma * (1 - batch["done"][t]) * following
            returns[t] = following
        weight = (returns - returns.mean()) / (returns.std() + 1e-8)
        policy_loss = -(weight * log_prob).mean()
        entropy = dist.entropy(parameters, log_std)
        return Losses(
            policy_loss - settings.entropy_coef * entropy,
            {"policy_loss": policy_loss, "entropy": entropy, "return": returns.mean()},
        )
