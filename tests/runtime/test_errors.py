"""What the caller gets when something goes wrong on the other side."""

import importlib
import pickle
import signal
import socket
import threading
import time
from datetime import timedelta

import pytest

from bodies_runtime import ForgetsArguments, HoldsLock, Probe, WithFields
from gmi_drl import runtime
from gmi_drl.runtime.errors import task_error
from stops import stop

LONG = timedelta(seconds=30)


def test_an_exception_is_also_of_its_own_class_with_the_remote_traceback(start):
    with pytest.raises(WithFields) as caught:
        runtime.get(start(Probe, name="p").raises.remote(WithFields, 3, "be even"), LONG)
    assert isinstance(caught.value, runtime.TaskError)
    assert caught.value.value == 3
    assert type(caught.value.cause) is WithFields
    assert "p.raises raised" in str(caught.value)
    assert "bodies_runtime.py" in str(caught.value)
    assert "WithFields: 3: be even" in str(caught.value)


def test_an_actor_goes_on_after_an_exception(start):
    actor = start(Probe)
    failing, good = actor.raises.remote(KeyError, "x"), actor.add.remote()
    assert runtime.get(good, LONG) == 1
    with pytest.raises(KeyError):
        runtime.get(failing, LONG)


def test_fields_of_system_errors_are_kept(start):
    with pytest.raises(FileNotFoundError) as caught:
        runtime.get(start(Probe).raise_os_error.remote(), LONG)
    assert caught.value.errno == 2
    assert caught.value.filename == "/no/such/file"


@pytest.mark.parametrize(
    ("kind", "args"),
    [(StopIteration, (3,)), (KeyboardInterrupt, ()), (UnicodeDecodeError, ("u", b"x", 0, 1, "y"))],
)
def test_unusual_exceptions_arrive(start, kind, args):
    with pytest.raises(runtime.TaskError, match=kind.__name__):
        runtime.get(start(Probe).raises.remote(kind, *args), LONG)


def test_a_lack_of_memory_is_caught_as_one(start):
    with pytest.raises(MemoryError, match="too much"):
        runtime.get(start(Probe).raises.remote(MemoryError, "too much"), LONG)


def test_a_traceback_shows_file_and_line_of_a_function_that_is_sent(start):
    def divides(number):
        return number / 0

    start(Probe)
    with pytest.raises(ZeroDivisionError) as caught:
        runtime.get(runtime.remote(divides).remote(1), LONG)
    assert f'File "{__file__}"' in caught.value.remote_traceback
    assert "return number / 0" in caught.value.remote_traceback


@pytest.mark.parametrize(("kind", "args"), [(HoldsLock, ()), (ForgetsArguments, (1, 2))])
def test_exceptions_that_do_not_pickle_arrive_without_what_cannot_travel(start, kind, args):
    with pytest.raises(kind) as caught:
        runtime.get(start(Probe).raises.remote(kind, *args), LONG)
    assert type(caught.value.cause) is kind
    assert vars(caught.value.cause) == {}


def test_exceptions_that_cannot_travel_at_all_leave_their_traceback(start):
    with pytest.raises(runtime.TaskError, match="Unmovable: lock") as caught:
        runtime.get(start(Probe).raise_unmovable.remote(), LONG)
    assert caught.value.cause is None


def test_an_unpicklable_argument_is_refused_before_it_is_sent(start):
    actor = start(Probe, name="p")
    with pytest.raises(runtime.SerializationError, match=r"argument of p\.echo.*lock"):
        actor.echo.remote(threading.Lock())
    assert runtime.get(actor.add.remote(), LONG) == 1


def test_an_unpicklable_result_says_whose_it_is(start):
    actor = start(Probe, name="p")
    with pytest.raises(runtime.SerializationError, match=r"result of p\.lock cannot be pickled"):
        runtime.get(actor.lock.remote(), LONG)
    assert runtime.get(actor.add.remote(), LONG) == 1


def test_an_unpicklable_record_is_refused_where_it_is_emitted(start):
    with pytest.raises(runtime.SerializationError, match="the record"):
        runtime.get(start(Probe).tell_lock.remote(), LONG)


def test_references_and_handles_cannot_be_pickled_by_others(start):
    actor = start(Probe)
    for value in (actor, actor.add.remote()):
        with pytest.raises(TypeError, match="only to this runtime"):
            pickle.dumps(value)


def test_shared_memory_cannot_be_pickled_elsewhere():
    memfd = runtime.Memfd.create("m")
    with pytest.raises(TypeError, match="actor call"):
        pickle.dumps(memfd)
    memfd.close()


def test_an_error_in_init_comes_with_the_first_call_and_every_later_one(start):
    actor = start(Probe, "raise", name="unbuilt")
    for _ in range(2):
        with pytest.raises(
            runtime.ActorDiedError, match=r"unbuilt .* could not be built"
        ) as caught:
            runtime.get(actor.add.remote(), LONG)
        assert isinstance(caught.value.cause, WithFields)
        assert "not while building" in str(caught.value)


