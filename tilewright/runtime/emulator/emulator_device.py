"""EmulatorDevice: memory, modules and launches of an emulated GPU."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.runtime.emulator.alu.build_context import VariablePlace
from tilewright.runtime.emulator.batch import Batch
from tilewright.runtime.emulator.engine import Engine
from tilewright.runtime.emulator.launch_budget import LaunchBudget
from tilewright.runtime.emulator.launch_order import WAIT
from tilewright.runtime.emulator.machine.findings import ALL_CHECKS, EmulatorError, Finding, FindingReport, KernelCheck, PtxSite
from tilewright.runtime.emulator.machine.lanes import Array, Geometry
from tilewright.runtime.emulator.machine.shared_memory import SharedMemory
from tilewright.runtime.emulator.machine.statistics import Statistics
from tilewright.runtime.emulator.machine.storage import GlobalMemory, LocalMemory
from tilewright.runtime.emulator.memory.tensor_maps import encode
from tilewright.runtime.emulator.ptx.ptx_limits import why_not_on, why_not_target
from tilewright.runtime.emulator.ptx.ptx_parser import parse_ptx
from tilewright.runtime.emulator.ptx.ptx_syntax import Module, Symbol, Variable
from tilewright.runtime.emulator.ptx.ptx_types import type_bits
from tilewright.runtime.emulator.ptx_program import PtxProgram, build_program
from tilewright.runtime.gpu.gpu_image import GpuImage
from tilewright.runtime.limits import WARP, GpuLimits
from tilewright.runtime.program.kernel import Launch
from tilewright.runtime.program.tensor_map import TensorMap

KernelArgument = int | bytes | np.generic
_LANES = 8192
_SHADOW_BYTES = 64 << 20
_REGISTER_BYTES = 4 << 30
_KEPT = 64  # texts and kernels made ready that the next device finds


@dataclass(frozen=True)
class LoadedModule:
    """PTX in the device. A kernel is made ready when it is first asked for.

    text: what `ptx` was parsed from."""

    text: str
    ptx: Module
    variables: dict[str, VariablePlace]
    _ready: dict[str, PtxProgram] = field(default_factory=dict)

    def kernel(self, name: str) -> PtxProgram:
        """The kernel, ready to launch. Raises EmulatorError naming the line of what the emulator does not know."""
        if name not in self.ptx.kernels:
            raise EmulatorError(f"the module has no kernel {name!r}; it has {', '.join(self.ptx.kernels) or 'none'}")
        if name not in self._ready:
            self._ready[name] = _made_ready(self.text, name, tuple(sorted(self.variables.items())))
        return self._ready[name]


@dataclass(frozen=True)
class KernelLaunch:
    """One launch: what all of its batches share. dynamic_shared: bytes per block on top of the kernel's own variables."""

    kernel: PtxProgram
    geometry: Geometry
    dynamic_shared: int
    parameters: Array
    statistics: Statistics
    rng: np.random.Generator | None

    @property
    def shared_bytes(self) -> int:
        return self.kernel.static_shared + self.dynamic_shared


