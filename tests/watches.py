"""What the launcher's watches are given, as doubles: a view, a gang, its meter, and a clock."""

from gmi_drl.gmi.usage.meter import DeviceUsage, GangUsage
from gmi_drl.placement import GmiSpec, Layout, Topology
from gmi_drl.selector.tune.profile.candidate_run import CandidateTimeout

PATIENCE = CandidateTimeout(first_s=20.0, next_s=5.0, idle_s=8.0)


class Heard:
    """A view that keeps what it is to show."""

    def __init__(self):
        self.records = []

    @property
    def messages(self):
        return [record.get("message") for record in self.records]

    @property
    def warnings(self):
        return [record["message"] for record in self.records if record.get("kind") == "warning"]

    def show(self, record):
        self.records.append(record)

    def tick(self, gang):
        pass


class Clock:
    """Stands still but for what the test adds."""

    now = 100.0

    def monotonic(self):
        return self.now


class Meter:
    """GMI 0 is alone, and at work, until the test says who is."""

    def __init__(self, clock):
        self.clock, self.busy, self.worked_s = clock, {0: 1.0}, {}

    def look(self, gang):
        for gmi, cores in self.busy.items():
            if cores or gmi not in self.worked_s:
                self.worked_s[gmi] = self.clock.now

    def begin(self, gang):
        pass

    def end(self, gang):
        return GangUsage(1 << 30, 0.25, 1.5, DeviceUsage(2 << 30, 0.5, 0.75))


class Gang:
    """GMIs with these roles, which can be killed."""

    asked_to_stop = False
    killed = 0

    def __init__(self, template="tcg_ex", roles=(("simulator", "agent", "trainer"),)):
        gmis = [GmiSpec(i, 0, its, "cpu", (0,), 4) for i, its in enumerate(roles)]
        self.layout = Layout(template, Topology.from_cores([0]), tuple(gmis))

    def kill(self):
        self.killed += 1
