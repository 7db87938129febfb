"""SlotRecord: one slot of a model's tuning in the log: what was believed, what was chosen, what came of it."""

from __future__ import annotations

from typing import Annotated

import msgspec

# 2: the device
SCHEMA, OLDEST = 2, 1
CURVE = 4  # parameters of an arm's likeliest curve, where there is a belief

Latency = Annotated[float, msgspec.Meta(gt=0.0, le=1e12)]
Span = Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]


class ArmBelief(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a slot was expected to do to an arm.

    gain, deviation: the share of the model's latency that it saves. mean, low, high: the throughput as a share of the peak,
    and the interval of 80 % of the best that will have been seen.
    """

    arm: str
    gain: float
    deviation: float
    mean: float = 0.0
    low: float = 0.0
    high: float = 0.0


class SlotRecord(msgspec.Struct, frozen=True, tag="slot", tag_field="record", forbid_unknown_fields=True):
    """One slot.

    run: of the tuning it belongs to. begin, seconds: when it began, since the start of the run, and how long it took.
    points: (trials of the arm, its latency) after each trial. ideal: latency of the arm at the peak of the device.
    before, after: latency of the model. arms: latency of each arm afterwards. curve: likeliest a, b, c and logarithm of the
    deviation of the arm's belief when it was chosen. fits, fit_seconds: chains drawn for this choice and what it cost.
    device: on which it measured; "" in logs from before it was told.
    """

    run: str
    slot: Count
    arm: str
    policy: str
    seed: int
    begin: Span
    seconds: Span
    points: tuple[tuple[Count, Latency], ...]
    ideal: Latency
    before: Latency
    after: Latency
    arms: dict[str, Latency] = {}
    beliefs: tuple[ArmBelief, ...] = ()
    curve: tuple[float, ...] = ()
    fits: Count = 0
    fit_seconds: Span = 0.0
    interrupted: bool = False
    device: str = ""
    schema: Annotated[int, msgspec.Meta(ge=OLDEST, le=SCHEMA)] = SCHEMA
