"""How records are shown, and the memory that a process has held; needs no compiler."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from typing import Any


def peak_bytes() -> int:
    """Most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def shown(record: Mapping[str, Any]) -> str:
    """A record as a line."""
    return "  ".join(f"{name} {value:.2f}" if isinstance(value, float) else f"{name} {value}" for name, value in record.items())
