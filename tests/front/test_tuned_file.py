"""Where tuning writes: nothing of the user's, and no other config's result, is overwritten."""

from pathlib import Path

import pytest

from gmi_drl.placement import load_config
from gmi_drl.selector.errors import OutputError
from gmi_drl.selector.tune.tuned_file import TunedFile

CONFIG = load_config({"version": 1, "env": {"id": "CartPole-v1", "num_env": 8}})


@pytest.fixture
def tuned(tmp_path):
    """The tuned file of one.yaml, written."""
    file = TunedFile.of(tmp_path / "one.yaml", None)
    file.refuse(CONFIG)
    file.write(CONFIG, None, ["promised: 7 steps/s", "a line " * 30])
    return file


def test_it_is_written_anew_for_the_same_config_however_it_is_named(tuned, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for source, output in (("one.yaml", None), (f"../{tmp_path.name}/one.yaml", "tuned.yaml")):
        TunedFile.of(Path(source), output and Path(output)).refuse(CONFIG)
    assert load_config(tuned.path) == CONFIG


def test_the_result_of_another_config_stays(tuned, tmp_path):
    with pytest.raises(OutputError, match=r"tuned.yaml: .* of another config \(one.yaml\). Move"):
        TunedFile.of(tmp_path / "two.yaml", None).refuse(CONFIG)
    (tmp_path / "sub").mkdir()
    with pytest.raises(OutputError, match="another config"):
        TunedFile.of(tmp_path / "sub" / "one.yaml", tuned.path).refuse(CONFIG)


@pytest.mark.parametrize("edit", ["# mine\n", "run: {seed: 3}\n"])
def test_what_was_edited_stays(tuned, edit):
    tuned.path.write_text(tuned.path.read_text() + edit)
    with pytest.raises(OutputError, match="it is there, and was edited since"):
        tuned.refuse(CONFIG)


@pytest.mark.parametrize("text", ["", "version: 1\n", "# Made by gmi-drl tune\nversion: 1\n"])
def test_what_tuning_has_not_made_stays(tuned, text):
    tuned.path.write_text(text)
    with pytest.raises(OutputError, match="Move it away, or give another: -o FILE"):
        tuned.refuse(CONFIG)


def test_others_may_read_it_as_the_umask_says(tuned, tmp_path):
    plain = tmp_path / "plain"
    plain.touch()
    assert tuned.path.stat().st_mode == plain.stat().st_mode
    assert {path.name for path in tmp_path.iterdir()} == {"plain", "tuned.yaml"}
