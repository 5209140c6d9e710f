"""What cannot work says so, where it is asked for, and hurts nobody else."""

import math
import os
import threading
from datetime import timedelta

import pytest

import bodies_tasks as bodies
from gmi_drl import runtime
from gmi_drl.runtime.api.refs import Slot

LONG = timedelta(seconds=30)


def test_an_argument_that_cannot_be_pickled_is_refused_before_it_is_sent(shared):
    with pytest.raises(runtime.SerializationError, match="an argument of add cannot be pickled"):
        runtime.remote(bodies.add).remote(threading.Lock())
    with pytest.raises(runtime.SerializationError, match=r"put\(\)"):
        runtime.put(threading.Lock())
    with pytest.raises(runtime.SerializationError, match="Counter"):
        runtime.remote(bodies.Counter).remote(threading.Lock())


def test_a_reference_to_a_death_is_no_argument(shared):
    death = runtime.death(runtime.remote(bodies.Counter).remote())
    with pytest.raises(TypeError, match="known in this process only"):
        runtime.remote(bodies.add).remote(death)


def test_a_function_that_cannot_be_pickled_is_refused(shared):
    lock = threading.Lock()

    def uses():
        return lock

    with pytest.raises(runtime.SerializationError, match="uses"):
        runtime.remote(uses).remote()


def test_a_result_that_cannot_be_pickled_says_whose_it_is(shared):
    with pytest.raises(runtime.SerializationError, match=r"the result of .*lock"):
        runtime.get(runtime.remote(lambda: threading.Lock()).options(name="lock").remote(), LONG)
    assert runtime.get(runtime.remote(bodies.add).remote(1), LONG) == 1


def test_wrong_arguments_fail_in_the_call(shared):
    with pytest.raises(TypeError, match="argument"):
        runtime.get(runtime.remote(bodies.add).remote(1, 2, 3), LONG)
    actor = runtime.remote(bodies.Counter).remote()
    with pytest.raises(TypeError, match="argument"):
        runtime.get(actor.add.remote(1, 2, 3), LONG)
    assert runtime.get(actor.add.remote(), LONG) == 1


def test_an_actor_that_raises_in_init_says_so_with_every_call(shared):
    actor = runtime.remote(bodies.Counter).options(max_restarts=-1).remote(fail=True)
    for _ in range(2):
        with pytest.raises(runtime.ActorDiedError, match=r"could not be built.*\n.*") as caught:
            runtime.get(actor.add.remote(), LONG)
        assert isinstance(caught.value.cause, ValueError)
    with pytest.raises(runtime.ActorDiedError):
        runtime.get(runtime.remote(bodies.call_add).remote(actor, 1), LONG)


def test_an_actor_whose_argument_failed_is_not_built(shared):
    bad = runtime.remote(bodies.raises).remote(KeyError, "no path")
    actor = runtime.remote(bodies.Counter).remote(bad)
    with pytest.raises(runtime.ActorDiedError, match="no path"):
        runtime.get(actor.add.remote(), LONG)


def test_wait_refuses_what_is_listed_twice_or_is_no_reference(shared):
    ref = runtime.put(1)
    with pytest.raises(ValueError, match="twice"):
        runtime.wait([ref, ref])
    with pytest.raises(TypeError):
        runtime.wait([1])


def test_what_is_not_a_reference_or_an_actor_is_named(shared):
    add, actor = runtime.remote(bodies.add), runtime.remote(bodies.Counter).remote()
    ref = add.remote(1)
    with pytest.raises(TypeError, match=r"wait\(\) takes a list.*not ObjectRef"):
        runtime.wait(ref)
    with pytest.raises(TypeError, match=r"get\(\) takes .*not {'one'"):
        runtime.get({"one": ref})
    with pytest.raises(TypeError, match=r"RemoteFunction\(add\)"):
        runtime.get(add)
    with pytest.raises(TypeError, match=r"kill\(\) takes actors.*cancel\(\)"):
        runtime.kill(ref)
    with pytest.raises(TypeError, match=r"stop\(\) takes actors"):
        runtime.stop([ref])
    with pytest.raises(TypeError, match=r"cancel\(\) takes .*kill\(\)"):
        runtime.cancel(actor)
    with pytest.raises(ValueError, match=r"gave 1 values.*num_returns=2"):
        runtime.get(add.options(num_returns=2).remote(1)[0], LONG)


def test_a_generator_of_references_is_as_good_as_a_list(shared):
    refs = [runtime.put(number) for number in range(3)]
    assert runtime.get(ref for ref in refs) == [0, 1, 2]
    assert runtime.wait((ref for ref in refs), 3) == (refs, [])
    assert runtime.wait([]) == ([], [])


def test_a_timeout_that_is_no_time_is_refused(shared):
    ref = runtime.remote(bodies.add).remote(1)
    with pytest.raises(TypeError, match="timeout='1s'; it must be seconds"):
        runtime.get(ref, "1s")
    with pytest.raises(TypeError, match="timeout='1s'; it must be seconds"):
        runtime.wait([ref], timeout="1s")


