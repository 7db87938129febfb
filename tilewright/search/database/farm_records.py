"""What a log says of a farm: how it went, and which measurements are in doubt."""

from __future__ import annotations

from typing import Annotated

import msgspec

SCHEMA = 1
# 2: what requests take beside the work
FARM_SCHEMA = 2
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
_Share = Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]


class FarmRecord(msgspec.Struct, frozen=True, tag="farm", tag_field="record", forbid_unknown_fields=True):
    """A farm at a moment of a run. seconds: since the search began. builds, measurements: ended so far. ready: candidates that
    wait for a runner. driver: share of a core that the driver used. lost, retried, refused: actors and requests so far.
    build_overhead, run_overhead: seconds of a request beside the work of the actor, on average."""

    run: str
    seconds: _Share
    nodes: _Count
    builders: _Count
    runners: _Count
    in_flight: _Count = 0
    ready: _Count = 0
    builds: _Count = 0
    measurements: _Count = 0
    lost: _Count = 0
    retried: _Count = 0
    refused: _Count = 0
    quarantined: tuple[str, ...] = ()
    driver: _Share = 0.0
    build_overhead: _Share = 0.0
    run_overhead: _Share = 0.0
    schema: Annotated[int, msgspec.Meta(ge=1, le=FARM_SCHEMA)] = FARM_SCHEMA


class MarkRecord(msgspec.Struct, frozen=True, tag="mark", tag_field="record", forbid_unknown_fields=True):
    """Measurements of a runner from `since` to `until`, seconds since 1970, are in doubt: they are not used."""

    runner: str
    since: _Share
    until: _Share
    reason: str
    schema: Annotated[int, msgspec.Meta(ge=SCHEMA, le=SCHEMA)] = SCHEMA

    def covers(self, runner: str, when: float) -> bool:
        return runner == self.runner and self.since <= when <= self.until
