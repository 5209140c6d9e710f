"""`launch --seeds`: seeds side by side, each as if it ran alone; failures and Ctrl-C among them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import boxes
import fake_gpus
import fake_nvml
import gmi_drl
from gmi_drl import launching
from gmi_drl.cli import main
from gmi_drl.launcher.plan.planning import planned
from gmi_drl.placement import ConfigError, load_config
from gmi_drl.placement.config.yaml_text import write_yaml
from gmi_drl.placement.slicing import memory_share
from gmi_drl.seeds import launch as seeds_launch
from gmi_drl.seeds.shares import SeedsError, device_shares, shared_gpus
from waits import until

UNTIMED = ("iteration", "steps", "return_mean", "episodes", "kl", "policy_loss", "value_loss")

PICKY = """
import json, os, signal
import gmi_drl

class Picky(gmi_drl.Holistic):
    def make_policy(self, env, generator):
        seed, folder = self.mgr.context.config.run.seed, self.mgr.context.folder
        if seed == 3:
            launcher = json.loads((folder / "run.json").read_text())["pid"]
            os.kill(launcher, signal.SIGKILL)
        if seed == 4:
            raise ValueError("seed 4 is not to my taste")
        return super().make_policy(env, generator)
"""


class Noted(gmi_drl.Holistic):
    """Leaves a note that it was there."""

    def make_policy(self, env, generator):
        (self.mgr.context.folder / "noted").touch()
        return super().make_policy(env, generator)


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "pole.yaml"
    path.write_text(
        write_yaml(
            {
                "version": 1,
                "run": {"name": "pole", "seed": 3, "folder": str(tmp_path / "runs"),
                        "total_steps": 1024, "eval_episodes": 2},
                "env": {"id": "CartPole-v1", "num_env": 8},
                "algorithm": {"horizon": 32, "network": [16]},
                "hardware": {"backend": "cpu"},
            }
        )
    )  # fmt: skip
    return path


def metrics_of(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{key: json.loads(line)[key] for key in UNTIMED} for line in lines]


@pytest.mark.slow
def test_seeds_one_after_another_are_what_each_is_alone(config, tmp_path):
    class Writes:
        """A callback, of which each seed has its own."""

        def on_start(self, run):
            self.file = tmp_path / f"seed{run.config.run.seed}"

        def on_end(self, end):
            self.file.write_text(end.state)

    result = gmi_drl.launch(
        config, seeds=2, view="none", callbacks=[Writes()], roles={"trainer": Noted}
    )
    assert [(tmp_path / f"seed{seed}").read_text() for seed in (3, 4)] == ["finished"] * 2
    assert [(run.seed, run.state) for run in result.runs] == [(3, "finished"), (4, "finished")]
    assert all((run.folder / "noted").exists() for run in result.runs)
    alone = gmi_drl.launch(config, overrides=["run.seed=4", "run.name=alone"], view="none")
    assert metrics_of(result.runs[1].folder) == metrics_of(alone.folder)
    assert metrics_of(result.runs[0].folder) != metrics_of(alone.folder)
    assert result.runs[1].result.eval_return == alone.eval_return
    assert result.state == "finished"
    (group,) = result.comparison.groups
    assert len(group.runs) == 2
    assert result.page.parent == tmp_path / "runs" / "pole"
    assert "Comparison of 2 runs of 1 config" in result.page.read_text()


@pytest.mark.slow
def test_seeds_that_fail_or_whose_launcher_dies_are_told_and_the_others_go_on(
    config, tmp_path, monkeypatch, capsys
):
    (tmp_path / "picky.py").write_text(PICKY)
    launch, results = launching.launch, []

    def noted(*args, **options):
        results.append(launch(*args, **options))
        return results[-1]

    monkeypatch.setattr(launching, "launch", noted)
    words = ["launch", str(config), "--seeds", "3", "--parallel", "2", "--plain"]
    code = main.main([*words, "--set", "roles.trainer=picky:Picky", "--set", "run.max_restarts=0"])
    out = capsys.readouterr().out
    assert code == 1, out
    assert "seed 3 failed" in out
    assert "seed 4 failed" in out
    assert "not to my taste" in out
    assert "3 seeds: 2 failed, 1 finished" in out
    assert "seed 5  iteration" in out
    page = next(line for line in out.splitlines() if line.startswith("comparison: "))
    assert Path(page.removeprefix("comparison: ")).is_file()
    (result,) = results
    assert result.state == "failed"
    assert [run.state for run in result.runs] == ["failed", "failed", "finished"]
    assert "its launcher died by signal SIGKILL" in result.runs[0].error
    states = [json.loads((run.folder / "run.json").read_text()) for run in result.runs]
    assert [one["seed"] for one in states] == [3, 4, 5]
    assert [one["state"] for one in states[1:]] == ["failed", "finished"]


def started(config, *words, before=()):
    return subprocess.Popen(
        [*before, sys.executable, "-m", "gmi_drl", "launch", str(config), "--plain", *words,
         "--set", "run.total_steps=100000000", "--set", "run.checkpoint_every=1"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip


def states_in(folder):
    found = {}
    for path in folder.glob("pole/*/run.json"):
        state = json.loads(path.read_text())
        iterations = path.with_name("metrics.jsonl")
        found[state["seed"]] = (state.get("state"), iterations.exists() and iterations.read_text())
    return found


def are_training(folder):
    return all(states_in(folder).get(seed, ("", ""))[1] for seed in (3, 4))


@pytest.mark.slow
@pytest.mark.skipif(os.cpu_count() == 1, reason="two seeds side by side need two cores")
@pytest.mark.parametrize(
    ("number", "before"),
    [
        (signal.SIGINT, ()),
        (signal.SIGTERM, ("sh", "-c", 'trap "" INT; exec "$@"', "sh")),  # a script's `launch &`
    ],
)
def test_all_seeds_stop_and_say_how_to_go_on(config, tmp_path, number, before):
    process = started(config, "--seeds", "3", "--parallel", "2", before=before)
    try:
        until(lambda: are_training(tmp_path / "runs"), "both seeds have metrics", 60)
        process.send_signal(number)
        out, _ = process.communicate(timeout=50)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130, out
    assert {seed: state for seed, (state, _) in states_in(tmp_path / "runs").items()} == {
        3: "stopped", 4: "stopped"
    }  # fmt: skip
    assert "3 seeds: 2 stopped, 1 not started" in out
    assert out.count("to go on with seed") == 2
    assert "comparison: " in out


@pytest.mark.slow
@pytest.mark.skipif(os.cpu_count() == 1, reason="two seeds side by side need two cores")
def test_launches_end_when_the_one_who_started_them_is_killed(config, tmp_path):
    process = started(config, "--seeds", "2", "--parallel", "2")
    try:
        until(lambda: are_training(tmp_path / "runs"), "both seeds have metrics", 60)
    finally:
        process.kill()
        process.communicate()

    def ended():
        return [state for state, _ in states_in(tmp_path / "runs").values()] == ["stopped"] * 2

    until(ended, "both launches have stopped", 40)


def test_a_faulty_config_is_refused_before_anything_starts(config, tmp_path):
    with pytest.raises(ConfigError, match="minibatches"):
        gmi_drl.launch(config, seeds=2, overrides=["algorithm.minibatches=7"])
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seeds", "0"], "seeds"),
        (["--seeds", "2000"], "it must be from 1 to 1000"),
        (["--seeds", "900", "--parallel", "900"], "can be used here. Lower it"),
        (["--parallel", "2"], "--parallel is for --seeds"),
        (["--seeds", "2", "--set", "run.seed=4294967295"], "the last is beyond"),
        (["--seeds", "2", "--set", "run.seed=x"], "run.seed"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused(config, capsys, words, said):
    assert main.main(["launch", str(config), *words]) == 2
    assert said in capsys.readouterr().err


def test_resuming_several_seeds_at_once_is_refused_with_the_way_to_do_it(tmp_path, capsys):
    assert main.main(["launch", "--resume", str(tmp_path), "--seeds", "2"]) == 2
    assert "--resume FOLDER" in " ".join(capsys.readouterr().err.split())


def test_auto_side_by_side_is_refused(config):
    with pytest.raises(SeedsError, match="Tune first"):
        gmi_drl.launch(config, seeds=2, parallel=2, overrides=["env.num_env=auto"])


def shares_of(count, parallel, **hardware):
    config = load_config({"version": 1, "env": {"id": "CartPole-v1"}, "hardware": hardware})
    return device_shares(config, count, parallel)


def test_cores_are_shared_out_only_when_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert len(shares_of(5, None, backend="cpu")) == 1
    shares = shares_of(5, 3, backend="cpu")
    assert [share.hardware["cores"] for share in shares] == [[0, 1], [2, 3, 4], [5, 6, 7]]
    assert len(shares_of(2, 5, backend="cpu")) == 2  # no more than there are seeds


def test_gpus_are_shared_out_by_how_many_a_seed_takes(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(128)))
    fake_nvml.install(monkeypatch, *boxes.dgx_a100())
    assert len(shares_of(5, None)) == 1  # all of them
    shares = shares_of(5, None, num_gpus=2)
    assert [share.hardware["num_gpus"] for share in shares] == [2] * 4
    seen = [name for s in shares for name in s.environment["CUDA_VISIBLE_DEVICES"].split(",")]
    assert len(set(seen)) == 8
    assert all(share.hardware["cores"] for share in shares)
    assert [share.hardware["num_gpus"] for share in shares_of(5, 2)] == [4, 4]
    with pytest.raises(SeedsError, match="8 GPUs can be used here"):
        shares_of(5, 4, num_gpus=4)


@pytest.fixture
def one_gpu(monkeypatch, tmp_path):
    """An H100 with four cores, by the doubles of NVML, of the CUDA driver and of MPS."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    (gpu,) = boxes.dgx_h100()[:1]
    fake_nvml.install(monkeypatch, gpu)
    fake_gpus.install(monkeypatch, tmp_path, fake_gpus.topology())
    return gpu


