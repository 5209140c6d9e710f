"""What an update is with other numbers of environments and GMIs, by each rule of `tune.keep`."""

import math

import pytest

from gmi_drl.launcher.start.jobs import RESIZABLE
from gmi_drl.placement import Device, Fault, Topology, check, load_config, resolved
from gmi_drl.selector.tune import keep as rules
from gmi_drl.selector.tune.keep import (
    as_given,
    environments,
    is_predicted,
    kept_sentence,
    least_horizon,
    may_grow,
    own_update,
    prediction_of,
    update_of,
)


def config_with(keep="update", num_env=16, gmis=1, **sections):
    return load_config(
        {
            "version": 1,
            "env": {"id": "CartPole-v1", "num_env": num_env},
            "layout": {"gmi_per_gpu": gmis},
            "tune": {"keep": keep},
            **sections,
        }
    )


def ppo(**keys):
    return {"algorithm": {"horizon": 128, "minibatches": 4, "schedule": "constant", **keys}}


CORES = Topology.from_cores(range(8))
SIZES = [(gmis, num_env) for gmis in (1, 2, 3, 4) for num_env in (4, 6, 12, 16, 24, 48, 64, 96)]


@pytest.mark.parametrize("keep", ["update", "gradient_steps", "none"])
@pytest.mark.parametrize("gmis", [1, 2])
def test_the_configs_own_numbers_keep_its_own_update(keep, gmis):
    config = config_with(keep, gmis=gmis, **ppo())
    own = update_of(config, CORES, gmis, 16)
    assert (own.horizon, own.samples, own.changes) == (128, 2048 * gmis, ())
    assert kept_sentence(config, CORES, own) == ""


@pytest.mark.parametrize(("gmis", "num_env"), SIZES)
@pytest.mark.parametrize("objective", ["learning", "steps"])
def test_keep_update_keeps_samples_and_minibatches_and_can_run(gmis, num_env, objective):
    config = config_with(tune={"keep": "update", "objective": objective}, **ppo())
    update = update_of(config, CORES, gmis, num_env)
    if isinstance(update, Fault):
        assert gmis * num_env * 17 > 2 * 2048
        return
    changes = dict(update.changes)
    assert update.samples == gmis * num_env * update.horizon
    assert update.horizon >= 17
    assert changes.get("minibatches", 4) == pytest.approx(4, abs=2)  # what divides an update
    if objective == "steps" and update.horizon > 19:  # not at the floor, nor beside it
        assert update.samples == pytest.approx(2048, rel=0.06)
    assert 0.94 * 2048 <= update.samples <= 2 * 2048
    chosen = followed(config, update, gmis, num_env)
    assert not check(chosen, CORES)
    assert_rate_follows(update, 4)


def followed(config, update, gmis, num_env):
    keys = {"horizon": update.horizon, **dict(update.changes)}
    chosen = resolved(config, gmi_per_gpu=gmis, num_env=num_env)
    return chosen.model_copy(update={"algorithm": config.algorithm.model_copy(update=keys)})


def assert_rate_follows(update, minibatches):
    """The learning rate goes with the root of a minibatch's size, 512 as given."""
    changes = dict(update.changes)
    minibatch = update.samples / changes.get("minibatches", minibatches)
    wanted = 3e-4 * math.sqrt(minibatch / 512) if abs(minibatch / 512 - 1) > 0.1 else 3e-4
    assert changes.get("learning_rate", 3e-4) == pytest.approx(wanted, rel=0.01)


def test_an_update_grows_a_little_where_a_shorter_horizon_would_see_too_little():
    config = config_with(**ppo())
    prediction = prediction_of(config, CORES)

    def worth(horizon):
        return prediction.efficiency(64 * horizon, horizon)

    update = update_of(config, CORES, 1, 64)
    assert 32 < update.horizon < 128  # 32 would keep 2,048 samples
    assert worth(update.horizon) > max(worth(32), worth(64))
    assert update_of(config, CORES, 1, 16).horizon == 128
    exact = config_with(tune={"objective": "steps"}, **ppo())
    assert update_of(exact, CORES, 1, 64).horizon == 32
    batch = config_with(tune={"batch": 2048}, **ppo())
    assert update_of(batch, CORES, 1, 64).horizon == 32


def test_a_grown_update_has_the_horizon_and_the_minibatches_as_they_are():
    config = config_with(**ppo())
    update = update_of(config, CORES, 2, 96, grown=True)
    assert (update.horizon, update.samples) == (128, 24_576)
    assert dict(update.changes) == {"learning_rate": pytest.approx(3e-4 * math.sqrt(12), rel=0.01)}
    assert may_grow(config)
    assert not may_grow(config_with("none", **ppo()))
    assert not may_grow(config_with(tune={"objective": "steps"}))
    assert not may_grow(config_with(tune={"batch": 4096}))
    assert not may_grow(config_with(algorithm={"name": "dqn"}))


def test_an_update_that_no_horizon_keeps_is_refused():
    fault = update_of(config_with(**ppo()), CORES, 4, 96)
    assert isinstance(fault, Fault)
    assert str(fault).startswith("env.num_env=96; 96 environments in each GMI, with 4 on each")
    assert "no horizon below 17" in str(fault)
    assert "tune.batch: 6528" in str(fault)


