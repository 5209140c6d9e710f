"""What a search chooses against the best there is, on machines whose best is known.

Claim: on 95 of 100 machines of each of five kinds, `default` chooses what truly does no less than
95 % of the steps/s of the best candidate, with no more than a quarter of the profiles that an
exhaustive search takes. `paper`, Algorithm 2, is beside it. It has its own space (powers of two,
every device shared evenly, one backend), and each of its profiles gets as many seconds as one of
`default` took on that machine in the mean; the best, and the profiles of an exhaustive search, are
those of the whole space for both. The limits of the search were chosen on machines with other
seeds: these begin at 1,000.

Rows `synthetic/<kind>` and `synthetic/all`: value and peer are the mean of chosen over best, ratio
ours over the peer's. Beside it, for both searches (the paper's begin with `paper_`):

    regret_mean, regret_median, regret_p95, regret_max   1 - chosen over best
    profiles_share, profiles_max                         asks, those again included, over candidates
    seconds_share    of measuring, over one first look (5 s) at every candidate
    within           share of the machines with a regret <= 5 % and <= 25 % of the profiles

    bench/selector/regret.py --machines 40
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from machines import KINDS, SECONDS, Machine, generate
from report import emit

from gmi_drl.selector.candidate import Measured, Search, Space
from gmi_drl.selector.search import default
from gmi_drl.selector.search_paper import paper

REGRET: Final = 0.05
PROFILES: Final = 0.25
FIRST_SEED: Final = 1000


@dataclass(frozen=True)
class Played:
    """One search on one machine."""

    regret: float  # 1 - the truth of what was chosen over that of the best; 1 for nothing
    profiles: float  # asks over the candidates of the whole space
    seconds: float  # measured, over a first look at each of them

    @property
    def within(self) -> bool:
        """Whether it kept to both limits."""
        return self.regret <= REGRET and self.profiles <= PROFILES


def play(machine: Machine, search: Search) -> Played:
    """Answer all that a search asks."""
    asks, seconds = 0, 0.0
    try:
        ask = next(search)
        while True:
            answer = machine.answer(ask)
            asks += 1
            seconds += answer.seconds if isinstance(answer, Measured) else 0.0
            ask = search.send(answer)
    except StopIteration as stop:
        winner = stop.value.winner
    regret = 1 - machine.truth(winner) / machine.best if winner else 1.0
    size = machine.space.size
    return Played(regret, asks / size, seconds / (size * SECONDS))


def space_of_paper(space: Space) -> Space:
    """Of a space what Algorithm 2 looks at: powers of two, each device shared evenly in one way."""
    backends = {its[0].row.backend for its in space.rows}
    one = max(backends, key=lambda name: (name != "direct", name))
    rows = []
    for its in space.rows:
        row = its[0].row
        even = row.sm_overcommit == 1.0 and row.percents is None
        if row.backend == one and even and row.gmi_per_gpu.bit_count() == 1:
            rows.append(tuple(c for c in its if c.num_env.bit_count() == 1))
    return Space(tuple(rows))


SEARCHES: Final = ("", "paper_")  # ours, and the prefix of the other's fields


def both(kind: str, seed: int) -> dict[str, Played]:
    """Both searches on the same machine, each with the same stream of noise."""
    machine = generate(kind, seed)
    ours = play(machine, default(machine.space, SECONDS))
    machine = generate(kind, seed)
    look_s = max(SECONDS, SECONDS * ours.seconds / ours.profiles)
    return {"": ours, "paper_": play(machine, paper(space_of_paper(machine.space), look_s))}


def summary(played: Sequence[Played], prefix: str = "") -> dict[str, float]:
    """The fields of a row."""
    regrets = sorted(one.regret for one in played)
    found = {
        "regret_mean": statistics.fmean(regrets),
        "regret_median": statistics.median(regrets),
        "regret_p95": regrets[max(-(-95 * len(regrets) // 100) - 1, 0)],
        "regret_max": regrets[-1],
        "profiles_share": statistics.fmean(one.profiles for one in played),
        "profiles_max": max(one.profiles for one in played),
        "seconds_share": statistics.fmean(one.seconds for one in played),
        "within": statistics.fmean(one.within for one in played),
    }
    return {prefix + name: round(value, 4) for name, value in found.items()}


def report(kind: str, played: dict[str, list[Played]]) -> dict[str, Any]:
    """Print and keep the row of a kind."""
    ours, theirs = (1 - statistics.fmean(p.regret for p in played[name]) for name in SEARCHES)
    chosen = [1 - p.regret for p in played[""]]
    fields = {k: v for name, its in played.items() for k, v in summary(its, name).items()}
    row = emit(
        "selector",
        f"synthetic/{kind}",
        round(ours, 4),
        "of best",
        round(theirs, 4),
        ours / theirs if theirs else None,
        repeats=len(chosen),
        spread=(round(min(chosen), 4), round(max(chosen), 4)),
        **fields,
    )
    for name in SEARCHES:
        print(
            f"{kind:>11} {name.rstrip('_') or 'default':>8}: regret mean "
            f"{fields[name + 'regret_mean']:6.2%}, 95 % {fields[name + 'regret_p95']:6.2%}, "
            f"most {fields[name + 'regret_max']:6.2%}; profiles "
            f"{fields[name + 'profiles_share']:5.1%}; within both {fields[name + 'within']:6.1%}",
            file=sys.stderr,
        )
    return row


def main(arguments: Sequence[str] | None = None) -> None:
    """Play both searches on all machines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--machines", type=int, default=40, help="of each kind")
    parser.add_argument("--seed", type=int, default=FIRST_SEED, help="of the first of each kind")
    chosen = parser.parse_args(arguments)
    every: dict[str, list[Played]] = {name: [] for name in SEARCHES}
    for kind in KINDS:
        played: dict[str, list[Played]] = {name: [] for name in SEARCHES}
        for seed in range(chosen.seed, chosen.seed + chosen.machines):
            for name, one in both(kind, seed).items():
                played[name].append(one)
        report(kind, played)
        for name, its in played.items():
            every[name] += its
    report("all", every)


if __name__ == "__main__":
    main()
