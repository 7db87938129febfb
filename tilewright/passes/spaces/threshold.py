"""Thresholds of the untuned choices: numbers that a measurement set, each with its operator and results. MLIR-free.

A heuristics file (`<family>_heuristics.py`) gathers its numbers in one frozen dataclass `Thresholds`, whose fields are made by
`threshold`, and its `default(workload, limits, thresholds=Thresholds())` reads nothing else. `python -m tools.bench thresholds`
measures the operator of each again with other values, and `tilewright calibrate` sets them for a machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from tilewright.runtime.limits import HostLimits, Limits

T = TypeVar("T")
FARTHEST = 8  # times, either way, that a calibrated value may be away from the one that ships


@dataclass(frozen=True)
class Origin:
    """unit: what the number counts. operator: the name of a measured operator (`python -m tools.bench thresholds --list`).
    results: the file of results, and what in it says so."""

    unit: str
    operator: str
    results: str


def threshold(value: int, *, unit: str, operator: str, results: str) -> Any:
    """A field of a `Thresholds` with its origin."""
    return field(default=value, metadata={"origin": Origin(unit, operator, results)})


def origins(thresholds: Any) -> dict[str, tuple[int, Origin]]:
    """Value and origin of each field of a `Thresholds`, by name."""
    return {f.name: (getattr(thresholds, f.name), f.metadata["origin"]) for f in fields(thresholds)}


def calibrated(thresholds: T, family: str, limits: Limits) -> T:
    """The thresholds of a family, those with the values of the machine that it was calibrated to have. What was calibrated and is
    no threshold any more is passed over, and so is a value that is far from the one that ships: none is tried."""
    own = dict(limits.calibrated) if isinstance(limits, HostLimits) else {}
    found = {}
    for f in fields(thresholds):  # type: ignore[arg-type]
        value, usual = own.get(f"{family}.{f.name}"), getattr(thresholds, f.name)
        if value is not None and usual <= value * FARTHEST and value <= usual * FARTHEST:
            found[f.name] = value
    changed: T = replace(thresholds, **found) if found else thresholds  # type: ignore[type-var]
    return changed
