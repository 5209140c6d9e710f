"""Stands in for gmi_drl.seeds.child on fake GPUs: takes its slice as a GMI, and trains nothing."""

import json
import os
import pickle
import signal
import sys
import time
from pathlib import Path

import pytest

import boxes
import fake_nvml
import private_leases
from gmi_drl.gmi import LayoutSlices, backend_of, cuda_driver
from gmi_drl.launcher.plan.planning import planned
from gmi_drl.placement import load_config
from gmi_drl.seeds.child import SeedOutcome


def main():
    """Tells what it has of the GPU in a file; the first has all interrupted when all have."""
    assert private_leases.lease._BASE  # of this test
    sys.path[:] = pickle.load(sys.stdin.buffer)
    options = pickle.load(sys.stdin.buffer)
    fake_nvml.install(pytest.MonkeyPatch(), boxes.dgx_h100()[0])
    config = load_config(options["config"])
    layout, folder = planned(config), Path(config.run.folder)
    outcome = SeedOutcome(error="nobody has interrupted it", exit_code=1)
    with LayoutSlices(layout) as slices:
        (spec,) = layout.gmis
        environment = slices.environment(spec)
        os.environ.update(environment)
        backend = backend_of(spec.backend)
        try:
            backend.enter(spec, layout.topology.devices[0])
            backend.verify(spec, layout.topology.devices[0])
            has = {
                "mps": cuda_driver.mps_enabled(),
                "sms": cuda_driver.sm_count(),
                "pipe": environment["CUDA_MPS_PIPE_DIRECTORY"],
                "memory": environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"],
            }
            part = folder / f"{config.run.seed}.part"
            part.write_text(json.dumps(has))
            part.rename(part.with_suffix(".json"))
            begun_s = time.monotonic()
            while time.monotonic() < begun_s + 60:
                if config.run.seed == 3 and len(list(folder.glob("*.json"))) == 3:
                    os.kill(os.getppid(), signal.SIGINT)
                    signal.pause()
                time.sleep(0.05)  # between two looks
        except KeyboardInterrupt:
            outcome = SeedOutcome(error="interrupted", exit_code=130)
    os.write(int(sys.argv[1]), pickle.dumps(outcome))


if __name__ == "__main__":
    main()
