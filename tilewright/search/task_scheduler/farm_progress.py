"""FarmProgress: the state of a farm for a live view."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.search.database.farm_records import FarmRecord


@dataclass(frozen=True)
class FarmProgress:
    """A farm at a moment. The rates are of the last seconds, a second. target: that it measures for."""

    record: FarmRecord
    builds_per_second: float
    measurements_per_second: float
    target: str = ""
