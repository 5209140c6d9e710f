"""Which GMIs send to which, beside the reduction of gradients."""

from __future__ import annotations

from gmi_drl.placement.layout import GmiSpec, Layout


def channels(layout: Layout) -> list[tuple[GmiSpec, GmiSpec]]:
    """(source, target) of every channel that the layout's template calls for.

    decoupled: experience, from every agent to every trainer (the policy comes back by a board, not
    by a channel); tdg_ex: orders with the policy to the agents of each trainer, and experience
    back; tdg: observations to the agent of a pair, and actions back.
    """
    if layout.template == "decoupled":
        agents, trainers = layout.holding("agent"), layout.holding("trainer")
        return [(agent, trainer) for trainer in trainers for agent in agents]
    if layout.template == "tdg":
        there = list(zip(layout.gmis[::2], layout.gmis[1::2], strict=True))
    elif layout.template == "tdg_ex":
        there = [
            (layout.gmi(trainer), layout.gmi(agent))
            for trainer, its in crews_of(layout).items()
            for agent in its
        ]
    else:
        return []
    return [*there, *((target, source) for source, target in there)]


def crews_of(layout: Layout) -> dict[int, list[int]]:
    """Template tdg_ex: the agents that collect for each trainer, by gmi_id.

    An agent's trainer is on its device; several trainers of a device take turns. Then agents of
    devices without one go to the trainers that have fewest, wherever they stand in the layout.
    """
    trainers = [gmi.gmi_id for gmi in layout.holding("trainer")]
    near = {
        gmi.gmi_id: [t for t in trainers if layout.gmi(t).gpu_id == gmi.gpu_id]
        for gmi in layout.gmis
        if gmi.gmi_id not in trainers
    }
    crews: dict[int, list[int]] = {trainer: [] for trainer in trainers}
    for agent in sorted(near, key=lambda agent: not near[agent]):
        fewest = min(near[agent] or trainers, key=lambda trainer: len(crews[trainer]))
        crews[fewest].append(agent)
    return {trainer: sorted(agents) for trainer, agents in crews.items()}
