"""Checks whether there is the memory that a layout's GMIs need at least.

It is a lower bound, of what can be counted before a run: the experience of an iteration, a
replay, the trees of searches, and the network with what its training keeps of it. Libraries,
simulators and reductions come on top.

T = horizon, N = num_env, D = observation width, A = action columns, P = distribution parameters.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from gmi_drl.placement.config.algorithms.alphazero import AlphaZeroConfig
from gmi_drl.placement.config.algorithms.common import AlgorithmConfig
from gmi_drl.placement.config.algorithms.evolution import EvolutionConfig
from gmi_drl.placement.config.algorithms.replay import ReplayConfig
from gmi_drl.placement.config.config import Config
from gmi_drl.placement.config.section import CONVOLUTIONAL, hidden_sizes, is_own_network
from gmi_drl.placement.faults import Fault
from gmi_drl.placement.layout import GmiSpec, Layout
from gmi_drl.placement.slicing import memory_share
from gmi_drl.placement.templates import TEMPLATES

_FLOAT: Final = 4
_ROW: Final = 8  # the rows of a rollout have a multiple of so many numbers
_EPISODE: Final = 512  # steps of an episode, if not known
_PURPOSES: Final = ("experience", "replay", "trees", "minibatch", "network")
# Bytes of a trained parameter: itself, its gradient and Adam's two moments; and itself and the
# moments in each state kept for restarted GMIs (those of the last two iterations and one that is
# being written), and in the buffer where that is assembled.
_TRAINED: Final = 4 * _FLOAT + 4 * 3 * _FLOAT


@dataclass(frozen=True)
class Sizes:
    """Holds the widths that decide how much memory a GMI needs; the defaults are the least."""

    observation: int = 1  # D
    observation_bytes: int = 1  # of each number as it is stored
    frames: int = 1  # of a stack; batches of bytes and replays store each frame once
    action: int = 1  # A
    parameters: int = 1  # P
    agents: int = 1  # of each environment, which are rows of a batch
    has_own_network: bool = False  # whether a role makes the network, whose size is unknown

    def network(self, config: Config) -> int:
        """Returns the number of parameters of the config's network."""
        name = config.algorithm.network
        if self._is_unknown(config):
            return 0
        layers = [self.observation, *hidden_sizes(name)]
        if name in CONVOLUTIONAL:  # convolutions are few parameters, and their outputs unknown
            layers = layers[1:]
        head = sum(a * b + b for a, b in self.head_layers(config))
        if config.algorithm.noisy_layers:  # each weight has a parameter for its noise
            head *= 2
        return sum(a * b + b for a, b in itertools.pairwise(layers)) + head

    def head_layers(self, config: Config) -> list[tuple[int, int]]:
        """Returns the inputs and outputs of each layer behind the hidden ones."""
        if self._is_unknown(config):
            return []
        features = [self.observation, *hidden_sizes(config.algorithm.network)][-1]
        return config.algorithm.head_layers(features, self.parameters)

    def _is_unknown(self, config: Config) -> bool:
        return self.has_own_network or is_own_network(config.algorithm.network)


def memory_faults(
    config: Config, layout: Layout, sizes: Sizes, host_bytes: int | None, whose: str = "the machine"
) -> list[Fault]:
    """Lists where GMIs need more memory than the host, or their shares of GPUs, have.

    `host_bytes`: the host's memory, which is that of `whose`; None: it is not known.
    """
    others = [gmi for gmi in layout.gmis if layout.topology.devices[gmi.gpu_id].kind != "cpu"]
    on_host = [gmi for gmi in layout.gmis if gmi not in others]
    keeping = others if _on_host(config.algorithm) else []  # GMIs on GPUs, their replays here

    def of_host(config: Config, layout: Layout) -> dict[str, int]:
        needs = [_needs(config, layout, layout.gmi(gmi.gmi_id), sizes) for gmi in on_host]
        needs += [_kept(config, layout, layout.gmi(gmi.gmi_id), sizes) for gmi in keeping]
        return {purpose: sum(need[purpose] for need in needs) for purpose in _PURPOSES}

    def of_gmi(gmi_id: int, config: Config, layout: Layout) -> dict[str, int]:
        return _needs(config, layout, layout.gmi(gmi_id), sizes)

    faults: list[Fault] = []
    if host_bytes is not None and (count := len(on_host) + len(keeping)):
        available = f"{whose} has {_gib(host_bytes)}"
        faults += _fault(config, layout, sizes, of_host, host_bytes, count, available)
    shares = {gmi.gmi_id: memory_share(layout, gmi.gmi_id) for gmi in others}
    limits = {gmi_id: share for gmi_id, share in shares.items() if share is not None}
    if limits and not faults:

        def fullness(gmi_id: int) -> float:
            needed = sum(of_gmi(gmi_id, config, layout).values())
            return needed / max(1, limits[gmi_id].nbytes)

        # One fault is enough, as GMIs are alike: what fits into the fullest fits into all.
        fullest = max(limits, key=fullness)
        share, needs_of = limits[fullest], partial(of_gmi, fullest)
        available = f"GMI {fullest} has {_gib(share.nbytes)}, {share.why}"
        faults += _fault(config, layout, sizes, needs_of, share.nbytes, 1, available)
    return faults