def test_nothing_works_without_a_runtime_and_it_says_what_to_do(stopped):
    add, counter = runtime.remote(bodies.add), runtime.remote(bodies.Counter)
    for call in (add.remote, counter.remote, lambda: runtime.put(1)):
        with pytest.raises(runtime.NotRunningError, match=r"init\(\)"):
            call()
    with pytest.raises(runtime.NotRunningError):
        runtime.get_actor("nobody")


def test_after_shutdown_what_was_there_is_there_no_longer(stopped):
    runtime.init(num_cpus=1, object_store_bytes=64 << 20)
    done = runtime.remote(bodies.add).remote(1)
    runtime.get(done, LONG)
    actor = runtime.remote(bodies.Counter).remote()
    large = runtime.remote(bodies.zeros).remote(50_000)
    runtime.wait([large], 1, LONG)
    pending = runtime.remote(bodies.sleeps).remote("/dev/null")
    runtime.shutdown()
    assert runtime.get(done) == 1  # small, and here already
    for ref in (pending, large):
        with pytest.raises(runtime.NotRunningError, match=r"shut down|not running"):
            runtime.get(ref, LONG)
    with pytest.raises(runtime.NotRunningError):
        actor.add.remote()
    with pytest.raises(runtime.NotRunningError):
        runtime.remote(bodies.add).remote(1)


def test_a_second_init_is_refused_and_one_after_shutdown_works(stopped):
    add = runtime.remote(bodies.add)
    for _ in range(2):
        runtime.init(num_cpus=1, object_store_bytes=64 << 20)
        with pytest.raises(runtime.ActorRuntimeError, match=r"shutdown\(\)"):
            runtime.init()
        assert runtime.get(add.remote(1), LONG) == 1
        runtime.shutdown()
        runtime.shutdown()


def test_references_of_an_earlier_runtime_do_not_harm_the_next(stopped):
    runtime.init(num_cpus=1, object_store_bytes=64 << 20)
    old, handle = runtime.put([1]), runtime.remote(bodies.Counter).remote()
    runtime.shutdown()
    runtime.init(num_cpus=1, object_store_bytes=64 << 20)
    with pytest.raises(runtime.ActorDiedError, match="its runtime was shut down"):
        runtime.get(handle.add.remote(), LONG)
    with pytest.raises(runtime.ActorRuntimeError):
        runtime.get(runtime.remote(bodies.echo).remote(old), LONG)
    del old, handle
    assert runtime.get(runtime.remote(bodies.add).remote(1), LONG) == 1


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ({"num_cpus": 0}, "num_cpus"),
        ({"num_cpus": math.inf}, "CPU"),
        ({"devices": 0}, "devices"),
        ({"num_gpus": -1}, "num_gpus"),
        ({"resources": {"arm": -1}}, "arm"),
        ({"resources": {"CPU": 8}}, "num_cpus"),
        ({"object_store_bytes": 10}, "object_store_bytes"),
        ({"gcs_replicas": -1}, "replicas"),
        ({"num_cpus": "2"}, "num_cpus='2'; it must be a number"),
        ({"devices": "all"}, "devices='all'; it must be a number"),
        ({"preload": "json"}, r"preload='json'; it must be a list: \['json'\]"),
    ],
)
def test_a_machine_that_makes_no_sense_is_refused_and_nothing_is_left(stopped, bad, text):
    threads, files = threading.active_count(), os.listdir("/proc/self/fd")
    with pytest.raises((ValueError, TypeError), match=text):
        runtime.init(**bad)
    assert threading.active_count() == threads
    assert os.listdir("/proc/self/fd") == files


def test_resources_that_have_no_amounts_are_refused():
    with pytest.raises(TypeError, match="resources='arm'; it must be names with amounts"):
        runtime.remote(bodies.add).options(resources="arm")


def test_a_class_derived_from_a_remote_one_is_refused_in_words():
    remote = runtime.remote(bodies.Counter)
    with pytest.raises(TypeError, match="Counter is a remote class, from which none can be"):

        class Derived(remote):
            pass


@pytest.mark.parametrize("amount", [-1, math.nan, math.inf, "1"])
def test_a_demand_that_is_no_amount_is_refused(amount):
    for options in ({"num_cpus": amount}, {"num_gpus": amount}, {"resources": {"arm": amount}}):
        with pytest.raises(ValueError, match="an amount is a number, zero or more"):
            runtime.remote(bodies.add).options(**options)
        with pytest.raises(ValueError, match="an amount is a number, zero or more"):
            runtime.remote(bodies.Counter).options(**options)


@pytest.mark.parametrize("bad", [ValueError, (ValueError, "OSError"), ValueError("one"), 3])
def test_what_is_tried_again_after_no_exception_is_refused(bad):
    with pytest.raises(TypeError, match=r"retry_exceptions=.*in a tuple"):
        runtime.remote(bodies.add).options(retry_exceptions=bad)
    with pytest.raises(TypeError, match=r"retry_exceptions=.*in a tuple"):
        runtime.method(retry_exceptions=bad)


def test_what_was_not_answered_when_the_runtime_ended_says_so(stopped):
    with pytest.raises(runtime.NotRunningError, match=r"before f had answered"):
        runtime.get(runtime.ObjectRef(Slot(bytes(20), "f")))
