"""What GMIs of several hosts do in tests."""

import contextlib
import time

import torch

import bodies_comm
import bodies_rings
from gmi_drl.comm import GroupFinished, GroupReformed
from gmi_drl.comm.group.tags import REFORM
from gmi_drl.comm.hosts.links import HostLinks, Interrupted
from gmi_drl.comm.reducers import hosts
from gmi_drl.comm.reducers.hosts_gloo import HostsGloo
from waits import until


def everything(group, lengths):
    """Sums, means, gathers, broadcasts, numbers, and who this rank is."""
    group.by_gloo_from = 0  # also of a bucket without numbers
    found = bodies_rings.reduce_many_ways(group, lengths)
    group.barrier()
    outcome = found, group.exchange(group.rank + 2**63), group.rank, group.generation
    group.finish("done")
    return outcome


def _reduce_until_told(group, told):
    bucket = group.bucket("gradient", 1000)
    while True:
        bucket.buffer.fill_(group.rank + 1)
        total = float(bucket.reduce("sum")[0])
        (group.spec.folder / f"reduced{group.rank}").write_text(str(group.generation))
        if any(group.exchange(int(told is not None and told.poll(0)))):
            group.finish("done")
            return group.generation, total


def reduce_through_deaths(group, told):
    """Reduces until a rank is told to stop, over all deaths; a file says in which generation."""
    group.by_gloo_from = 1
    while True:
        try:
            group.reform()
            return _reduce_until_told(group, told)
        except GroupReformed:
            (group.spec.folder / f"told{group.rank}").touch()


def finish_or_stay(group):
    """GMIs of host 1 stay after the last meeting; those of other hosts finish."""
    try:
        group.reform()
        group.bucket("gradient", 1000).reduce()
        (group.spec.folder / f"reduced{group.rank}").write_text(str(group.generation))
        if group.spec.rank == 1:
            time.sleep(600)  # until it is killed
        group.finish("done")
    except GroupFinished as done:
        return done.rank, done.member, done.outcome


def reduce_until_it_fails(group, ready):
    """Reduces, and says so after the first time, until an error ends it."""
    group.by_gloo_from = 1
    bucket = group.bucket("gradient", 1000)
    bucket.reduce()
    if ready is not None:
        ready.send(group.rank)
    while True:
        bucket.reduce()


def reduce_then_fail(group):
    """The last rank of all fails in the middle of its second reduction."""
    bucket = group.bucket("gradient", 10)
    bucket.reduce()
    if group.rank == group.size - 1:
        group.local.give_up(ValueError("no more"))
        raise ValueError("no more")
    bucket.reduce()


def differently(group):
    """The GMIs of the second host ask for another size."""
    group.by_gloo_from = 1
    group.bucket("gradient", 100 + (group.spec.rank == 1)).reduce()


def count_gloo(group):
    """The KB of those sums, of 976 and 977, that this GMI has made by gloo."""
    found, all_reduce = [], HostsGloo.all_reduce

    def counted(self, vector, tag):
        found.append(vector.nbytes >> 10)
        all_reduce(self, vector, tag)

    HostsGloo.all_reduce = counted
    for kilobytes in (976, 977):  # 1 MB lies between them
        bucket = group.bucket(f"{kilobytes} KB", kilobytes << 8)
        bucket.buffer.fill_(1.0)
        assert bucket.reduce("sum")[0] == group.size
    group.finish("done")
    return found


def reduce_by_the_fastest(group):
    """What this GMI's leader has measured, its note, and whether sums are right."""
    sums = []
    for numel in (100, 70_000, 700_000):
        bucket = group.bucket(f"{numel}", numel)
        bucket.buffer.fill_(group.rank + 1.0)
        sums += bucket.reduce("sum").unique().tolist()
    measured = {way: (link.alpha_s, link.beta_s_per_byte) for way, link in group.measured.items()}
    outcome = measured, group.note, sums
    group.finish("done")
    return outcome


