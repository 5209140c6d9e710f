"""Generators: in async code, in `wait`, and what they yielded before they raised."""

import asyncio
import contextlib
from datetime import timedelta

import numpy as np
import pytest

import bodies_tasks as bodies
from gmi_drl import runtime
from gmi_drl.runtime.api import session

LONG = timedelta(seconds=60)

pytestmark = pytest.mark.usefixtures("shared")


def counts(*args, **options):
    return runtime.remote(bodies.count_to).options(**options).remote(*args)


def gated(gate):
    """Three items, of which the first comes when the gate opens."""

    @runtime.remote
    def items():
        bodies.until(gate.exists, "the gate")
        yield from range(3)

    return items.remote()


def outcome(ref):
    try:
        return runtime.get(ref, LONG)
    except ValueError as error:
        return str(error).splitlines()[-1]


async def values_of(items):
    return [await item async for item in items]


def test_items_are_iterated_in_async_code_while_others_go_on(tmp_path):
    async def main():
        items = counts(3, tmp_path / "go")
        first = await anext(items)
        rest = asyncio.create_task(values_of(items))
        await asyncio.sleep(0)  # the task waits for the second
        (tmp_path / "go").touch()
        return [await first, *await rest]

    assert asyncio.run(main()) == [0, 1, 2]


def test_two_generators_are_iterated_at_once_in_one_loop():
    async def main():
        return await asyncio.gather(values_of(counts(4)), values_of(counts(3, None, None, 50_000)))

    small, large = asyncio.run(main())
    assert small == [0, 1, 2, 3]
    assert [array[0] for array in large] == [0, 1, 2]


def test_async_methods_iterate_over_generators():
    class Sums:
        async def total(self, number):
            return sum(await values_of(counts(number)))

    actor = runtime.remote(Sums).remote()
    assert runtime.get([actor.total.remote(n) for n in (3, 5)], LONG) == [3, 10]


def test_who_gives_up_waiting_for_an_item_in_a_task_takes_none(tmp_path):
    async def gives_up_once(items, gate):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(anext(items), 0.05)  # it comes when the gate opens
            raise AssertionError("the gate was open")
        gate.touch()
        return await values_of(items)

    gate = tmp_path / "go"
    task = runtime.remote(lambda: asyncio.run(gives_up_once(gated(gate), gate)))
    assert runtime.get(task.remote(), LONG) == [0, 1, 2]


def test_an_error_ends_an_async_iteration_with_its_reference():
    async def main():
        return [item async for item in counts(5, None, 2)]

    *before, last = asyncio.run(main())
    assert runtime.get(before, LONG) == [0, 1]
    with pytest.raises(ValueError, match="at 2"):
        runtime.get(last, LONG)


def test_a_generator_is_ready_when_its_next_item_is(tmp_path):
    gated, ref = counts(3, tmp_path / "go"), runtime.remote(bodies.add).remote(1)
    assert runtime.wait([gated], 1, LONG) == ([gated], [])
    assert runtime.get(next(gated), LONG) == 0
    assert runtime.wait([gated], 1, 0.05) == ([], [gated])
    assert runtime.wait([gated, ref], 1, LONG) == ([ref], [gated])
    (tmp_path / "go").touch()
    assert runtime.wait([ref, gated], 2, LONG) == ([ref, gated], [])
    assert [runtime.get(item, LONG) for item in gated] == [1, 2]


def test_a_generator_that_is_over_is_ready_and_next_ends_it():
    empty = counts(0)
    assert runtime.wait([empty], 1, LONG) == ([empty], [])
    assert list(empty) == []
    failing = counts(1, None, 0)
    assert runtime.wait([failing], 1, LONG) == ([failing], [])
    assert [outcome(item) for item in failing] == ["ValueError: at 0"]


