"""Writes ratios with their spread, settings and phases for the suite's sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Shares = Mapping[str, float]


def ratio_text(row: Mapping[str, Any]) -> str:
    """Returns a ratio with its spread, or "one repeat"."""
    low, high = row["ratio_spread"]
    spread = f", {low:.2f} to {high:.2f}" if row["repeats"] > 1 else ", one repeat"
    return f"{row['ratio']:.2f}x{spread}"


def setting_text(setting: Mapping[str, Any]) -> str:
    """Returns "mps, 1,024 each" or "mps uncapped, 1,024 each"."""
    overcommit = setting.get("sm_overcommit", 1.0)
    cap = "" if overcommit == 1 else f" x{overcommit:g}"
    if overcommit > 1 and overcommit >= setting["gmis"]:
        cap = " uncapped"
    return f"{setting['backend']}{cap}, {setting['num_env']:,} each"


def gmis_text(count: int) -> str:
    """Returns "1 GMI" or "2 GMIs"."""
    return f"{count} GMI{'' if count == 1 else 's'}"


def phases_text(theirs: Shares, their_rate: float, ours: Shares, our_rate: float) -> str:
    """Returns the time of 1,000 steps by phases on both sides, in total 1,000 / (steps/s)."""
    parts = []
    for phase in dict.fromkeys([*theirs, *ours]):
        shares = [float(side.get(phase, 0.0)) for side in (theirs, ours)]
        ms = [1e6 * share / rate for share, rate in zip(shares, (their_rate, our_rate),
                                                        strict=True)]  # fmt: skip
        if max(shares) >= 0.01:
            percent = " -> ".join(f"{100 * share:.0f}" for share in shares)
            parts.append(f"{phase} {ms[0]:.2f} -> {ms[1]:.2f} ms ({percent} %)")
    return ", ".join(parts)
