"""HostCaller: a program on the CPU of this process. It takes every kind of argument and has all the messages."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.runtime import knobs
from tilewright.runtime.call.caller import TW_CALL, Caller, single
from tilewright.runtime.call.interop import Wrap, result_view, to_torch
from tilewright.runtime.call.python_abi import fill_more, torch_words
from tilewright.runtime.call.results import address
from tilewright.runtime.call.shape_counts import COUNTS, ShapeCounts
from tilewright.runtime.call.torch_blocks import fill_blocks
from tilewright.runtime.call.torch_layout import fill_layout, torch_layout
from tilewright.runtime.device import KERNELS_PER_CALL, Device
from tilewright.runtime.errors import ArtifactError, DTypeError, ShapeError
from tilewright.runtime.fork_safe_lock import ForkSafeLock
from tilewright.runtime.host.host_cpu import affinity
from tilewright.runtime.program import artifact
from tilewright.runtime.program.artifact import ALIGNMENT, LazyConstants, Memory
from tilewright.runtime.program.program import Program


class HostCaller(Caller):
    """A program in memory, ready to run on the host.

    Args:
        threads: most threads of a call; the affinity that limits them too is read once, here.
    Attributes:
        more_table: address of the native entry's second table; 0 where it has none.
    """

    def __init__(
        self,
        program: Program,
        code: Mapping[str, Memory],
        constants: Mapping[str, Memory],
        device: Device,
        threads: int | None,
    ) -> None:
        super().__init__(program)
        self.device = device
        cores = affinity()
        self.most_threads = max(1, min(threads or cores, cores))
        self.constant_pointers: list[int] = []
        self.has_constants = False
        self.lock = ForkSafeLock()
        self.more_table = 0
        self._knows_torch = False
        takes = {output: source for source, output in program.donated}
        self._taken = [takes[i] for i in range(len(program.outputs))] if len(takes) == len(program.outputs) else []
        self._memories = constants
        if not isinstance(constants, LazyConstants) or constants.are_read():
            self.hold_constants()
        own = host_objects(program)
        kernels = [bytes(code[digest]) for digest in objects(program) if digest not in own]
        self.code = device.load([bytes(code[digest]) for digest in own], kernels)
        self.table = device.table(self._kernel_addresses())
        self.table_pointer = ctypes.addressof(self.table)
        self.entry = self.code.address("tw_call")
        self._run = TW_CALL(self.entry)
        self._pointer_array = ctypes.c_void_p * (
            len(self.binder.tensors) + len(program.constants) + len(program.outputs) + sum(program.stride_words.values())
        )
        self._scalars_array = ctypes.c_uint64 * len(self.binder.scalars)
        self._dims_array = ctypes.c_int64 * len(program.dims)

    def __call__(self, *args: Any, out: Any = None, threads: int | None = None, stream: Any = None) -> Any:
        self.refuse_stream(stream)
        if self.native is not None:
            if self.program.donated and not self._knows_torch and any(type(a).__module__ == "torch" for a in args):
                self._know_torch()
            if out is None and self._taken and len(args) == len(self.program.inputs):
                over = tuple(args[i] for i in self._taken)
                try:
                    return self.native(*args, out=over if len(over) > 1 else over[0], threads=threads)
                except (DTypeError, ShapeError):
                    pass  # nothing has run: memory that cannot take its result is left, and what is wrong is told below
            arrays, wrap = self.binder.view(args)
            if wrap is not None:
                if wrap is to_torch and not self._knows_torch:
                    self._know_torch()
                return self._through_numpy(arrays, wrap, out, threads)
        count = self.thread_count(threads)
        bound = self.binder.bind(args, copies=out is not None)  # results may lie between the rows of what is not copied
        outputs, returned = self.results.prepare(bound, args, out)
        if not self.has_constants:
            self.hold_constants()
        pointers = self._pointer_array(*map(address, bound.arrays), *self.constant_pointers, *map(address, outputs),
                                       *bound.strides)
        dims = self._dims_array(*bound.dims)
        scalars = self._scalars_array(*bound.scalars)
        status = self._run(self.table_pointer, pointers, scalars, dims, count)
        if status:
            self.check(status, bound, self.device.name)
        self.counted(bound.dims)
        return single(returned)

    def count_in(self, counts: ShapeCounts | None) -> None:
        if self.program.binder_object:
            address = 0 if counts is None else counts.address
            ctypes.c_uint64.from_address(self.code.address(COUNTS)).value = address
        super().count_in(counts)

    def hold_constants(self) -> None:
        """Read the constants where that is still to be done; ArtifactError where they are damaged."""
        with self.lock.of_process():
            if not self.has_constants:
                self._constants = [_constant_memory(self.program, self._memories, i) for i in range(len(self.program.constants))]
                self.constant_pointers = [address(a) for a in self._constants]
                self.has_constants = True

    def _know_torch(self) -> None:
        """Let native code take PyTorch's tensors from now on."""
        words, self._torch = torch_words()
        layout = torch_layout() if words else None
        if layout is not None and self.program.binder_object:
            fill_layout(self.code, layout)
        if words and self.program.binder_object:
            fill_blocks(self.code)
        if self.more_table:
            fill_more(self.more_table, words)
        self._knows_torch = True

    def _through_numpy(self, arrays: Sequence[Any], wrap: Wrap, out: Any, threads: int | None) -> Any:
        """The call with arrays of another library, viewed as numpy's; results as theirs."""
        assert self.native is not None
        if out is None:
            found = self.native(*arrays, threads=threads)
            return tuple(map(wrap, found)) if isinstance(found, tuple) else wrap(found)
        given = out if isinstance(out, tuple | list) else (out,)
        viewed = [result_view(value, "out") for value in given]
        self.native(*arrays, out=viewed[0] if len(viewed) == 1 else tuple(viewed), threads=threads)
        return given[0] if len(given) == 1 else tuple(given)

    def thread_count(self, threads: int | None = None) -> int:
        """Threads of a call: the least of what it asks for, the function's option, the knob as it is now, the affinity."""
        knob = knobs.THREADS.get()
        most = self.most_threads if knob is None else min(self.most_threads, knob)
        asked = self.asked_threads(threads)
        return most if asked is None else min(asked, most)

    def _kernel_addresses(self) -> list[int]:
        addresses = [0] * (KERNELS_PER_CALL * len(self.program.calls))
        for number, call in enumerate(self.program.calls):
            for index, kernel in enumerate(self.program.tables[call.table].kernels):
                addresses[number * KERNELS_PER_CALL + index] = self.code.address(kernel.symbol)
        return addresses


