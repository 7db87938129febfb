"""LoadedProgram: a program on one GPU: its constants there, its kernels as they are first launched, its native host program."""

from __future__ import annotations

import ctypes
import itertools
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from tilewright.runtime.cuda.arena import Arena, Gpu, Wanted, native_table, relaxed
from tilewright.runtime.cuda.control_records import ControlRecords
from tilewright.runtime.cuda.cuda_device import Image, blocks_at_once, cannot_run, load_image
from tilewright.runtime.cuda.cuda_table import (
    ARENA_FIELDS,
    CONTEXT_FIELDS,
    EARLY,
    KEPT_MAPS,
    KEPT_WORDS,
    RECORD_FIELDS,
    SITES,
)
from tilewright.runtime.cuda.driver import checked, dotted, fail, reported, start
from tilewright.runtime.cuda.graphs import ProgramGraphs, StreamGraph
from tilewright.runtime.cuda.result_ring import ResultRing
from tilewright.runtime.device import (
    ALLOC,
    CONTEXT,
    CONTROL,
    COPY,
    KERNELS,
    KERNELS_PER_CALL,
    LAUNCH,
    NEXT_LAUNCH,
    POLL,
    RELEASE,
    TABLE_WORDS,
    TENSOR_MAP,
)
from tilewright.runtime.errors import DeviceError, TilewrightError
from tilewright.runtime.gpu.control_kernels import ControlKernel
from tilewright.runtime.host.cpu import load_native
from tilewright.runtime.program.artifact import Memory, raw_bytes
from tilewright.runtime.program.kernel import LARGE_PARAMETERS_SINCE, PLAIN_PARAMETER_BYTES, Launch, MicroKernel
from tilewright.runtime.program.program import Program
from tilewright.runtime.program.steps import LaunchStep, all_steps
from tilewright.runtime.target import Target

_FIELD = {name: number for number, name in enumerate(CONTEXT_FIELDS)}
_ERROR = _FIELD["error"]
_WORD = ctypes.sizeof(ctypes.c_uint64)
_RECORD = {name: number for number, name in enumerate(RECORD_FIELDS)}
_CALL = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 4, ctypes.c_int64)
_LOAD = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64)
_TABLE = {LAUNCH: "tw_cuda_launch", ALLOC: "tw_cuda_alloc", RELEASE: "tw_cuda_release", TENSOR_MAP: "tw_cuda_tensor_map",
          COPY: "tw_cuda_copy", CONTROL: "tw_cuda_control"}
_GRAPH_TABLE = {LAUNCH: "tw_graph_launch", ALLOC: "tw_graph_alloc", RELEASE: "tw_graph_release", COPY: "tw_graph_copy",
                CONTROL: "tw_graph_control"}
_POLL = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_UNKNOWN = 999


