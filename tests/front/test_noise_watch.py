"""A run says once when its gradient noise scale has left its batches, and with which settings."""

import re

import pytest

from gmi_drl.launcher.folder.run_folder import RunFolder
from gmi_drl.launcher.start.launcher import launch
from gmi_drl.launcher.view.view import RunView, Screen
from gmi_drl.launcher.watch import noise_watch
from gmi_drl.launcher.watch.noise_watch import SETTLED, NoiseFit, NoiseWatch, why_none
from gmi_drl.placement import Topology, UpdateSize, decoupled, load_config, tcg, tcg_ex, tdg_ex
from run_files import metrics
from watches import Heard

MACHINE = Topology.from_cores([0, 1])


def config(algorithm=None, **sections):
    base = {"version": 1, "env": {"id": "CartPole-v1", "num_env": 16}}
    return load_config(base | {"algorithm": algorithm or {}} | sections)


PPO = config({"horizon": 128, "minibatches": 4})  # 2,048 samples by 512
ONE_STEP = config({"minibatches": 1})
DQN = config({"name": "dqn", "batch_size": 64})
ES = config({"name": "es"})
ALPHAZERO = config({"name": "alphazero"}, env={"id": "TicTacToe-v0", "num_env": 64})
IMPALA = config(
    {"horizon": 20, "minibatches": 1}, mode="async", hardware={"num_gpus": 2},
    layout={"template": "decoupled"},
)  # fmt: skip


def layout_of(settings, gmis=1):
    if settings.mode == "serving":
        return tcg(MACHINE, gmis, 16)
    if settings.mode == "async":
        return decoupled(Topology.from_cores([0, 1], 2), 1, 16)
    return tcg_ex(MACHINE, gmis, 16)


def test_an_update_is_what_all_gmis_train_on():
    assert UpdateSize.of(PPO, layout_of(PPO, 2)) == UpdateSize(2, 4096, 1024, 4)
    assert UpdateSize.of(PPO, tdg_ex(MACHINE, 2, 16)) == UpdateSize(1, 2048, 512, 4)
    assert UpdateSize.of(IMPALA, layout_of(IMPALA)) == UpdateSize(1, 320, 320, 1)
    dqn = config({"name": "dqn", "batch_size": 64, "horizon": 32, "updates_per_row": 0.25})
    assert UpdateSize.of(dqn, layout_of(dqn, 2)) == UpdateSize(2, 1024, 128, 128)


@pytest.mark.parametrize(
    ("settings", "gmis", "has"),
    [
        (PPO, 1, True), (ONE_STEP, 1, False), (ONE_STEP, 2, True), (DQN, 1, True),
        (config({"name": "dqn", "updates_per_row": 1e-3}), 1, False),
        (IMPALA, 1, False), (config({"class": "mine:Mine"}), 1, True),
        (config(mode="serving"), 1, True), (ES, 1, True), (ALPHAZERO, 1, True),
    ],
)  # fmt: skip
def test_a_run_without_two_gradients_to_compare_is_told(settings, gmis, has):
    layout = layout_of(settings, gmis)
    assert (why_none(settings, layout) == "") is has


def sides(fit, values):
    return [side for value in values if (side := fit.take(value))]


def test_each_side_is_told_once_when_it_has_settled():
    fit = NoiseFit(512, 2048)
    assert sides(fit, [512 / 15, 2048 * 15] * 200) == []
    assert sides(fit, [2048 * 17] * (SETTLED - 1)) == []
    assert sides(fit, [2048 * 17]) == ["above"]
    assert sides(fit, [2048 * 17] * 200 + [1000.0] * 50) == []
    assert sides(fit, [512 / 17] * 200) == ["below"]
    assert sides(fit, [2048 * 17] * 200 + [512 / 17] * 200) == []


def test_one_that_is_too_large_to_be_told_does_not_interrupt():
    fit = NoiseFit(512, 2048)
    assert sides(fit, [None] * 200 + [1e6, None] * (SETTLED - 1) + [None]) == []
    assert sides(fit, [1e6]) == ["above"]


@pytest.mark.parametrize("between", [1000.0, 1.0])
def test_what_does_not_stay_is_not_told(between):
    fit = NoiseFit(512, 2048)
    assert sides(fit, ([1e9] * (SETTLED - 1) + [between]) * 20) == []


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    return RunFolder(tmp_path)


def trained(folder, noise_scale, settings=PPO, gmis=1, iterations=SETTLED + 10):
    """What a run says whose noise scale is this one all the time."""
    screen = Heard()
    watch = NoiseWatch(screen, folder, settings, layout_of(settings, gmis))
    for n in range(iterations):
        watch.show({"kind": "iteration", "iteration": n + 1, "noise_scale": noise_scale})
        watch.show({"kind": "note", "message": "of something else"})
        watch.tick(None)
    assert all(record["kind"] == "note" for record in screen.records)
    return screen.messages


