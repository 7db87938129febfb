"""GpuGrid: what GPU kernels launch at each pair, and the cycles that follow from it and from the occupancy terms of the device.

The busiest multiprocessor decides: its blocks share its pipes, a round of resident blocks takes at least as long as one block
alone, and all of them share the memory. Everything is an array over (configuration, shape) pairs. MLIR-free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import reduce

import numpy as np

from tilewright.passes.spaces.gpu.gpu_rates import Floats, GpuRates, l2_rate, reached, resident
from tilewright.passes.spaces.kernel_cost import GpuBlock, Load
from tilewright.runtime.limits import WARP, GpuLimits

_SHARP = 4.0
_JOIN = 2.0  # times as long as reading the sums once
_CACHED = 32 << 20  # bytes of them that stay in the L2 cache
_TOGETHER = 0.65  # how the issue slots that are filled grow with the warps of a scheduler, as a power
_TURN = 300.0  # cycles between the end of a block and the first step of the next in its place
_GATHERED = 300.0  # cycles until blocks of a cluster have begun, and ended, together: by 720 times of an H200
_OF_BLOCKS = tuple(f.name for f in fields(GpuBlock) if f.name not in ("step", "once", "along"))
_OF_LOADS = tuple(f.name for f in fields(Load))


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
    cycles that memory needs; launches, and cycles of the one that joins sums of parts; cycles before the first step where blocks
    take tile after tile and only the first of them waits, and those behind the last one that nothing hides.

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
    start: Floats
    behind: Floats

    def only(self, which: np.ndarray) -> GpuGrid:
        """Of some pairs."""
        return GpuGrid(self.multiprocessors, *(getattr(self, f.name)[which] for f in fields(GpuGrid)[1:]))

    def log_cycles(self, occupancy: Occupancy) -> Floats:
        """Logarithm of the cycles of all launches."""
        share = self.blocks / float(self.multiprocessors)
        busy = np.maximum(share + occupancy.tail * (self.busiest - share), 1e-9)
        rounds = np.maximum(np.minimum(self.busiest, 1.0), busy / self.resident)
        work = overlapped(np.maximum(busy * self.shared_out, rounds * self.alone) + self.start + self.behind, self.memory)
        return np.asarray(np.log(occupancy.launch * self.launches + work + self.joining) + occupancy.slower, np.float64)

    @property
    def filled(self) -> Floats:
        """Share of the multiprocessors that is busy: g / (ceil(g / units) * units)."""
        return self.blocks / (self.busiest * self.multiprocessors)


@dataclass(frozen=True)
class Sharing:
    """Work of which blocks take so many steps evenly. evenly: which do. steps: of a block. pieces: of tiles that it takes; 1 of
    others. whole: which take whole tiles alone. kept: tiles of sums that blocks leave for others to add up."""

    evenly: np.ndarray
    steps: Floats
    pieces: Floats
    whole: np.ndarray
    kept: Floats

    @staticmethod
    def of(c: Mapping[str, Floats], units: Floats, steps: Floats) -> Sharing:
        """c: as of `grid_of`. steps: of a tile."""
        evenly = np.broadcast_to(c["streamed"] > 0, steps.shape) if np.ndim(steps) else c["streamed"] > 0
        workers = np.maximum(1.0, c["most"] / c["beside"])
        whole = evenly & (units % workers == 0)
        pieces = np.where(evenly, np.ceil(units / workers) + ~whole, 1.0)
        kept = np.where(whole, 0.0, (workers + np.minimum(units, workers)) * c["beside"])
        return Sharing(evenly, np.ceil(units * steps / workers), pieces, whole, kept)


def block_row(block: GpuBlock, limits: GpuLimits) -> dict[str, float]:
    """The numbers of a block by name, those of its loads as `step.issue` and so on; what a multiprocessor holds of it, and how
    many multiprocessors its clusters fill."""
    plain = {name: float(getattr(block, name)) for name in _OF_BLOCKS}
    loads = {f"{n}.{part}": float(getattr(of, part)) for n, of in (("step", block.step), ("once", block.once))
             for part in _OF_LOADS}
    holds = resident(block.threads, block.registers, block.shared_bytes, limits)
    return {**plain, **loads, "resident": float(holds), "reached": float(reached(block.cluster, limits))}


def grid_of(c: Mapping[str, Floats], units: Floats, extent: Floats, bytes_: Floats, limits: GpuLimits) -> GpuGrid:
    """What blocks launch. c: rows of `block_row`, as arrays. units: of work. extent: what their steps run along. bytes_: distinct
    ones that are read and written."""
    rates, every = GpuRates.of(limits), float(limits.multiprocessors)
    parts, most, ahead = c["parts"], c["most"], c["ahead"]
    blocks = units * parts * c["beside"]
    steps = np.maximum(1.0, np.ceil(extent / (c["depth"] * parts)))
    shared = Sharing.of(c, units, steps)
    blocks, steps = np.where(shared.evenly, most, blocks), np.where(shared.evenly, shared.steps, steps)
    l2 = l2_rate(blocks, limits, c["together"] > 0)
    pipes: dict[str, Floats | float] = {"issue": rates.issue, "shared": 1.0, "bytes": l2, "matrix": rates.matrix}
    shared_out = reduce(np.maximum, [(steps * c[f"step.{n}"] + shared.pieces * c[f"once.{n}"]) / rate
                                     for n, rate in pipes.items()])
    warps = c["threads"] / WARP
    together = np.maximum(1.0, warps / rates.issue)  # of a scheduler
    pipes["issue"] = np.minimum(rates.issue, warps) * np.minimum(1.0, rates.alone * together**_TOGETHER)
    step, once = (reduce(np.maximum, [c[f"{part}.{n}"] / rate for n, rate in pipes.items()]) for part in ("step", "once"))
    once = once * shared.pieces
    step = step + c["chain"]
    arriving = rates.latency + np.where(c["together"] > 0, c["step.bytes"] / l2, 0.0)
    step = np.where(ahead > 0, np.maximum(step, arriving / np.where(ahead > 0, ahead, 1.0)), step)
    start = np.broadcast_to(rates.latency + _TURN + np.where(c["beside"] > 1, _GATHERED, 0.0), blocks.shape)
    behind = once * c["hidden"]
    alone = np.where(most > 0, 0.0, start) + steps * step + once - behind
    in_place = np.where(most > 0, np.minimum(c["resident"], np.maximum(1.0, most // every)), c["resident"])
    kept = np.where(shared.evenly, shared.kept, blocks) * c["partial"]  # bytes of sums of parts
    rate = np.where(kept < _CACHED, rates.l2, rates.memory) * every
    joining = np.where(kept > 0, rates.latency + _TURN + _JOIN * kept / rate, 0.0)
    return GpuGrid(limits.multiprocessors, blocks, np.ceil(blocks / c["reached"]), in_place, steps, shared_out, alone,
                   bytes_ / (rates.memory * every), np.where(shared.whole, 1.0, c["launches"]), joining,
                   np.where(most > 0, start, 0.0), behind)
