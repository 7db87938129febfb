"""The libraries of a search, which take a second or more to import."""

from __future__ import annotations

import importlib

_NEEDED = ("xgboost", "scipy.optimize", "scipy.special", "emcee")


def load_libraries() -> None:
    """Import them before the time of a search begins, so that none of it goes to them."""
    for name in _NEEDED:
        importlib.import_module(name)
