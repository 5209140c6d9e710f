"""Whoever may write to a run's folder gets a checkpoint of it while it trains."""

import pytest

import gmi_drl
from gmi_drl.roles.state import checkpoint, request

SYNC = ["layout.gmi_per_gpu=2", "hardware.num_gpus=1"]
ASYNC = [
    "mode=async", "algorithm.name=impala", "layout.template=decoupled", "hardware.num_gpus=2",
    "layout.gmi_per_gpu=1",
]  # fmt: skip
EVOLUTION = ["algorithm.name=es", "algorithm.horizon=8", "hardware.num_gpus=1"]

pytestmark = [pytest.mark.usefixtures("warm"), pytest.mark.timeout(300)]


class Asks(gmi_drl.Callback):
    """Asks for a checkpoint once, and has the run end when it is there."""

    def on_start(self, run):
        self.run, self.saved = run, []

    def on_iteration(self, iteration, metrics):
        if iteration == 3:
            (self.run.folder / request.FILE).touch()

    def on_checkpoint(self, path):
        self.saved.append(checkpoint.find(path).manifest)
        self.run.request_stop("it is there")


@pytest.mark.parametrize(
    "settings",
    [
        SYNC,
        pytest.param(ASYNC, marks=pytest.mark.slow),
        pytest.param(EVOLUTION, marks=pytest.mark.slow),
    ],
)
def test_a_checkpoint_is_written_when_it_is_asked_for(tmp_path, settings):
    asks = Asks()
    result = gmi_drl.launch(
        {"version": 1, "env": {"id": "CartPole-v1", "num_env": 2}},
        overrides=[
            f"run.folder={tmp_path}", "run.total_steps=1_000_000", "run.checkpoint_every=0",
            "run.log=[]", "hardware.backend=cpu", "algorithm.network=[8]", "algorithm.horizon=16",
            *settings,
        ],
        view="none",
        callbacks=[asks],
    )  # fmt: skip
    assert result.state == "stopped"
    asked, last = asks.saved
    assert 3 < asked["iteration"] <= last["iteration"] == result.iteration
    assert asked["files"].keys() == last["files"].keys()
    assert not request.is_requested(result.folder)
