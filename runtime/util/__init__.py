"""What is built on tasks and actors, under the names that Ray's users know."""

from gmi_drl.runtime.util import queue, state
from gmi_drl.runtime.util.actor_pool import ActorPool
from gmi_drl.runtime.util.state import list_named_actors

__all__ = ["ActorPool", "list_named_actors", "queue", "state"]
