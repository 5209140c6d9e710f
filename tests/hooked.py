"""Trainers whose optimizer tells what it does, so that a test's role can act at that point."""


class Hooked:
    """A mixin for trainers. `iteration`: finished ones, as the points of a script count them."""

    iteration = 0

    def make_optimizer(self):
        self.optimizer = super().make_optimizer()
        self.hook(self.optimizer)
        return self.optimizer

    def hook(self, optimizer):
        """Replace methods of the optimizer; this is called once in each process."""
        step, connect = optimizer.step, optimizer.connect

        def hooked_step(iteration, steps):
            self.iteration = iteration
            self.begin(iteration)
            done = step(iteration, steps)
            self.iteration = iteration + 1
            return done

        def hooked_connect(group, iteration):
            connect(group, iteration)
            self.iteration = iteration
            self.connected()

        optimizer.step, optimizer.connect = hooked_step, hooked_connect

    def begin(self, iteration):
        """An iteration begins."""

    def connected(self):
        """This GMI has come to one state with the others."""


def after(owner, name, then, before=None):
    """Have `then` called behind each call of a method, and `before` ahead of it."""
    method = getattr(owner, name)

    def around(*args, **how):
        if before is not None:
            before()
        result = method(*args, **how)
        if then is not None:
            then()
        return result

    setattr(owner, name, around)
