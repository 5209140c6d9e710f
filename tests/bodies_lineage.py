"""Roles that write a trace of their own: what they sampled, used and made, by digests alone.

A digest of the parameters names a policy, one of the observations an environment's part of a batch:
nothing in a trace is counted as the program counts it.
"""

import hashlib
import json
import os

import torch

import faults
import gmi_drl
import gmi_drl.roles


def digest(tensor):
    content = tensor.detach().cpu().contiguous().numpy().tobytes()
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def columns(batch):
    """A digest of what each environment of a batch has shown."""
    return [digest(batch["raw_observation"][:, n]) for n in range(batch["reward"].shape[1])]


class Traced:
    """A mixin: every line of `trace<gmi>` is what a process did, one whole write each."""

    def note(self, **what):
        line = json.dumps({"gmi": self.GMI_id, "pid": os.getpid(), **what}) + "\n"
        with open(faults.folder() / f"trace{self.GMI_id}", "a") as file:
            file.write(line)

    def made(self):
        """The digest of the policy as it is now."""
        return digest(torch.cat([p.detach().flatten() for p in self.policy.network.parameters()]))

    def GMI_run(self, **params):
        self.note(began=self.mgr.context.session)
        return super().GMI_run(**params)

    def collector(self, env, batch):
        made = super().collector(env, batch)
        collect = made.collect

        def traced(number):
            self.sampled_with = self.made()
            collect(number)
            self.note(sampled=columns(made.batch), policy=self.sampled_with)
            faults.strike(self.GMI_id, "sampled", number)

        made.collect = traced
        return made


class Trainer(Traced):
    def make_optimizer(self):
        optimizer = super().make_optimizer()
        step, connect = optimizer.step, optimizer.connect

        def traced_step(iteration, steps):
            faults.strike(self.GMI_id, "step", iteration)
            done = step(iteration, steps)
            self.note(
                made=self.made(), version=iteration + 1, updates=optimizer.learner.updates,
                noted=hasattr(done, "metrics"),
            )  # fmt: skip
            return done

        def traced_connect(group, iteration):
            connect(group, iteration)
            self.note(connected=self.made(), version=iteration)

        optimizer.step, optimizer.connect = traced_step, traced_connect
        self.trace(optimizer)
        return optimizer

    def trace(self, optimizer):
        """Has the optimizer's use of experience traced."""
        replay = getattr(optimizer, "_replay", None)
        updated = replay or optimizer.learner
        update = updated.update

        def traced(batch):
            self.note(used=columns(batch))
            update(batch)

        updated.update = traced
        if replay is None:
            return
        kept, rows = replay._replay, {}
        put, draw = kept.put, kept.next

        def traced_put(batch):
            self.puts = getattr(self, "puts", 0) + 1
            for row in batch["raw_observation"].flatten(0, 1):
                rows[digest(row)] = self.puts
            put(batch)
            self.note(rows=len(kept))

        def traced_draw():
            minibatch, keys = draw()
            drawn = [rows.get(digest(row)) for row in minibatch["raw_observation"]]
            # None: of a checkpoint, whose replay the process before this one had filled.
            self.note(drawn=max((self.puts - put for put in drawn if put), default=0))
            return minibatch, keys

        kept.put, kept.next = traced_put, traced_draw


class TracedHolistic(Trainer, gmi_drl.Holistic):
    pass


class Unheard(TracedHolistic):
    """Of whose first process nothing is heard from iteration 6 on, as if it were killed first."""

    def GMI_run(self, **params):
        report = self.mgr.report

        def report_if_heard(record):
            if self.mgr.context.process or record.get("iteration", 0) < 6:
                report(record)

        self.mgr.report = report_if_heard
        return super().GMI_run(**params)


class TracedTrainer(Trainer, gmi_drl.roles.Trainer):
    pass


class TracedAgent(Traced, gmi_drl.roles.Agent):
    pass


class TracedGradientAgent(TracedAgent):
    """What it sends is the gradient of what it has sampled."""

    def make_sampler(self, env):
        sampler = super().make_sampler(env)
        prepare = sampler._prepare

        def traced(batch):
            prepare(batch)  # changes the values' layer, by a normaliser's moments
            self.note(sampled=[digest(sampler._maker.gradient)], policy=self.sampled_with)

        sampler._prepare = traced
        return sampler


class TracedGradientTrainer(TracedTrainer):
    def trace(self, optimizer):
        apply = optimizer._apply

        def traced(gradient, losses, moments):
            self.note(used=[digest(gradient)])
            apply(gradient, losses, moments)

        optimizer._apply = traced


class TracedEvolution(TracedHolistic):
    def trace(self, optimizer):
        play = optimizer._episodes.play

        def traced(parameters, iteration, mine):
            policy = self.made()
            tried = [f"{policy}/{number}" for number in mine]
            self.note(sampled=tried, policy=policy)
            self.note(used=tried)
            faults.strike(self.GMI_id, "sampled", iteration)
            return play(parameters, iteration, mine)

        optimizer._episodes.play = traced
