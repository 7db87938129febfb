"""What a search tells while it runs, and what it ends with."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.runtime.program.certificate import Certificate
from tilewright.runtime.program.dispatch import Node
from tilewright.search.space.shapes import Dims


@dataclass(frozen=True)
class Progress:
    """State of a search. latency: weighted seconds over the range with the best kernel known of each shape. share: of the
    budget. eta: seconds left, None when the budget has no time limit. gain: what the next kernels promise."""

    workload: str
    phase: str
    trials: int
    kernels: int
    failed: int
    latency: float
    gain: float
    share: float
    eta: float | None


@dataclass(frozen=True)
class Tuned:
    """What a dispatch table is made of: configurations, the tree over their numbers, the certificate.

    predicted: seconds expected at each of `shapes`. usual: the certificate that what runs untuned would have; None where it was
    not measured beside the others.
    """

    configs: tuple[TileConfig, ...]
    root: Node
    certificate: Certificate
    shapes: tuple[Dims, ...] = ()
    predicted: tuple[float, ...] = ()
    usual: Certificate | None = None
