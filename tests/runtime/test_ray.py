"""Engine ray: what it does on a cluster of this host, and what is said before one is joined.

Those marked `on_ray` need the cluster, and run in the process that `test_behaviour_on_ray` starts.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import bodies_ray
import fake_ray
import runtime_engines
from bodies_tasks import Poisoned, closure, marks
from gmi_drl import runtime
from gmi_drl.runtime.api import session
from gmi_drl.runtime.driver.function_table import KEPT_BYTES
from runtime_engines import ON_RAY
from waits import until

HERE = Path(__file__).parent
on_ray = pytest.mark.skipif(not ON_RAY, reason="needs the cluster of test_behaviour_on_ray")
before_one = pytest.mark.skipif(ON_RAY, reason="engine ray runs already")


@pytest.mark.slow
@before_one
@pytest.mark.timeout(900)
@pytest.mark.parametrize("file", [Path(__file__).name, *runtime_engines.FILES])
def test_behaviour_on_ray(file):
    pytest.importorskip("ray")
    # Ray's workers run at niceness 15: beside other work they would have no time to start.
    environment = {**os.environ, "GMI_DRL_TEST_ENGINE": "ray", "RAY_worker_niceness": "0"}
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider"]
    command += ["-W", "ignore::ResourceWarning"]  # Ray leaves files and processes to the collector
    command.append(str(HERE / file))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


@before_one
def test_the_table_of_differences_is_of_tests_that_exist_and_of_what_is_documented():
    documented = (HERE.parents[1] / "docs" / "hosts.md").read_text()
    for file, different in runtime_engines.DIFFERENT.items():
        assert file in runtime_engines.FILES
        nodes = ast.parse((HERE / file).read_text()).body
        tests = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        for test, difference in different.items():
            assert test.partition("[")[0] in tests, f"{file} has no {test}"
            assert difference == runtime_engines.LOOKS or difference in documented
    assert all((HERE / file).exists() for file in runtime_engines.FILES)


@pytest.mark.slow
@before_one
@pytest.mark.timeout(600)
def test_the_examples_run_on_it():
    pytest.importorskip("ray")
    script = Path(__file__).parents[2] / "examples" / "runtime" / "on_ray.py"
    command = [sys.executable, str(script), "tasks", "actors"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "page 7 at attempt 2\n" in done.stdout
    assert "after kill -9: 120\n" in done.stdout


@before_one
def test_engine_local_imports_no_ray():
    code = (
        "import sys; from gmi_drl import runtime; runtime.init(num_cpus=1);"
        "assert runtime.get(runtime.remote(abs).remote(-1)) == 1; runtime.shutdown();"
        "sys.exit('ray' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@before_one
@pytest.mark.parametrize(
    ("chosen", "error", "text"),
    [
        ({"engine": "spark"}, ValueError, '"local" and "ray"'),
        ({"engine": "ray"}, ValueError, "address=None.*host:port"),
        ({"engine": "ray", "address": "local", "preload": ["json"]}, runtime.NotOnThisEngine,
         "preload"),
        ({"engine": "ray", "address": "local", "devices": 2}, runtime.NotOnThisEngine, "devices=2"),
        ({"engine": "ray", "address": "10.0.0.1:6379", "num_cpus": 2}, runtime.NotOnThisEngine,
         "num_cpus=2.*runs already"),
        ({"address": "10.0.0.1:6379"}, runtime.NotOnThisEngine, "address='10.0.0.1:6379'"),
    ],
)  # fmt: skip
def test_what_an_engine_does_not_have_is_named(stopped, chosen, error, text):
    with pytest.raises(error, match=text):
        runtime.init(**chosen)
    assert not runtime.is_initialized()


@before_one
@pytest.mark.parametrize(
    ("address", "trusted", "error", "text"),
    [
        ("auto", True, ValueError, "host:port"),
        ("127.0.0.1:9", False, runtime.ActorRuntimeError, "RAY_AUTH_MODE=token.*trusted=True"),
        ("127.0.0.1:9", True, runtime.ActorRuntimeError, "nothing answers"),
    ],
)
def test_a_cluster_is_joined_by_its_address_and_a_token(
    stopped, monkeypatch, address, trusted, error, text
):
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(error, match=text):
        runtime.init(engine="ray", address=address, trusted=trusted)


@before_one
@pytest.mark.parametrize(
    ("mode", "trusted", "has"),
    [(None, False, "token"), ("disabled", False, "token"), ("disabled", True, "disabled")],
)
def test_a_cluster_of_ones_own_has_a_token_unless_it_is_trusted(monkeypatch, mode, trusted, has):
    if mode is None:
        monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    else:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    started, loader = [], SimpleNamespace(reset_cache=lambda: None)
    with fake_ray.cluster():
        ray = sys.modules["ray"]
        internal = SimpleNamespace(
            Config=SimpleNamespace(initialize=lambda text: None),
            AuthenticationTokenLoader=SimpleNamespace(instance=lambda: loader),
        )
        monkeypatch.setattr(ray, "_raylet", internal)
        monkeypatch.setattr(ray, "init", lambda **_: started.append(os.environ["RAY_AUTH_MODE"]))
        from gmi_drl.runtime.engines.ray import nodes

        nodes.join("local", trusted=trusted)
        nodes.leave()
    assert started == [has]
    assert os.environ.get("RAY_AUTH_MODE") == mode


@before_one
def test_engine_local_has_its_own_host_alone(running):
    with pytest.raises(runtime.NotOnThisEngine, match=r"host='10\.0\.0\.9'"):
        runtime.remote(abs).options(host="10.0.0.9").remote(1)
    assert runtime.get(runtime.remote(abs).options(host="localhost").remote(-1)) == 1


@on_ray
def test_what_ray_does_not_have_is_named(running):
    for call in (
        lambda: runtime.remote(abs).options(device=0).remote(1),
        lambda: runtime.keep_gcs("gcs.sqlite"),
        runtime.run_directory,
    ):
        with pytest.raises(runtime.NotOnThisEngine, match="engine ray"):
            call()


@on_ray
def test_functions_are_not_kept_for_ever_and_can_be_called_again(running):
    number, nbytes = 2 * KEPT_BYTES >> 20, 1 << 20
    kept = runtime.remote(closure(99, nbytes))
    refs = [kept.remote()]
    refs += [runtime.remote(closure(i, nbytes)).remote() for i in range(number)]
    assert [value[0] for value in runtime.get(refs, 120)] == [99, *range(number)]
    assert session.driver().functions.nbytes <= KEPT_BYTES
    assert runtime.get(kept.remote(), 60)[0] == 99
    known = [runtime.remote(bodies_ray.bytes_of_functions).remote() for _ in range(4)]
    assert max(runtime.get(known, 60)) <= KEPT_BYTES


@on_ray
def test_what_no_host_has_fails_at_once(running):
    with pytest.raises(runtime.OutOfResources, match=r"1000 CPU.*hosts of the cluster have"):
        runtime.get(runtime.remote(abs).options(num_cpus=1000).remote(1), 20)
    actor = runtime.remote(bodies_ray.Journal).options(resources={"tpu": 1}).remote()
    with pytest.raises(runtime.ActorDiedError) as death:
        runtime.get(actor.add.remote(1), 20)
    assert isinstance(death.value.cause, runtime.OutOfResources)


@on_ray
def test_cores_that_are_not_there_are_named(start):
    actor = start(bodies_ray.Journal, cores=[4000])
    with pytest.raises(runtime.ActorDiedError, match=r"cores=\[4000\].* may use"):
        runtime.get(actor.add.remote(1), 60)


@on_ray
def test_a_task_runs_on_the_host_that_was_said(running):
    import ray

    host = ray.nodes()[0]["NodeManagerAddress"]
    assert runtime.get(runtime.remote(abs).options(host=host).remote(-1), 60) == 1
    with pytest.raises(ValueError, match=f"10.0.0.9.*{host}"):
        runtime.remote(abs).options(host="10.0.0.9").remote(1)


@on_ray
@pytest.mark.parametrize("checkpoint_every", [0, 7])
def test_each_answered_call_counts_once_across_kills(start, checkpoint_every):
    actor = start(bodies_ray.Journal, max_restarts=-1, checkpoint_every=checkpoint_every)
    answers = [actor.add.remote(number) for number in range(20)]
    assert runtime.get(answers, 60) == [sum(range(number + 1)) for number in range(20)]
    os.kill(runtime.process_id(actor), 9)
    answers = [actor.add.remote(number) for number in range(20, 40)]
    answers = sorted(runtime.get(answers, 60))  # Ray may send those under way in another order
    steps = [later - sooner for sooner, later in zip([190, *answers], answers, strict=False)]
    assert sorted(steps) == list(range(20, 40))
    assert runtime.get(actor.replayed.remote(), 60) == (6 if checkpoint_every else 20)
    assert len(runtime.deaths(actor)) == 1


@on_ray
@pytest.mark.parametrize("options", [{}, {"max_concurrency": 2}])
def test_a_call_that_its_actor_does_not_survive_fails_alone(start, tmp_path, options):
    actor = start(Poisoned, tmp_path / "n", max_restarts=2, max_task_retries=0, **options)
    assert runtime.get(actor.add.remote(), 120) == 1
    with pytest.raises(runtime.ActorDiedError, match=r"max_task_retries=0.*goes on"):
        runtime.get(actor.add.remote(True), 120)
    assert runtime.get(actor.add.remote(), 120) == (1 if options else 2)
    assert marks(tmp_path / "n") == len(runtime.deaths(actor)) == 1


@on_ray
def test_who_waits_goes_on_when_another_thread_drops_what_it_looked_at(running, monkeypatch):
    """As an item of a generator: Ray looks at the next one, and then does not know it any more."""
    import ray

    wait = ray.wait
    errors = [ValueError("trying to access a Ray object whose owner is unknown(8849)")]

    def raced(*args, **options):
        if errors:
            raise errors.pop()
        return wait(*args, **options)

    monkeypatch.setattr(ray, "wait", raced)
    assert runtime.get(runtime.remote(abs).remote(-1), 60) == 1
    assert not errors


@on_ray
def test_an_optimizer_over_evaluators_that_are_actors(running):
    from gmi_drl import rl

    make = rl.Evaluator.remote
    evaluators = [make(env="CartPole-v1", algorithm=rl.A2C, num_env=2, seed=0) for _ in range(2)]
    optimizer = rl.AsyncGradients(rl.A2C, evaluators)
    before = optimizer.steps
    for _ in range(3):
        optimizer.step()
    assert optimizer.steps > before
    optimizer.close()
    until(lambda: all("dead" in repr(one) for one in evaluators), "the end of the evaluators")
