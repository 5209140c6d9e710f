#!/usr/bin/env python3
"""Compares PPO with an LSTM with sb3-contrib's RecurrentPPO: whole jobs, steps a second.

    lstm_cartpole/sb3    examples/lstm_cartpole.yaml in one GMI, against the best of RecurrentPPO
                         with one thread and with two

Run it on a machine that does nothing else. `--python` is an interpreter that has sb3-contrib:

    python bench/recurrent.py --python .venv-peers/bin/python
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from modes import BENCH, Rates, answer_of, in_turn, launched
from report import emit_pairs
from threads import config_of

from gmi_drl import runtime


def peer(python: str, threads: int) -> Callable[[], Rates]:
    """Returns a function that runs RecurrentPPO once."""
    command = [python, str(BENCH / "peers" / "sb3_recurrent.py"), "--threads", str(threads)]
    return lambda: answer_of(command)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()

    def ours(cores: list[int]) -> Callable[[], Rates]:
        return lambda: {
            "steps_per_s": launched(config_of("lstm_cartpole", cores))["training_samples_per_s"]
        }

    ways = {"two": ours([0, 1]), "sb3 1": peer(options.python, 1), "sb3 2": peer(options.python, 2)}
    results = in_turn(ways, options.rounds)
    rates = {way: [run["steps_per_s"] for run in runs] for way, runs in results.items()}
    best = [max(pair) for pair in zip(rates["sb3 1"], rates["sb3 2"], strict=True)]
    emit_pairs("recurrent", "lstm_cartpole/sb3", "steps/s", rates["two"], best)
    runtime.shutdown()


if __name__ == "__main__":
    main()
