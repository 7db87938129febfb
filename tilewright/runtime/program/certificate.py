"""Certificate: how far the dispatched kernels are from the best of their space, stored in the artifact."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

Interval = tuple[float, float]


class Expected(msgspec.Struct, frozen=True, array_like=True):
    """What a search knew of the dispatched kernel at one shape. Seconds of a launch; 0 where nothing is known.

    dims: of the workload, in its order. predicted: of the dispatched kernel, from all measurements. measured: of that kernel
    at this very shape. best: predicted of the best kernel of the space that was measured anywhere. default: of the default one.
    ratio: its time over that of the default one, timed beside each other at this very shape; most: what that ratio is at most,
    another time. Both 0 where they are the same kernel, or were not timed so as often as it takes to tell.
    """

    dims: tuple[int, ...]
    predicted: float
    measured: float = 0.0
    best: float = 0.0
    default: float = 0.0
    ratio: float = 0.0
    most: float = 0.0


class Certificate(msgspec.Struct, frozen=True):
    """Of one workload on one device. Regret: time of the dispatched kernel over the time of the best one known, less 1.

    measured_mean, measured_worst: at `held_out` shapes that the search never saw, each against the `rivals` kernels that are
    predicted best there, all timed in turns; mean_within, worst_within: where these two lie, as far as the noise of those turns
    leaves open (two deviations). predicted_mean, predicted_worst: at the `points` shapes of the range that the search looked at,
    from what was measured of the dispatched kernel and of others at the nearest shape where both were. confidence: that at least
    `share` of the shapes drawn as the held-out ones were have a regret of at most measured_worst. when: seconds since 1970.
    expected: at the points. compared: shapes at which other kernels were timed beside the default one before the choice was
    made; replaced: those of them where another one is dispatched; comparing: seconds of the budget that this took, 0 where a log
    told it.
    """

    workload: str
    device: str
    measured_mean: float
    measured_worst: float
    predicted_mean: float
    predicted_worst: float
    share: float
    confidence: float
    points: int
    rivals: int
    held_out: tuple[dict[str, int], ...] = ()
    regrets: tuple[float, ...] = ()
    kernels: int = 0
    trials: int = 0
    configurations: int = 0
    when: float = 0.0
    expected: tuple[Expected, ...] = ()
    mean_within: Interval = (0.0, 0.0)
    worst_within: Interval = (0.0, 0.0)
    compared: int = 0
    replaced: int = 0
    comparing: float = 0.0

    def near(self, dims: Mapping[str, int]) -> Expected | None:
        """What is expected at the point nearest to these dims, which are in the workload's order; None without points."""
        def distance(found: Expected) -> float:
            return sum(abs(math.log((a + 1) / (b + 1))) for a, b in zip(found.dims, dims.values(), strict=True))

        return min(self.expected, key=distance, default=None)

    def __str__(self) -> str:
        if not self.held_out:
            over = f"over {self.points} shapes{self._beside}"
            return f"predicted regret: mean {self.predicted_mean:.1%}, worst {self.predicted_worst:.1%} {over}"
        mean, worst = (f" ({low:.1%} to {high:.1%})" if high else "" for low, high in (self.mean_within, self.worst_within))
        measured = (f"mean {self.measured_mean:.1%}{mean}, worst {self.measured_worst:.1%}{worst} at {len(self.held_out)} shapes "
                    "held out")
        predicted = f"mean {self.predicted_mean:.1%}, worst {self.predicted_worst:.1%} over {self.points} shapes"
        return (f"measured regret: {measured}; predicted: {predicted}; at least {self.share:.0%} of all shapes are within the "
                f"measured worst with confidence {self.confidence:.0%}{self._beside}")

    @property
    def _beside(self) -> str:
        if not self.compared:
            return ""
        spent = f", {self.comparing:.1f} s" if self.comparing else ""
        return (f"; other kernels beside the default one at {self.compared} shapes{spent}: they take its place at "
                f"{self.replaced}, and it stays at the others")
