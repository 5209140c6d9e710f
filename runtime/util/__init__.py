"""What is built on tasks and actors, under the names that Ray's users know."""

from gmi_drl.runtime.util.state import list_named_actors

__all__ = ["list_named_actors"]