class LoadedProgram:
    """Made once per device, shared by all streams and threads.

    Raises:
        DeviceError: the device or the driver cannot run the program's code, or there is no room for its constants.
    """

    def __init__(self, program: Program, code: Mapping[str, Memory], constants: Mapping[str, Memory], gpu: Gpu) -> None:
        reason = cannot_run(Target.parse(program.target).arch, gpu.ordinal)
        if reason:
            raise DeviceError(f"this model cannot run on CUDA device {gpu.ordinal}: {reason}; compile it for "
                              f"{gpu.device.name}")
        self.driver_version = int(checked(start().cuDriverGetVersion(), "ask the driver for its version"))
        reason = _driver_cannot_run(program, self.driver_version)
        if reason:
            raise DeviceError(f"this model cannot run: {reason}")
        self.program, self.gpu = program, gpu
        self._code = code
        self._images: dict[str, Image] = {}
        self._host = load_native([bytes(code[program.host_object])])
        self.run = _CALL(self._host.address("tw_call"))
        self._native, self._functions = native_table(bytes(code[program.runtime_object]))
        self._launches = dict(_launches(program))
        self._places: list[Any] = []
        self._records, self._kernels, self._calls = self._make_records()
        self._loading = threading.Lock()
        self._failures: dict[int, BaseException] = {}
        self._load = _LOAD(_weak_loader(self))
        self.contexts: dict[int, StreamContext] = {}
        self.controls = ControlRecords(gpu) if _needs_controls(program) else None
        self.always = self.controls.always if self.controls is not None else 0
        self.graphs = None if program.graphs == "off" else ProgramGraphs(self)
        self.constants = self._place_constants(constants)

    def call(self, inputs: list[int], outputs: list[int], scalars: Sequence[int], dims: Sequence[int], stream: int) -> int:
        """Enqueue a call on the stream with this handle; gives what tw_call gives (runtime/program/program.py).

        Raises:
            CudaError: the driver refuses something; what came before it is enqueued.
        """
        found = self.context(stream)
        bits = (ctypes.c_uint64 * len(scalars))(*scalars)
        extents = (ctypes.c_int64 * len(dims))(*dims)
        with found.arena.lock:
            status = found.run(inputs, outputs, ctypes.addressof(bits), ctypes.addressof(extents))
            if status < 0 and not found.error:
                found.arena.provide(found.wanted, self._functions["tw_cuda_returned"])
                status = found.run(inputs, outputs, ctypes.addressof(bits), ctypes.addressof(extents))
            if found.error:
                self.fail(found)
            interrupt, found.interrupt = found.interrupt, None
            if interrupt is not None:
                raise interrupt
            return status

    def context(self, stream: int) -> StreamContext:
        """Of the stream with this handle."""
        return self.contexts.get(stream) or self.contexts.setdefault(stream, StreamContext(self, stream))

    def kernels_loaded(self) -> int:
        """How many launches have been made ready."""
        width = len(RECORD_FIELDS)
        return sum(bool(self._records[i]) for i in range(_RECORD["function"], len(self._records), width))

    def record(self, number: int) -> Any:
        """The record of a launch, as a view of its words."""
        width = len(RECORD_FIELDS)
        call, kernel = divmod(number & 0xFFFFFFFF, KERNELS_PER_CALL)
        first = ctypes.c_uint64.from_address(self._calls[call] + _WORD * kernel).value
        return (ctypes.c_uint64 * width).from_address(first + _WORD * width * (number >> 32))

    def entry_bytes(self, number: int) -> int:
        """What a launch passes by value in its entries."""
        return sum(p.bytes for p in self._launches[number][0].params)

    def control_record(self, kernel: ControlKernel) -> int:
        """Address of the record of a control kernel."""
        if self.controls is None:
            raise DeviceError(f"the program has no use for {kernel.name}")
        return self.controls.record(kernel)

    # loading

    def has_failure(self) -> bool:
        """Has a kernel failed to load in the calling thread's call?"""
        return threading.get_ident() in self._failures

    def load(self, number: int) -> int:
        """Make a launch ready; a CUresult. The error itself is kept for the calling thread's `call`."""
        kernel, launch = self._launches[number]
        try:
            with self._loading, relaxed():
                if kernel.object not in self._images:
                    self._images[kernel.object] = load_image(bytes(self._code[kernel.object]), self.gpu.device.arch)
                found = self._images[kernel.object].kernel(launch.symbol)
                function = found.function(launch.shared_bytes, self.gpu.device.context)
                most = blocks_at_once(function, launch, self.gpu.ordinal) if launch.persistent else 0
        except (TilewrightError, KeyError, MemoryError, KeyboardInterrupt) as error:  # native code calls this
            self._failures[threading.get_ident()] = error
            return getattr(error, "code", 0) or _UNKNOWN
        record = self.record(number)
        record[_RECORD["most_x"]] = most
        record[_RECORD["function"]] = function
        return 0

    def _make_records(self) -> tuple[Any, Any, Any]:
        """Records of all launches; where those of each kernel of each call begin; and where those words of a call begin."""
        width = len(RECORD_FIELDS)
        counts = [len(self.program.tables[call.table].kernels) for call in self.program.calls]
        counts += [1] if self.program.prelude is not None else []
        firsts = list(itertools.accumulate(counts, initial=0))
        records = (ctypes.c_uint64 * (width * max(1, len(self._launches))))()
        kernels = (ctypes.c_uint64 * max(1, firsts[-1]))()
        calls = (ctypes.c_uint64 * len(firsts))(*(ctypes.addressof(kernels) + _WORD * first for first in firsts))
        for position, (number, (kernel, launch)) in enumerate(self._launches.items()):
            if number < NEXT_LAUNCH:
                call, index = divmod(number, KERNELS_PER_CALL)
                kernels[firsts[call] + index] = ctypes.addressof(records) + _WORD * width * position
            maps = [slot for slot, p in enumerate(kernel.params) if p.kind == "tensor_map"]
            places = (ctypes.c_uint64 * max(1, len(maps)))(*maps)
            self._places.append(places)
            predicate = next((slot + 1 for slot, p in enumerate(kernel.params) if p.kind == "predicate"), 0)
            entries = next((slot + 1 for slot, p in enumerate(kernel.params) if p.kind == "entries"), 0)
            values = {"threads": launch.threads + EARLY * launch.early, "shared_bytes": launch.shared_bytes, "maps": len(maps),
                      "places": ctypes.addressof(places), "predicate": predicate, "entries": entries,
                      **dict(zip(("cluster_x", "cluster_y", "cluster_z"), launch.cluster, strict=True))}
            for name, value in values.items():
                records[width * position + _RECORD[name]] = value
        return records, kernels, calls

    def _place_constants(self, memories: Mapping[str, Memory]) -> tuple[int, ...]:
        device, found, buffers = self.gpu.device, [], []
        driver = start()
        with self.gpu.current(), relaxed():  # a first call may be captured
            for constant in self.program.constants:
                data = np.frombuffer(raw_bytes(memories[constant.digest]), np.uint8)
                with reported(f"take {data.nbytes} bytes of GPU memory for the constant {constant.name}"):
                    buffers.append(device.core.memory_resource.allocate(max(data.nbytes, 1), stream=device.stream))
                found.append(int(buffers[-1].handle))
                if data.nbytes:
                    checked(driver.cuMemcpyHtoDAsync(found[-1], data.ctypes.data, data.nbytes, device.stream.handle),
                            f"copy the constant {constant.name} to the GPU")
            if buffers:
                device.sync()
        weakref.finalize(self, _discard, self.gpu, buffers, self._images, self.contexts).atexit = False
        return tuple(found)

    # errors

    def fail(self, found: StreamContext) -> NoReturn:
        """Raise the error that a call on a stream met."""
        code, site = found.take_error()
        failure = self._failures.pop(threading.get_ident(), None)
        if failure is not None:
            raise failure
        fail(code, self._doing(site))

    def _doing(self, site: int) -> str:
        for name, number in SITES.items():
            if site == number:
                return {"tensor map": "describe an operand to the copy engine", "arena": "begin a call",
                        "copy": "copy a result", "graph": "launch a call as a CUDA graph",
                        "control": "run a branch or loop that depends on data",
                        "loop": "capture a loop whose end depends on data and that has no largest number of turns; declare one "
                                "(tw.loops), or call outside of the capture"}[name]
        kernel, launch = self._launches[site]
        size = f"{launch.threads} threads, {launch.shared_bytes} bytes of shared memory"
        return f"launch {launch.symbol} ({kernel.config or kernel.family}, {size})"


