"""The memory that is counted before anything runs is what buffers take then."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gmi_drl.placement import Device, Topology, layout_of, load_config
from gmi_drl.placement.checks.memory import Sizes, memory_faults
from gmi_drl.roles.algorithms.td3 import DDPG
from gmi_drl.roles.envs.protocol import Stacking
from gmi_drl.roles.games import make_game
from gmi_drl.roles.games.tree import SearchTrees
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.replay.games import GameReplay
from gmi_drl.roles.samples.replay.storage import Storage

CPU = torch.device("cpu")
GPU = Device(0, "gpu", "H200", tuple(range(4)), uuid="GPU-a", sm_count=132, mem_bytes=1 << 40)


def counted(config, sizes, topology=None):
    """The least memory of the host with which there is no fault."""
    layout = layout_of(config, topology or Topology.from_cores(range(4)))
    least, most = 0, 1 << 40
    while least < most:
        half = (least + most) // 2
        if memory_faults(config, layout, sizes, half):
            least = half + 1
        else:
            most = half
    return least


def sizes_of_tensors(tensors):
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@pytest.mark.parametrize("frames", [1, 4])
@pytest.mark.parametrize("horizon", [1, 2000])
@pytest.mark.parametrize("hindsight", [0, 0.8])
def test_a_replay_and_what_is_put_into_it_at_once(horizon, frames, hindsight):
    width, act, num_env = 40, 4, 8
    words = ["algorithm.name=ddpg", "algorithm.network=[4]", f"algorithm.hindsight={hindsight}"]
    words += ["algorithm.replay_capacity=32_000", f"algorithm.horizon={horizon}"]
    config = load_config({"version": 1, "env": {"id": "my:Reach", "num_env": num_env}}, words)
    policy = SimpleNamespace(
        action_columns=act, noise_columns=act, columns={}, column_groups={}, state_columns=0,
        row_constants={},
    )  # fmt: skip
    batch = Batch.allocate(
        horizon, num_env, width, policy, CPU, recorded=("next_observation", "terminated")
    )
    stacking = Stacking(frames, width // frames) if frames > 1 and not hindsight else None
    replay = Storage(batch, DDPG.replayed, 32_000, CPU, stacking=stacking)
    taken = replay.nbytes + sizes_of_tensors(batch.columns.values())
    sizes = Sizes(width, observation_bytes=4, frames=frames, action=act, parameters=act)
    assert 0.9 * taken < counted(config, sizes) < 1.05 * taken


@pytest.mark.parametrize("topology", [None, Topology((GPU,))])
@pytest.mark.parametrize(
    "words",
    [
        ["algorithm.simulations=4", "algorithm.replay_capacity=100_000"],
        ["algorithm.simulations=1000", "algorithm.replay_capacity=1000"],
    ],
)
def test_the_positions_and_trees_of_alphazero(words, topology):
    words = [*words, "algorithm.name=alphazero", "algorithm.blocks=0", "algorithm.network=[4]"]
    words += [] if topology is None else ["hardware.backend=direct"]
    config = load_config({"version": 1, "env": {"id": "ConnectFour-v0", "num_env": 64}}, words)
    game, settings = make_game("ConnectFour-v0"), config.algorithm
    kept = [
        *vars(GameReplay(game, settings, 1, CPU)).values(),
        *vars(SearchTrees(game, 64, settings.simulations)).values(),
    ]
    taken = sum(its.nbytes for its in kept if isinstance(its, np.ndarray))
    sizes = Sizes(game.state_size, observation_bytes=4, parameters=game.actions)
    assert 0.9 * taken < counted(config, sizes, topology) < 1.05 * taken
