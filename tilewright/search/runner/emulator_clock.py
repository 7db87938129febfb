"""EmulatorClock: a time for a kernel from what it does on the emulator: warp instructions issued, bytes and bank conflicts.

It is a model of a GPU, deterministic and never to be reported as speed; it exists so that a search can be run, tested and
resumed with no GPU. A few blocks of each launch are executed and stand for all: those of one launch do alike work.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.passes.spaces.gpu.gpu_grid import overlapped
from tilewright.passes.spaces.gpu.gpu_rates import GpuRates, resident
from tilewright.runtime.emulator.emulator_device import EmulatorDevice
from tilewright.runtime.emulator.machine.statistics import Statistics
from tilewright.runtime.gpu.gpu_launch import place, release
from tilewright.runtime.limits import WARP, GpuLimits
from tilewright.runtime.program.kernel import Launch, MicroKernel

VERSION = 1
_SECTOR = 32
_SLOTS = {"mov": 0.0, "cvta": 0.0, "ld.param": 0.5, "cvt": 2.0, "div": 20.0, "rem": 20.0, "ex2": 8.0, "lg2": 8.0, "rcp": 8.0,
          "rsqrt": 8.0, "sqrt": 10.0, "tanh": 8.0, "sin": 8.0, "cos": 8.0, "ret": 0.0}
"""Issue slots of a warp instruction, by opcode; 1 where nothing is said."""
_WIDE = {"mul": 4.0, "mad": 5.0, "add": 2.0, "sub": 2.0}  # of 64-bit integers
_F64 = 2.0
_JOINING = 40  # registers of a thread, at most, in launches behind the first: they join sums
_BARRIER = 60.0  # cycles until the warps of a block go on
_PHASE = 60.0  # cycles from the arrival of a step to its first use
_PRODUCT = re.compile(r"(mma\.sync|wgmma\.mma_async)\.m(\d+)n(\d+)k\d+")
_AHEAD = re.compile(r"cp\.async\.wait_group\s+(\d+)")


@dataclass(frozen=True)
class BlockWork:
    """What a block of a launch does, on average.

    slots: of the issue ports. shared: cycles of shared memory. moved: bytes beyond the multiprocessor. matrix: multiply-adds on
    16-bit elements at the rate of wgmma. waits: steps that are waited for. loads: rounds of loads that a warp waits for itself,
    of which those between two branches overlap. ahead: steps that are loaded before they are needed.
    """

    slots: float
    shared: float
    moved: float
    matrix: float
    barriers: float
    waits: float
    loads: float
    ahead: int
    warps: int

    @staticmethod
    def of(found: Statistics, blocks: int, warps: int, ahead: int, mma: float) -> BlockWork:
        """mma: share of the rate of wgmma that mma.sync has. ahead: of copies that are waited for by group."""
        slots = matrix = rows = 0.0
        for name, count in found.instructions.items():
            product = _PRODUCT.fullmatch(name)
            slots += count * (1.0 if product else _slots(name))
            if product is not None:
                m, n = int(product[2]), int(product[3])
                whole = product[1] == "mma.sync"
                matrix += count * m * n * 16 * (1 / mma if whole else 0.25)
                rows += 0.0 if whole else count * (m + n) / 16  # 32 bytes of each row of both operands, a warp its quarter
        asked = found.bytes_read["global"] + found.bytes_written["global"]
        bulk = max(0, asked - found.sectors * _SECTOR)
        arrivals = found.instructions["mbarrier.init"] / blocks
        groups = found.instructions["cp.async.wait_group"]
        waits = (groups or found.instructions["wgmma.commit_group"]) / (blocks * warps)
        return BlockWork(slots / blocks, (found.shared_wavefronts + rows + bulk / 128) / blocks,
                         (found.sectors * _SECTOR + bulk) / blocks, matrix / blocks, found.barriers / blocks, waits,
                         min(found.instructions["ld.global"], found.instructions["bra"] + warps * blocks) / (blocks * warps),
                         max(ahead, round(arrivals / 2) - 1), warps)

    def pipes(self, rates: GpuRates) -> float:
        """Cycles of the busiest pipe of a multiprocessor."""
        return max(self.slots / rates.issue, self.shared, self.moved / rates.l2, self.matrix / rates.matrix)

    def alone(self, rates: GpuRates) -> float:
        """Cycles of a block with a multiprocessor to itself: what it issues, and what it waits for."""
        issue = max(self.pipes(rates), self.slots / min(rates.issue, self.warps))
        step = issue / max(1.0, self.waits) + _PHASE
        exposed = max(0.0, rates.latency - self.ahead * step) if self.waits else 0.0
        own = self.loads * rates.latency
        return rates.latency + issue + self.barriers * _BARRIER + self.waits * (_PHASE + exposed) + own


class EmulatorClock:
    """Times kernels for one architecture.

    Args:
        sample: blocks of a launch that are executed, where it has more.
    """

    cache = "emulated: a model of issue slots and bytes, no measurement"

    def __init__(self, limits: GpuLimits, sample: int = 2) -> None:
        self.limits, self.rates, self.sample = limits, GpuRates.of(limits), sample

    def seconds(self, kernel: MicroKernel, image: bytes, dims: Mapping[str, int], arrays: Sequence[np.ndarray], bytes_: int,
                registers: int) -> float:
        """Of all launches. bytes_: distinct bytes that the shape reads and writes. registers: of a thread."""
        device = EmulatorDevice(self.limits.arch, checks=(), profile=True)
        groups = [int(n) for n in _AHEAD.findall(image.decode(errors="replace"))]
        placed = place(device, kernel, dims, arrays)
        try:
            module = device.load(image)
            work, launches = 0.0, 0
            for step in kernel.launches():
                blocks = step.blocks(dims)
                if 0 in blocks:
                    continue
                chosen = self._chosen(math.prod(blocks), math.prod(step.cluster))
                found = device.launch(module.kernel(step.symbol), blocks, (step.threads, 1, 1), step.shared_bytes, placed.args,
                                      step.cluster, only=chosen)
                warps = -(-step.threads // WARP)
                block = BlockWork.of(found, len(chosen), warps, 1 + max(groups) if groups else 0, self.rates.mma)
                work += self._cycles(step, math.prod(blocks), block, min(registers, _JOINING) if launches else registers)
                launches += 1
        finally:
            release(device, placed)
        memory = bytes_ / (self.rates.memory * self.limits.multiprocessors)
        return (launches * self.rates.launch + float(overlapped(work, memory))) / self.rates.clock

    def _chosen(self, blocks: int, cluster: int) -> list[int]:
        """The first ones and evenly spread others, whole clusters, but not the last: it may be a remainder."""
        groups = blocks // cluster
        first = sorted({i * max(1, groups - 1) // self.sample for i in range(min(self.sample, groups))})
        return [cluster * f + i for f in first for i in range(cluster)]

    def _cycles(self, step: Launch, blocks: int, block: BlockWork, registers: int) -> float:
        """Of a launch, whose blocks share the multiprocessors."""
        together = resident(step.threads, registers, step.shared_bytes, self.limits)
        busiest = -(-blocks // self.limits.multiprocessors)
        rounds = -(-busiest // together)
        return max(busiest * block.pipes(self.rates), rounds * block.alone(self.rates))


def _slots(name: str) -> float:
    head, _, kind = name.partition(".")
    if kind in ("s64", "u64") and head in _WIDE:
        return _WIDE[head]
    if kind == "f64":
        return _F64 * _SLOTS.get(head, 1.0)
    return _SLOTS.get(name, _SLOTS.get(head, 1.0))