class StreamContext:
    """A program's device table and pointers for one stream."""

    def __init__(self, of: LoadedProgram, stream: int) -> None:
        gpu = of.gpu
        self.arena: Arena = gpu.arena(stream)
        self._words = (ctypes.c_uint64 * len(CONTEXT_FIELDS))()
        self._maps = (ctypes.c_uint64 * (KEPT_WORDS * KEPT_MAPS))()
        self.stream = stream
        values = {"stream": stream, "cuda_context": gpu.device.context, "arena": ctypes.addressof(self.arena.words),
                  "predicate": of.always, "always": of.always, "controls": of.controls.address if of.controls is not None else 0,
                  "maps": ctypes.addressof(self._maps),
                  "load": ctypes.cast(of._load, ctypes.c_void_p).value or 0, **gpu.functions}
        for name, value in values.items():
            self._words[_FIELD[name]] = value
        self._table = (ctypes.c_uint64 * TABLE_WORDS)()
        self._table[CONTEXT] = ctypes.addressof(self._words)
        self._table[KERNELS] = ctypes.addressof(of._calls)
        for field, symbol in _TABLE.items():
            self._table[field] = of._functions[symbol]
        self._poll = _POLL(_interrupted(self))
        self._table[POLL] = ctypes.cast(self._poll, ctypes.c_void_p).value or 0
        self.interrupt: BaseException | None = None
        self._inputs = sum(a.dims is not None for a in of.program.inputs)
        self._first_output = self._inputs + len(of.constants)
        given = len(of.program.outputs) + len(of.program.ragged)
        self._tensors = (ctypes.c_uint64 * max(1, self._first_output + given))()
        self._tensors[self._inputs : self._first_output] = list(of.constants)
        self._call, self._tail = of.run, ctypes.addressof(self._tensors)
        self._own_table = ctypes.addressof(self._table)
        self._through = self.copied_table()
        for field, symbol in _GRAPH_TABLE.items():
            self._through[field] = of._functions[symbol]
        self._graph_table = ctypes.addressof(self._through)
        self._always = of.always
        self.graph: StreamGraph | None = None if of.graphs is None else of.graphs.of_stream(self)

    def run(self, inputs: list[int], outputs: list[int], scalars: int, dims: int) -> int:
        """tw_call. The caller holds the arena's lock. outputs: behind them what follows in the native convention. scalars, dims:
        addresses."""
        tensors: Any = self._tensors
        tensors[: self._inputs] = inputs
        tensors[self._first_output :] = outputs
        graph = self.graph
        if graph is None:
            return int(self._call(self._own_table, self._tail, scalars, dims, 1))
        return graph.run(scalars, dims)

    @property
    def ring(self) -> ResultRing | None:
        """Where results come from while calls may go through a graph."""
        return None if self.graph is None or self.graph.off else self.graph.ring

    def run_stream(self, scalars: int, dims: int) -> int:
        """The call whose tensors are in place, launch by launch."""
        return int(self._call(self._own_table, self._tail, scalars, dims, 1))

    def run_graph(self, graph: int, scalars: int, dims: int) -> int:
        """The same through the graph whose words are at this address."""
        self._words[_FIELD["graph"]] = graph
        return int(self._call(self._graph_table, self._tail, scalars, dims, 1))

    def run_recorded(self, table: Any, scalars: int, dims: int) -> int:
        """The same against another table."""
        return int(self._call(ctypes.addressof(table), self._tail, scalars, dims, 1))

    def copied_table(self) -> Any:
        """A table as this stream's, to change."""
        return (ctypes.c_uint64 * TABLE_WORDS)(*self._table)

    def is_captured(self) -> bool:
        """Is the arena that of a capture of the user's?"""
        return bool(self.arena.words[ARENA_FIELDS.index("capture")])

    def set_error(self, code: int, site: int) -> None:
        """Note an error as native code does."""
        self._words[_ERROR], self._words[_FIELD["site"]] = code, site & (1 << 64) - 1

    @property
    def error(self) -> int:
        """A CUresult; 0 for none."""
        return self._words[_ERROR]

    @property
    def wanted(self) -> Wanted:
        return Wanted(*(self._words[_FIELD[name]] for name in ("wanted", "wanted_stream", "wanted_capture", "wanted_graph")))

    def take_error(self) -> tuple[int, int]:
        """The CUresult and where it was met; the context is good again."""
        code, site = self.error, ctypes.c_int64(self._words[_FIELD["site"]]).value
        self._words[_ERROR], self._words[_FIELD["predicate"]] = 0, self._always
        return code, site