def test_more_launches_than_gpus_share_them(one_gpu):
    assert len(shares_of(8, None)) == 1
    shares = shares_of(8, 3)
    assert [share.hardware["gpu_share"] for share in shares] == [1 / 3] * 3
    assert [share.hardware["cores"] for share in shares] == [[0], [1], [2]]  # alike
    assert {share.hardware["backend"] for share in shares} == {"mps"}
    assert {share.environment["CUDA_VISIBLE_DEVICES"] for share in shares} == {one_gpu.uuid}


def test_what_cannot_share_a_gpu_is_told(monkeypatch, one_gpu):
    for hardware, said in (
        ({"backend": "green"}, "by backend mps or direct, not green"),
        ({"backend": "mig"}, "CUDA_VISIBLE_DEVICES=MIG-"),
        ({"num_gpus": 2}, "or set hardware.num_gpus: 1"),
    ):
        with pytest.raises(SeedsError, match=said):
            shares_of(4, 4, **hardware)
    monkeypatch.setenv("PATH", "/nowhere")
    assert {share.hardware["backend"] for share in shares_of(4, 4)} == {"direct"}


@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize("backend", ["mps", "direct"])
def test_a_launch_has_its_part_of_a_gpu(backend):
    shares = shares_of(4, 4, backend=backend, gpu_share=0.5)
    config = load_config({"version": 1, "env": {"id": "CartPole-v1", "num_env": 8}})
    layout = planned(load_config(shares[3].of(config, 7)))
    usable = (layout.topology.devices[0].mem_bytes - 2**30) // 8
    part = memory_share(layout, 0)
    assert 0 <= usable - part.nbytes < 2**20
    assert layout.gmis[0].sm_percent == (25 if backend == "mps" else None)  # twice an eighth
    assert shared_gpus_of(shares) == (1 if backend == "mps" else 0)


