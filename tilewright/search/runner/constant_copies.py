"""Where a layer of a model finds its weights: in its own cache, in the shared one, or in memory.

Between two calls of a layer the rest of the model runs, and reads its own weights. Where these exceed a cache, the layer finds
none of its weights there at the next call; a kernel that is timed again and again on one copy of them would. So it is timed on
copies in turn, which together exceed that cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tilewright.runtime.limits import HostLimits


class Found(Enum):
    """Where weights are found. The text is what records say (TuningRecord.cache)."""

    WARM = "warm"
    SHARED = "weights in the shared cache"
    MEMORY = "weights in memory"


@dataclass(frozen=True)
class Weights:
    """found: where. ring: bytes that all copies of an operator's constants have together, at least."""

    found: Found = Found.WARM
    ring: int = 0

    @property
    def name(self) -> str:
        return self.found.value

    def copies(self, constants: int) -> int:
        """Of constants of so many bytes. One where they exceed the ring alone: each call then evicts its own."""
        return max(1, -(-self.ring // constants)) if constants else 1

    @staticmethod
    def of(bytes_: int, limits: HostLimits) -> Weights:
        """Of a model whose constants have so many bytes in all."""
        if bytes_ <= limits.l2:
            return WARM
        if bytes_ <= limits.l3:
            return Weights(Found.SHARED, min(bytes_, max(4 * limits.l2, limits.l3 // 2)))
        return Weights(Found.MEMORY, min(bytes_, 2 * limits.l3))

    def argument(self) -> str:
        """For the command line of a runner process."""
        return f"--weights={self.found.name.lower()}:{self.ring}"

    @staticmethod
    def parse(argument: str) -> Weights:
        """The inverse of `argument`."""
        name, _, ring = argument.partition("=")[2].partition(":")
        return Weights(Found[name.upper()], int(ring))


WARM = Weights()
