"""Certificate: how far the dispatched kernels are from the best of their space, stored in the artifact."""

from __future__ import annotations

import msgspec


class Certificate(msgspec.Struct, frozen=True):
    """Of one workload on one device. Regret: time of the dispatched kernel over the time of the best one known, less 1.

    measured_mean, measured_worst: at `held_out` shapes that the search never saw, each against the `rivals` kernels that are
    predicted best there, all timed in turns. predicted_mean, predicted_worst: at the `points` shapes of the
    range that the search looked at. confidence: that at least `share` of the shapes drawn as the held-out ones were have a
    regret of at most measured_worst. when: seconds since 1970.
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

    def __str__(self) -> str:
        if not self.held_out:
            return f"predicted regret: mean {self.predicted_mean:.1%}, worst {self.predicted_worst:.1%} over {self.points} shapes"
        measured = f"mean {self.measured_mean:.1%}, worst {self.measured_worst:.1%} at {len(self.held_out)} shapes held out"
        predicted = f"mean {self.predicted_mean:.1%}, worst {self.predicted_worst:.1%} over {self.points} shapes"
        return (f"measured regret: {measured}; predicted: {predicted}; at least {self.share:.0%} of all shapes are within the "
                f"measured worst with confidence {self.confidence:.0%}")
