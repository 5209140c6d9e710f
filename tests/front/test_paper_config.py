"""`gmi_drl.config`, the paper's four settings."""

import pytest

from gmi_drl.launcher.paper_config import PaperConfig
from gmi_drl.placement import load_config


def test_the_papers_listing_runs_and_becomes_overrides():
    config = PaperConfig()
    config.num_GPUs = 3
    config.GPU_arch = "sm_80"
    config.enable_NCCL = True
    config.GMI_backend = "CPU"
    overrides = config.apply_to(["hardware.num_gpus=2"])
    assert overrides == ["hardware.num_gpus=3", "hardware.backend=cpu", "hardware.num_gpus=2"]
    hardware = load_config({"version": 1, "env": {"id": "Ant-v5"}}, overrides).hardware
    assert (hardware.num_gpus, hardware.backend) == (2, "cpu")


def test_nothing_set_changes_nothing():
    config = PaperConfig()
    config.num_GPUs = 3
    config.num_GPUs = None
    assert config.apply_to() == []
    config.GMI_backend = "MPS"
    assert config.apply_to() == ["hardware.backend=mps"]
    config.reset()
    assert config.apply_to(["run.seed=1"]) == ["run.seed=1"]


def test_other_settings_are_refused_and_the_four_are_named():
    config = PaperConfig()
    four = "num_GPUs, GPU_arch, enable_NCCL, GMI_backend"
    with pytest.raises(AttributeError, match=f"gmi_drl.config.num_gpus; there are {four}"):
        config.num_gpus = 3
    with pytest.raises(AttributeError, match=four):
        _ = config.backend


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("num_GPUs", 0, "whole number"),
        ("num_GPUs", True, "whole number"),
        ("GPU_arch", "A100", "sm_80"),
        ("enable_NCCL", 1, "True or False"),
        ("GMI_backend", "NCCL", "unknown backend. Use one of auto, cpu, direct, mps, mig, green"),
        ("GMI_backend", 3, "unknown backend"),
    ],
)
def test_bad_values_are_refused_where_they_are_set(name, value, message):
    config = PaperConfig()
    with pytest.raises(ValueError, match=message):
        setattr(config, name, value)
    assert getattr(config, name) is None
