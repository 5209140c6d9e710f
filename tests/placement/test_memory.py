"""Memory that a layout needs at least, against what there is."""

import dataclasses

import pytest

from gmi_drl.placement import Device, GpuProcess, Topology, layout_of, load_config
from gmi_drl.placement.checks.memory import Sizes, memory_faults

GIB = 1 << 30
ANT = Sizes(observation=105, action=8, parameters=8)


def faults(words, sizes=ANT, host=23 * GIB, topology=None):
    given = {"version": 1, "env": {"id": "Ant-v5"}}
    config = load_config(given, words)
    layout = layout_of(config, topology or Topology.from_cores(range(4)))
    return [str(fault) for fault in memory_faults(config, layout, sizes, host)]


def test_an_ordinary_config_fits():
    assert faults(["layout.gmi_per_gpu=4", "env.num_env=4096"]) == []


def test_experience_that_does_not_fit_is_told_with_a_num_env_that_does():
    words = ["layout.gmi_per_gpu=2", "algorithm.horizon=1000", "algorithm.minibatches=100"]
    (fault,) = faults([*words, "env.num_env=100_000"])
    assert fault.startswith("env.num_env=100000; 2 GMIs need ")
    assert "and the machine has 23.0 GiB" in fault
    assert "num_env=100000 x horizon=1000 with observations of 105 and actions of 8" in fault
    most = int(fault.partition("Use ")[2].split(" or fewer")[0].replace(",", ""))
    assert faults([*words, f"env.num_env={most - 1}"]) == []
    assert faults([*words, f"env.num_env={most + most // 100}"])


def test_the_rows_of_several_agents_are_counted():
    words = ["algorithm.horizon=1000", "algorithm.minibatches=100", "env.num_env=20_000"]
    assert faults(words) == []
    (fault,) = faults(words, dataclasses.replace(ANT, agents=5))
    assert "for num_env=20000 x 5 agents x horizon=1000 with observations of 105" in fault
    most = int(fault.partition("Use ")[2].split(" or fewer")[0].replace(",", ""))
    assert 3_500 < most < 20_000 * 23 // 40
    assert faults([*words[:2], f"env.num_env={most - 1}"], dataclasses.replace(ANT, agents=5)) == []


def test_a_network_of_ten_to_the_eight_is_counted_with_all_that_training_keeps_of_it():
    words = ["algorithm.network=[10_000, 10_000]", "layout.gmi_per_gpu=4", "env.num_env=8"]
    (fault,) = faults(words)
    assert fault.startswith("algorithm.network=(10000, 10000); 4 GMIs need ")
    assert "for 101,160,009 parameters with gradients, the optimizer's moments" in fault
    assert fault.endswith("Use smaller layers, fewer GMIs, or a machine with more.")
    assert faults([*words, "layout.gmi_per_gpu=1"]) == []
    assert faults(words, dataclasses.replace(ANT, has_own_network=True)) == []


def test_what_a_minibatch_takes_in_the_network_is_counted():
    words = ["algorithm.network=[4000, 4000, 4000]", "env.num_env=40_000", "algorithm.horizon=16"]
    (fault,) = faults(words, host=12 * GIB)
    assert "/ minibatches=2 in the network" in fault
    assert fault.endswith("more algorithm.minibatches.")
    assert faults([*words, "algorithm.minibatches=64"], host=12 * GIB) == []


def test_a_replay_and_a_target_network_are_counted():
    dqn = ["algorithm.name=dqn", "env.num_env=8"]
    assert faults(dqn) == []
    (fault,) = faults([*dqn, "algorithm.replay_capacity=1_000_000_000"])
    assert fault.startswith("algorithm.replay_capacity=1000000000; a GMI needs 138.8 GiB or more")
    most = int(fault.partition("Use ")[2].split(" or fewer")[0].replace(",", ""))
    assert faults([*dqn, f"algorithm.replay_capacity={most}"]) == []
    of_bytes = [*dqn, "algorithm.replay_capacity=100_000_000"]
    assert faults(of_bytes) == []
    assert faults(of_bytes, dataclasses.replace(ANT, observation_bytes=4))
    (fault,) = faults([*dqn, "algorithm.batch_size=100_000_000"])
    assert fault.startswith("algorithm.batch_size=100000000; ")
    assert "for 100,000,000 rows in the network" in fault
    network = ["algorithm.network=[10_000, 10_000]", "env.num_env=8"]
    (few,) = faults(network, host=1)
    (more,) = faults([*network, "algorithm.name=dqn", "algorithm.replay_capacity=2000"], host=1)
    needs = [float(text.partition("needs ")[2].split()[0]) for text in (few, more)]
    assert 0.35 < needs[1] - needs[0] < 0.45  # 101 million parameters once more


