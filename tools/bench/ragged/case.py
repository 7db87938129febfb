"""A batch that all systems of a part compute, and the lengths that batches are drawn from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Call = Callable[[], Any]
_LENGTHS = Path(__file__).with_name("lengths.json")


@dataclass(frozen=True)
class Case:
    """calls: of each system, `ours` among them. error: largest difference of ours from a peer's result. factors: what the ratio
    of a system is multiplied by, where its work is not the batch's."""

    name: str
    calls: Mapping[str, Call]
    error: float
    factors: Mapping[str, float] = field(default_factory=dict)


def first_lengths() -> dict[str, list[int]]:
    """Data set -> the lengths of its first sequences, in the order of its file."""
    found: dict[str, list[int]] = json.loads(_LENGTHS.read_text())["first"]
    return found
