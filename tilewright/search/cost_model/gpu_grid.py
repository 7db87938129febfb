"""GpuGrid: what GPU kernels launch at each pair, and the cycles that follow from it and from the occupancy terms of the device.

The busiest multiprocessor decides: its blocks share its pipes, a round of resident blocks takes at least as long as one block
alone, and all of them share the memory. Everything is an array over (configuration, shape) pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from tilewright.search.space.array_types import Floats, Ints

_SHARP = 4.0


def overlapped(work: Floats | float, memory: Floats | float) -> Floats:
    """Cycles of work and of memory traffic beside it: little more than the larger, as they overlap well but not wholly."""
    return np.asarray((work**_SHARP + memory**_SHARP) ** (1 / _SHARP), np.float64)


@dataclass(frozen=True)
class Occupancy:
    """What is fitted per kernel, and moves when a log goes to another GPU.

    launch: cycles that a launch takes beside its work. tail: how much of a whole wave an incomplete one costs beyond its share:
    1, as much as a whole one; 0, its share. The time is `launch + work * (pieces + tail * idle) / units`. slower: logarithm by
    which a device is slower than those that its kernels' rates were learned on.
    """

    launch: float = 3000.0
    tail: float = 1.0
    slower: float = 0.0


@dataclass(frozen=True)
class GpuGrid:
    """blocks, those of the busiest multiprocessor, residents, steps of a block; cycles of a block on the busiest pipe and alone,
    cycles that memory needs; launches, and cycles of the one that joins sums of parts.

    multiprocessors: of the device.
    """

    multiprocessors: int
    blocks: Floats
    busiest: Floats
    resident: Floats
    steps: Floats
    shared_out: Floats
    alone: Floats
    memory: Floats
    launches: Floats
    joining: Floats

    def only(self, which: Ints | np.ndarray) -> GpuGrid:
        """Of some pairs."""
        return GpuGrid(self.multiprocessors, *(getattr(self, f.name)[which] for f in fields(GpuGrid)[1:]))

    def log_cycles(self, occupancy: Occupancy) -> Floats:
        """Logarithm of the cycles of all launches."""
        share = self.blocks / float(self.multiprocessors)
        busy = np.maximum(share + occupancy.tail * (self.busiest - share), 1e-9)
        rounds = np.maximum(np.minimum(self.busiest, 1.0), busy / self.resident)
        work = overlapped(np.maximum(busy * self.shared_out, rounds * self.alone), self.memory)
        return np.asarray(np.log(occupancy.launch * self.launches + work + self.joining) + occupancy.slower, np.float64)

    @property
    def filled(self) -> Floats:
        """Share of the multiprocessors that is busy: g / (ceil(g / units) * units)."""
        return self.blocks / (self.busiest * self.multiprocessors)
