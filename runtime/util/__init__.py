"""Builds utilities on tasks and actors, under the names that Ray's users know."""

from . import queue, state
from .actor_pool import ActorPool
from .state import list_named_actors

__all__ = ["ActorPool", "list_named_actors", "queue", "state"]