def measure_twice(group):
    """What each way takes as its leader knows it, after two generations and one that broke off.

    The leader of host 0 measures anew, and that of the last host is interrupted at the end of it.
    """
    measure, run, tags = hosts.measure, HostLinks.run, []

    def interrupted(*args):
        links = yield from measure(*args)
        if group.measured_twice:
            group.measured_twice = False
            raise Interrupted
        return links

    def noted(self, vector, todo, tag, *wire):
        if tag & 7 == REFORM:
            tags.append((self.epoch, tag))
        run(self, vector, todo, tag, *wire)

    hosts.measure, HostLinks.run = interrupted, noted
    group.measured_twice = False
    group.barrier()
    if group.rank == 0:
        group.measured = {}  # as of a process that is new
        group.local.renew()
    group.measured_twice = group.spec.rank == group.count - 1
    while group.generation < 2:
        with contextlib.suppress(GroupReformed):
            group.reform()
            group.barrier()
    group.finish("done")
    return group.measured, len(tags) - len({*tags})


def wait_for_a_slow_network(group):
    """Meets all GMIs; a sum takes its leaders far longer between hosts than they may be late."""
    reduce_by = group._reduce_by

    def slowly(way, vector, tag):
        time.sleep(0.55)  # on the way
        reduce_by(way, vector, tag)

    group._reduce_by = slowly
    numbers = group.exchange(group.rank)
    group.finish("done")
    return numbers


def measure_until_killed(group):
    """Reduces; the first process of the last host's leader stays in its first measurement."""
    reduce_by = group._reduce_by

    def held(way, vector, tag):
        if group.rank == group.size - 1 and not group.local.joined:
            (group.spec.folder / "measures").touch()
            time.sleep(600)  # until it is killed
        reduce_by(way, vector, tag)

    group._reduce_by = held
    while True:
        try:
            group.reform()
            numbers = group.exchange(group.rank)
            break
        except GroupReformed:
            pass
    group.finish("done")
    return numbers, group.measured


def reduce_and_count(group, ready, told):
    """Reduces until a rank is told to stop, and checks each; what its leader has refused."""
    bucket = group.bucket("gradient", 100_000)
    expected = sum(range(1, group.size + 1))
    wrong = times = 0
    while True:
        bucket.buffer.fill_(group.rank + 1)
        wrong += not bool((bucket.reduce("sum") == expected).all())
        times += 1
        if times == 3 and ready is not None:
            ready.send(times)
        if any(group.exchange(int(told is not None and told.poll(0)))):
            break
    refused = {} if group.links is None else group.links.refused
    group.finish("done")
    assert group.refused == sum(refused.values())
    return wrong, refused


def train(group, iterations):
    """The parameters [n] after some steps down the mean gradient of all ranks."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    parameters = list(net.parameters())
    bucket = group.bucket("gradient", sum(p.numel() for p in parameters))
    at = 0
    for parameter in parameters:
        parameter.grad = bucket.buffer[at : at + parameter.numel()].view_as(parameter)
        at += parameter.numel()
    for iteration in range(iterations):
        data = torch.from_numpy(bodies_comm.vector(group.rank, 64 * 8, iteration)).view(64, 8)
        bucket.buffer.zero_()
        (net(data)[:, 0] - data.sin().sum(1)).square().mean().backward()
        own = bucket.buffer.clone()
        bucket.buffer.copy_(bucket.reduce("mean"))
        with torch.no_grad():  # torch.optim imports for seconds
            for parameter in parameters:
                parameter -= 0.05 * parameter.grad
        assert not torch.equal(own, bucket.buffer)
    group.finish("done")
    return torch.nn.utils.parameters_to_vector(parameters).detach().numpy().copy()


def set_up_for_long(group, told):
    """As `reduce_through_deaths`; who takes a dead one's place is set up once all others know."""
    base, is_new = group.spec.folder.parent, group.local.joined > 0
    is_set_up = base / "set_up"
    while True:
        try:
            if is_new:
                until(lambda: len([*base.glob("*/told*")]) == group.size - 1, within_s=60)
                is_set_up.touch()
                is_new = False
            group.reform()
            return _reduce_until_told(group, told)
        except GroupReformed:
            (group.spec.folder / f"told{group.rank}").touch()
            until(is_set_up.exists, within_s=60)
