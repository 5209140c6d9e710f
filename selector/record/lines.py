"""The words of a search as JSON, and back: ValueError, TypeError or KeyError for what is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from gmi_drl.selector.tune.candidate import (
    REASONS,
    Ask,
    Candidate,
    Chosen,
    Failed,
    Measured,
    Row,
    Skipped,
)


def candidate_json(candidate: Candidate) -> dict[str, Any]:
    """A candidate, its row in it."""
    return asdict(candidate)


def candidate_from(data: Mapping[str, Any]) -> Candidate:
    """What `candidate_json` wrote."""
    row = dict(data["row"])
    if row.get("percents") is not None:
        row["percents"] = tuple(int(percent) for percent in row["percents"])
    return Candidate(Row(**row), int(data["num_env"]), int(data["horizon"]), int(data["samples"]))


def ask_json(ask: Ask) -> dict[str, Any]:
    """An ask."""
    return {"candidate": candidate_json(ask.candidate), "seconds": ask.seconds}


def ask_from(data: Mapping[str, Any]) -> Ask:
    """What `ask_json` wrote."""
    return Ask(candidate_from(data["candidate"]), float(data["seconds"]))


def answer_json(answer: Measured | Failed) -> dict[str, Any]:
    """A measurement, or a failure: told apart by `reason`."""
    if isinstance(answer, Failed):
        return {"reason": answer.reason, "text": answer.text}
    return {
        field.name: dict(value) if isinstance(value := getattr(answer, field.name), Mapping)
        else value
        for field in fields(answer)
    }  # fmt: skip


def answer_from(data: Mapping[str, Any]) -> Measured | Failed:
    """What `answer_json` wrote."""
    if "reason" in data:
        if data["reason"] not in REASONS:
            raise ValueError(f"reason {data['reason']!r} is none of {', '.join(REASONS)}")
        return Failed(data["reason"], str(data["text"]))
    answer = Measured(**data)
    for name in ("steps_per_s", "error", "seconds", "memory", "cores"):
        if not isinstance(getattr(answer, name), (int, float)):
            raise TypeError(f"{name} {getattr(answer, name)!r} is no number")
    return answer


def chosen_json(chosen: Chosen) -> dict[str, Any]:
    """What a search found."""
    return {
        "winner": chosen.winner and candidate_json(chosen.winner),
        "runner_up": chosen.runner_up and candidate_json(chosen.runner_up),
        "skipped": [
            {"candidate": candidate_json(one.candidate), "why": one.why} for one in chosen.skipped
        ],
        "complete": chosen.complete,
        "why": chosen.why,
    }


def chosen_from(data: Mapping[str, Any]) -> Chosen:
    """What `chosen_json` wrote."""
    return Chosen(
        data["winner"] and candidate_from(data["winner"]),
        data["runner_up"] and candidate_from(data["runner_up"]),
        tuple(Skipped(candidate_from(one["candidate"]), one["why"]) for one in data["skipped"]),
        bool(data["complete"]),
        str(data["why"]),
    )
