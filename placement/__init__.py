"""Holds plain data: the devices there are, the GMIs on them, and the config that says which.

    config = load_config("config.yaml", ["env.num_env=128"])
    faults = check(config, topology)
    layout = layout_of(config, topology)

It needs no torch and no processes, so that a launcher can plan without them.
"""

from __future__ import annotations

from gmi_drl.placement.checks.config import check, experience_faults, layout_faults_of
from gmi_drl.placement.config.algorithms import (
    ALGORITHMS,
    A2CConfig,
    A3CConfig,
    ActorCriticConfig,
    AlgorithmConfig,
    AlphaZeroConfig,
    APPOConfig,
    ARSConfig,
    CEMConfig,
    CustomAlgorithmConfig,
    DDPGConfig,
    DQNConfig,
    ESConfig,
    EvolutionConfig,
    IMPALAConfig,
    MAPPOConfig,
    MBPOConfig,
    OffPolicyConfig,
    PGConfig,
    PPOConfig,
    QMIXConfig,
    RecurrentConfig,
    ReplayConfig,
    SACConfig,
    TD3Config,
    VDNConfig,
    algorithm_config,
    settings_of,
)
from gmi_drl.placement.config.config import (
    CONFIG_VERSION,
    CommConfig,
    Config,
    EnvConfig,
    ExperienceConfig,
    HardwareConfig,
    LayoutConfig,
    RoleConfig,
)
from gmi_drl.placement.config.section import (
    AUTO,
    CONVOLUTIONAL,
    NETWORKS,
    hidden_sizes,
    is_own_network,
)

from .config.cluster import ClusterConfig
from .config.load import load_config
from .config.multi_agent import MultiAgentConfig, SelfPlayConfig
from .config.run import RunConfig
from .config.search import RangeConfig, SearchConfig
from .config.tune import TuneConfig
from .faults import ABSENT, ConfigError, Fault, counted
from .layout import GmiSpec, Layout, LayoutError, MigSlice
from .layout_yaml import from_yaml, to_yaml
from .reduction import STRATEGIES, Strategy, algorithm_1, reducing
from .resolve import choose_backend, config_of_host, layout_of, resolved, simplest
from .slicing import sliced
from .templates import (
    TEMPLATES,
    Template,
    decoupled,
    parameter_server,
    tcg,
    tcg_ex,
    tdg,
    tdg_ex,
)
from .topology import Device, GpuProcess, MigInstance, Topology, format_cores
from .update_size import UpdateSize

__all__ = [
    "ABSENT", "ALGORITHMS", "AUTO", "CONFIG_VERSION", "CONVOLUTIONAL", "NETWORKS", "STRATEGIES",
    "TEMPLATES", "A2CConfig", "A3CConfig", "APPOConfig", "ARSConfig", "ActorCriticConfig",
    "AlgorithmConfig", "AlphaZeroConfig", "CEMConfig", "ClusterConfig", "CommConfig", "Config",
    "ConfigError",
    "CustomAlgorithmConfig", "DDPGConfig",
    "DQNConfig", "Device", "ESConfig", "EnvConfig", "EvolutionConfig", "ExperienceConfig", "Fault",
    "GmiSpec", "GpuProcess", "HardwareConfig", "IMPALAConfig", "Layout", "LayoutConfig",
    "LayoutError", "MAPPOConfig", "MBPOConfig", "MigInstance", "MigSlice", "MultiAgentConfig",
    "OffPolicyConfig", "PGConfig", "PPOConfig", "QMIXConfig", "RangeConfig", "RecurrentConfig",
    "ReplayConfig", "RoleConfig", "RunConfig", "SACConfig", "SearchConfig", "SelfPlayConfig",
    "Strategy", "TD3Config", "Template", "Topology", "TuneConfig", "UpdateSize", "VDNConfig",
    "algorithm_1", "algorithm_config", "check", "choose_backend", "config_of_host", "counted",
    "decoupled", "experience_faults", "format_cores", "from_yaml", "hidden_sizes",
    "is_own_network", "layout_faults_of", "layout_of", "load_config", "parameter_server",
    "reducing", "resolved", "settings_of", "simplest", "sliced", "tcg", "tcg_ex", "tdg", "tdg_ex",
    "to_yaml",
]  # fmt: skip
