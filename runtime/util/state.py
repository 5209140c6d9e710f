"""Lists the actors of the runtime."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from gmi_drl.runtime.api.refs import running


@dataclasses.dataclass(frozen=True)
class ActorState:
    """The state of an actor, as `list_actors` returns it."""

    actor_id: str
    class_name: str
    state: str  # DEPENDENCIES_UNREADY, PENDING_CREATION, ALIVE, RESTARTING or DEAD
    name: str  # empty for one that cannot be found by a name
    namespace: str
    pid: int | None
    num_restarts: int
    required_resources: Mapping[str, float]
    death_cause: str  # empty while it lives


def list_actors(filters: Sequence[tuple[str, str, Any]] = (), limit: int = 100) -> list[ActorState]:
    """Lists living actors, and dead ones of which somebody still has a handle.

    `filters` are (field, "=" or "!=", value), of which all must hold.
    """
    names = [field.name for field in dataclasses.fields(ActorState)]
    for field, relation, _ in filters:
        if field not in names or relation not in ("=", "!="):
            raise ValueError(
                f'filter {field!r} {relation!r}: give a field, "=" or "!=", and a value. There '
                f"are: {', '.join(names)}."
            )
    actors = [ActorState(*fields) for fields in running().request("actors")]
    for field, relation, value in filters:
        must_equal = relation == "="
        actors = [actor for actor in actors if (getattr(actor, field) == value) == must_equal]
    return actors[:limit]


def list_named_actors(all_namespaces: bool = False) -> list[Any]:
    """Lists the names of living actors; of all namespaces, as dicts of `namespace` and `name`."""
    runtime = running()
    names: list[tuple[str, str]] = runtime.request("names")
    if all_namespaces:
        return [{"namespace": namespace, "name": name} for namespace, name in names]
    return [name for namespace, name in names if namespace == runtime.namespace]
