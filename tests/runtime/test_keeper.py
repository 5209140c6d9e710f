"""What engine ray keeps of actors beside Ray, and that it drops what is of dead ones."""

import asyncio
import weakref
from types import SimpleNamespace

import pytest

import fake_ray

UNSPECIFIED, OUT_OF_SCOPE = 0, 5  # Ray's reasons


class State:
    """What an actor has saved, or been called with."""

    call = SimpleNamespace(id=b"a call")


@pytest.fixture
def keeper(monkeypatch):
    """A keeper in a session in which `rows` is what Ray knows of actors."""
    with fake_ray.cluster():
        from gmi_drl.runtime.engines.ray import keeper, nodes

        monkeypatch.setattr(nodes, "actor_row", lambda id: rows.get(id, {}))
        monkeypatch.setattr(keeper, "_FEW", 4)
        monkeypatch.setattr(keeper, "ENDS_KEPT", 3)
        rows = {}
        one = keeper.Keeper([])
        one.rows = rows
        yield one


def row(state, reason=UNSPECIFIED):
    context = SimpleNamespace(reason=reason)
    return {"State": state, "DeathCause": SimpleNamespace(actor_died_error_context=context)}


async def started(keeper, *actors):
    """Has actors be started, save and be called; returns what dies with what was kept of that."""
    kept = []
    for actor in actors:
        await keeper.started(actor, 1, "10.0.0.1")
        state, called = State(), State()
        await keeper.note(actor, (state, {}), called)
        kept.append((weakref.ref(state), weakref.ref(called)))
        await keeper.ending(actor, f"{actor} was stopped")
    return kept


async def others(keeper, count, name="other"):
    """Has so many live actors be started, and waits until the dead have been looked for."""
    for number in range(count):
        keeper.rows[f"{name}{number}"] = row("ALIVE")
        await keeper.started(f"{name}{number}", 1, "10.0.0.1")
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0.001)


@pytest.mark.timeout(60)
def test_what_a_dead_actor_would_have_gone_on_from_is_dropped(keeper):
    async def body():
        kept = await started(keeper, "dead", "alive", "restarting", "unknown")
        keeper.rows |= {"dead": row("DEAD"), "alive": row("ALIVE"), "restarting": row("RESTARTING")}
        await others(keeper, 1)
        assert [kept[0][0](), kept[0][1]()] == [None, None]
        assert await keeper.end_of("dead") == ("dead was stopped", b"", [(1, "10.0.0.1")])
        for (state, called), actor in zip(
            kept[1:], ("alive", "restarting", "unknown"), strict=True
        ):
            assert await keeper.started(actor, 2, "10.0.0.1") == (1, (state(), {}), [called()])

    asyncio.run(body())


@pytest.mark.timeout(60)
def test_an_actor_that_ray_may_run_again_for_a_lost_result_keeps_its_state(keeper):
    async def body():
        kept = await started(keeper, "let go", "dead")
        keeper.rows |= {"let go": row("DEAD", OUT_OF_SCOPE), "dead": row("DEAD")}
        await others(keeper, 3)
        assert kept[1][0]() is None
        assert await keeper.started("let go", 2, "") == (1, (kept[0][0](), {}), [kept[0][1]()])

    asyncio.run(body())


@pytest.mark.timeout(60)
def test_records_of_dead_actors_stay_until_they_are_fetched_and_ends_of_the_newest(keeper):
    async def body():
        names = [f"dead{number}" for number in range(6)]
        for name in names:
            keeper.rows[name] = row("DEAD")
            await keeper.ending(name, "it was stopped")
        await keeper.emit("dead0", [b"a record"])
        await others(keeper, 30)
        reasons = [(await keeper.end_of(name))[0] for name in names]
        assert reasons == ["it was stopped", "", "", *["it was stopped"] * 3]
        assert await keeper.take_records("dead0") == [b"a record"]
        await others(keeper, 60, "later")
        assert (await keeper.end_of("dead0"))[0] == ""

    asyncio.run(body())