def objects(program: Program) -> Sequence[str]:
    """Digests of the code of host program, binder and kernels; the device has loaded its own."""
    digests = [*host_objects(program), *(k.object for t in program.tables for k in t.kernels)]
    return list(dict.fromkeys(digests))


def host_objects(program: Program) -> Sequence[str]:
    """Digests of the code of host program and binder."""
    return [digest for digest in (program.host_object, program.binder_object) if digest]


def _constant_memory(program: Program, memories: Mapping[str, Memory], index: int) -> np.ndarray[Any, Any]:
    """Bytes of a constant, 64-byte aligned; copied only when they are not."""
    constant = program.constants[index]
    wanted = math.prod(constant.shape) * constant.dtype.bytes
    if constant.digest not in memories:
        raise ArtifactError(f"constant {constant.name} is missing; save the model again")
    memory = artifact.raw_bytes(memories[constant.digest])
    if memory.nbytes != wanted:
        raise ArtifactError(
            f"constant {constant.name}: wanted {wanted} bytes, found {memory.nbytes}; save the model again"
        )
    if not wanted:
        return np.empty(0, np.uint8)
    found = np.frombuffer(memory, np.uint8)
    if address(found) % ALIGNMENT == 0:
        return found
    room = np.empty(wanted + ALIGNMENT, np.uint8)
    start = -address(room) % ALIGNMENT
    room[start : start + wanted] = found
    return room[start : start + wanted]
