"""Roofline of a kernel by hand: what its SASS asks of an H100's pipes, and the time that follows by arithmetic alone.

Nothing here was measured. The main loop's instructions come from the listing; tiles, bytes beyond the multiprocessor and
residents from the family's cost description. The busiest multiprocessor decides. A round of resident blocks takes as long as the
busiest of their pipes, and at least as long as one block alone: its own instructions, the latency of its copies over the steps
that are under way, and a fence where one stands in the loop. What is behind the loop adds to that unless another tile's products
run meanwhile. All of it takes at least as long as memory needs for the distinct bytes.

What comes out is a bound from below on the time. The clock is the one of the data sheet: a GPU that lowers it under load is
slower in everything but memory. Dependencies within a loop are not followed: FlashAttention-3, whose loop asks for about as
much as ours, was measured at 0.5 to 0.65 of the peak where this arithmetic comes to 0.8 to 0.9.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tilewright.passes.spaces.gpu.gpu_attention import heads_of
from tilewright.passes.spaces.gpu.gpu_rates import GpuRates, l2_rate, reached, resident
from tilewright.passes.spaces.kernel_cost import GpuBlock, KernelCost
from tilewright.passes.spaces.workload import Kind, Workload
from tilewright.runtime.limits import WARP, GpuLimits
from tools.bench.gpu.sass import Instruction, Listing, Loop
from tools.bench.gpu.sass_pipes import MULTIPLY_ADDS, PRODUCTS, WARPGROUP_PRODUCTS, Pipe, Work, work_of

FENCE = 700.0
"""Cycles of a fence over the device. An estimate between 500 and 900, the time of a store to the L2 cache and back."""
ROUND = 60.0
"""Cycles of a round through shared memory behind the loop: a barrier and a load (Luo et al. 2024 give 29 to 33 each)."""
_STORES = ("STG", "UTMASTG", "UBLKCP")
_SCALAR_LANES = 128  # multiply-adds of f32 that a multiprocessor does in a cycle


@dataclass(frozen=True)
class Subject:
    """A kernel at a shape. extents: by the names of its cost description; registers: a thread's; multiplying: threads that run
    the main loop; overlapped: products of another tile run while results are stored."""

    workload: Workload
    cost: KernelCost
    listing: Listing
    registers: int
    extents: Mapping[str, int]
    dims: Mapping[str, int]
    multiplying: int
    overlapped: bool
    limits: GpuLimits

    @property
    def block(self) -> GpuBlock:
        assert self.cost.block is not None
        return self.cost.block

    @cached_property
    def rates(self) -> GpuRates:
        return GpuRates.of(self.limits)

    @cached_property
    def loop(self) -> Loop | None:
        """The innermost loop with the most products, of tensor cores or else of lanes, for its length."""
        found = self.listing.innermost(*PRODUCTS) or self.listing.innermost(*MULTIPLY_ADDS)
        if self.workload.kind is Kind.ROWS or not found:
            return None
        return max(found, key=lambda x: work_of(self.listing.of(x), self.rates).multiply_adds / len(x))

    @cached_property
    def work(self) -> Work:
        """Of a warp, in a round of the loop; in all of its code where there is none."""
        return work_of(self.listing.straight() if self.loop is None else self.listing.of(self.loop), self.rates)

    @property
    def asynchronous(self) -> bool:
        """Do products run while the warps that began them go on?"""
        return any(i.name in WARPGROUP_PRODUCTS for i in self.listing.code)

    @property
    def warps(self) -> float:
        """Warps of a block that run the loop."""
        return self.multiplying / WARP

    @property
    def resident(self) -> int:
        return resident(self.block.threads, self.registers, self.block.shared_bytes, self.limits)

    @property
    def tiles(self) -> int:
        """Of blocks: parts of the extent that is summed over, and all that a cluster takes, in part for nothing."""
        counts = [math.ceil(self.extents[name] / size) for name, size in self.cost.units.items() if size]
        return math.prod(counts) * self.block.parts * self.block.beside

    @property
    def l2_rate(self) -> float:
        """Bytes a cycle of the L2 cache, for each multiprocessor that is busy."""
        return float(l2_rate(self.block.most if self.block.streamed else self.tiles, self.limits, self.block.together))

    @property
    def steps(self) -> int:
        """Of the family's depth, for a tile."""
        extent = self.extents.get(self.block.along, 1)
        return max(1, math.ceil(extent / (self.block.depth * self.block.parts)))

    @property
    def step_products(self) -> float:
        """Multiply-adds of a block in a step of the family."""
        return float(math.prod(self.cost.tiles.values()) * self._heads)

    @property
    def _heads(self) -> int:
        """Multiply-adds of a query with a key and its value; 1 of a contraction."""
        return sum(heads_of(self.workload) or ()) if self.workload.kind is Kind.ATTENTION else 1

    @property
    def rounds_a_step(self) -> float:
        """How often the loop runs in a step; less than 1 where it is unrolled over several, or over all."""
        if self.loop is None:
            return 1 / self.steps
        if not self.work.multiply_adds:
            return 1.0
        ratio = self.step_products / (self.work.multiply_adds * self.warps)
        return max(1.0, round(ratio)) if ratio >= 1 else 1 / round(1 / ratio)

    def pipes(self) -> dict[str, float]:
        """Cycles of a multiprocessor's pipes in a step of a block; `l2`: of what is brought from the L2 cache."""
        found = {n: c * self.warps * self.rounds_a_step for n, c in self.work.cycles(self.rates).items()}
        copied = self.block.step.bytes if self.asynchronous else 0.0
        found["shared"] += copied / 128
        return {**found, "l2": self.block.step.bytes / self.l2_rate}

    def alone(self) -> float:
        """Cycles of a step of a block that has the multiprocessor to itself."""
        pipes, b = self.pipes(), self.block
        slots = self.work.instructions * self.rounds_a_step * math.ceil(self.warps / self.rates.issue)
        fences = FENCE * any(i.name == "MEMBAR" and i.has("GPU") for i in self._loop_code)
        own = slots + b.chain + fences
        busy = max(pipes["tensor"], own) if self.asynchronous else max(max(pipes.values()) + b.chain, own)
        return max(busy, (self.rates.latency + fences) / b.ahead if b.ahead else busy + self.rates.latency)

    @property
    def _loop_code(self) -> Sequence[Instruction]:
        return () if self.loop is None else self.listing.of(self.loop)

    @property
    def summing(self) -> int:
        """Blocks of a cluster that have a part of the same tile."""
        return self.block.cluster // self.block.beside

    # -- behind the loop

    @cached_property
    def tail(self) -> tuple[Work, float]:
        """What a warp does behind the loop, and the rounds through shared memory that it waits for. Loops there run as often as
        the results that they store need."""
        if self.loop is None:
            return Work(), 0.0
        around = [x for x in self.listing.loops if self.loop.within(x) and x.begin < self.loop.begin]
        end = min((x.end for x in around), default=max(len(self.listing.straight()), self.loop.end))
        inner = [x for x in self.listing.loops if self.loop.end <= x.begin and x.end <= end]
        storing = [x for x in inner if any(i.name in _STORES for i in self.listing.of(x))]
        found = sum(WARP * i.access_bytes for x in storing for i in self.listing.of(x) if i.name == "STG")
        trips = max(1.0, self.result_bytes / self.warps / found) if found else 1.0
        code = list(self.listing.code[self.loop.end : end])
        for x in storing:
            code += list(self.listing.of(x)) * (round(trips) - 1)
        barriers = sum(i.name == "BAR" for i in code)
        return work_of(code, self.rates), barriers + trips * len(storing)

    @property
    def result_bytes(self) -> float:
        """Of a tile; of a block's share where the blocks of a cluster sum it up together."""
        rows = math.prod(size for name, size in self.cost.tiles.items() if name in ("rows", "columns", "queries"))
        if self.workload.kind is Kind.ATTENTION:
            rows *= (heads_of(self.workload) or (0, 1))[1]
        return float(rows * (4 if self.block.launches > 1 else self.workload.outputs[0].dtype.bytes)) / self.summing

    def behind(self) -> float:
        """Cycles of a block behind its loop."""
        work, rounds = self.tail
        pipes = max(work.cycles(self.rates).values(), default=0.0) * self.warps
        slots = work.instructions * math.ceil(self.warps / self.rates.issue)
        others = work.other_bytes * self.warps * (self.summing - 1) / self.summing / self.rates.other_blocks
        return max(pipes, slots, self.result_bytes / self.l2_rate, others) + ROUND * rounds

    # -- time

    def predict(self) -> Prediction:
        """Of one launch that finds its operands in memory."""
        limits, rates, b = self.limits, self.rates, self.block
        per, after = max(self.pipes().values()), self.behind()
        memory = self.workload.bytes.evaluate(self.dims) / (rates.memory * limits.multiprocessors)
        cycles = 0.0
        for count, tiles in self.waves():
            loop, results = self.steps * max(count * per, self.alone()), count * after
            cycles += rates.latency + (tiles * max(loop, results) + results if self.overlapped else tiles * (loop + results))
        if self._evenly is not None:
            steps, pieces = self._evenly
            cycles = rates.latency + steps * max(per, self.alone()) + pieces * after
        joined = rates.launch + 2 * b.partial * self._kept / (rates.l2 * limits.multiprocessors) if self._kept else 0.0
        joining = (b.launches - 1) * joined
        total = max(cycles, memory + rates.latency) + joining
        return Prediction(total, memory, self._ideal(), self._bound(cycles, memory, joining), self.pipes(), self.alone(), after)

    @property
    def _evenly(self) -> tuple[int, int] | None:
        """Steps of a block that shares those of all tiles evenly with the others, and pieces of tiles that it takes; None of
        blocks that have whole tiles each."""
        workers, units = self.block.most // self.block.beside, self.tiles // self.block.beside
        if not self.block.streamed or units % workers == 0:
            return None
        return math.ceil(units * self.steps / workers), math.ceil(units / workers) + 1

    @property
    def _kept(self) -> int:
        """Tiles of sums that wait for a launch which joins them."""
        if not self.block.streamed:
            return self.tiles
        return 0 if self._evenly is None else self.block.most + min(self.tiles, self.block.most)

    def waves(self) -> list[tuple[int, int]]:
        """Of the busiest multiprocessor: blocks side by side, and tiles that each of them takes one after the other."""
        if self.block.most:
            return [(1, math.ceil(self.tiles / min(self.block.most, self.tiles)))]
        whole, rest = divmod(math.ceil(self.tiles / reached(self.block.cluster, self.limits)), self.resident)
        return [(self.resident, 1)] * whole + [(rest, 1)] * bool(rest)

    def _ideal(self) -> float:
        """Cycles of the operator's products with all multiprocessors at their peak; 0 where there are none to speak of."""
        if self.workload.kind is Kind.ROWS:
            return 0.0
        products = math.prod(self.extents[n] for n in self.cost.units) * self._heads
        size = max((o.dtype.bytes for o in self.workload.inputs[:2]), default=4)
        tensor = any(i.name in PRODUCTS for i in self.listing.code)
        rate = self.rates.matrix * 2 / size if tensor or size < 4 else _SCALAR_LANES
        return products / (rate * self.limits.multiprocessors)

    def _bound(self, cycles: float, memory: float, joining: float) -> str:
        """What takes the time."""
        if memory + self.rates.latency >= cycles:
            return "memory"
        if joining > cycles:
            return "launches"
        pipes, count = self.pipes(), self.waves()[0][0]
        if self.steps * max(count * max(pipes.values()), self.alone()) < count * self.behind() and not self.overlapped:
            return "results"
        if self.alone() > count * max(pipes.values()):
            return "latency"
        return max(pipes, key=lambda n: pipes[n])

    def fences(self) -> int:
        """Instructions in the loop that wait until memory has seen all stores."""
        return work_of(self._loop_code, self.rates).counts[Pipe.MEMBAR]


@dataclass(frozen=True)
class Prediction:
    """Cycles: of the launch, of memory for the distinct bytes, of the products at peak rate; of pipes in a step of a block, of a
    block alone, of a block behind its loop. bound: the pipe, or `memory`, `latency`, `results`, `launches`."""

    total: float
    memory: float
    ideal: float
    bound: str
    pipes: Mapping[str, float]
    alone: float
    behind: float

    @property
    def share(self) -> float:
        """Of what either the peak or memory allows."""
        return max(self.ideal, self.memory) / self.total

    @property
    def share_of_peak(self) -> float:
        return self.ideal / self.total
