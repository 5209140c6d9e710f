"""The agent of a host and the launcher that it starts, without a cluster: how they end."""

import os
import pickle
import signal
import subprocess
import sys
import time

import pytest

from bodies_tasks import until
from gmi_drl.launcher.hosts.agent import NodeAgent
from gmi_drl.launcher.hosts.messages import HostsError, Orders, Report
from gmi_drl.placement import load_config

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
    time.sleep(1)
"""
SILENT = """
from gmi_drl.launcher.hosts import messages
messages.SILENCE_S = 0.3
from gmi_drl.launcher.hosts import host_launcher
host_launcher.main()
"""


def said(agent, wanted):
    """What the launcher has said when there is what is wanted of it."""
    report = Report()

    def there():
        report.add(agent.talk(Orders()))
        return getattr(report, wanted)

    until(there)
    return report


def test_the_launcher_of_a_host_looks_at_its_devices_and_ends_when_it_is_told(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # as Ray does
    agent = NodeAgent(False)
    agent.tell(pickle.dumps(load_config(TOLD)))
    (device,) = said(agent, "topology").topology.devices
    assert device.cores == (CORE,)
    with open(f"/proc/{agent._process.pid}/environ") as file:
        assert "OMP_NUM_THREADS" not in file.read()
    agent.talk(Orders(end=True))
    assert said(agent, "ended").ended.startswith("its launcher")
    assert agent._process.returncode == 0
    agent.end()


def test_what_is_wrong_on_a_host_is_told():
    agent = NodeAgent(False)
    agent.tell(pickle.dumps(load_config(TOLD, ["hardware.cores=[4000]"])))
    report = said(agent, "ended")
    assert "4000" in str(report.error)
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
        [sys.executable, "-c", SILENT, str(report)], stdin=orders, pass_fds=[report]
    )
    assert launcher.wait(60) in (0, -signal.SIGTERM)
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
