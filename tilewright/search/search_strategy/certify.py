"""Measures the certificate of a dispatch: its kernels against their rivals at shapes that the search never saw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.runtime.program.certificate import Certificate
from tilewright.runtime.program.dispatch import Leaf
from tilewright.search.space.array_types import Floats
from tilewright.search.space.shapes import Dims

_SHARE = 0.9


@dataclass(frozen=True)
class Entry:
    """The dispatched variant and its rivals at one held-out shape, timed in turns: seconds, the dispatched one first."""

    shape: Dims
    seconds: tuple[float, ...]

    @property
    def regret(self) -> float:
        return self.seconds[0] / min(self.seconds) - 1


def measure_entry(shape: Dims, dispatched: Leaf, rivals: Sequence[Leaf], measure: Callable[[Leaf, Dims], float],
                  turns: int = 3) -> Entry | None:
    """Time the dispatched leaf and its rivals in `turns` rounds, so that drift of the machine hits all alike. What counts of a
    rival is the median of its ratios to the dispatched one of the same round. None where the dispatched kernel does not run.
    """
    timed = [dispatched, *(r for r in rivals if r != dispatched)]
    rounds = np.array([[measure(leaf, shape) for leaf in timed] for _ in range(turns)])
    if not np.all(np.isfinite(rounds[:, 0])):
        return None
    seconds = rounds[:, 0].min() * np.median(rounds / rounds[:, :1], axis=0)
    return Entry(shape, tuple(float(s) for s in seconds if np.isfinite(s)))


def certify(entries: Sequence[Entry], regrets: Floats, weights: Floats, rivals: int) -> Certificate:
    """The statement from measured entries and predicted regrets over the weighted points of the range.

    With n shapes drawn alike, the chance that all lie within the worst while fewer than a share q of the range do is q^n.
    """
    measured = np.array([e.regret for e in entries])
    return Certificate(
        workload="",
        device="",
        measured_mean=float(measured.mean()) if len(measured) else 0.0,
        measured_worst=float(measured.max()) if len(measured) else 0.0,
        predicted_mean=float(regrets @ weights / weights.sum()),
        predicted_worst=float(regrets.max()),
        share=_SHARE,
        confidence=1 - _SHARE ** len(measured),
        points=len(regrets),
        rivals=rivals,
        held_out=tuple(dict(e.shape) for e in entries),
        regrets=tuple(float(r) for r in measured),
    )
