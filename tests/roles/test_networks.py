"""Networks of configs: layer norm, layers of the value's own, and hidden layers of the user's."""

import copy

import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from torch import nn

import gmi_drl
from gmi_drl import rl
from gmi_drl.placement import ConfigError, PPOConfig
from gmi_drl.roles.envs import make_env
from gmi_drl.roles.errors import RoleError
from gmi_drl.roles.policies.convolutions import ConvolutionalTrunk
from gmi_drl.roles.policies.networks import actor_critic_of
from gmi_drl.roles.policies.trunk import OwnTrunk, Trunk


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def env():
    made = make_env("CartPole-v1", 2, adapter="gymnasium")
    yield made
    made.close()


def network_of(env, **keys):
    return actor_critic_of(PPOConfig(name="ppo", **keys), env, generator())


def test_layer_norm_stands_before_each_activation():
    ours = Trunk(3, [5, 4], "relu", layer_norm=True)
    ours.initialise(generator())
    kinds = [type(layer) for layer in ours]
    assert kinds == [nn.Linear, nn.LayerNorm, nn.ReLU] * 2
    seen = torch.randn(7, 3, generator=generator(1)) * 100
    first = nn.functional.layer_norm(ours[0](seen), (5,)).relu()
    assert torch.allclose(ours(seen), nn.functional.layer_norm(ours[3](first), (4,)).relu())
    image = Box(0.0, 1.0, (1, 36, 36))
    seeing = ConvolutionalTrunk("nature", image, layer_norm=True)
    seen = torch.rand(2, 36 * 36)
    by_hand = seeing.dense(seeing.convolutions(seen.view(2, 1, 36, 36)).flatten(1))
    expected = nn.functional.layer_norm(by_hand, (512,)).relu()
    assert torch.allclose(seeing(seen), expected, atol=1e-6)


def test_layers_of_the_values_own_are_reached_by_no_other_loss(env):
    network = network_of(env, network=[8, 8], share_layers=False, activation="tanh")
    seen = torch.randn(6, 4, generator=generator(2))
    out = network(seen)
    assert out.shape == (6, 3)
    features = network.trunk.policy(seen), network.trunk.value(seen)
    assert torch.equal(out[:, :2], network.head.policy(features[0]))
    assert torch.equal(out[:, 2:], network.head.value(features[1]))
    assert not torch.equal(*features)  # each was drawn
    for columns, reached in ((slice(0, 2), "policy"), (slice(2, 3), "value")):
        network.zero_grad(set_to_none=False)
        network(seen)[:, columns].square().sum().backward()
        touched = {
            name.split(".")[1]
            for name, parameter in network.named_parameters()
            if parameter.grad is not None and parameter.grad.abs().sum()
        }
        assert touched == {reached}


@pytest.mark.parametrize("share", [True, False])
def test_a_value_is_mapped_in_every_state(env, share):
    network = network_of(env, network=[8], share_layers=share)
    seen = torch.randn(6, 4, generator=generator(2))
    before = network(seen)
    network.map_value(torch.tensor(3.0), torch.tensor(-2.0))
    after = network(seen)
    assert torch.equal(after[:, :-1], before[:, :-1])
    assert torch.allclose(after[:, -1], before[:, -1] * 3 - 2, atol=1e-5)


