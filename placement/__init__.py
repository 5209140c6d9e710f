"""Plain data: the devices there are, the GMIs on them, and the config that says which.

    config = load_config("config.yaml", ["env.num_env=128"])
    faults = check(config, topology)
    layout = layout_of(config, topology)

No torch and no processes: a launcher plans without them.
"""

from __future__ import annotations

from .backends import choose_backend
from .checks.config import check, layout_faults_of
from .config.algorithm import AlgorithmConfig
from .config.config import (
    CONFIG_VERSION,
    CommConfig,
    Config,
    EnvConfig,
    ExperienceConfig,
    HardwareConfig,
    LayoutConfig,
    RoleConfig,
    RunConfig,
)
from .config.load import load_config
from .config.networks import NETWORKS, hidden_sizes
from .config.resolve import least_gmis, settled, simplest
from .config.search import RangeConfig, SearchConfig
from .config.section import AUTO
from .config.tune import TuneConfig
from .counted import counted
from .faults import ABSENT, ConfigError, Fault
from .layout import GmiSpec, Layout, LayoutError, MigSlice
from .layout_yaml import from_yaml, to_yaml
from .reduction import STRATEGIES, Strategy, algorithm_1, reducing
from .slicing import sliced
from .templates.templates import decoupled, layout_of, tcg, tcg_ex, tdg, tdg_ex, template_of
from .topology import Device, GpuProcess, MigInstance, Topology, format_cores

__all__ = [
    "ABSENT",
    "AUTO",
    "CONFIG_VERSION",
    "NETWORKS",
    "STRATEGIES",
    "AlgorithmConfig",
    "CommConfig",
    "Config",
    "ConfigError",
    "Device",
    "EnvConfig",
    "ExperienceConfig",
    "Fault",
    "GmiSpec",
    "GpuProcess",
    "HardwareConfig",
    "Layout",
    "LayoutConfig",
    "LayoutError",
    "MigInstance",
    "MigSlice",
    "RangeConfig",
    "RoleConfig",
    "RunConfig",
    "SearchConfig",
    "Strategy",
    "Topology",
    "TuneConfig",
    "algorithm_1",
    "check",
    "choose_backend",
    "counted",
    "decoupled",
    "format_cores",
    "from_yaml",
    "hidden_sizes",
    "layout_faults_of",
    "layout_of",
    "least_gmis",
    "load_config",
    "reducing",
    "settled",
    "simplest",
    "sliced",
    "tcg",
    "tcg_ex",
    "tdg",
    "tdg_ex",
    "template_of",
    "to_yaml",
]
