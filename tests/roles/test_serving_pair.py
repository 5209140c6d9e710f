"""The two GMIs of a pair, with the other end played by the test."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch

from gmi_drl.comm.errors import LinkTimeout, SchemaDiffers
from gmi_drl.roles import ServingAgent, ServingSimulator
from gmi_drl.roles.serving import serving_pair
from gmi_drl.roles.telemetry.clock import Clock


class Played:
    """A receiver that gives these packets, and then nothing any more."""

    source = "gmi 0, device 0"

    def __init__(self, packets):
        self._packets = list(packets)
        self.released = []

    def poll(self):
        return self._packets.pop(0) if self._packets else None

    def release(self, packet):
        self.released.append(packet)


def packet(stream):
    header = SimpleNamespace(stream=stream, sequence=0, policy_version=0)
    return SimpleNamespace(header=header, memory=torch.zeros(8, dtype=torch.uint8))


class BusyAgent(ServingAgent):
    def __init__(self):
        context = SimpleNamespace(device=torch.device("cpu"))
        self.mgr = SimpleNamespace(context=context, timeout=timedelta(seconds=5))
        self._clock = Clock(context.device)

    def _nothing(self, *_):
        pass

    _send = _count = _report = _turn = _nothing


def test_an_agent_that_was_busy_gives_its_simulator_all_the_time_from_then_on(monkeypatch):
    now_s, waits = [0.0], [0]

    def act(seen, began):
        now_s[0] += 1.0
        return seen

    def silence(receivers, timeout):
        now_s[0] += timeout.total_seconds()
        waits[0] += 1
        return False

    monkeypatch.setattr(serving_pair, "perf_counter", lambda: now_s[0])
    monkeypatch.setattr(serving_pair, "wait_any", silence)
    receiver = Played(packet(0) for _ in range(10))
    with pytest.raises(LinkTimeout, match="after 5 s: gmi 0, device 0 has not asked"):
        BusyAgent()._act([SimpleNamespace(act=act, remembers=False)], receiver, None, [[1, 2]])
    assert len(receiver.released) == 10
    assert waits[0] * 0.2 == pytest.approx(5.0, abs=0.3)


def test_a_simulator_that_shows_something_else_is_named():
    serving_pair._check_widths(Played([]), [[3, 4], [2, 4]], 4)
    said = r"gmi 0, device 0 shows 5 numbers .* takes 4\. roles\.simulator and roles\.agent must"
    with pytest.raises(SchemaDiffers, match=said):
        serving_pair._check_widths(Played([]), [[3, 5], [2, 5]], 4)


class Asked(ServingSimulator):
    def __init__(self, receiver):
        self.mgr = SimpleNamespace(timeout=timedelta(seconds=5))
        self._receiver, self._sender = receiver, SimpleNamespace(incarnation=0)
        self._arrived, self._asked = {}, [0, 0]


def test_an_answer_that_is_given_again_is_released():
    first, again, other = packet(1), packet(1), packet(0)
    receiver = Played([first, again, other])
    simulator = Asked(receiver)
    assert simulator._answer(0) is other
    assert simulator._answer(1) is first
    assert receiver.released == [again]