def test_the_policys_own_layers_learn_what_a_shared_network_of_them_would(env):
    """With the value's loss left out, one step of each is the same."""
    shared = network_of(env, network=[8], share_layers=True)
    apart = network_of(env, network=[8], share_layers=False)
    apart.trunk.policy.load_state_dict(shared.trunk.state_dict())
    with torch.no_grad():
        apart.head.policy.weight.copy_(shared.head.weight[:-1])
        apart.head.policy.bias.copy_(shared.head.bias[:-1])
    seen = torch.randn(6, 4, generator=generator(2))
    for network in (shared, apart):
        network(seen)[:, :2].square().sum().backward()
    ours, theirs = apart.trunk.policy[0].weight.grad, shared.trunk[0].weight.grad
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_hidden_layers_of_ones_own_begin_alike_everywhere(env):
    own = "bodies_networks:Wide"
    torch.manual_seed(1)
    here = torch.get_rng_state()
    first = OwnTrunk(own, env.observation_space, generator())
    assert torch.equal(torch.get_rng_state(), here)  # nobody else's numbers were drawn
    torch.manual_seed(2)
    second, other = (OwnTrunk(own, env.observation_space, generator(seed)) for seed in (0, 1))
    weights = [trunk.module.layers[0].weight for trunk in (first, second, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    network, seen = network_of(env, network=own), torch.randn(6, 4)
    assert torch.equal(network.trunk(seen), network.trunk.module(seen))
    assert network(seen).shape == (6, 3)
    assert network.describe()["trunk"] == own


def test_they_take_precision_apart_and_cells(env):
    keys = {"network": "bodies_networks:Wide", "share_layers": False, "precision": "bf16"}
    network, seen = network_of(env, **keys), torch.randn(6, 4)
    rounded = network.trunk(seen)
    assert rounded.dtype == torch.float32
    exact = copy.deepcopy(network)
    exact.trunk.policy.bf16 = exact.trunk.value.bf16 = False
    assert not torch.equal(exact.trunk(seen), rounded)
    assert torch.allclose(exact.trunk(seen), rounded, atol=0.05)
    remembering = network_of(env, network="bodies_networks:Wide", recurrent={"size": 8})
    assert remembering.cell.input_size == 24


def test_the_structure_is_there_for_who_wants_it():
    space = Dict(level=Discrete(3), position=Box(-1.0, 1.0, (2,)))
    trunk = OwnTrunk("bodies_networks:Apart", space, generator())
    assert trunk(torch.rand(4, 5)).shape == (4, 5)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bodies_networks:Unsaid", "Unsaid.features is None; must be the width"),
        ("bodies_networks:Narrow", r"forward gave \[2, 3\].*must give \[2, 24\]"),
        ("bodies_networks:Picky", r"Picky\(space\) raised KeyError: 'pixels'.*Box"),
        ("bodies_networks:Counting", "keeps norm.num_batches_tracked, norm.running_mean"),
        ("bodies_networks:Wid", "has no Wid.*Did you mean Wide"),
        ("bodies_networks:NOT_A_CLASS", "is no Module. Derive it from torch.nn.Module"),
        ("no_such_module:Wide", "importing no_such_module failed"),
    ],
)
def test_what_is_no_network_is_refused(name, said):
    with pytest.raises(RoleError, match=said) as raised:
        OwnTrunk(name, Box(-1.0, 1.0, (4,)), generator())
    assert "algorithm.network" in str(raised.value)


def config(tmp_path, **algorithm):
    return {
        "version": 1,
        "run": {"folder": str(tmp_path), "total_steps": 512, "checkpoint_every": 1, "seed": 3},
        "env": {"id": "CartPole-v1", "num_env": 8},
        "algorithm": {"horizon": 16, "network": [8], **algorithm},
        "hardware": {"backend": "cpu", "num_gpus": 1},
        "layout": {"template": "tcg_ex", "gmi_per_gpu": 1},
    }


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"network": "bodies_networks:Wide", "layer_norm": True}, "has layers of its own"),
        ({"share_layers": False, "recurrent": {}}, "a recurrent policy have one cell"),
        ({"network": "wide"}, "must be a preset, a list of hidden layer sizes, or module:Class"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path, keys, said):
    with pytest.raises(ConfigError, match=said):
        gmi_drl.launch(config(tmp_path, **keys), view="none")


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(
    "keys",
    [
        {"network": "bodies_networks:Wide"},
        {"layer_norm": True, "share_layers": False},
        {"name": "dqn", "network": "bodies_networks:Wide", "replay_start": 64},
    ],
)
def test_they_are_trained_and_resumed(tmp_path, keys):
    trained = gmi_drl.launch(config(tmp_path, **keys), view="none")
    assert trained.steps == 512
    rest = gmi_drl.launch(
        None, resume=trained.folder, overrides=["run.total_steps=1024"], view="none"
    )
    assert rest.steps == 1024


def test_evaluators_take_them():
    evaluator = rl.Evaluator(
        env="CartPole-v1", algorithm=rl.PPO, num_env=4,
        settings={"network": "bodies_networks:Wide", "horizon": 8, "share_layers": False},
    )  # fmt: skip
    optimizer = rl.Local(rl.PPO, [evaluator])
    assert optimizer.step()["steps"] == 32
    optimizer.close()
