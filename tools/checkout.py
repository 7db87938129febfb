"""The checkout that a tool runs in, and the modules of its tests that tools share."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def of_tests(name: str) -> Any:
    """A module below tests/, such as "e2e.random_programs"."""
    for folder in (ROOT, ROOT / "tests"):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    return importlib.import_module(name)
