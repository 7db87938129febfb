"""What a heuristics module chooses at the shapes of an operator, with one of its thresholds at several values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tilewright.passes.spaces.family_registry import config_text
from tilewright.passes.spaces.threads import FAMILY, one_thread_when_small, small_of
from tilewright.passes.spaces.threshold import Origin, calibrated, origins
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import GpuLimits, Limits
from tilewright.runtime.program.dispatch import Leaf, Node, select
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.search.search_strategy.decision_tree import guarded
from tilewright.search.space.dense import dense_symbols
from tilewright.search.space.shapes import Dims

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
Choice = tuple[str, int]  # configuration and threads; 0 threads are all that the call has
Kernels = Callable[[Workload, Sequence[TileConfig]], Sequence[MicroKernel]]


class Heuristics(Protocol):
    """A module `passes/spaces/<family>_heuristics.py`."""

    Thresholds: Callable[[], Any]

    def default(self, workload: Workload, limits: Limits, thresholds: Any) -> tuple[Sequence[TileConfig], Node]: ...


@dataclass(frozen=True)
class Threshold:
    """One number of a family's heuristics."""

    family: str
    name: str
    value: int
    origin: Origin


def thresholds_of(family: str, heuristics: Heuristics) -> list[Threshold]:
    """In the order of their fields."""
    return [Threshold(family, name, value, origin) for name, (value, origin) in origins(heuristics.Thresholds()).items()]


def values_of(value: int) -> tuple[int, ...]:
    """A quarter to four times a value, itself among them; no value twice."""
    return tuple(sorted({round(value * f) for f in FACTORS}))


def choices(heuristics: Heuristics, threshold: Threshold, workload: Workload, limits: Limits, shapes: Sequence[Dims],
            kernels: Kernels) -> Mapping[int, list[Choice]]:
    """What runs at each shape, by value of the threshold.

    kernels: builds configurations; asked on a GPU alone, where guards of kernels are part of the dispatch.
    """
    found: dict[int, list[Choice]] = {}
    for value in values_of(threshold.value):
        usual = calibrated(heuristics.Thresholds(), threshold.family, limits)
        changed = dataclasses.replace(usual, **{threshold.name: value})
        configs, root = heuristics.default(workload, limits, changed)
        if isinstance(limits, GpuLimits):
            tree = guarded(root, kernels(workload, configs), Leaf(len(configs) - 1))
        else:
            tree = root if threshold.family == FAMILY else one_thread_when_small(root, workload, small_of(limits))
        leaves = [select(tree, dense_symbols(workload, dict(shape))) for shape in shapes]
        found[value] = [(config_text(configs[leaf.kernel]), leaf.threads) for leaf in leaves]
    return found


def differing(found: Mapping[int, Sequence[Choice]]) -> list[int]:
    """Places of the shapes at which the values do not all choose the same."""
    return [place for place, here in enumerate(zip(*found.values(), strict=True)) if len(set(here)) > 1]
