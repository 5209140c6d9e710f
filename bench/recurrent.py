#!/usr/bin/env python3
"""Compares PPO with an LSTM with sb3-contrib's RecurrentPPO: whole jobs, steps a second.

    lstm_cartpole/sb3    examples/lstm_cartpole.yaml in one GMI, against the best of RecurrentPPO
                         with one thread and with two

Run it on a machine that does nothing else. `--python` is an interpreter that has sb3-contrib:

    python bench/recurrent.py --python .venv-peers/bin/python
"""

from __future__ import annotations

import sys
from functools import partial

from modes import ask_peer, column, in_turn, launched
from report import emit_pairs, parser
from threads import config_of

from gmi_drl import runtime


def main() -> None:
    options = parser(__doc__, rounds=5, python=sys.executable).parse_args()
    sb3 = partial(ask_peer, "sb3_recurrent.py", python=options.python, steps=10_240)
    ways = {
        "two": lambda: launched(config_of("lstm_cartpole", [0, 1])),
        "sb3 1": partial(sb3, threads=1), "sb3 2": partial(sb3, threads=2),
    }  # fmt: skip
    rates = column(in_turn(ways, options.rounds), "steps_per_s")
    best = list(map(max, rates["sb3 1"], rates["sb3 2"]))
    emit_pairs("recurrent", "lstm_cartpole/sb3", "steps/s", rates["two"], best)
    runtime.shutdown()


if __name__ == "__main__":
    main()
