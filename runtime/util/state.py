"""What there is in the runtime just now."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from gmi_drl.runtime.api.session import running


@dataclasses.dataclass(frozen=True)
class ActorState:
    """One actor, as `list_actors` tells of it.

    `state` is DEPENDENCIES_UNREADY (what `__init__` is called with is not there yet),
    PENDING_CREATION, ALIVE, RESTARTING or DEAD. `name` and `namespace` are empty for one that
    cannot be found by a name; `death_cause` for one that lives.
    """

    actor_id: str
    class_name: str
    state: str
    name: str
    namespace: str
    pid: int | None
    num_restarts: int
    required_resources: Mapping[str, float]
    death_cause: str


def list_actors(filters: Sequence[tuple[str, str, Any]] = (), limit: int = 100) -> list[ActorState]:
    """The actors that live, and those that died and that somebody still has a handle of.

    `filters` are (field, "=" or "!=", value), of which all must hold. The control store knows of
    all that there were.
    """
    fields = [field.name for field in dataclasses.fields(ActorState)]
    for field, relation, _ in filters:
        if field not in fields or relation not in ("=", "!="):
            raise ValueError(
                f'filter {field!r} {relation!r}: give a field, "=" or "!=", and a value. There '
                f"are: {', '.join(fields)}."
            )
    found = (ActorState(*about) for about in running().request("actors"))
    chosen = [
        actor
        for actor in found
        if all(
            (getattr(actor, field) == value) == (relation == "=")
            for field, relation, value in filters
        )
    ]
    return chosen[:limit]


def list_named_actors(all_namespaces: bool = False) -> list[Any]:
    """The names of the living actors of this runtime's namespace, in order.

    With `all_namespaces`, a dict with `namespace` and `name` for each there is.
    """
    runtime = running()
    names: list[tuple[str, str]] = runtime.request("names")
    if all_namespaces:
        return [{"namespace": namespace, "name": name} for namespace, name in names]
    return [name for namespace, name in names if namespace == runtime.namespace]