def _launches(program: Program) -> Sequence[tuple[int, tuple[MicroKernel, Launch]]]:
    """Launch number -> kernel and launch; the launches of a kernel follow each other."""
    found = [(number * KERNELS_PER_CALL + index + step * NEXT_LAUNCH, (kernel, launch))
             for number, call in enumerate(program.calls)
             for index, kernel in enumerate(program.tables[call.table].kernels)
             for step, launch in enumerate(kernel.launches())]
    prelude = program.prelude
    return found if prelude is None else [*found, (len(program.calls) * KERNELS_PER_CALL, (prelude, prelude.launches()[0]))]


def _driver_cannot_run(program: Program, version: int) -> str:
    """Why a driver of this version cannot launch all kernels; empty where it can."""
    largest = max((k for t in program.tables for k in t.kernels), key=MicroKernel.parameter_bytes, default=None)
    if largest is None or version >= LARGE_PARAMETERS_SINCE or largest.parameter_bytes() <= PLAIN_PARAMETER_BYTES:
        return ""
    return (f"the CUDA driver is for CUDA {dotted(version)} and the kernel {largest.symbol}, which serves many tensors at once, "
            f"has {largest.parameter_bytes()} bytes of parameters; above {PLAIN_PARAMETER_BYTES} CUDA "
            f"{dotted(LARGE_PARAMETERS_SINCE)} or later is needed, update the driver")


def _needs_controls(program: Program) -> bool:
    """Does it copy on the device, or go by data?"""
    return bool(program.donated) or any(not isinstance(s, LaunchStep) for s in all_steps(program.tree))


def _interrupted(context: StreamContext) -> Any:
    """Whether the user has pressed Ctrl-C: to come back to Python is to be told."""
    reference = weakref.ref(context)

    def poll(table: int) -> int:
        found = reference()
        try:
            return int(found is None or found.interrupt is not None)
        except KeyboardInterrupt as error:
            if found is not None:
                found.interrupt = error
            return 1

    return poll


def _weak_loader(of: LoadedProgram) -> Any:
    """`load` without a cycle through the callback."""
    reference = weakref.ref(of)

    def load(context: int, number: int) -> int:
        found = reference()
        return _UNKNOWN if found is None else found.load(number)

    return load


def _discard(gpu: Gpu, buffers: list[Any], images: dict[str, Image], contexts: dict[int, StreamContext]) -> None:
    """Free graphs, constants and kernels once nothing can be using them."""

    def free() -> None:
        for context in contexts.values():
            if context.graph is not None:
                context.graph.drop()
        for buffer in buffers:
            buffer.close(gpu.device.stream)
        images.clear()

    gpu.give_back(free)
