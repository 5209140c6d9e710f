"""Defines the config's sections `comm` and `experience`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .section import Int, Names, Section


class CommConfig(Section):
    """How GMIs reduce gradients and talk to each other."""

    reduction: Literal["auto", "local", "mpr", "mrr", "har", "ipc"] = Field(
        default="auto",
        description="How gradients are reduced. `mpr`: through shared memory of the host; `mrr`: "
        "rings across the devices; `har`: inside each device first, then a ring of one GMI of "
        "each; `ipc`: in the memory of one GPU; `local`: not at all, for a single GMI. `auto`: "
        "what is fastest by what was measured on this machine; `gmi-drl plan` shows it.",
    )
    wire: Literal["fp32", "bf16"] = Field(
        default="fp32",
        description="What gradients are sent as. `bf16`: rounded to 8 bits of precision on the "
        "way, for half the bytes through memory; sums and parameters stay fp32.",
    )
    timeout_s: float = Field(
        default=30.0,
        gt=0,
        le=86_400,
        description="Seconds a GMI waits for another before the run fails, naming it.",
    )
    checksum_every: Int = Field(
        default=50,
        ge=0,
        description="Iterations between checks that all GMIs hold the same parameters; 0: never.",
    )


class ExperienceConfig(Section):
    """How experience goes from agents to trainers (mode async)."""

    channels: Literal["auto", "mcc", "ucc", "joined"] = Field(
        default="auto",
        description="What travels together. `mcc`: a channel for each kind of data, a packet a "
        "segment; `ucc`: one channel, a packet a step; `joined`: all of a segment in one packet; "
        "`auto`: what moves most bytes a second, by the measured costs of a packet.",
    )
    batch_segments: Int = Field(
        default=1,
        ge=1,
        le=4096,
        description="Segments (`horizon` steps of the environments of one GMI) in an update of "
        "each trainer.",
    )
    capacity: Int = Field(
        default=2,
        ge=2,
        le=1024,
        description="Segments that may be under way between an agent and a trainer; an agent that "
        "is further ahead waits.",
    )
    max_policy_lag: Int = Field(
        default=16,
        ge=0,
        description="Segments whose policy is older than this many updates are not trained on; "
        "they are counted.",
    )
    lz4: Names = Field(
        default=(),
        description="Channels to compress with LZ4, such as `[observation]`. It pays for images "
        "of bytes, seldom for numbers.",
    )
