"""Errors that nobody asked for are told once, and no others are."""

import gc
import sys
from datetime import timedelta

import pytest

import bodies_tasks as bodies
from gmi_drl import runtime
from gmi_drl.runtime.api import session

LONG = timedelta(seconds=60)

pytestmark = pytest.mark.usefixtures("shared")

FAILS = runtime.remote(bodies.raises)


@pytest.fixture
def printed(capfd):
    """Waits until nothing runs or is held any more; what was printed since."""

    def text():
        driver = session.driver()
        gc.collect()  # errors that were caught, and with their frames what those refer to
        settled = driver.tasks.live, driver.objects.slots

        def catch_up():
            driver.loop.ask(lambda then: then(None))

        def is_settled():
            catch_up()  # it knows what was dropped
            return not any(settled)

        bodies.until(is_settled, "an end of all calls")
        catch_up()  # it has told of what it was dropping then
        return capfd.readouterr().err

    return text


@pytest.fixture
def told(printed):
    """The errors that were told of, when nothing runs or is held any more."""

    def errors():
        lines = printed().splitlines()
        return [line.removeprefix("gmi-drl: ") for line in lines if line.startswith("gmi-drl: ")]

    return errors


def nobody(name):
    return f"{name} failed, and nobody asked:"


def test_a_reference_dropped_before_the_error_came(told, tmp_path):
    late = runtime.remote(bodies.wait_for_file).remote(tmp_path / "go", KeyError)
    FAILS.options(name="early").remote(late, "one")
    del late
    (tmp_path / "go").touch()
    assert told() == [nobody("early")]


def test_a_reference_dropped_after_the_error_came(told):
    ref = FAILS.options(name="after").remote(KeyError, "two")
    runtime.wait([ref], 1, LONG)
    assert runtime.wait([ref], 1, 0) == ([ref], [])
    del ref
    assert told() == [nobody("after")]


def test_the_text_has_the_end_of_the_traceback(printed):
    FAILS.options(name="text").remote(KeyError, "what happened")
    text = printed()
    assert "KeyError: 'what happened'" in text
    assert "in raises" in text


def test_an_error_is_told_once_for_each_function_and_text(told):
    for _ in range(5):
        FAILS.options(name="same").remote(KeyError, "same")
    FAILS.options(name="same").remote(KeyError, "another")
    assert told() == [nobody("same")] * 2


def test_several_results_and_generators_are_one_error(told):
    first, second = FAILS.options(name="pair", num_returns=2).remote(KeyError, "pair")
    runtime.wait([first, second], 2, LONG)
    del first
    session.driver().post(int)
    del second
    items = runtime.remote(bodies.count_to).options(name="items").remote(3, None, 1)
    assert runtime.get(next(items), LONG) == 0
    del items
    assert sorted(told()) == [nobody("items"), nobody("pair")]


def test_methods_are_told_of_too(told):
    actor = runtime.remote(bodies.Counter).options(name="counts").remote()
    actor.raises.remote()
    assert runtime.get(actor.add.remote(), LONG) == 2
    del actor
    assert told() == [nobody("counts.raises")]


def test_a_dead_worker_is_told_of(told):
    runtime.remote(bodies.kill_self).options(name="dies", max_retries=0).remote()
    assert told() == [nobody("dies")]


def test_what_somebody_was_told_is_not_told_again(told):
    def gets(refs):
        with pytest.raises(KeyError):
            runtime.get(refs[0])

    ref = FAILS.options(name="got").remote(KeyError, "got")
    with pytest.raises(KeyError):
        runtime.get(ref, LONG)
    other = FAILS.options(name="got elsewhere").remote(KeyError, "got elsewhere")
    runtime.get(runtime.remote(gets).remote([other]), LONG)
    failing = FAILS.options(name="input").remote(KeyError, "input")
    with pytest.raises(KeyError):
        runtime.get(runtime.remote(bodies.echo).remote(failing), LONG)
    awaited = FAILS.options(name="future").remote(KeyError, "future")
    assert isinstance(awaited.future().exception(60), KeyError)
    *_, last = runtime.remote(bodies.count_to).options(name="stream").remote(2, None, 1)
    with pytest.raises(ValueError, match="at 1"):
        runtime.get(last, LONG)
    del ref, other, failing, awaited, last, _
    assert told() == []


def test_a_task_that_drops_an_error_unseen_tells_of_it(told):
    def drops():
        FAILS.options(name="inner").remote(KeyError, "inner")

    runtime.get(runtime.remote(drops).remote(), LONG)
    assert told() == [nobody("inner")]


def test_what_was_cancelled_or_killed_is_not_told(told, tmp_path):
    call = runtime.remote(bodies.sleeps).remote(tmp_path / "began")
    bodies.pid_in(tmp_path / "began")
    runtime.cancel(call)
    runtime.wait([call], 1, LONG)
    actor = runtime.remote(bodies.Counter).remote()
    slow = actor.add_slowly.remote(1, tmp_path / "slow", tmp_path / "never")
    bodies.pid_in(tmp_path / "slow")
    runtime.kill(actor)
    del call, slow, actor
    assert told() == []


class Unlucky:
    def __init__(self, how):
        if how == "raises":
            raise KeyError("not built")
        if how == "dies":
            bodies.kill_self()

    def die(self):
        bodies.kill_self()

    def leave(self):
        sys.exit(0)


def until_dead(handle):
    bodies.until(lambda: handle._actor.dead, "its death")


@pytest.mark.parametrize("how", ["raises", "dies", "", "called"])
def test_an_actor_that_died_unasked(printed, how):
    cls = type(f"Unlucky{how}", (Unlucky,), {})  # one message is printed once for each class
    actor = runtime.remote(cls).options(name="unlucky").remote(how)
    if how in ("", "called"):
        actor.die.remote()
    until_dead(actor)
    if how == "called":
        with pytest.raises(runtime.ActorDiedError):
            runtime.get(actor.die.remote(), LONG)
    del actor
    said = "" if how == "called" else "gmi-drl: unlucky has died, and nobody asked:"
    assert printed().partition("\n")[0] == said


@pytest.mark.parametrize("how", ["waited for", "stopped", "killed", "left"])
def test_an_actor_that_ended_as_it_should_or_was_watched(printed, how):
    actor = runtime.remote(Unlucky).remote("")
    death = runtime.death(actor) if how == "waited for" else None
    if how == "stopped":
        runtime.stop(actor)
    elif how == "killed":
        runtime.kill(actor)
    elif how == "left":
        actor.leave.remote()
    else:
        actor.die.remote()
    until_dead(actor)
    del actor, death
    assert printed() == ""
