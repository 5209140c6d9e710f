"""What the probe's fork server preloads and forks in tests."""

from gpu.probe.clients import Forked


class Computes(Forked):
    """A GMI whose torch computes, as far as a machine without a GPU can tell."""

    def computes(self):
        return "torch"
