"""The state of the blocks that execute together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.runtime.emulator.machine.findings import Finding, FindingReport, KernelCheck, PtxSite
from tilewright.runtime.emulator.machine.lanes import EXITED, RUNNING, Array, Geometry
from tilewright.runtime.emulator.machine.machine import Unit
from tilewright.runtime.emulator.machine.shared_memory import SharedMemory
from tilewright.runtime.emulator.machine.statistics import Statistics
from tilewright.runtime.emulator.machine.storage import GlobalMemory, LocalMemory
from tilewright.runtime.emulator.ptx.ptx_types import numpy_type
from tilewright.runtime.limits import WARP

_VIEWS: dict[int, tuple[str, ...]] = {
    16: ("u16", "s16", "b16", "f16", "bf16"),
    32: ("u32", "s32", "b32", "f32", "f16x2", "bf16x2"),
    64: ("u64", "s64", "b64", "f64"),
}


@dataclass
class Batch:
    """Blocks that execute together: the Machine of their instructions. Registers of one width are views of one array."""

    geometry: Geometry
    blocks: Array
    report: FindingReport
    memory: GlobalMemory
    shared: SharedMemory
    local: LocalMemory
    parameters: Array
    dynamic_shared: int
    statistics: Statistics
    rng: np.random.Generator | None
    registers: dict[str, Array] = field(default_factory=dict)
    mask: Array | None = None
    where: Any = True
    steps: int = 0

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
        self._units: dict[Any, Any] = {}

    def allocate_registers(self, counts: dict[int, int]) -> None:
        """Zeroed register files: `counts` maps width in bits (1 for predicates) to the number of registers."""
        self.registers["pred"] = np.zeros((counts.get(1, 0), self.lanes), dtype=bool)
        for bits, names in _VIEWS.items():
            file = np.zeros((counts.get(bits, 0), self.lanes), dtype=f"u{bits // 8}")
            for name in names:
                self.registers[name] = file.view(numpy_type(name))

    def unit(self, kind: Callable[[int, Geometry], Unit]) -> Unit:
        """The one object of a class, made when it is first asked for."""
        found: Unit | None = self._units.get(kind)
        if found is None:
            found = self._units[kind] = kind(len(self.blocks), self.geometry)
        return found

    # Masks

    def enter(self, group: Array | None) -> None:
        """Execute for `group` from now on; None means every lane."""
        if group is None:
            self.mask, self.where = None, True
        else:
            self.mask = group
            self.where = group if np.count_nonzero(self.live > group) else True

    def active(self) -> Array:
        return self.mask if self.mask is not None else np.ones(self.lanes, dtype=bool)

    def lane_indices(self) -> Array:
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
        return self._only(chosen)

    # Findings

    def wants(self, check: KernelCheck) -> bool:
        return self.report.wants(check)

    def found(self, check: KernelCheck, site: PtxSite, message: str, lane: int | None = None, address: int | None = None) -> None:
        block = thread = None
        if lane is not None:
            block = self.geometry.block_index(int(self.blocks[self.block_of[lane]]))
            thread = self.geometry.thread_index(int(self.thread_of[lane]))
        self.report.add(Finding(check, site, message, block, thread, address))
