"""An actor for the tests of engine ray."""

from gmi_drl import runtime


class Journal:
    """Adds up; knows how many of its calls were run to rebuild it."""

    def __init__(self):
        self.total = self.num_replayed = 0

    def add(self, number):
        self.num_replayed += runtime.context().replayed
        self.total += number
        return self.total

    def replayed(self):
        return self.num_replayed

    def save(self):
        return self.total

    def restore(self, total):
        self.total = total


def bytes_of_functions():
    """How large the functions are that this process keeps."""
    from gmi_drl.runtime.engines.ray import tasks

    return tasks._functions.nbytes