def test_the_shortest_horizon_is_how_far_advantages_look():
    def least(**keys):
        return least_horizon(config_with(**ppo(**keys)).algorithm)

    assert least() == math.ceil(1 / (1 - 0.99 * 0.95)) == 17
    assert least(lam=0.8) == 5
    assert least(horizon=8) == 8
    assert least(lam=1.0, gamma=1.0) == 128
    assert least(lam=1.0) == 100
    assert least(recurrent={"size": 8}) == 128  # what it remembers is learned along the horizon


def test_keep_gradient_steps_keeps_the_horizon_and_the_minibatch():
    config = config_with("gradient_steps", **ppo())
    update = update_of(config, CORES, 2, 96)
    assert (update.horizon, update.samples, dict(update.changes)) == (
        128, 24_576, {"minibatches": 48},
    )  # fmt: skip
    assert kept_sentence(config, CORES, update) == (
        "an update takes 24,576 steps instead of 2,048, with minibatches 48 instead of 4"
    )
    small = update_of(config, CORES, 1, 2)
    assert (small.samples, dict(small.changes)) == (
        256, {"minibatches": 1, "learning_rate": pytest.approx(3e-4 * math.sqrt(0.5), rel=0.01)},
    )  # fmt: skip


def test_what_takes_one_step_for_a_batch_keeps_doing_so():
    config = config_with("gradient_steps", algorithm={"name": "a2c"})
    (change,) = update_of(config, CORES, 2, 64).changes
    assert change == ("learning_rate", pytest.approx(7e-4 * math.sqrt(8), rel=0.01))
    sent = config_with(
        algorithm={"name": "a3c"}, layout={"template": "tdg_ex", "gmi_per_gpu": 3}, num_env=8
    )
    assert own_update(sent, CORES) == 8 * 8  # of each of two agents


def test_a_learning_rate_that_follows_the_kl_is_left_alone():
    config = config_with("gradient_steps", **ppo(schedule="adaptive"))
    assert dict(update_of(config, CORES, 1, 2).changes) == {"minibatches": 1}


def test_keep_none_leaves_everything():
    update = update_of(config_with("none", **ppo()), CORES, 2, 96)
    assert (update.horizon, update.samples, update.changes) == (128, 24_576, ())


@pytest.mark.parametrize("keep", ["update", "gradient_steps", "none"])
@pytest.mark.parametrize("algorithm", [{"name": "es", "population": 64}, {"name": "alphazero"}])
def test_whole_episodes_stay_as_they_are_whoever_plays_them(keep, algorithm):
    config = config_with(keep, num_env=8, algorithm=algorithm)
    for gmis, num_env in ((1, 8), (1, 2), (2, 8), (2, 16)):
        update = update_of(config, CORES, gmis, num_env)
        assert (update.horizon, update.changes) == (config.algorithm.horizon, ())
    assert not is_predicted(config)


def test_a_replay_its_batch_and_its_updates_are_shared_out():
    config = config_with(num_env=8, algorithm={"name": "dqn", "horizon": 32, "n_step": 3})
    update = update_of(config, CORES, 2, 8)
    assert (update.horizon, update.samples) == (16, 256)
    assert dict(update.changes) == {
        "batch_size": 32, "replay_capacity": 50_000, "replay_start": 500, "updates_per_row": 1.0,
    }  # fmt: skip
    assert least_horizon(config.algorithm) == 3
    own = update_of(config, CORES, 1, 8)
    assert (own.horizon, own.changes) == (32, ())
    odd = dict(update_of(config, CORES, 3, 8).changes)
    assert odd["batch_size"] == 21
    assert "learning_rate" not in odd  # 63 of 64 samples: as large


@pytest.mark.parametrize("keep", ["update", "gradient_steps", "none"])
@pytest.mark.parametrize(
    "algorithm", [ppo()["algorithm"], {"name": "dqn"}, {"name": "a2c", "horizon": 128, "lam": 0.95}]
)
def test_what_follows_may_change_while_a_run_trains(keep, algorithm):
    config = config_with(algorithm=algorithm)
    wanted = resolved(config, gmi_per_gpu=1, num_env=160)
    words = rules.followed(config, CORES, wanted, CORES, keep)
    assert not {word.split("=")[0] for word in words} - set(RESIZABLE)
    assert words or keep != "update"  # the horizon follows


def test_segments_are_not_cut_into_minibatches():
    config = config_with(
        mode="async",
        algorithm={"name": "impala", "horizon": 20, "minibatches": 2},
        experience={"batch_segments": 1},
    )
    update = update_of(config, Topology.from_cores(range(8), 2), 1, 25)
    assert 25 % dict(update.changes)["minibatches"] == 0  # 2 do not divide 25 segments