def test_tasks_wait_for_generators_and_give_their_cpu_to_them():
    def collects(number):
        left = [counts(number), counts(number)]
        values = []
        while left:
            (ready,), left = runtime.wait(left)
            item = next(ready, None)
            if item is not None:
                values.append(runtime.get(item))
                left.append(ready)
        return sorted(values)

    calls = [runtime.remote(collects).remote(3) for _ in range(3)]
    assert runtime.get(calls, LONG) == [[0, 0, 1, 1, 2, 2]] * 3


def test_a_task_that_waited_for_a_generator_takes_its_cpu_back(tmp_path):
    def waits_and_stays(folder):
        items = counts(2, folder / "go")
        runtime.wait([items])  # the first is there; the end is not
        bodies.mark(folder / "waited")
        bodies.wait_for_file(folder / "go")
        return [runtime.get(item) for item in items]

    call = runtime.remote(waits_and_stays).remote(tmp_path)
    bodies.pid_in(tmp_path / "waited")
    processes = session.driver().processes.values()
    bodies.until(lambda: not any(process.blocked for process in processes), "a CPU taken back")
    (tmp_path / "go").touch()
    assert runtime.get(call, LONG) == [0, 1]


def test_one_generator_twice_is_refused_and_other_things_are():
    items = counts(1)
    with pytest.raises(ValueError, match="twice"):
        runtime.wait([items, items])
    with pytest.raises(TypeError, match="ObjectRefs"):
        runtime.wait([items, 3])


@pytest.mark.parametrize("size", [None, 50_000])
def test_values_before_an_error_are_kept(size):
    streamed = [outcome(item) for item in counts(5, None, 2, size)]
    several = [outcome(ref) for ref in counts(4, None, 2, size, num_returns=4)]
    for found in (streamed, several):
        assert [np.max(value) for value in found[:2]] == [0, 1]
    assert streamed[2:] == ["ValueError: at 2"]
    assert several[2:] == ["ValueError: at 2"] * 2


def test_values_before_an_error_of_a_method_are_kept():
    class Yields:
        def values(self, fail_at):
            yield from bodies.count_to(3, None, fail_at)

    actor = runtime.remote(Yields).remote()
    found = actor.values.options(num_returns=3).remote(1)
    assert [outcome(ref) for ref in found] == [0, "ValueError: at 1", "ValueError: at 1"]
    assert [outcome(ref) for ref in actor.values.options(num_returns=3).remote(None)] == [0, 1, 2]
    assert [outcome(item) for item in actor.values.remote(1)] == [0, "ValueError: at 1"]


def test_an_async_generator_gives_several_results_and_those_before_an_error():
    class Yields:
        async def values(self, fail_at):
            for value in bodies.count_to(3, None, fail_at):
                yield value

    actor = runtime.remote(Yields).remote()
    for fail_at, expected in ((1, [0, "ValueError: at 1", "ValueError: at 1"]), (None, [0, 1, 2])):
        found = actor.values.options(num_returns=3).remote(fail_at)
        assert [outcome(ref) for ref in found] == expected


def test_a_generator_that_yields_too_many_or_few_fails_as_a_whole():
    for number in (1, 3):
        for ref in counts(number, num_returns=2):
            with pytest.raises(ValueError, match="num_returns=2"):
                runtime.get(ref, LONG)


@pytest.mark.parametrize("size", [1, 100_000])
def test_results_of_a_generator_that_is_begun_again_are_of_one_attempt(tmp_path, size):
    class Yields:
        @runtime.method(num_returns=2, retry_exceptions=True)
        def two(self):
            yield from two(tmp_path / "method", size)

    def two(path, size):
        bodies.mark(path)
        yield np.full(size, bodies.marks(path))
        if bodies.marks(path) == 1:
            raise ValueError("once")
        yield 3

    task = runtime.remote(two).options(num_returns=2, retry_exceptions=True)
    for call in (
        task.remote(tmp_path / "task", size),
        runtime.remote(Yields).remote().two.remote(),
    ):
        first, second = runtime.get(call, LONG)
        assert (first[0], len(first), second) == (2, size, 3)
