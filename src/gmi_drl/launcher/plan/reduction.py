"""Plans the reduction of a config on this machine, as `plan` shows and `launch` follows it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gmi_drl import runtime
from gmi_drl.comm.plan.capability import LinkFacts, fault
from gmi_drl.comm.plan.plan import Measure, ReductionPlan, facts_of, is_open, plan_reduction
from gmi_drl.placement import Config, ConfigError, Fault, Layout
from gmi_drl.placement.reduction import reducing

from . import gradient_size
from .gradient_size import GradientSize

if TYPE_CHECKING:
    from gmi_drl.roles import DRL_role


def reduction_of(
    config: Config,
    layout: Layout,
    measure: Measure = "needed",
    *,
    ask_size: bool = False,
    trainer: type[DRL_role] | str = "gmi_drl.roles:Trainer",
) -> ReductionPlan:
    """Returns the plan, and in its notes what was measured and assumed.

    May start processes, for seconds.

    The gradient's size is asked of `trainer`, the class that trains, where the choice depends on
    it, or with `ask_size`. ConfigError when `comm.reduction` cannot run here.
    """
    facts = facts_of(layout)
    if refusal := reduction_fault(config, layout, facts):
        raise ConfigError([refusal])
    wanted, repeatable = config.comm.reduction, config.run.deterministic
    several = sum(map(len, reducing(layout))) > 1
    open_choice = is_open(wanted, layout, facts, repeatable)
    measures = several and (measure in ("missing", "anew") or (measure == "needed" and open_choice))
    asks = several and (ask_size or open_choice)
    with _runtime(needed=measures or asks):
        if asks:
            size = gradient_size.asked(config, layout, trainer)
        else:
            size = gradient_size.assumed(config, "it decides nothing here")
        plan = plan_reduction(
            wanted, layout, size.numel, wire=config.comm.wire, measure=measure,
            repeatable=repeatable, facts=facts,
        )  # fmt: skip
    return dataclasses.replace(plan, notes=(*plan.notes, *_said(size))) if asks else plan


def reduction_fault(config: Config, layout: Layout, facts: LinkFacts | None = None) -> Fault | None:
    """Tells why the hardware cannot run the `comm.reduction` that is asked for, if it cannot."""
    wanted, mpl = config.comm.reduction, reducing(layout)
    if wanted == "auto" or sum(map(len, mpl)) < 2:
        return None
    reasons = fault(wanted, mpl, facts or facts_of(layout))
    return None if reasons is None else Fault("comm.reduction", wanted, *reasons)


def _said(size: GradientSize) -> Iterator[str]:
    if size.assumed:
        yield (
            f"the gradient's size is assumed ({size.numel:,} numbers, for the observations of the "
            f"paper's Ant): {size.assumed}"
        )


@contextmanager
def _runtime(needed: bool) -> Iterator[None]:
    """A runtime for what is asked of other processes, if there is none."""
    if not needed or runtime.is_initialized():
        yield
        return
    runtime.init(gradient_size.PRELOAD)
    try:
        yield
    finally:
        runtime.shutdown()
