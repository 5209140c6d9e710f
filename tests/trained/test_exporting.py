"""Exported files act as the policy does, in programs that know nothing of gmi-drl."""

import dataclasses
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
import yaml

import gmi_drl
from gmi_drl.cli.main import main
from gmi_drl.trained import card, exporting
from gmi_drl.trained.exporting import FORMATS, export_policy, exported, observed
from gmi_drl.trained.policy import PolicyFailed, PolicyNotLoaded

pytestmark = pytest.mark.timeout(600)  # torch's exporters take long on a busy machine


def slowly(*tasks):
    return [pytest.param(task, marks=pytest.mark.slow) for task in tasks]


ELSEWHERE = """
import json, sys, torch, numpy
for line in sys.stdin:
    file, given, out = json.loads(line)
    policy = torch.export.load(file).module()
    torch.save(policy(*torch.load(given)), out)
    assert "gmi_drl" not in sys.modules
    print("saved", flush=True)
"""


@pytest.fixture(scope="module")
def elsewhere():
    """Has a program that knows nothing of gmi-drl, one for all tests, act by an exported file."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-I", "-c", ELSEWHERE], **pipes) as process:

        def act(*paths):
            print(json.dumps([str(path) for path in paths]), file=process.stdin, flush=True)
            assert process.stdout.readline() == "saved\n"

        yield act
        process.stdin.close()
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    "task", ["ppo", "numbers", *slowly("lstm", "r2d2", "dqn", "sac", "structure", "mixed")]
)
def test_a_pt2_file_gives_the_same_bits_elsewhere(train, elsewhere, tmp_path, task):
    policy = gmi_drl.load_policy(train(task))
    file = tmp_path / "policy.pt2"
    assert "equal, bit for bit, on 1,000 observations" in export_policy(policy, "pt2", file)
    assert [path.name for path in tmp_path.iterdir()] == ["policy.pt2"]
    examples = tuple(one[:7] for one in observed(policy))
    torch.save(examples, tmp_path / "given")
    elsewhere(file, tmp_path / "given", tmp_path / "out")
    with torch.no_grad():
        wanted = exported(policy)(*examples)
    torch.testing.assert_close(torch.load(tmp_path / "out"), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("task", ["lstm", *slowly("ant", "images", "mixed", "numbers")])
def test_an_onnx_file_takes_any_number_of_observations(train, tmp_path, task):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    policy = gmi_drl.load_policy(train(task))
    assert "by ONNX Runtime" in export_policy(policy, "onnx", tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    names = [one.name for one in session.get_inputs()]
    assert names == ["observation", "state"][: len(names)]
    examples, module = observed(policy), exported(policy)
    for count in (1, 4, 33):
        some = tuple(one[:count] for one in examples)
        given = session.run(None, dict(zip(names, map(np.asarray, some), strict=True)))
        with torch.no_grad():
            wanted = module(*some)
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        for mine, its in zip(wanted, given, strict=True):
            np.testing.assert_allclose(its, mine, atol=1e-5)


@pytest.mark.parametrize("task", ["ppo", "mixed", "sac", "structure"])
def test_what_is_exported_are_the_actions_of_the_policy(train, task):
    policy = gmi_drl.load_policy(train(task))
    rows, *_ = observed(policy)
    with torch.no_grad():
        actions = exported(policy)(rows)
    if task in ("mixed", "structure"):  # a structure has no single array
        assert len(actions) == len(rows)
    else:
        np.testing.assert_allclose(actions.numpy(), policy.act(rows.numpy()), atol=1e-6)


def test_numbers_of_an_integer_box_are_whole_in_what_is_exported(train):
    policy = gmi_drl.load_policy(train("numbers"))
    (rows,) = observed(policy)
    with torch.no_grad():
        actions = exported(policy)(rows)
    whole, real = policy.act(rows)  # a Tuple's parts
    assert torch.equal(actions, torch.cat([whole, real], 1))
    assert (real % 1 > 0).any()  # those outside the Box are at a bound of it


@pytest.mark.slow
@pytest.mark.parametrize("task", [
    "a2c", "c51", "td3", "ddpg", "mbpo", "es", "ars", "async", "torch",
])  # fmt: skip
def test_other_families_are_evaluated_loaded_and_exported_too(train, tmp_path, task):
    folder = train(task)
    run = json.loads((folder / "run.json").read_text())
    evaluation = gmi_drl.evaluate(folder, episodes=6)
    assert evaluation.mean == pytest.approx(run["eval_return"], rel=1e-6)
    policy = gmi_drl.load_policy(folder)
    assert "bit for bit" in export_policy(policy, "pt2", tmp_path / "policy.pt2")
    rows = observed(policy)[0][:9]
    actions = torch.export.load(tmp_path / "policy.pt2").module()(rows)
    np.testing.assert_array_equal(actions.detach().numpy(), policy.act(rows.numpy()))


def test_safetensors_hold_parameters_and_statistics(train, tmp_path):
    safetensors = pytest.importorskip("safetensors")
    policy = gmi_drl.load_policy(train("ant"))
    export_policy(policy, "safetensors", tmp_path / "policy.safetensors")
    with safetensors.safe_open(tmp_path / "policy.safetensors", "pt") as file:
        names = set(file.keys())
        assert {"observation.mean", "observation.inv_std", "network.head.weight"} <= names
        assert torch.equal(file.get_tensor("observation.mean"), policy.normalizer.mean)
        assert json.loads(file.metadata()["network"]) == [16]


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_that_acts_otherwise_is_refused_and_removed(train, tmp_path, monkeypatch, form):
    policy = gmi_drl.load_policy(train("sac"))
    kind = exporting._KINDS[form]
    for package in kind.needs:
        pytest.importorskip(package)

    def wrong(policy, module, examples, file):
        """What a writer does whose file holds other parameters."""
        other = exported(gmi_drl.load_policy(train("sac")))
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.add_(0.5)
        if form != "safetensors":
            return kind.write(policy, other, examples, file)
        read = {f"network.{n}": p.detach() for n, p in other.policy.network.named_parameters()}
        monkeypatch.setattr("safetensors.torch.load_file", lambda file: read)
        return kind.write(policy, module, examples, file)

    monkeypatch.setitem(exporting._KINDS, form, dataclasses.replace(kind, write=wrong))
    with pytest.raises(PolicyFailed, match="acts otherwise than the policy"):
        export_policy(policy, form, tmp_path / "policy")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", ["pt2", *slowly("onnx")])
def test_a_network_that_an_exporter_does_not_take_is_told(train, tmp_path, monkeypatch, form):
    policy = gmi_drl.load_policy(train("ppo"))
    for package in exporting._KINDS[form].needs:
        pytest.importorskip(package)
    monkeypatch.setattr(exporting, "_some", lambda examples: (_Unknown(),))
    with pytest.raises(PolicyNotLoaded, match=rf"--format {form}: .*cannot be written so.*safet"):
        export_policy(policy, form, tmp_path / "policy")
    assert not list(tmp_path.iterdir())


class _Unknown:
    """What no exporter takes."""


def test_a_file_whose_state_is_no_number_is_refused(train, tmp_path, monkeypatch):
    kind = exporting._KINDS["pt2"]

    def write(policy, module, examples, file):
        action, state = module(*examples)
        file.write_bytes(b"")
        return action, state * float("nan")

    monkeypatch.setitem(exporting._KINDS, "pt2", dataclasses.replace(kind, write=write))
    with pytest.raises(PolicyFailed, match="acts otherwise than the policy, by up to nan"):
        export_policy(gmi_drl.load_policy(train("lstm")), "pt2", tmp_path / "policy")
    assert not list(tmp_path.iterdir())


def test_missing_packages_are_named(train, tmp_path, monkeypatch):
    onnx = dataclasses.replace(exporting._KINDS["onnx"], needs=("onnx", "no_such_package"))
    monkeypatch.setitem(exporting._KINDS, "onnx", onnx)
    policy = gmi_drl.load_policy(train("ppo"))
    with pytest.raises(PolicyNotLoaded, match=r"not installed: .*no_such_package.*--format pt2"):
        export_policy(policy, "onnx", tmp_path / "policy.onnx")


def test_a_card_has_what_hubs_read(train, tmp_path, capsys):
    pytest.importorskip("imageio_ffmpeg")
    folder = train("ppo")
    file = tmp_path / "mine" / "policy.pt2"
    file.parent.mkdir()
    assert main(["export", str(folder), "-o", str(file), "--card"]) == 0
    said = capsys.readouterr().out
    assert "bit for bit" in said
    assert "hf upload" in said
    names = {path.name for path in file.parent.iterdir()}
    assert names == {"README.md", "config.yaml", "results.json", "policy.pt2", "replay.mp4"}
    assert b"ftyp" in (file.parent / "replay.mp4").read_bytes()[:32]  # as mp4 begins
    results = json.loads((file.parent / "results.json").read_text())
    assert (results["episodes"], results["run"]) == (20, f"ppo/{folder.name}")  # no path of here
    config = yaml.safe_load((folder / "config.yaml").read_text())
    del config["run"]["folder"]  # which is a path of here, too
    assert yaml.safe_load((file.parent / "config.yaml").read_text()) == config
    _, front, body = (file.parent / "README.md").read_text().split("---\n", 2)
    metadata = yaml.safe_load(front)
    (model,) = metadata["model-index"]
    (metric,) = model["results"][0]["metrics"]
    assert metric["type"] == "mean_reward"
    assert metric["value"] == f"{results['mean']:.2f} +/- {results['std']:.2f}"
    assert {"CartPole-v1", "deep-reinforcement-learning", "ppo"} <= set(metadata["tags"])
    assert 'torch.export.load("policy.pt2")' in body
    assert "![The policy at work](replay.mp4)" in body


def test_a_card_goes_by_the_format_and_replaces_nothing_but_a_card(
    train, tmp_path, capsys, monkeypatch
):
    folder, file = str(train("ppo")), tmp_path / "new" / "policy"  # a name without suffix
    filmed = []

    def film(checkpoint, file, **options):
        filmed.append(checkpoint.parent.name)
        if len(filmed) == 2:
            raise PolicyNotLoaded("nothing draws here.")
        file.write_text("a film")

    monkeypatch.setattr(card, "record_video", film)
    assert main(["export", folder, "-o", str(file), "--card"]) == 0
    assert (file.parent / "replay.mp4").read_text() == "a film"
    with pytest.warns(UserWarning, match=r"the card has no film: nothing draws here\."):
        assert main(["export", folder, "-o", str(file), "--card"]) == 0  # over its own card
    assert filmed == ["checkpoints", "checkpoints"]
    assert not (file.parent / "replay.mp4").exists()
    assert "replay.mp4" not in (file.parent / "README.md").read_text()
    assert 'torch.export.load("policy")' in (file.parent / "README.md").read_text()
    project = tmp_path / "project"
    project.mkdir()
    for name in ("README.md", "config.yaml"):
        (project / name).write_text("mine")
        capsys.readouterr()
        assert main(["export", folder, "-o", str(project / "policy.pt2"), "--card"]) == 2
        assert name in capsys.readouterr().err
        assert [path.name for path in project.iterdir()] == [name]
        assert (project / name).read_text() == "mine"
        (project / name).unlink()
    for name in ("README.md", "replay.mp4"):
        assert main(["export", folder, "-o", str(project / name), "--card"]) == 2
        assert "a folder of its own" in capsys.readouterr().err
    assert not list(project.iterdir())


def test_a_card_has_the_layout_file_that_its_config_names(train, tmp_path, monkeypatch):
    monkeypatch.setattr(card, "record_video", lambda *args, **options: None)
    folder, export = train("ppo"), tmp_path / "policy.pt2"
    config = yaml.safe_load((folder / "config.yaml").read_text())
    run = shutil.copytree(folder, tmp_path / "run")
    (run / "config.yaml").write_text(yaml.safe_dump(config | {"layout": "layout.yaml"}))
    (run / "layout.yaml").write_text("the GMIs")
    assert main(["export", str(run), "-o", str(export), "--card"]) == 0
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["layout"] == "layout.yaml"
    assert (tmp_path / "layout.yaml").read_text() == "the GMIs"
    assert main(["export", str(folder), "-o", str(export), "--card"]) == 0
    assert not (tmp_path / "layout.yaml").exists()  # of another card


def test_a_name_of_another_format_is_refused(train, tmp_path, capsys):
    file = tmp_path / "policy.onnx"
    assert main(["export", str(train("ppo")), "-o", str(file)]) == 2
    assert "--format onnx" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
