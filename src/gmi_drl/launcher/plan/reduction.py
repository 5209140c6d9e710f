"""Plans the reduction of a config on this machine, as `plan` shows and `launch` follows it."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from gmi_drl import runtime
from gmi_drl.comm.plan.capability import LinkFacts, fault
from gmi_drl.comm.plan.plan import Measure, ReductionPlan, facts_of, is_open, plan_reduction
from gmi_drl.comm.shm.alignment import round_up
from gmi_drl.placement import Config, ConfigError, Fault, Layout, hidden_sizes
from gmi_drl.placement.reduction import reducing
from gmi_drl.roles.policies import PARAMETER_MULTIPLE

if TYPE_CHECKING:
    from gmi_drl.roles import DRL_role


_DEADLINE: Final = timedelta(seconds=60)
_TAIL: Final = 6  # means of the loss parts, which travel with the gradient
# Where the environment cannot be asked: observations and actions of the paper's Ant.
_OBS_DIM, _ACT_DIM = 60, 8
PRELOAD: Final = (
    "torch",
    "gymnasium",
    "gmi_drl.comm.reducers.mrr",
    "gmi_drl.roles.role.acting",
)


def reduction_of(
    config: Config,
    layout: Layout,
    measure: Measure = "needed",
    *,
    ask_size: bool = False,
    trainer: type[DRL_role] | str = "gmi_drl.roles:Trainer",
) -> ReductionPlan:
    """Returns the plan, and in its notes what was measured and assumed.

    May start processes, for seconds. The gradient's size is asked of `trainer`, the class that
    trains, where the choice depends on it, or with `ask_size`. ConfigError when `comm.reduction`
    cannot run here.
    """
    facts = facts_of(layout)
    if refusal := reduction_fault(config, layout, facts):
        raise ConfigError([refusal])
    wanted, repeatable = config.comm.reduction, config.run.deterministic
    several = sum(map(len, reducing(layout))) > 1
    open_choice = is_open(wanted, layout, facts, repeatable)
    measures = several and (measure in ("missing", "anew") or (measure == "needed" and open_choice))
    asks = several and (ask_size or open_choice)
    numel, guess = assumed(config), ""
    with ExitStack() as stack:  # what is asked of other processes takes a runtime
        if (measures or asks) and not runtime.is_initialized():
            runtime.init(PRELOAD)
            stack.callback(runtime.shutdown)
        if asks:
            numel, guess = asked(config, layout, trainer)
        plan = plan_reduction(
            wanted, layout, numel, wire=config.comm.wire, measure=measure,
            repeatable=repeatable, facts=facts,
        )  # fmt: skip
    if not guess:
        return plan
    note = (
        f"the gradient's size is assumed ({numel:,} numbers, for the observations of the paper's "
        f"Ant): {guess}"
    )
    return dataclasses.replace(plan, notes=(*plan.notes, note))


def reduction_fault(config: Config, layout: Layout, facts: LinkFacts | None = None) -> Fault | None:
    """Tells why the hardware cannot run the `comm.reduction` that is asked for, if it cannot."""
    wanted, mpl = config.comm.reduction, reducing(layout)
    if wanted == "auto" or sum(map(len, mpl)) < 2:
        return None
    reasons = fault(wanted, mpl, facts or facts_of(layout))
    return None if reasons is None else Fault("comm.reduction", wanted, *reasons)


class Sizer:
    """The actor that builds what one GMI trains."""

    def numel(
        self, config: Config, layout: Layout, trainer: type[DRL_role] | str, path: Sequence[str]
    ) -> int | None:
        """Returns the numbers that `trainer` reduces, with padding; None if it is not known.

        `path`: where modules are found, before those found here.
        """
        sys.path[:0] = [folder for folder in path if folder not in sys.path]
        from gmi_drl.roles.role.acting import gradient_numel
        from gmi_drl.roles.role.role import load_role

        role = load_role(trainer)
        return gradient_numel(role, config, layout)


def asked(config: Config, layout: Layout, trainer: type[DRL_role] | str) -> tuple[int, str]:
    """Asks the class that trains for its size; where it does not say, `assumed`, and why.

    Needs a running runtime; starts one process.
    """
    actor: Any = runtime.remote(Sizer).options(name="gradient size").remote()
    numel, why = None, f"role {trainer} says nothing of it"
    try:
        asking = actor.numel.remote(config, layout, trainer, list(sys.path))
        numel = runtime.get(asking, timeout=_DEADLINE)
    except runtime.ActorRuntimeError as error:
        why = str(error).strip().splitlines()[-1]
    finally:
        runtime.kill(actor)
    return (assumed(config), why) if numel is None else (numel, "")


def assumed(config: Config) -> int:
    """Returns the size with the observations and actions of the paper's Ant."""
    sizes = [_OBS_DIM, *hidden_sizes(config.algorithm.network), _ACT_DIM + 1]
    parameters = [_ACT_DIM]  # deviations, then weights and biases of each layer
    for a, b in itertools.pairwise(sizes):
        parameters += [a * b, b]
    return sum(round_up(count, PARAMETER_MULTIPLE) for count in parameters) + _TAIL
