#!/usr/bin/env python3
"""Compares PPO with an LSTM with sb3-contrib's RecurrentPPO: whole jobs, steps a second.

    lstm_cartpole/sb3    examples/lstm_cartpole.yaml in one GMI, against the best of RecurrentPPO
                         with one thread and with two

Run it on a machine that does nothing else. `--python` is an interpreter that has sb3-contrib:

    python bench/recurrent.py --python .venv-peers/bin/python
"""

from __future__ import annotations

import sys

from modes import BENCH, answer_of, column, in_turn, launched
from report import emit_pairs, parser
from threads import config_of

from gmi_drl import runtime


def main() -> None:
    options = parser(__doc__, rounds=5, python=sys.executable).parse_args()
    command = [options.python, str(BENCH / "peers" / "sb3_recurrent.py"), "--threads"]
    ways = {
        "two": lambda: launched(config_of("lstm_cartpole", [0, 1])),
        "sb3 1": lambda: answer_of([*command, "1"]), "sb3 2": lambda: answer_of([*command, "2"]),
    }  # fmt: skip
    rates = column(in_turn(ways, options.rounds), "steps_per_s")
    best = list(map(max, rates["sb3 1"], rates["sb3 2"]))
    emit_pairs("recurrent", "lstm_cartpole/sb3", "steps/s", rates["two"], best)
    runtime.shutdown()


if __name__ == "__main__":
    main()
