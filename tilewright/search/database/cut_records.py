"""CutRecord: a partition of a model's graph that was measured beside the one that was taken until then."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

SCHEMA = 1
Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
_Share = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]
_Text = Annotated[str, msgspec.Meta(max_length=1 << 12)]


class CutRecord(msgspec.Struct, frozen=True, tag="cut", tag_field="record", forbid_unknown_fields=True):
    """One alternative.

    graph: digest of the operations that are cut. way: how regions grew. apart: numbers of operations, two and two, that were
    kept apart. ratio: its time over that of what was taken until then, the median of rounds; error: deviation of that median.
    predicted: the same ratio by the cost model. taken: is it what is taken from then on? strips: which launches were done by
    strips of rows. wrong: what told their results apart, or why it could not be built. device, threads: what was measured on.
    when: seconds since 1970.
    """

    graph: Annotated[str, msgspec.Meta(max_length=64)]
    way: Annotated[str, msgspec.Meta(max_length=16)]
    apart: Annotated[tuple[Number, ...], msgspec.Meta(max_length=1 << 16)]
    ratio: _Share
    error: _Share
    predicted: _Share
    rounds: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]
    taken: bool
    strips: Literal["predicted", "widely", "never"] = "predicted"
    wrong: _Text = ""
    device: _Text = ""
    threads: Annotated[int, msgspec.Meta(ge=0, le=1 << 16)] = 1
    versions: dict[_Text, _Text] = {}
    when: Annotated[float, msgspec.Meta(ge=0.0, le=1e12)] = 0.0
    schema: Annotated[int, msgspec.Meta(ge=SCHEMA, le=SCHEMA)] = SCHEMA

    @property
    def fault(self) -> str:
        """Why a well-formed record says nothing; empty for a good one."""
        return "an odd number of operations apart; wanted pairs" if len(self.apart) % 2 else ""


def cuts_of(records: Iterable[CutRecord], graph: str, device: str, threads: int) -> list[CutRecord]:
    """Those of one graph, measured on one device with so many threads, in their order."""
    return [r for r in records if (r.graph, r.device, r.threads) == (graph, device, threads)]