def shared_gpus_of(shares):
    with shared_gpus(shares) as variables:
        return len(variables)


@pytest.mark.usefixtures("one_gpu")
def test_launches_that_share_a_gpu_have_one_daemon_that_goes_with_them():
    with shared_gpus(shares_of(8, None)) as variables:
        assert not variables
    with shared_gpus(shares_of(8, 4)) as variables:
        (directory,) = variables.values()
        pids = fake_gpus.mps_pids()
        assert pids
        assert all(str(directory).encode() in Path(f"/proc/{p}/environ").read_bytes() for p in pids)
    assert fake_gpus.mps_pids() == []


@pytest.mark.slow
def test_ctrl_c_ends_launches_that_share_a_gpu_and_then_their_daemon(config, tmp_path, monkeypatch):
    """The launches are doubles, which take slices and do not train."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake_nvml.install(monkeypatch, boxes.dgx_h100()[0])
    fake_gpus.install(monkeypatch, tmp_path, as_doubles_have_it())
    monkeypatch.setattr(seeds_launch, "_CHILD", "bodies_seeds")
    (tmp_path / "runs").mkdir()
    result = gmi_drl.launch(
        config, seeds=3, parallel=3, overrides=["hardware.backend=auto"], view="none"
    )
    assert [run.state for run in result.runs] == ["stopped"] * 3, result.runs
    has = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*.json")]
    assert [(one["mps"], one["sms"]) for one in has] == [(True, 88)] * 3  # 67 % of 132, in pairs
    assert len({one["pipe"] for one in has}) == 1
    assert {one["memory"] for one in has} == {f"0={(80 * 2**30 - 2**30) // 3 // 2**20}M"}
    assert fake_gpus.mps_pids() == []
    assert os.listdir(os.environ["XDG_RUNTIME_DIR"]) == []


def as_doubles_have_it():
    """The H100 that the double of NVML tells of, to the double of the CUDA driver."""
    gpu = boxes.dgx_h100()[0]
    return fake_gpus.topology(uuid=gpu.uuid, mem_bytes=gpu.mem_bytes)
