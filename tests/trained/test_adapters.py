"""What other adapters than Gymnasium's have trained is evaluated, exported and filmed.

Those of games and of several agents are in tests/front, and MJX is in tests/roles/envs.
"""

import json
import os
import sys
from pathlib import Path

import pytest

import gmi_drl
import warp_cache  # noqa: F401
from gmi_drl.roles.envs import EnvSpecError
from gmi_drl.trained import filming
from gmi_drl.trained.exporting import export_policy

FAKE = Path(__file__).resolve().parents[1] / "fake_isaacgym"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module", autouse=True)
def isaacgym():
    """Lets Isaac Gym's packages be found, as far as tests have them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FAKE))
        patch.setenv("PYTHONPATH", str(FAKE), prepend=os.pathsep)
        yield
    for name in ("isaacgym", "isaacgymenvs"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("adapter", "package"),
    [
        pytest.param("warp", "mujoco_warp", marks=pytest.mark.slow),
        ("envpool", "envpool"),
        ("isaacgym", "isaacgym"),
    ],
)
def test_a_run_is_evaluated_as_it_was_and_exported(isaacgym, train, tmp_path, adapter, package):
    pytest.importorskip(package)
    folder = train(adapter)
    run = json.loads((folder / "run.json").read_text())
    found = gmi_drl.evaluate(folder, episodes=6)
    assert found.mean == pytest.approx(run["eval_return"], rel=1e-6)
    policy = gmi_drl.load_policy(folder)
    assert "bit for bit" in export_policy(policy, "pt2", tmp_path / "policy.pt2")


@pytest.mark.slow
def test_a_run_of_warp_is_filmed_by_mujoco(train, tmp_path):
    pytest.importorskip("mujoco_warp")
    pytest.importorskip("imageio_ffmpeg")
    file = tmp_path / "film.mp4"
    try:
        filming.record_video(train("warp"), max_frames=3, file=file)
    except filming.PolicyNotLoaded as error:
        if "apt install" not in str(error):
            raise
        pytest.skip("neither EGL nor OSMesa draws on this machine")
    assert file.stat().st_size > 1000


def test_what_gymnasium_does_not_have_is_not_filmed_but_by_another_id(isaacgym, train):
    policy = gmi_drl.load_policy(train("isaacgym"))
    with pytest.raises(EnvSpecError, match=r"env\.id='Ant': films .* --set env\.id=") as told:
        filming._drawable(policy)
    assert "load_policy" in str(told.value)
