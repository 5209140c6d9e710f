"""What serving GMIs say, put together by the launcher."""

import json

from gmi_drl.launcher.watch.records import ServingMetrics
from gmi_drl.placement import Topology, tcg


def said(gmi_id, steps, began_s, until_s):
    return {
        "kind": "served", "gmi_id": gmi_id, "steps": steps, "began_s": began_s, "until_s": until_s,
        "seconds": {"simulate": 1.0}, "episodes": 1, "return_sum": 2.0, "length_sum": 3.0,
    }  # fmt: skip


def test_the_time_of_a_gmi_that_was_killed_counts(tmp_path):
    served = ServingMetrics(tcg(Topology.from_cores([0, 1]), 2, 8), tmp_path)
    served.take(said(0, 400, 100.0, 104.0))
    served.take(said(1, 600, 101.0, 105.0))
    first = served.line()
    assert (first["steps"], first["time_s"], first["steps_per_s"]) == (1000, 5.0, 200.0)
    assert served.line() is None
    served.take(said(1, 800, 107.0, 109.0))  # another process
    second = served.line()
    assert (second["steps"], second["time_s"], second["steps_per_s"]) == (1200, 9.0, 50.0)
    written = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["time_s"] for line in written] == [5.0, 9.0]
