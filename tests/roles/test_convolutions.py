"""Networks for images: what they see in a vector, what they refuse, and that they learn."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import gmi_drl
from gmi_drl.placement import load_config
from gmi_drl.roles.envs.errors import EnvSpecError
from gmi_drl.roles.policies.convolutions import ConvolutionalTrunk, image_of


def image(*shape):
    return Box(0, 255, shape, np.uint8)


@pytest.mark.parametrize(("name", "features"), [("nature", 512), ("impala", 256)])
def test_channels_may_lie_before_or_behind(name, features):
    first = ConvolutionalTrunk(name, image(3, 48, 40), in_bytes=True)
    last = ConvolutionalTrunk(name, image(48, 40, 3), in_bytes=True)
    first.initialise(torch.Generator().manual_seed(0))
    last.load_state_dict(first.state_dict())
    seen = torch.randint(0, 256, (5, 2, 3, 48, 40), generator=torch.Generator().manual_seed(1))
    vectors = seen.float().flatten(2)
    out = first(vectors)
    assert out.shape == (5, 2, features)
    assert (out >= 0).all()
    moved = seen.permute(0, 1, 3, 4, 2).float().flatten(2)
    assert torch.allclose(last(moved), out, rtol=1e-4, atol=1e-4)
    plain = ConvolutionalTrunk(name, image(3, 48, 40))
    plain.load_state_dict(first.state_dict())
    assert torch.allclose(plain(vectors / 255), out, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "channels"),
    [
        ((10, 10, 16), 16), ((16, 10, 10), 16), ((10, 10, 10), 10), ((84, 84, 48), 48),
        ((40, 84, 84), 40), ((20, 30, 16), 16), ((16, 20, 30), 16),
    ],
)  # fmt: skip
def test_channels_are_what_an_image_has_beside_its_sides(shape, channels):
    assert image_of(image(*shape), "impala")[0][0] == channels


def test_nature_is_the_network_of_its_paper():
    trunk = ConvolutionalTrunk("nature", image(4, 84, 84))
    sizes = [tuple(one.weight.shape) for one in trunk.convolutions if hasattr(one, "weight")]
    assert sizes == [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3)]
    assert trunk.dense.in_features == 64 * 7 * 7 == 3136
    seen = torch.rand(2, 4, 84, 84)
    by_hand = torch.relu(trunk.dense(trunk.convolutions(seen).flatten(1)))
    assert torch.allclose(trunk(seen.flatten(1)), by_hand)


def test_impala_has_fifteen_convolutions():
    trunk = ConvolutionalTrunk("impala", image(4, 84, 84))
    count = sum(isinstance(one, torch.nn.Conv2d) for one in trunk.modules())
    assert count == 15
    assert trunk.dense.in_features == 32 * 11 * 11


def test_what_is_no_image_is_refused():
    with pytest.raises(EnvSpecError, match=r"observation space Discrete\(3\) is no image"):
        ConvolutionalTrunk("impala", Discrete(3))
    with pytest.raises(EnvSpecError, match=r"is no image, a Box of \[height, width\]"):
        ConvolutionalTrunk("nature", Box(-1.0, 1.0, (17,)))
    with pytest.raises(EnvSpecError, match=r"images of 12 x 16 are smaller than its kernels"):
        ConvolutionalTrunk("nature", image(12, 16, 1))
    assert ConvolutionalTrunk("impala", image(12, 16)).features == 256


@pytest.mark.slow
@pytest.mark.timeout(400)  # 10 s each where nothing else runs
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(
    ("mode", "num_env", "learning_rate"), [("sync", 4, 1e-3), ("async", 8, 5e-4)]
)
def test_what_is_seen_is_learned(tmp_path, mode, num_env, learning_rate):
    # It ends when it is learned. How many steps that takes is the machine's matter too: under
    # `async` experience is as old as its load makes it.
    config = load_config(
        {
            "version": 1,
            "mode": mode,
            "run": {
                "total_steps": 40_000, "target_return": 7.0, "folder": str(tmp_path),
                "eval_episodes": 8, "seed": 1,
            },
            "env": {"id": "bodies_images:Side-v0", "num_env": num_env},
            "algorithm": {
                "network": "impala", "normalize_observation": False, "horizon": 8,
                "learning_rate": learning_rate, "schedule": "constant",
                **({"minibatches": 2, "epochs": 2} if mode == "sync" else {"minibatches": 1}),
            },
            "hardware": {"num_gpus": 2},
        }
    )  # fmt: skip
    result = gmi_drl.launch(config, view="none")
    assert result.return_mean >= 7  # of 8, in the last 100 episodes; by chance 4
    assert result.eval_return >= 6