class EmulatorDevice:
    """A GPU that executes PTX on NumPy arrays and checks every access.

    arch: as in `sm_90a`; bounds the shared memory of a block. checks: the rules that are kept. seed: None runs warps in program
    order and lands asynchronous copies at their wait; a number makes both adversarial. collect: findings are kept in
    `report.findings` rather than raised. profile: count sectors and bank conflicts. Launches finish before `launch` returns, so
    streams are in order by construction.

    budget: instructions that the blocks of a batch may execute; seconds: of processor time that a launch may take. Where they are
    None they follow from the launch: its code, the memory in use and its blocks (LaunchBudget). multiprocessors: of a device
    that holds a block of a persistent launch on each; None: it holds any number.
    Raises EmulatorError for an architecture that is not known.
    """

    def __init__(
        self,
        arch: str = "sm_90a",
        checks: Iterable[KernelCheck] = ALL_CHECKS,
        seed: int | None = None,
        *,
        collect: bool = False,
        profile: bool = False,
        budget: int | None = None,
        seconds: float | None = None,
        memory_bytes: int = 1 << 36,
        multiprocessors: int | None = None,
    ) -> None:
        unknown = why_not_target(arch)
        if unknown is not None:
            raise EmulatorError(f"emulator:{arch}: {unknown}")
        self.name = f"emulator:{arch}"
        self.arch = arch
        self.seed = seed
        self.memory = GlobalMemory(memory_bytes)
        self.report = FindingReport(checks, collect)
        self.launches: list[Statistics] = []
        self._profile = profile
        self._budget, self._seconds = budget, seconds
        self._multiprocessors = multiprocessors

    # Memory

    def alloc(self, size: int) -> int:
        """Device address of `size` uninitialised bytes, aligned to 256."""
        return self.memory.allocate(size)

    def free(self, address: int) -> None:
        self.memory.free(address)

    def copy_in(self, address: int, array: Array | bytes) -> None:
        """Copy an array's bytes, in C order, to device memory."""
        self.memory.write(address, array)

    def upload(self, array: Array) -> int:
        """Allocate for an array and copy it in."""
        address = self.alloc(array.nbytes)
        self.copy_in(address, array)
        return address

    def copy_out(self, address: int, shape: Sequence[int] | int, dtype: Any, name: str = "memory") -> Array:
        """A new array of device bytes. Bytes that nobody wrote are a finding (KernelCheck.NEVER_WRITTEN)."""
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        kind = np.dtype(dtype)
        data, valid = self.memory.read(address, int(np.prod(shape, dtype=np.int64)) * kind.itemsize)
        if not valid.all():
            first = int(np.argmin(valid))
            element = np.unravel_index(first // kind.itemsize, shape) if shape else ()
            missing = len(np.unique(np.flatnonzero(valid == 0) // kind.itemsize))
            index = tuple(int(i) for i in element)
            message = f"{missing} of {int(np.prod(shape))} elements were never written, the first is {index}"
            self.report.add(Finding(KernelCheck.NEVER_WRITTEN, PtxSite(name, 0, "copy out"), message, address=address + first))
        return np.asarray(data.view(kind).reshape(shape))

    def copy_within(self, target: int, source: int, size: int) -> None:
        """Copy device memory to device memory, in the order of the launches."""
        if size:
            self.copy_in(target, self.copy_out(source, size, np.uint8))

    def grid(self, kernel: Any, step: Launch, blocks: tuple[int, int, int]) -> tuple[int, int, int]:
        """The blocks of a launch: of one whose blocks take work in turn no more whole clusters than the device holds at once."""
        if not step.persistent or self._multiprocessors is None:
            return blocks
        wide = step.cluster[0]
        return min(blocks[0], max(1, self._multiprocessors // wide) * wide), *blocks[1:]

    def tensor_map(self, wanted: TensorMap) -> bytes:
        """What a kernel takes as a tensor map."""
        return encode(wanted)

    # Modules

    def load(self, ptx: str | bytes) -> LoadedModule:
        """Parse PTX, the text or a GpuImage as it is stored, and place its variables. EmulatorError names the line of what is no
        PTX."""
        text = ptx if isinstance(ptx, str) else _text_of(ptx)
        module = _parsed(text)
        refused = why_not_on(module.target, self.arch)
        if refused is not None:
            raise EmulatorError(f"{self.name}: {refused}")
        places = {v.name: self._place(v) for v in module.variables if v.space in ("global", "const")}
        for variable in module.variables:
            if variable.name in places:
                self._initialise(variable, places)
        return LoadedModule(text, module, places)

    def _place(self, variable: Variable) -> VariablePlace:
        return VariablePlace("global", self.alloc(max(variable.size, 1)), variable.size)

    def _initialise(self, variable: Variable, places: dict[str, VariablePlace]) -> None:
        place, width = places[variable.name], type_bits(variable.type) // 8
        data = np.zeros(variable.size, dtype=np.uint8)
        words = data.view(f"u{width}")
        for i, value in enumerate(variable.initial):
            if isinstance(value, Symbol):
                if value.name not in places:
                    raise EmulatorError(f"PTX line {variable.line}: {variable.name} begins with the address of {value.name}, "
                                        "which is no global variable")
                value = places[value.name].address + value.offset
            words[i] = value & ((1 << (8 * width)) - 1)
        self.copy_in(place.address, data)

    # Launches

    def launch(
        self,
        kernel: PtxProgram,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        args: Sequence[KernelArgument],
        cluster: tuple[int, int, int] = (1, 1, 1),
        only: Sequence[int] | None = None,
        *,
        early: bool = False,
    ) -> Statistics:
        """Run a kernel to its end.

        args: one per parameter: an int (truncated to the parameter's width), a NumPy scalar or bytes. only: linear numbers of the
        blocks to run, where not all results are needed. early: a GPU may begin before the launches in front of this one end, so
        the kernel has to wait for them before it touches memory. Blocks run in batches, in linear order; blocks of a batch run
        together.
        Raises EmulatorError for a launch that a device refuses and for findings.
        """
        geometry = Geometry(grid, block, cluster)
        self._check_launch(kernel, geometry, shared_bytes)
        if early and kernel.before_wait is not None:
            message = f"launched before others have ended, the kernel does this before {WAIT}"
            self.report.add(Finding(KernelCheck.EARLY, kernel.before_wait, message))
        statistics = Statistics(profile=self._profile)
        rng = None if self.seed is None else np.random.default_rng((self.seed, len(self.launches)))
        launch = KernelLaunch(kernel, geometry, shared_bytes, _pack_arguments(kernel, args), statistics, rng)
        begin = time.perf_counter()
        per_batch = self._blocks_per_batch(kernel, geometry, launch.shared_bytes)
        count = geometry.blocks if only is None else len(only)
        budget = LaunchBudget.of(kernel, self.memory.used, -(-count // per_batch), self._budget, self._seconds)
        with np.errstate(all="ignore"):
            for first in range(0, count, per_batch):
                last = min(first + per_batch, count)
                self._run_batch(launch, np.arange(first, last) if only is None else np.array(only[first:last], np.int64), budget)
                spent = budget.spent(0)
                if spent and last < count:
                    message = f"{spent}, with {count - last} of {count} blocks to come (EmulatorDevice: seconds=)"
                    self.report.add(Finding(KernelCheck.BUDGET, kernel.segments[0].site, message))
        statistics.seconds = time.perf_counter() - begin
        self.launches.append(statistics)
        return statistics

    def _run_batch(self, launch: KernelLaunch, blocks: Array, budget: LaunchBudget) -> None:
        kernel, geometry, statistics = launch.kernel, launch.geometry, launch.statistics
        track = self.report.wants(KernelCheck.RACE)
        batch = Batch(
            geometry=geometry,
            blocks=blocks,
            report=self.report,
            memory=self.memory,
            shared=SharedMemory(len(blocks), geometry, launch.shared_bytes, kernel.race_granule, track),
            local=LocalMemory(len(blocks) * geometry.warps * WARP, kernel.local_bytes),
            parameters=launch.parameters,
            dynamic_shared=launch.dynamic_shared,
            statistics=statistics,
            rng=launch.rng,
        )
        batch.allocate_registers(kernel.registers)
        Engine(kernel, batch, budget).run()
        statistics.batches += 1
        statistics.steps = max(statistics.steps, batch.steps)

    def _blocks_per_batch(self, kernel: PtxProgram, geometry: Geometry, shared: int) -> int:
        together = max(1, _LANES // (geometry.warps * WARP))
        shadow = shared * 2 + shared // kernel.race_granule * (12 + 8 * geometry.group)
        registers = kernel.register_bytes * geometry.warps * WARP
        fitting = max(1, _SHADOW_BYTES // max(1, shadow + registers // 4))
        cluster = geometry.blocks_of_cluster
        count = max(1, min(together, fitting))
        return -(-count // cluster) * cluster

    def _check_launch(self, kernel: PtxProgram, geometry: Geometry, shared_bytes: int) -> None:
        name = kernel.name
        if min(*geometry.grid, *geometry.block, *geometry.cluster) < 1:
            sizes = f"grid {geometry.grid}, block {geometry.block}, cluster {geometry.cluster}"
            raise EmulatorError(f"{name}: {sizes} must be positive")
        limits = GpuLimits.of(self.arch)
        if geometry.threads > limits.threads or geometry.block[2] > 64:
            raise EmulatorError(f"{name}: a block of {geometry.block} threads; at most {limits.threads} fit, 64 of them along z")
        if geometry.grid[0] >= 1 << 31 or max(geometry.grid[1:]) > 65535:
            raise EmulatorError(f"{name}: grid {geometry.grid} is above (2147483647, 65535, 65535)")
        if any(g % c for g, c in zip(geometry.grid, geometry.cluster, strict=True)):
            raise EmulatorError(f"{name}: grid {geometry.grid} is not a multiple of cluster {geometry.cluster}")
        required = (*kernel.directives.get("reqnctapercluster", geometry.cluster), 1, 1, 1)[:3]
        if geometry.blocks_of_cluster > 8 or geometry.cluster[1:] != (1, 1) or required != geometry.cluster:
            raise EmulatorError(f"{name}: cluster {geometry.cluster}; wanted up to 8 blocks along x, as .reqnctapercluster says")
        shared = kernel.static_shared + shared_bytes
        if shared_bytes < 0 or shared > limits.shared_bytes:
            raise EmulatorError(f"{name}: {shared} bytes of shared memory; {self.arch} has {limits.shared_bytes}")
        registers = kernel.directives.get("maxnreg", (1,))[0]
        if registers > limits.thread_registers or registers * geometry.warps * WARP > limits.registers:
            raise EmulatorError(f"{name}: .maxnreg {registers} in {geometry.threads} threads; {self.arch} has {limits.registers} "
                                f"registers, and a thread {limits.thread_registers}")
        held = kernel.register_bytes * geometry.warps * WARP
        if held > _REGISTER_BYTES:
            raise EmulatorError(f"{name}: the registers of a block take {held} bytes; the emulator has {_REGISTER_BYTES}")
        wanted = kernel.directives.get("reqntid")
        if wanted and (*wanted, 1, 1)[:3] != geometry.block:
            raise EmulatorError(f"{name}: block {geometry.block}, but the kernel requires .reqntid {wanted}")
        most = kernel.directives.get("maxntid")
        if most and geometry.threads > int(np.prod(most)):
            raise EmulatorError(f"{name}: a block of {geometry.threads} threads, but the kernel allows .maxntid {most}")


@functools.lru_cache(maxsize=_KEPT)
def _parsed(text: str) -> Module:
    """The module of a PTX text, which nobody changes: equal code on several devices is parsed once."""
    return parse_ptx(text)


@functools.lru_cache(maxsize=_KEPT)
def _made_ready(text: str, name: str, places: tuple[tuple[str, VariablePlace], ...]) -> PtxProgram:
    """A kernel of a text for the addresses of the module's variables. It holds nothing of a device: batches hold all state."""
    return build_program(_parsed(text), name, dict(places))


def _text_of(ptx: bytes) -> str:
    try:
        return GpuImage.of(ptx).ptx.decode().rstrip("\0")
    except UnicodeDecodeError as error:
        raise EmulatorError(f"the PTX is no text: byte {error.start} is not UTF-8") from error


def _pack_arguments(kernel: PtxProgram, args: Sequence[KernelArgument]) -> Array:
    """The parameter block."""
    if len(args) != len(kernel.parameters):
        raise EmulatorError(f"{kernel.name}: {len(kernel.parameters)} arguments wanted, {len(args)} given")
    block = np.zeros(kernel.parameter_bytes, dtype=np.uint8)
    for parameter, value in zip(kernel.parameters, args, strict=True):
        if isinstance(value, bytes):
            raw = value
        elif isinstance(value, np.generic):
            raw = value.tobytes()
        else:
            raw = (value & ((1 << (8 * parameter.size)) - 1)).to_bytes(parameter.size, "little")
        if len(raw) != parameter.size:
            raise EmulatorError(f"{kernel.name}: {parameter.name} has {parameter.size} bytes, the argument has {len(raw)}")
        block[parameter.offset : parameter.offset + parameter.size] = np.frombuffer(raw, dtype=np.uint8)
    return block
