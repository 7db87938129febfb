"""Regret at shapes where a dispatched kernel was not measured, from the nearest where it was, beside others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.search.search_strategy.evidence import Seen
from tilewright.search.space.array_types import Floats


def neighbour_regrets(measured: Mapping[tuple[int, int, int], Seen], apart: Floats,
                      dispatched: Sequence[tuple[int, int]]) -> Floats:
    """[shape]: time of the dispatched variant over the least of all variants, less 1, at the nearest shape where it was measured
    beside another; infinite where it never was. What a model expects of kernels that nobody measured there says nothing.

    measured: (configuration, shape, threads) -> what was seen; shapes from len(apart) on are others than the points.
    apart: [shape, shape] octaves. dispatched: (configuration, threads) at each shape.
    """
    least: dict[int, float] = {}
    count: dict[int, int] = {}
    for (_, shape, _), seen in measured.items():
        least[shape] = min(seen.seconds, least.get(shape, np.inf))
        count[shape] = count.get(shape, 0) + 1
    known: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for (config, shape, threads), seen in measured.items():
        if shape < len(apart) and count[shape] > 1:
            known.setdefault((config, threads), []).append((shape, seen.seconds / least[shape] - 1))
    found = np.full(len(dispatched), np.inf)
    for point, variant in enumerate(dispatched):
        places = known.get(variant, ())
        if places:
            found[point] = min(places, key=lambda place: (apart[point, place[0]], place[0]))[1]
    return found
