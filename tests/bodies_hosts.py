"""What GMIs of several hosts do in tests."""

import bodies_rings
from gmi_drl.comm import GroupReformed


def everything(group, lengths):
    """Sums, means, gathers, broadcasts, numbers, and who this rank is."""
    found = bodies_rings.reduce_many_ways(group, lengths)
    group.barrier()
    outcome = found, group.exchange(group.rank + 2**63), group.rank, group.generation
    group.finish("done")
    return outcome


def reduce_through_deaths(group, told):
    """Reduces until a rank is told to stop, over all deaths; a file says in which generation."""
    while True:
        try:
            group.reform()
            bucket = group.bucket("gradient", 1000)
            while True:
                bucket.buffer.fill_(group.rank + 1)
                total = float(bucket.reduce("sum")[0])
                (group.spec.folder / f"reduced{group.rank}").write_text(str(group.generation))
                if any(group.exchange(int(told is not None and told.poll(0)))):
                    group.finish("done")
                    return group.generation, total
        except GroupReformed:
            (group.spec.folder / f"told{group.rank}").touch()


def reduce_until_it_fails(group, ready):
    """Reduces, and says so after the first time, until an error ends it."""
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
    group.bucket("gradient", 100 + (group.spec.rank == 1)).reduce()