@pytest.mark.parametrize(
    ("settings", "gmis", "noise_scale", "said"),
    [
        (PPO, 1, 90_000.0, "90,000 samples, is 44 times an update of 2,048: .* Try "
         "algorithm.horizon=512 or env.num_env=64 "),
        (PPO, 2, 90_000.0, "22 times an update of 4,096: .* or env.num_env=32 "),
        (PPO, 1, 12.0, "12 samples, is 1/43 of a minibatch of 512: .* algorithm.minibatches=16 "),
        (config({"horizon": 27, "minibatches": 16}), 1, 0.0, "of 27: .* env.num_env=8 "),
        (DQN, 1, 1100.0, "is 17 times an update of 64: .* Try algorithm.batch_size=128 "),
        (DQN, 1, 0.0, r"0 samples, is 1/64 .* of 64: .* Try algorithm.batch_size=16 "),
        (IMPALA, 1, 1e5, "312 times an update of 320: .* Try experience.batch_segments=32 "),
        (IMPALA, 1, 1.0, "of 320: .* Try algorithm.minibatches=16 "),
    ],
)  # fmt: skip
def test_the_settings_that_would_fit_are_named(folder, settings, gmis, noise_scale, said):
    (message,) = trained(folder, noise_scale, settings, gmis)
    assert re.search(said, message), message
    assert message.endswith("(docs/noise-scale.md)")


def test_a_run_that_goes_on_does_not_repeat_it(folder):
    assert len(trained(folder, 1e6)) == 1
    (noted,) = folder.state()["noise_notes"]
    assert (noted["side"], noted["iteration"], noted["noise_scale"]) == ("above", SETTLED, 1e6)
    assert trained(folder, 1e6) == []
    assert len(trained(folder, 1.0)) == 1
    assert [noted["side"] for noted in folder.state()["noise_notes"]] == ["above", "below"]


@pytest.mark.parametrize("damage", ["", "[]", '{"noise_notes": 3}', '{"noise_notes": [3]}'])
def test_a_damaged_folder_ends_no_run(folder, damage):
    (folder.path / "run.json").write_text(damage)
    assert len(trained(folder, 1e6)) == 1


@pytest.mark.parametrize("strange", [None, "a", 7, [], True])
def test_what_is_no_noise_scale_says_nothing(folder, strange):
    assert trained(folder, strange) == []


def test_where_it_is_not_known_what_an_update_is_nothing_is_said(folder):
    assert trained(folder, 1e9, config({"class": "mine:Mine"})) == []
    assert trained(folder, 1e9, ALPHAZERO) == []
    assert trained(folder, 1.0, ALPHAZERO) == []


def test_the_live_view_has_it():
    record = {
        "kind": "iteration", "iteration": 3, "steps": 4000, "steps_per_s": 2000.0,
        "return_mean": None, "noise_scale": 12345.6, "gmi_seconds": [{"train": 0.2}],
    }  # fmt: skip
    view = RunView(Screen("live"), PPO, layout_of(PPO))
    for value, said in ((12345.6, "noise scale 12,346"), (None, "")):
        view.show(record | {"noise_scale": value})
        _, line, _ = view.render(120).renderables
        assert said in str(line)
        assert bool(said) == ("noise scale" in str(line))


RUN = {
    "version": 1,
    "run": {"name": "noise", "total_steps": 1280, "eval_episodes": 0, "checkpoint_every": 0},
    "env": {"id": "CartPole-v1", "num_env": 8},
    "algorithm": {"network": [8], "horizon": 16, "minibatches": 2, "epochs": 1},
    "layout": {"gmi_per_gpu": 1},
}


@pytest.mark.slow
def test_a_run_writes_it_down_and_says_once_that_it_does_not_fit(
    warm, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(noise_watch, "SETTLED", 3)
    # Whatever it is, it is below.
    monkeypatch.setattr(noise_watch, "batches_of", lambda *args: (10**12, 10**12))
    where = f"run.folder={tmp_path}"
    run = launch(RUN, overrides=[where], view="plain")
    assert capsys.readouterr().out.count("the gradient noise scale,") == 1
    (noted,) = RunFolder(run.folder).state()["noise_notes"]
    assert noted["side"] == "below"
    values = [line["noise_scale"] for line in metrics(run.folder)]
    assert len(values) == 10
    assert all(value is None or value >= 0 for value in values)
    assert isinstance(values[-1], float)
    launch(resume=run.folder, overrides=["run.total_steps=2560"], view="plain")
    assert "the gradient noise scale," not in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_without_one_says_so_and_writes_none(warm, tmp_path, capsys):
    run = launch(RUN, overrides=[f"run.folder={tmp_path}", "algorithm.minibatches=1"], view="plain")
    assert "no noise scale: one GMI takes one gradient step an update" in capsys.readouterr().out
    assert {line["noise_scale"] for line in metrics(run.folder)} == {None}