def _needs(config: Config, layout: Layout, gmi: GmiSpec, sizes: Sizes) -> dict[str, int]:
    """Returns the bytes of one GMI, by purpose."""
    d, a, p = sizes.observation, sizes.action, sizes.parameters
    algorithm = config.algorithm
    num_env = gmi.num_env * sizes.agents
    learns = "trainer" in gmi.roles
    row = _FLOAT * (-(-(d + a + p + 4) // _ROW) * _ROW)  # of a sample that is trained on
    packed, shown = row, d * sizes.observation_bytes
    if sizes.observation_bytes == 1 and not algorithm.normalize_observation:
        # Only bytes are stored, and converted to floats for a minibatch.
        packed = _FLOAT * (-(-(a + p + 4) // _ROW) * _ROW)
        shown = shown if algorithm.kept_steps else shown // sizes.frames
    head = sizes.head_layers(config)
    noise = sum(map(sum, head)) if algorithm.noisy_layers else p
    step = packed + shown + _FLOAT * (noise + 3)  # with noise, reward and ends
    if isinstance(algorithm, ReplayConfig):  # with the next observation
        step += shown
    samples = _samples(config, layout, gmi, sizes)
    parameters = sizes.network(config)
    layers = () if sizes.has_own_network else hidden_sizes(algorithm.network)
    if learns:  # outputs of layers are kept for the backward pass
        sides = 2 if algorithm.activation == "elu" else 1  # inputs of ELU are kept, too
        outputs = sides * sum(layers) + sum(b for _, b in head)
        rows = algorithm.minibatch_size(samples)
        if isinstance(algorithm, AlphaZeroConfig):  # each GMI has its share
            rows //= len(layout.holding("trainer"))
        minibatch_bytes = rows * (row + _FLOAT * outputs)
    else:
        minibatch_bytes = num_env * _FLOAT * max(layers, default=0)
    parameter_bytes = _FLOAT if "agent" in gmi.roles else 0
    if learns:
        parameter_bytes = _TRAINED + algorithm.target_networks * _FLOAT
        if isinstance(algorithm, EvolutionConfig):  # a direction and a policy in each environment
            parameter_bytes += 2 * num_env * _FLOAT
    on_gpu = layout.topology.devices[gmi.gpu_id].kind == "gpu"
    needs = {
        "experience": samples * step + (_FLOAT + sizes.observation_bytes) * num_env * d,
        "minibatch": minibatch_bytes,
        "network": parameters * parameter_bytes,
    }
    kept_bytes = _kept(config, layout, gmi, sizes)
    if on_gpu and _on_host(algorithm):
        kept_bytes = dict.fromkeys(_PURPOSES, 0)
    return {purpose: needs.get(purpose, 0) + kept_bytes[purpose] for purpose in _PURPOSES}


def _samples(config: Config, layout: Layout, gmi: GmiSpec, sizes: Sizes) -> int:
    """Returns the steps that a GMI holds at once, its own or its agents'."""
    algorithm = config.algorithm
    if "trainer" in gmi.roles and "simulator" not in gmi.roles:
        channels = TEMPLATES[layout.template].channels(layout)
        agents = [source for source, target in channels if target.gmi_id == gmi.gmi_id]
        number = len(agents) - algorithm.dropped_agents
        if config.mode == "async":
            number = config.experience.batch_segments
        return config.env.num_env * algorithm.horizon * number
    keeps_samples = config.mode != "serving" and not isinstance(algorithm, EvolutionConfig)
    return gmi.num_env * sizes.agents * algorithm.horizon if keeps_samples else 0


def _on_host(algorithm: AlgorithmConfig) -> bool:
    """Tells whether what `_kept` counts lies in the host's memory, also of GMIs on GPUs."""
    if isinstance(algorithm, AlphaZeroConfig):
        return True
    return isinstance(algorithm, ReplayConfig) and algorithm.replay_device == "cpu"


def _kept(config: Config, layout: Layout, gmi: GmiSpec, sizes: Sizes) -> dict[str, int]:
    """Returns the bytes of a GMI's replay, and of the trees of its searches."""
    kept, algorithm = dict.fromkeys(_PURPOSES, 0), config.algorithm
    learns = config.mode != "serving" and "trainer" in gmi.roles
    if isinstance(algorithm, AlphaZeroConfig):
        state, moves = 2 * sizes.observation, sizes.parameters
        if learns:  # as roles/samples/replay/games.py keeps it
            kept["replay"] = algorithm.kept_steps * (state + _FLOAT * (moves + 1) + 8)
        if "agent" in gmi.roles:  # as roles/games/tree.py does
            nodes = algorithm.simulations if learns else algorithm.play_simulations
            kept["trees"] = gmi.num_env * nodes * (state + 4 * _FLOAT * moves + 17)
    elif isinstance(algorithm, ReplayConfig) and learns:
        samples = _samples(config, layout, gmi, sizes)
        kept |= _replay_bytes(config, layout, algorithm, sizes, samples)
    return kept


def _replay_bytes(
    config: Config, layout: Layout, algorithm: ReplayConfig, sizes: Sizes, samples: int
) -> dict[str, int]:
    """Returns the bytes of a replay, as roles/samples/replay/storage.py keeps it.

    They are for its `capacity` steps and, as experience, for `samples` that are added at once.
    """
    # Segments of several agents arrive in any order, so that each horizon ends like an episode.
    # A host that only samples has one agent or more.
    agents = len(layout.holding("agent")) + config.sampling_hosts
    has_segments = config.experience.batch_segments > 1 or agents > 1
    frames = 1 if algorithm.hindsight else sizes.frames
    frame = sizes.observation * sizes.observation_bytes // frames
    # Final observations of episodes, twice while their buffer grows; segments may end so, too, and
    # begin with older frames.
    episode_steps = min(config.env.max_episode_steps or _EPISODE, _EPISODE)
    final_bytes = 2 * frame // episode_steps
    if config.mode == "async" and has_segments:
        final_bytes = 2 * frame * frames // min(episode_steps, algorithm.horizon)
    begin_bytes = 8 if frames > 1 else 0
    priority_bytes = 9 if algorithm.sampler == "prioritized" else 0
    row = frame + final_bytes + begin_bytes + _FLOAT * (sizes.action + 1) + 8 + priority_bytes
    # There is room for four times as many ends as steps that are added at once.
    capacity = algorithm.replay_capacity
    end_bytes = max(0, 4 * samples * frame - capacity * final_bytes)
    return {"replay": capacity * row, "experience": end_bytes}


def _fault(
    config: Config,
    layout: Layout,
    sizes: Sizes,
    needs_of: Callable[[Config, Layout], dict[str, int]],
    limit: int,
    gmis: int,
    has: str,
) -> Iterator[Fault]:
    """Yields a fault where needs are above a limit, with the value of a key that they keep to."""
    needs = needs_of(config, layout)
    if sum(needs.values()) <= limit:
        return
    main = max(needs, key=needs.__getitem__)
    algorithm, num_env = config.algorithm, config.env.num_env
    replays = algorithm.kept_steps > 0 and config.mode != "serving"
    total = _gib(sum(needs.values()))
    need = f"{'a GMI needs' if gmis == 1 else f'{gmis} GMIs need'} {total} or more, and {has}"
    fewer = "fewer GMIs, " if gmis > 1 else ""

    def most(key: str, value: int) -> str:
        def needed(smaller: int) -> int:
            return sum(needs_of(*_with(config, layout, key, smaller)).values())

        fits = bisect_right(range(1, value), limit, key=needed)
        return f"Use {f'{fits:,} or fewer' if fits else 'a smaller network'}, {fewer}or"

    if main == "network":
        yield Fault(
            "algorithm.network", algorithm.network,
            f"{need}: {_gib(needs[main])} for {sizes.network(config):,} parameters with gradients, "
            "the optimizer's moments, and the states that are kept for recovery",
            f"Use smaller layers, {fewer}or a machine with more.",
        )  # fmt: skip
        return
    if replays and main in ("replay", "minibatch"):
        key, count, unit = "replay_capacity", algorithm.kept_steps, "steps that each GMI keeps"
        if main == "minibatch":
            key, count, unit = "batch_size", algorithm.minibatch_size(0), "rows in the network"
        key, value = f"algorithm.{key}", getattr(algorithm, key, count)
        rule = f"{need}: {_gib(needs[main])} for {count:,} {unit}"
        yield Fault(key, value, rule, f"{most(key, value)} a machine with more.")
        return
    steps = "" if config.mode == "serving" else f" x horizon={algorithm.horizon}"
    if sizes.agents > 1:
        steps = f" x {sizes.agents} agents{steps}"
    if main == "minibatch" and config.mode == "serving":
        factors, alternative = " in the network", "smaller layers"
    elif main == "trees":
        factors, alternative = " and the trees of their searches", "fewer algorithm.simulations"
        if config.mode == "serving":
            alternative = "fewer algorithm.play_simulations"
    elif main == "minibatch":
        samples = num_env * algorithm.horizon
        parts = samples // max(1, algorithm.minibatch_size(samples))
        factors = f"{steps} / minibatches={parts} in the network"
        alternative = "more algorithm.minibatches"
    else:
        factors = f"{steps} with observations of {sizes.observation} and actions of {sizes.action}"
        alternative = "a shorter algorithm.horizon"
    yield Fault(
        "env.num_env", num_env, f"{need}: {_gib(needs[main])} for num_env={num_env}{factors}",
        f"{most('env.num_env', num_env)} {alternative}.",
    )  # fmt: skip


def _with(config: Config, layout: Layout, key: str, value: int) -> tuple[Config, Layout]:
    """Returns config and layout with another value of a key."""
    name, _, field = key.partition(".")
    section = getattr(config, name).model_copy(update={field: value})
    gmis = layout.gmis
    if key == "env.num_env":
        gmis = tuple(replace(gmi, num_env=value if gmi.num_env else 0) for gmi in gmis)
    return config.model_copy(update={name: section}), replace(layout, gmis=gmis)


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:,.1f} GiB"
