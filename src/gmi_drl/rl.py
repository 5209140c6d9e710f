"""The parts of RLlib's paper in Python: evaluators, optimizers over them, and algorithms.

    from gmi_drl import rl

    evaluators = [rl.Evaluator.remote(env="CartPole-v1", algorithm=rl.A2C) for _ in range(4)]
    optimizer = rl.AsyncGradients(rl.A2C, evaluators)
    while optimizer.steps < 100_000:
        print(optimizer.step())

Any algorithm of fresh, sent or kept experience, or of returns, also one of yours, under any
optimizer that it allows.
"""

from __future__ import annotations

from gmi_drl.roles.algorithms.a2c import A2C
from gmi_drl.roles.algorithms.algorithm import Algorithm, Losses
from gmi_drl.roles.algorithms.appo import APPO
from gmi_drl.roles.algorithms.ars import ARS
from gmi_drl.roles.algorithms.dqn import DQN
from gmi_drl.roles.algorithms.es import ES
from gmi_drl.roles.algorithms.impala import IMPALA
from gmi_drl.roles.algorithms.pg import PG
from gmi_drl.roles.algorithms.ppo import PPO
from gmi_drl.roles.algorithms.sac import SAC
from gmi_drl.roles.algorithms.td3 import DDPG, TD3
from gmi_drl.roles.evaluators.standalone import Evaluator
from gmi_drl.roles.optimizers.over_evaluators.async_samples import AsyncSamples
from gmi_drl.roles.optimizers.over_evaluators.base import EvaluatorOptimizer
from gmi_drl.roles.optimizers.over_evaluators.gradients import AllReduce, AsyncGradients
from gmi_drl.roles.optimizers.over_evaluators.local import Local
from gmi_drl.roles.optimizers.over_evaluators.parameter_server import ParameterServer
from gmi_drl.roles.optimizers.over_evaluators.population import Population
from gmi_drl.roles.optimizers.over_evaluators.replay import Apex, Replay

__all__ = [
    "A2C", "APPO", "ARS", "DDPG", "DQN", "ES", "IMPALA", "PG", "PPO", "SAC", "TD3", "Algorithm",
    "AllReduce", "Apex", "AsyncGradients", "AsyncSamples", "Evaluator", "EvaluatorOptimizer",
    "Local", "Losses", "ParameterServer", "PolicyGradient", "Population", "Replay",
]  # fmt: skip

PolicyGradient = PG
