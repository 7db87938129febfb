"""Thresholds of the untuned choices: numbers that a measurement set, each with its operator and results. MLIR-free.

A heuristics file (`<family>_heuristics.py`) gathers its numbers in one frozen dataclass `Thresholds`, whose fields are made by
`threshold`, and its `default(workload, limits, thresholds=Thresholds())` reads nothing else. `python -m tools.bench thresholds`
measures the operator of each again with other values.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


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
