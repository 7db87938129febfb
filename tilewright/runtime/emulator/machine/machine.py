"""Machine: what an instruction and a unit see of the blocks that execute together."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import numpy as np

from tilewright.runtime.emulator.machine.findings import KernelCheck, PtxSite
from tilewright.runtime.emulator.machine.lanes import Array, Geometry
from tilewright.runtime.emulator.machine.shared_memory import SharedMemory
from tilewright.runtime.emulator.machine.statistics import Statistics
from tilewright.runtime.emulator.machine.storage import GlobalMemory, LocalMemory

Unit = TypeVar("Unit")


class Machine(Protocol):
    """Blocks that execute together. Lane = (block in batch * warps + warp) * 32 + lane in warp.

    blocks: linear numbers in the grid. registers: type name -> array [register, lane]. mask: lanes that execute the current
    instruction, None for every lane. where: what an arithmetic result may overwrite, True when no live lane is outside the mask.
    warp_of, block_of, cluster_of, thread_of (in its block), group_thread_of (in its cluster): by lane. live: neither padding nor
    exited; status: see lanes.py; pc: segment where a lane goes on. level: by warp, the lowest runs first; order: random levels
    [time, warp of a block] with a seed. steps: instructions executed so far.
    """

    geometry: Geometry
    blocks: Array
    memory: GlobalMemory
    shared: SharedMemory
    local: LocalMemory
    parameters: Array
    dynamic_shared: int
    statistics: Statistics
    rng: np.random.Generator | None
    registers: dict[str, Array]
    mask: Array | None
    where: Any
    lanes: int
    all_lanes: Array
    warp_of: Array
    block_of: Array
    cluster_of: Array
    thread_of: Array
    group_thread_of: Array
    live: Array
    status: Array
    pc: Array
    level: Array
    order: Array
    steps: int

    def unit(self, kind: Callable[[int, Geometry], Unit]) -> Unit:
        """State that some instructions keep: the one object of a class that is made from (number of blocks, geometry)."""

    def active(self) -> Array:
        """Which lanes execute."""

    def lane_indices(self) -> Array:
        """Indices of the lanes that execute."""

    def only(self, chosen: Array) -> AbstractContextManager[None]:
        """Execute for `chosen`, a subset of the current mask, inside the with statement."""

    def wants(self, check: KernelCheck) -> bool:
        """Whether findings of this kind are looked for."""

    def found(self, check: KernelCheck, site: PtxSite, message: str, lane: int | None = None, address: int | None = None) -> None:
        """Report a broken rule at a lane."""


InstructionRunner = Callable[[Machine], None]
"""An instruction made ready to execute for the lanes of a machine's mask."""