def test_what_is_auto_is_kept_as_a_plain_user_has_it():
    config = config_with(num_env="auto", gmis="auto", **ppo(horizon=32))
    assert as_given(config, CORES).env.num_env == 64
    assert own_update(config, CORES) == 64 * 32
    gpu = Device(
        0, "gpu", "H100", tuple(range(8)), "GPU-0", sm_count=132, mem_bytes=80 << 30,
        capability=(9, 0),
    )  # fmt: skip
    assert own_update(config, Topology((gpu,), unusable=(("mig", "off"),))) == 4096 * 32
    update = update_of(config, CORES, 2, 64)
    assert 16 < update.horizon < 32  # 16 would keep it
    assert "instead of 2,048 (num_env 64, 1 GMI on each device)" in kept_sentence(
        config, CORES, update
    )


def after_resize(config, words, devices=1, then=None, keep="update"):
    """Returns the samples of an update before and after, and the config that a resize makes."""
    before, after = (Topology.from_cores(range(8), number) for number in (devices, then or devices))
    settings = config.model_dump(mode="json")
    said = [word.partition("=")[0].removeprefix("algorithm.") for word in words]
    words += rules.followed(config, before, load_config(settings, words), after, keep, said)
    resized = load_config(settings, words)
    return (
        environments(config, before) * config.algorithm.horizon,
        environments(resized, after) * resized.algorithm.horizon,
        resized.algorithm,
    )


@pytest.mark.parametrize(
    ("words", "horizon"),
    [(["experience.batch_segments=1"], 128), (["layout.trainer_gpus=1"], 128),
     (["experience.batch_segments=1", "layout.trainer_gpus=1"], 256)],
)  # fmt: skip
def test_a_resize_that_has_trainers_take_fewer_segments_keeps_the_samples(words, horizon):
    config = config_with(
        mode="async", algorithm={"name": "impala", "horizon": 64},
        layout={"template": "decoupled", "trainer_gpus": 2},
        experience={"batch_segments": 2, "capacity": 8},
    )  # fmt: skip
    before, after, algorithm = after_resize(config, words, devices=4)
    assert (before, after, algorithm.horizon) == (4096, 4096, horizon)


def test_a_resize_keeps_the_update_that_a_run_has_and_not_that_of_its_tuning():
    config = config_with(tune={"batch": 16_384}, **ppo())
    before, after, algorithm = after_resize(config, ["env.num_env=8"])
    assert (before, after, algorithm.horizon) == (2048, 2048, 256)


def test_gradient_steps_keep_their_samples_on_fewer_devices():
    before, after, algorithm = after_resize(
        config_with(**ppo()), ["hardware.num_gpus=1"], devices=2, then=1, keep="gradient_steps"
    )
    assert (before, after) == (4096, 2048)
    assert (algorithm.minibatches, algorithm.learning_rate) == (2, 3e-4)


DQN = {"name": "dqn", "schedule": "constant", "batch_size": 64, "learning_rate": 3e-4}


@pytest.mark.parametrize("keep", ["update", "gradient_steps"])
@pytest.mark.parametrize(
    ("algorithm", "words", "rate"),
    [
        (ppo()["algorithm"], ["algorithm.minibatches=16"], 1.5e-4),
        (ppo()["algorithm"], ["algorithm.horizon=512"], 6e-4),
        (ppo()["algorithm"], ["algorithm.minibatches=16", "algorithm.horizon=512"], 3e-4),
        (ppo()["algorithm"], ["algorithm.minibatches=16", "algorithm.learning_rate=1e-3"], 1e-3),
        (ppo(schedule="adaptive")["algorithm"], ["algorithm.minibatches=16"], 3e-4),
        (DQN, ["algorithm.batch_size=256"], 6e-4),
        (DQN, ["algorithm.batch_size=64", "layout.gmi_per_gpu=4"], 6e-4),
    ],
)
def test_the_learning_rate_follows_a_minibatch_that_was_said(algorithm, words, rate, keep):
    config = config_with(algorithm={"learning_rate": 3e-4, **algorithm})
    assert after_resize(config, words.copy(), keep=keep)[2].learning_rate == rate
    if len(words) == 1:
        assert after_resize(config, words, keep="none")[2].learning_rate == 3e-4


def test_the_learning_rate_follows_what_was_said_and_not_what_would_have_followed():
    words = ["layout.gmi_per_gpu=4", "algorithm.minibatches=4"]
    config = config_with(algorithm={"learning_rate": 3e-4, **ppo()["algorithm"]})
    algorithm = after_resize(config, words, keep="gradient_steps")[2]  # 16 would have
    assert (algorithm.minibatches, algorithm.learning_rate) == (4, 6e-4)


@pytest.mark.parametrize("keep", ["update", "gradient_steps"])
def test_minibatches_divide_what_a_gmi_samples_where_the_slowest_are_not_waited_for(keep):
    config = config_with(keep, gmis=3, **ppo(drop_slowest=1))
    for gmis, num_env in SIZES:
        if gmis < 2:
            continue
        update = update_of(config, CORES, gmis, num_env)
        if isinstance(update, Fault):
            continue
        chosen = resolved(config, gmi_per_gpu=gmis, num_env=num_env)
        changes = {"horizon": update.horizon, **dict(update.changes)}
        algorithm = chosen.algorithm.model_copy(update=changes)
        assert check(chosen.model_copy(update={"algorithm": algorithm}), CORES) == []
