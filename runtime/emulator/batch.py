"""The state of the blocks that execute together: one lane per thread, blocks side by side, warps padded to 32 lanes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.emulator.findings import Check, Finding, Report, Site
from runtime.emulator.formats import Array

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runtime.emulator.async_copy import CopyQueue
    from runtime.emulator.async_proxy import AsyncProxy
    from runtime.emulator.barriers import Barriers
    from runtime.emulator.cluster import ClusterBarriers
    from runtime.emulator.memory import GlobalMemory, LocalMemory
    from runtime.emulator.shared_memory import SharedMemory
    from runtime.emulator.statistics import Statistics

WARP = 32
RUNNING, PARKED, BLOCKED, EXITED = range(4)
"""Status of a lane: may run; waits at a warp instruction for lanes of its warp; waits at a barrier; done."""

_VIEWS: dict[int, tuple[str, ...]] = {
    16: ("u16", "s16", "b16", "f16", "bf16"),
    32: ("u32", "s32", "b32", "f32", "f16x2", "bf16x2"),
    64: ("u64", "s64", "b64", "f64"),
}


def numpy_type(name: str) -> np.dtype[Any]:
    """The NumPy element type that holds a PTX type in a register; packed and bf16 types are held as bits."""
    bits = {"pred": 1, "f16x2": 32, "bf16x2": 32, "bf16": 16, "tf32": 32}.get(name)
    if bits == 1:
        return np.dtype(bool)
    if bits is not None:
        return np.dtype(f"u{bits // 8}")
    kind = {"b": "u", "u": "u", "s": "i", "f": "f"}[name[0]]
    return np.dtype(f"{kind}{int(name[1:]) // 8}")


@dataclass(frozen=True)
class Geometry:
    """Grid, block and cluster of a launch, each (x, y, z)."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] = (1, 1, 1)

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def warps(self) -> int:
        return -(-self.threads // WARP)

    @property
    def blocks_of_cluster(self) -> int:
        return self.cluster[0] * self.cluster[1] * self.cluster[2]

    @property
    def group(self) -> int:
        """Warps of a cluster, which may use each other's shared memory."""
        return self.warps * self.blocks_of_cluster

    def block_index(self, linear: int) -> tuple[int, int, int]:
        x, y, _ = self.grid
        return linear % x, linear // x % y, linear // (x * y)

    def thread_index(self, linear: int) -> tuple[int, int, int]:
        x, y, _ = self.block
        return linear % x, linear // x % y, linear // (x * y)


@dataclass
class Batch:
    """Blocks that execute together. Lane = (block in batch * warps + warp) * 32 + lane in warp.

    mask: lanes that execute the current instruction, None for every lane. where: what an arithmetic result may overwrite,
    True when no live lane is outside the mask. registers: file name -> array [register, lane] per type view.
    """

    geometry: Geometry
    blocks: Array
    report: Report
    memory: GlobalMemory
    shared: SharedMemory
    local: LocalMemory
    parameters: Array
    statistics: Statistics
    barriers: Barriers
    cluster_barriers: ClusterBarriers
    copies: CopyQueue
    proxy: AsyncProxy
    rng: np.random.Generator | None
    dynamic_shared: int
    registers: dict[str, Array] = field(default_factory=dict)
    mask: Array | None = None
    where: Any = True
    steps: int = 0
    carry: Array = field(default_factory=lambda: np.zeros(0, dtype=bool))

    def __post_init__(self) -> None:
        g = self.geometry
        self.lanes = len(self.blocks) * g.warps * WARP
        self.all_lanes = np.arange(self.lanes)
        self.warp_of = self.all_lanes // WARP
        self.block_of = self.warp_of // g.warps
        self.thread_of = self.all_lanes % (g.warps * WARP)
        self.cluster_of = self.warp_of // g.group
        self.group_thread_of = self.all_lanes % (g.group * WARP)
        self.live = self.thread_of < g.threads
        self.status = np.where(self.live, RUNNING, EXITED).astype(np.int8)
        self.pc = np.zeros(self.lanes, dtype=np.int32)
        self.level = np.zeros(len(self.blocks) * g.warps, dtype=np.int64)
        self.order = np.zeros((1, g.warps), dtype=np.int64)
        if self.rng is not None:
            self.order = self.rng.integers(0, 4, (64, g.warps))
            self.level = np.tile(self.order[0], len(self.blocks))
        self.carry = np.zeros(self.lanes, dtype=bool)
        self.special: dict[str, Array] = {}

    def allocate_registers(self, counts: dict[int, int]) -> None:
        """Zeroed register files: `counts` maps width in bits (1 for predicates) to the number of registers."""
        self.registers["pred"] = np.zeros((counts.get(1, 0), self.lanes), dtype=bool)
        for bits, names in _VIEWS.items():
            file = np.zeros((counts.get(bits, 0), self.lanes), dtype=f"u{bits // 8}")
            for name in names:
                self.registers[name] = file.view(numpy_type(name))

    # Masks

    def enter(self, group: Array | None) -> None:
        """Execute for `group` from now on; None means every lane."""
        if group is None:
            self.mask, self.where = None, True
        else:
            self.mask = group
            self.where = True if not np.any(self.live & ~group) else group

    def active(self) -> Array:
        return self.mask if self.mask is not None else np.ones(self.lanes, dtype=bool)

    def lane_indices(self) -> Array:
        """Indices of the lanes that execute."""
        return self.all_lanes if self.mask is None else np.flatnonzero(self.mask)

    @contextmanager
    def _only(self, chosen: Array) -> Iterator[None]:
        saved = self.mask, self.where
        self.mask, self.where = chosen, chosen
        try:
            yield
        finally:
            self.mask, self.where = saved

    def only(self, chosen: Array) -> AbstractContextManager[None]:
        """Execute for `chosen`, a subset of the current mask, inside the with statement."""
        return self._only(chosen)

    # Findings

    def found(self, check: Check, site: Site, message: str, lane: int | None = None, address: int | None = None) -> None:
        """Report a broken rule at a lane."""
        block = thread = None
        if lane is not None:
            block = self.geometry.block_index(int(self.blocks[self.block_of[lane]]))
            thread = self.geometry.thread_index(int(self.thread_of[lane]))
        self.report.add(Finding(check, site, message, block, thread, address))


Runner = Callable[[Batch], None]
"""An instruction made ready to execute for the lanes of a batch's mask."""