def test_noise_and_distributions_are_counted():
    dqn = ["algorithm.name=dqn", "algorithm.network=[512]", "env.num_env=16384"]
    assert faults(dqn, host=GIB // 2) == []
    (fault,) = faults([*dqn, "algorithm.noisy=true"], host=GIB // 2)
    assert fault.startswith("env.num_env=16384; a GMI needs 0.7 GiB or more")
    qr = ["algorithm.name=dqn", "algorithm.distributional=qr", "algorithm.quantiles=10_000"]
    (fault,) = faults([*qr, "algorithm.batch_size=10_000", "env.num_env=8"], host=2 * GIB)
    assert fault.startswith("algorithm.batch_size=10000; ")


def test_a_replay_beside_a_gpu_is_counted_on_the_host():
    gpu = Device(0, "gpu", "H200", tuple(range(4)), uuid="GPU-a", sm_count=132, mem_bytes=8 * GIB)
    words = [
        "hardware.backend=direct", "algorithm.name=dqn", "env.num_env=8",
        "algorithm.replay_capacity=100_000_000",
    ]  # fmt: skip
    (fault,) = faults(words, topology=Topology((gpu,)), host=64 * GIB)
    assert "GMI 0 has" in fault
    there = [*words, "algorithm.replay_device=cpu"]
    assert faults(there, topology=Topology((gpu,)), host=64 * GIB) == []
    (fault,) = faults(there, topology=Topology((gpu,)), host=8 * GIB)
    assert "and the machine has 8.0 GiB" in fault


CONNECT_FOUR = Sizes(observation=42, observation_bytes=4, parameters=7)


@pytest.mark.parametrize(
    ("key", "words", "remedy"),
    [
        ("algorithm.replay_capacity", ["algorithm.replay_capacity=400_000_000"], "fewer GMIs"),
        ("env.num_env", ["algorithm.simulations=100_000"], "fewer algorithm.simulations."),
        (
            "env.num_env", ["algorithm.play_simulations=100_000", "mode=serving"],
            "fewer algorithm.play_simulations.",
        ),
    ],
)  # fmt: skip
def test_the_replay_and_the_trees_of_alphazero_are_counted(key, words, remedy):
    words = [*words, "algorithm.name=alphazero", "env.id=ConnectFour-v0", "layout.gmi_per_gpu=2"]
    words += ["env.num_env=2000", "algorithm.games=4000", "algorithm.blocks=0"]
    (fault,) = faults(words, CONNECT_FOUR)
    assert fault.startswith(f"{key}=")
    assert remedy in fault
    most = int(fault.partition("Use ")[2].split(" or fewer")[0].replace(",", ""))
    assert faults([*words, f"{key}={most}"], CONNECT_FOUR) == []
    assert faults([*words, f"{key}={most + most // 50}"], CONNECT_FOUR)


def test_serving_keeps_no_experience():
    assert faults(["mode=serving", "env.num_env=1_000_000", "algorithm.horizon=1000"]) == []


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_what_a_served_network_computes_with_is_of_its_environments(name):
    words = ["mode=serving", f"algorithm.name={name}"]
    (fault,) = faults([*words, "env.num_env=1_000_000"], host=GIB)
    assert fault.startswith("env.num_env=1000000; a GMI needs ")
    assert fault.endswith(" or fewer, or smaller layers.")
    most = int(fault.partition("Use ")[2].split(" or fewer")[0].replace(",", ""))
    assert faults([*words, f"env.num_env={most}"], host=GIB) == []


@pytest.mark.parametrize("words", [["layout.template=tdg_ex"], ["mode=async"]])
def test_a_trainer_without_environments_holds_what_its_agents_collect(words):
    devices = Topology.from_cores(range(4), 2 if "mode=async" in words else 1)
    words = [*words, "layout.gmi_per_gpu=2", "env.num_env=50_000", "algorithm.horizon=1000"]
    (fault,) = faults(words, topology=devices)
    assert "x horizon=1000" in fault


def test_on_a_gpu_each_gmi_is_held_against_its_share():
    gpu = Device(0, "gpu", "H200", tuple(range(4)), uuid="GPU-a", sm_count=132, mem_bytes=8 * GIB)
    words = ["hardware.backend=direct", "layout.gmi_per_gpu=2", "env.num_env=16384"]
    words += ["algorithm.horizon=512"]
    (fault,) = faults(words, host=1, topology=Topology((gpu,)))
    assert "a GMI needs " in fault
    assert "GMI 0 has 3." in fault
    assert "an equal part of GPU 0 for 2 GMIs" in fault
    roomy = dataclasses.replace(gpu, mem_bytes=140 * GIB)
    assert faults(words, host=1, topology=Topology((roomy,))) == []


def test_where_nobody_says_how_much_there_is_nothing_is_refused():
    assert faults(["env.num_env=1_000_000", "algorithm.horizon=100_000"], host=None) == []


def test_images_are_counted_as_the_bytes_that_a_batch_keeps():
    pong = Sizes(observation=84 * 84 * 4, action=1, parameters=6)
    words = ["algorithm.normalize_observation=false", "algorithm.network=nature"]
    words += ["env.num_env=128", "algorithm.horizon=6400", "algorithm.minibatches=6400"]
    of_stacks, images = dataclasses.replace(pong, frames=4), 6400 * 128 * 84 * 84 * 4
    floats = dataclasses.replace(pong, observation_bytes=4)

    def needs(sizes, *more):
        (fault,) = faults([*words, *more], sizes, host=1)
        return float(fault.partition("needs ")[2].split()[0]) * GIB / images

    rest = needs(of_stacks) - 1 / 4  # of minibatches and the network
    assert needs(pong) - rest == pytest.approx(1, abs=0.1)
    assert needs(floats) - rest == pytest.approx(8, abs=0.1)
    normalized = "algorithm.normalize_observation=true"
    assert needs(of_stacks, normalized) - rest == pytest.approx(5, abs=0.1)


def test_a_replay_of_stacks_is_counted_as_frames():
    pong = Sizes(observation=84 * 84 * 4, action=1, parameters=6, frames=4)
    words = ["algorithm.name=dqn", "algorithm.normalize_observation=false", "env.num_env=8"]
    words += ["algorithm.replay_capacity=1_000_000", "env.max_episode_steps=27000"]
    words += ["algorithm.network=nature", "algorithm.sampler=prioritized"]

    def needs(sizes, *more):
        (fault,) = faults([*words, *more], sizes, host=1)
        assert fault.startswith("algorithm.replay_capacity=1000000; a GMI needs ")
        return float(fault.partition(": ")[2].split()[0]) * GIB

    assert 7.0e9 < needs(pong) < 7.2e9
    assert needs(dataclasses.replace(pong, frames=1)) > 28e9


def test_segments_of_other_hosts_end_anywhere_in_a_replay():
    pong = Sizes(observation=84 * 84 * 4, action=1, parameters=6, frames=4)
    words = ["mode=async", "algorithm.name=dqn", "algorithm.normalize_observation=false"]
    words += ["algorithm.network=nature", "env.num_env=8", "algorithm.replay_capacity=1_000_000"]

    def needs(hosts, devices):
        cluster = {"address": "10.0.0.1:6379", "hosts": hosts, "trainer_hosts": 1}
        topology = Topology.from_cores(range(devices), devices)
        (fault,) = faults([*words, f"cluster={cluster}"], pong, host=1, topology=topology)
        return float(fault.partition(": ")[2].split()[0])

    of_one_agent = needs(2, 1)
    assert of_one_agent < needs(3, 1) == needs(2, 2)


def most_of(fault):
    """The value that a fault says is small enough."""
    return int(fault.partition("Use ")[2].split(" or fewer")[0].replace(",", ""))


def test_a_num_env_that_is_told_fits_every_gpu_also_where_others_hold_memory():
    gpus = tuple(
        Device(
            index, "gpu", "H200", tuple(range(4 * index, 4 * index + 4)), uuid=f"GPU-{index}",
            sm_count=132, mem_bytes=8 * GIB,
            processes=(GpuProcess(7, "compute", held * GIB),),
        )
        for index, held in enumerate((0, 5, 2))
    )  # fmt: skip
    words = ["hardware.backend=direct", "algorithm.horizon=512"]
    (fault,) = faults([*words, "env.num_env=40_000"], topology=Topology(gpus))
    assert "GMI 1 has 2.0 GiB, all of GPU 1" in fault
    assert faults([*words, f"env.num_env={most_of(fault)}"], topology=Topology(gpus)) == []


def test_a_replay_that_is_told_fits_also_where_ends_of_episodes_take_more_beside_it():
    wide = Sizes(observation=7056, observation_bytes=4, action=6, parameters=6)
    words = ["algorithm.name=ddpg", "algorithm.network=[64, 64]", "env.num_env=64"]
    words += ["layout.gmi_per_gpu=4", "algorithm.replay_start=1"]
    (fault,) = faults([*words, "algorithm.replay_capacity=1_000_000"], wide, host=3 * GIB)
    most = most_of(fault)
    assert faults([*words, f"algorithm.replay_capacity={most}"], wide, host=3 * GIB) == []
    assert faults([*words, f"algorithm.replay_capacity={most + 1}"], wide, host=3 * GIB)


def test_a_minibatch_of_sequences_is_told_by_the_sequences_that_fit():
    words = ["algorithm.name=dqn", "algorithm.recurrent=lstm", "algorithm.horizon=80"]
    words += ["env.num_env=8", "algorithm.replay_capacity=2000"]
    (fault,) = faults([*words, "algorithm.batch_size=10_000"], host=GIB)
    assert fault.startswith("algorithm.batch_size=10000; ")
    assert "for 800,000 rows in the network" in fault
    most = most_of(fault)
    assert most < 10_000
    assert faults([*words, f"algorithm.batch_size={most}"], host=GIB) == []
    assert faults([*words, f"algorithm.batch_size={most + 1}"], host=GIB)
