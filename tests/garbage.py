"""How often processes that run tests look for garbage."""

from __future__ import annotations

THRESHOLDS = (100_000, 20, 20)
"""Of gc.set_threshold. Kernels on the emulator are some 100,000 objects that live long: a quarter of the time of those tests goes
into looking through them by Python's own thresholds."""
