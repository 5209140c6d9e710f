"""The agent of a host and the launcher that it starts, without a cluster: how they end."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from gmi_drl.launcher.hosts.agent import NodeAgent
from gmi_drl.launcher.hosts.messages import HostsError, Orders
from gmi_drl.placement import load_config
from waits import until

CORE = min(os.sched_getaffinity(0))
TOLD = {
    "version": 1,
    "env": {"id": "CartPole-v1"},
    "hardware": {"backend": "cpu", "cores": [CORE]},
    "cluster": {"address": "10.0.0.1:6379", "hosts": 2},
}
KILLED = """
import time
from gmi_drl.launcher.hosts.agent import NodeAgent
agent = NodeAgent(False)
print(agent._process.pid, flush=True)
while True:
    time.sleep(1)  # until it is killed
"""
BEGIN = """
import sys
from multiprocessing.connection import Connection
from gmi_drl.launcher.hosts.host_launcher import _Driver
from gmi_drl.launcher.hosts.messages import Report
driver = _Driver(Connection(0, writable=False), Connection(int(sys.argv[3]), readable=False))
driver.over()
"""
SILENT = """
from gmi_drl.launcher.hosts import messages
messages.SILENCE_S = 0.3
from gmi_drl.launcher.hosts import host_launcher
host_launcher.main()
"""


def said(agent, wanted):
    """The reports of the launcher until one of them has what is wanted; that is the last."""
    reports = []

    def there():
        reports.extend(agent.talk(Orders()))
        with suppress(ImportError):  # of a class that the launching program alone knows
            return reports and getattr(pickle.loads(reports[-1]), wanted)

    until(there)
    return reports


def test_the_launcher_of_a_host_looks_at_its_devices_and_ends_when_it_is_told(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # as Ray does
    agent = NodeAgent(False)
    agent.talk(Orders())  # it is spoken to before it is told the config
    agent.tell(pickle.dumps(load_config(TOLD)))
    (device,) = pickle.loads(said(agent, "topology")[-1]).topology.devices
    assert device.cores == (CORE,)
    with open(f"/proc/{agent._process.pid}/environ") as file:
        assert "OMP_NUM_THREADS" not in file.read()
    agent.talk(Orders(end=True))
    assert pickle.loads(said(agent, "ended")[-1]).ended.startswith("its launcher")
    assert agent._process.returncode == 0
    agent.end()


def test_what_is_wrong_on_a_host_is_told():
    agent = NodeAgent(False)
    agent.tell(pickle.dumps(load_config(TOLD, ["hardware.cores=[4000]"])))
    report, _ = map(pickle.loads, said(agent, "ended"))
    assert "4000" in str(report.error)
    agent.end()


@pytest.fixture
def launcher_that(tmp_path, monkeypatch):
    """Has agents start a launcher that runs some code, with its `driver`."""

    def written(code):
        program = tmp_path / "python"
        program.write_text(
            f"#!{sys.executable}\n{BEGIN}sys.path.insert(0, {str(tmp_path)!r})\n{code}"
        )
        program.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(program))

    return written


def test_results_of_classes_that_an_agent_does_not_know_are_passed_on(
    launcher_that, tmp_path, monkeypatch
):
    (tmp_path / "their_module.py").write_text("class Theirs(str):\n    pass\n")
    launcher_that(
        "import their_module\nclass Own(str):\n    pass\n"
        "driver.report(Report(results=[{0: their_module.Theirs(7), 1: Own(8)}]))\n"
    )
    agent = NodeAgent(False)
    report, _ = said(agent, "ended")
    monkeypatch.syspath_prepend(tmp_path)  # as the launching program has it while GMIs run
    (result,) = pickle.loads(report).results
    assert [(type(one).__name__, str(one)) for one in result.values()] == [
        ("Theirs", "7"), ("Own", "8")
    ]  # fmt: skip
    agent.end()


def test_messages_to_a_launcher_stay_whole_when_several_are_sent_at_once(launcher_that):
    launcher_that(
        "sizes = sorted({len(driver.next()) for _ in range(80)})\n"
        "driver.report(Report(results=[{0: sizes}]))\n"
    )
    agent = NodeAgent(False)

    def tell(size):
        for _ in range(20):
            agent.tell(pickle.dumps(bytes(size)))  # more than a pipe takes at once

    sizes = [100_000 + number for number in range(4)]
    tells = [threading.Thread(target=tell, args=(size,)) for size in sizes]
    for one in tells:
        one.start()
    for one in tells:
        one.join()
    report, _ = map(pickle.loads, said(agent, "ended"))
    assert report.results == [{0: sizes}]
    agent.end()


def test_a_launcher_whose_agent_is_killed_is_gone():
    agent = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True)
    pid = int(agent.stdout.readline())
    agent.kill()
    agent.communicate()
    until(lambda: os.waitpid(pid, os.WNOHANG) != (0, 0))  # it has become a child of this process


def test_a_launcher_that_hears_nothing_ends():
    orders, told = os.pipe()
    reports, report = os.pipe()
    launcher = subprocess.Popen(
        [sys.executable, "-c", SILENT, str(report)], stdin=orders, pass_fds=[report],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    _, said_last = launcher.communicate(timeout=60)
    assert launcher.returncode in (0, -signal.SIGTERM)
    assert "nobody has spoken to the launcher of this host for 0.3 s: it ends" in said_last
    for end in (orders, told, reports, report):
        os.close(end)


def test_errors_travel():
    error = HostsError(value="cluster.hosts=3", rule="there are two", remedy="Add one.")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("token", [None, "token"])
def test_a_cluster_without_a_token_or_without_an_answer_is_refused(token, monkeypatch):
    pytest.importorskip("ray")
    from gmi_drl.launcher.hosts.cluster import joined

    given = {**TOLD, "cluster": {"address": "127.0.0.1:9", "hosts": 2}}
    if token is None:
        monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    else:
        monkeypatch.setenv("RAY_AUTH_MODE", token)
    begin_s = time.monotonic()
    expected = "set cluster.trusted: true" if token is None else "nothing answers there"
    with pytest.raises(HostsError, match=expected), joined(load_config(given)):
        pass
    assert time.monotonic() - begin_s < 15
