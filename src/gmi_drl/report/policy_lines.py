"""Says what policies were computed from: as a tree, and in lines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gmi_drl.launcher.view.tables import cut, printable
from gmi_drl.placement import counted

from .lineage import Edge, Node, expand
from .policy_lineage import (
    PREFIX,
    Contribution,
    Killed,
    PolicyReader,
    PolicyRecord,
    UsedExperience,
    Version,
)

_MOST_TEXT: Final = 1200  # characters of what is said of a version
_PARTS: Final = {"async_gradients": "gradient", "parameter_server": "gradient"}


def tree_of(policies: PolicyReader, version: Version, depth: int) -> Node:
    """Returns a version with what it was computed from, so many steps back."""
    return expand(_node(policies, version), lambda node: _sources(policies, node.of), depth)


def _node(policies: PolicyReader, version: Version | None, edge: Edge = "") -> Node:
    if version is None:
        return Node("initial", "initial weights,", "by run.seed", edge)
    policy = policies.policy(version) if version.number else None
    text = "not recorded, or flushed" if version.number else "the initial weights, by run.seed"
    if policy is not None:
        text = _describe(policy, is_brief=bool(edge))
    return Node(f"{version.branch}:{version.number}", str(version), text, edge, of=version)


def _sources(policies: PolicyReader, of: Any) -> list[Node]:
    """Lists what is right below a node: of a version, its previous one and its experience."""
    if isinstance(of, UsedExperience):
        return [_node(policies, of.sampled_with, "input")]
    if not isinstance(of, Version) or (policy := policies.policy(of)) is None:
        return []
    key, nodes = f"{of.branch}:{of.number}", []
    if policy.previous is not None:
        nodes.append(_node(policies, policy.previous, "state"))
    kind = _PARTS.get(policy.optimizer.split(",")[0], "segment")
    kind = "direction" if policy.optimizer.startswith("population") else kind
    for place, sample in enumerate(policy.samples):
        # What the line above shows need not be shown again.
        inner = sample if sample.sampled_with != policy.previous else None
        text = f"{counted(sample.parts, kind)}, {sample.steps:,} steps"
        text += f" with {sample.sampled_with or 'a version that is not recorded'}"
        text += f", {sample.behind} behind" if sample.behind else ""
        text += "" if sample.trainer == sample.gmi_id else f", to gmi {sample.trainer}"
        name = f"gmi {sample.gmi_id}" + (f".{sample.process}" if sample.process else "")
        nodes.append(Node(f"{key}/{place}", f"{name}:", text, "input", of=inner))
    for replay in policy.replays:
        text = f"{counted(replay.minibatches, 'draw')} of minibatches from {replay.rows:,} "
        text += f"rows, put in by {PREFIX}{replay.oldest} to {of.number}"
        name = f"replay of gmi {replay.trainer}:"
        nodes.append(Node(f"{key}/replay{replay.trainer}", name, text, "input"))
    return nodes


def _describe(policy: PolicyRecord, *, is_brief: bool) -> str:
    """Says how a version was made, as it may be printed; briefly without optimizer and layout."""
    if policy.first_update is None:
        updates = f"updates up to {policy.last_update:,}"
    elif policy.first_update > policy.last_update:
        updates = "no update"
    elif policy.first_update == policy.last_update:
        updates = f"update {policy.last_update:,}"
    else:
        updates = f"updates {policy.first_update:,}-{policy.last_update:,}"
    words = [
        updates,
        f"{policy.steps:,} steps",
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(policy.made_s)),
    ]
    if not is_brief:
        gmis = counted(len(policy.layout["gmis"]), "GMI")
        words[1:1] = [policy.optimizer, f"{policy.layout['template']} with {gmis}"]
    if policy.restored:
        source = "its peers' memory" if policy.restored == "peers" else policy.restored
        words.append(f"begun from {source}")
    if policy.checkpoint:
        words.append(f"saved as {Path(policy.checkpoint).name}")
    if policy.undone:
        words.append("undone: training went back behind it")
    return printable(cut(", ".join(words), _MOST_TEXT))


def contribution_lines(found: Sequence[Contribution], gmi_id: int, after: int) -> list[str]:
    """Says what a GMI has contributed, a line for each of its processes."""
    if not found:
        return [f"gmi {gmi_id}: nothing that is recorded, after {PREFIX}{after}"]
    return [
        printable(
            f"gmi {c.gmi_id}, process {c.process} of launch {c.session[:8]}: "
            f"{counted(c.parts, 'part')}, {c.steps:,} steps in "
            f"{counted(c.versions, 'version')}, {PREFIX}{c.first} to {c.last}, "
            f"at most {c.most_behind} behind" + (f"; {c.died}" if c.died else "")
        )
        for c in found
    ]


def killed_lines(found: Sequence[Killed]) -> list[str]:
    """Says which versions saw data of a GMI that was killed, a line for each of its processes."""
    if not found:
        return ["no GMI has died in this run"]
    lines = []
    for k in found:
        pieces = ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in k.versions)
        lines.append(
            printable(
                f"{k.how}: {counted(k.parts, 'part')}, {k.steps:,} steps, seen by "
                + (f"{PREFIX}{pieces}" if pieces else "no version that is recorded")
            )
        )
    return lines


def lag_lines(policy: PolicyRecord) -> list[str]:
    """Says what the longest lag is, and whose experience it was."""
    lines = [f"{policy.version}: experience {counted(policy.lag, 'update')} behind its policy"]
    most = max((sample.behind for sample in policy.samples), default=0)
    for sample in policy.samples:
        if sample.behind == most:
            process = f"gmi {sample.gmi_id}, process {sample.process}"
            lines.append(f"  {process}, sampled with {sample.sampled_with or 'one not recorded'}")
    return lines