def test_a_log_that_cannot_be_opened(start, tmp_path):
    with pytest.raises(runtime.ActorDiedError, match="could not be built") as caught:
        runtime.get(start(Probe, log=tmp_path / "no" / "log").add.remote(), LONG)
    assert isinstance(caught.value.cause, FileNotFoundError)


def test_exit_in_init(start):
    with pytest.raises(runtime.ActorDiedError, match="exited with code 4"):
        runtime.get(start(Probe, "exit").add.remote(), LONG)


@pytest.mark.parametrize(
    ("method", "how", "exit_code", "by_signal"),
    [
        ("die", 3, 3, None),
        ("leave", 3, 3, None),
        ("leave", None, 0, None),
        ("die", "SIGKILL", None, signal.SIGKILL),
        ("die", "SIGSEGV", None, signal.SIGSEGV),
    ],
)
def test_a_death_is_named(start, method, how, exit_code, by_signal):
    actor, other = start(Probe, name="mortal"), start(Probe)
    refs = [getattr(actor, method).remote(how), actor.add.remote()]
    for ref in refs:
        with pytest.raises(runtime.ActorDiedError) as caught:
            runtime.get(ref, LONG)
        assert (caught.value.exit_code, caught.value.signal) == (exit_code, by_signal)
        assert caught.value.pid == runtime.process_id(actor)
    with pytest.raises(runtime.ActorDiedError, match="mortal"):  # a later call fails at once
        runtime.get(actor.add.remote(), LONG)
    assert runtime.get(other.add.remote(), LONG) == 1
    assert "about to die" in str(caught.value) or method == "leave"
    if how == "SIGSEGV":
        assert "bodies_runtime.py" in caught.value.log_tail  # where it was, by faulthandler


def test_exit_with_a_text_prints_it(start):
    with pytest.raises(runtime.ActorDiedError, match=r"exited with code 1.*\n.*\n.*no more"):
        runtime.get(start(Probe).leave.remote("no more"), LONG)


def test_a_process_at_work_writes_its_stacks_and_one_that_is_stopped_does_not(start):
    actor = start(Probe)
    pid = runtime.get(actor.pid.remote(), LONG)
    actor.sleep.remote(3600)
    while "in sleep\n" not in runtime.log_tail(actor):  # it may not have begun
        assert runtime.write_stacks(actor, LONG)
    stop(pid)
    assert not runtime.write_stacks(actor, timedelta(seconds=0.5))


def test_the_last_forty_lines_of_the_log_are_in_the_error(start, tmp_path):
    actor = start(Probe, log=tmp_path / "actor.log")
    runtime.get(actor.print_lines.remote(100), LONG)
    with pytest.raises(runtime.ActorDiedError) as caught:
        runtime.get(actor.die.remote(1), LONG)
    lines = caught.value.log_tail.splitlines()
    assert lines == [f"line {n}" for n in range(61, 100)] + ["about to die"]
    assert (tmp_path / "actor.log").read_text().startswith("line 0\n")


def test_what_was_answered_before_the_death_is_not_lost(start):
    actor = start(Probe)
    answered = [actor.zeros.remote(300_000) for _ in range(20)]
    last = actor.die.remote("SIGKILL")
    assert [len(value) for value in runtime.get(answered, LONG)] == [300_000] * 20
    with pytest.raises(runtime.ActorDiedError):
        runtime.get(last, LONG)


def test_death_can_be_waited_for(start):
    actor = start(Probe)
    death = runtime.death(actor)
    runtime.get(actor.add.remote(), LONG)
    assert runtime.wait([death], 1, 0.01) == ([], [death])
    actor.die.remote(9)
    died = runtime.get(death, LONG)
    assert died.exit_code == 9
    assert 0 < died.died_s <= time.monotonic()


def test_a_class_that_cannot_be_imported_there(start):
    class Gone:
        def __reduce__(self):
            return (socket.SocketType, ("not a family",))

    with pytest.raises(runtime.SerializationError, match="cannot be rebuilt"):
        runtime.get(start(Probe).echo.remote(Gone()), LONG)


def test_a_module_that_is_not_found_there_is_told_with_where_it_is_looked_for(start):
    class Elsewhere:
        def __reduce__(self):
            return (importlib.import_module, ("a_module_that_nobody_has",))

    with pytest.raises(runtime.SerializationError, match=r"set sys\.path before init\(\)"):
        runtime.get(start(Probe).echo.remote(Elsewhere()), LONG)


@pytest.mark.parametrize(
    "error",
    [
        runtime.ActorDiedError("a", 5, None, 9, "log", "why", KeyError("c"), 1.5),
        runtime.GetTimeoutError("late"),
        runtime.SerializationError("no"),
        runtime.NotRunningError("no"),
        task_error(WithFields(3, "even"), "Traceback ...", "a.b", 2.5),
        task_error(None, "Traceback ...", "a.b"),
    ],
)
def test_errors_survive_pickling(error):
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert type(copy).__name__ == type(error).__name__
    assert isinstance(copy, type(error).__mro__[1])
