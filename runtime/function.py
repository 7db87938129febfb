"""CompiledFunction: a program loaded on a device, called like a Python function."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from runtime import artifact, explain
from runtime.artifact import ALIGNMENT, Bundle, Memory, Verify
from runtime.binder import Binder, describe
from runtime.cpu import HostDevice
from runtime.device import KERNELS_PER_CALL, Device
from runtime.errors import ArtifactError, BuildError, DeviceError, OptionError, ShapeError
from runtime.explain import Explanation, MemoryUse
from runtime.features import foreign_machine, missing_features
from runtime.host_cpu import thread_count
from runtime.program import Argument, Program
from runtime.recompile import can_recompile, recompile
from runtime.results import Results, address
from runtime.shape import ShapeRange

_TW_CALL = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64
)


class CompiledFunction:
    """Runs a compiled model: `fn(x, w)` takes and gives numpy arrays, torch tensors or anything with `__dlpack__`.

    Calls are independent: any number of threads may call at once, also after a fork.

    Args:
        code: object code by its digest. constants: bytes of each constant by its digest.
        llvm_ir: LLVM IR of each object by the object's digest, saved for machines that cannot run the code.
        threads: most threads of a call (None: all the process may use).
    """

    def __init__(
        self,
        program: Program,
        code: Mapping[str, Memory],
        constants: Mapping[str, Memory],
        device: Device,
        *,
        llvm_ir: Mapping[str, str] | None = None,
        threads: int | None = None,
    ) -> None:
        self.program = program
        self._bundle = Bundle(program, code, constants, llvm_ir or {})
        self._device = device
        self._threads = threads
        self._binder = Binder(program)
        self._results = Results(program)
        self._constants = [_constant_memory(program, constants, i) for i in range(len(program.constants))]
        self._constant_pointers = [address(a) for a in self._constants]
        self._code = device.load([bytes(code[digest]) for digest in _objects(program)])
        self._table = device.table(self._kernel_addresses())
        self._table_pointer = ctypes.addressof(self._table)
        self._call = _TW_CALL(self._code.address("tw_call"))
        self._pointer_array = ctypes.c_void_p * (
            len(self._binder.tensors) + len(self._constants) + len(program.outputs)
        )
        self._dims_array = ctypes.c_int64 * len(program.dims)

    def __call__(self, *args: Any, out: Any = None, threads: int | None = None) -> Any:
        """Run the model at the shapes of the arguments.

        Args:
            args: one per input, in order; scalars as Python numbers.
            out: array, or tuple of arrays, for the results; exact dtype and shape, contiguous, apart from all inputs.
            threads: most threads of this call.
        Returns:
            One array, or a tuple when the model has several results; torch tensors when an argument is one.
        Raises:
            DTypeError, ShapeError: an argument does not fit; nothing has run. DeviceError: out of memory.
        """
        bound = self._binder.bind(args)
        outputs, returned = self._results.prepare(bound, args, out)
        pointers = self._pointer_array(*map(address, bound.arrays), *self._constant_pointers, *map(address, outputs))
        scalars = (ctypes.c_uint64 * len(bound.scalars))(*bound.scalars)
        status = self._call(
            self._table_pointer, pointers, scalars, self._dims_array(*bound.dims), self._thread_count(threads)
        )
        if status:
            self._fail(status, dict(zip(self._binder.names, bound.dims, strict=True)))
        return returned[0] if len(returned) == 1 else tuple(returned)

    @property
    def inputs(self) -> tuple[Argument, ...]:
        return self.program.inputs

    @property
    def outputs(self) -> tuple[Argument, ...]:
        return self.program.outputs

    @property
    def dims(self) -> ShapeRange:
        """The dims that are read from the arguments, with their ranges."""
        return self.program.ranges()

    def explain(self, **dims: int) -> Explanation:
        """Which kernel serves each call at these dims; `print` it, or take `.calls`, `.to_json()`."""
        return explain.explain(self.program, dims)

    def memory(self, *, threads: int | None = None, **dims: int) -> MemoryUse:
        """Bytes of arena, constants and results at these dims."""
        return explain.memory(self.program, dims, self._thread_count(threads))

    def dispatch_source(self) -> str:
        """The dispatch function as text."""
        return self.program.dispatch_source

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as one file that `load` runs without the compiler; ArtifactError when it cannot be."""
        artifact.write_artifact(path, [self._bundle])

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(describe, arguments)) for arguments in (self.inputs, self.outputs))
        dims = "".join(f"; {name} in {dim}" for name, dim in self.dims.items())
        return f"CompiledFunction({inputs} -> {outputs}{dims}; {self.program.target})"

    def _thread_count(self, threads: int | None) -> int:
        if threads is None:
            return thread_count(self._threads)
        if threads < 1:
            raise OptionError(f"threads={threads}: wanted at least 1")
        return thread_count(threads if self._threads is None else min(threads, self._threads))

    def _kernel_addresses(self) -> list[int]:
        addresses = [0] * (KERNELS_PER_CALL * len(self.program.calls))
        for number, call in enumerate(self.program.calls):
            for index, kernel in enumerate(self.program.tables[call.table].kernels):
                addresses[number * KERNELS_PER_CALL + index] = self._code.address(kernel.symbol)
        return addresses

    def _fail(self, status: int, dims: Mapping[str, int]) -> None:
        point = ", ".join(f"{name} = {value}" for name, value in dims.items())
        if status < 0:
            raise DeviceError(
                f"out of memory for the temporaries of {point or 'a call'} on {self._device.name}; call with smaller "
                "shapes or fewer threads"
            )
        raise ShapeError(f"{self.program.checks[status - 1].message}{f' (at {point})' if point else ''}")


def load(path: str | os.PathLike[str], device: Device | None = None, verify: Verify = "code") -> CompiledFunction:
    """Open a saved model.

    Args:
        device: where to run; None is the host CPU.
        verify: "code" checks the hashes of all but the constants, "all" reads those too.
    Raises:
        ArtifactError: not a saved model, damaged, of another version, or for another machine.
    """
    if verify not in ("code", "all"):
        raise OptionError(f"verify={verify!r}: wanted 'code' or 'all'")
    opened = artifact.Artifact(path)
    if verify == "all":
        opened.verify_all()
    kind = "host" if device is None else device.name.partition(":")[0]
    stored = list(opened.bundles(kind))
    if not stored:
        kinds = ", ".join(sorted({g.target for g in opened.manifest.groups})) or "nothing"
        raise ArtifactError(f"{opened.path} holds code for {kinds} and none for {kind}; compile it for {kind}")
    lacking = [_lacking(bundle) for bundle in stored]
    runnable = next((b for b, missing in zip(stored, lacking, strict=True) if not missing), None)
    chosen = runnable or stored[-1]
    program = chosen.program()
    code = _recompiled(chosen, program, lacking[-1]) if runnable is None else chosen.code()
    lost = {program.runtime_object, *_objects(program)} - set(code)
    if lost:
        raise ArtifactError(f"{path} is damaged: it holds no code {', '.join(sorted(lost))}; save it again")
    if device is None:
        device = HostDevice(bytes(code[program.runtime_object]))
    return CompiledFunction(program, code, chosen.constants(), device, llvm_ir=chosen.llvm_ir())


def _lacking(bundle: artifact.LazyBundle) -> tuple[str, ...]:
    """What this machine lacks to run the stored code."""
    if not bundle.group.target.startswith("host"):
        return ()
    foreign = next(filter(None, (foreign_machine(c) for c in bundle.headers())), None)
    return (foreign,) if foreign else missing_features(bundle.group.features)


def _recompiled(bundle: artifact.LazyBundle, program: Program, lacking: tuple[str, ...]) -> Mapping[str, Memory]:
    """The program's code made anew for this machine, where llvmlite is there to make it."""
    path, missing, llvm_ir = bundle.artifact.path, ", ".join(lacking), bundle.llvm_ir()
    if not {program.runtime_object, *_objects(program)} <= set(llvm_ir):
        raise ArtifactError(
            f"{path} needs {missing}, which this CPU lacks, and holds no LLVM IR to compile anew; compile the model "
            "for this machine"
        )
    if not can_recompile():
        raise ArtifactError(
            f"{path} needs {missing}, which this CPU lacks; install llvmlite so that it can be compiled anew, or "
            "compile the model for this machine"
        )
    try:
        return recompile(llvm_ir)
    except BuildError as error:
        raise ArtifactError(f"{path} needs {missing}, which this CPU lacks, and {error}: {error.log}") from error


def _objects(program: Program) -> list[str]:
    """Digests of the code of host program and kernels; the device has loaded its own."""
    digests = [program.host_object, *(k.object for t in program.tables for k in t.kernels)]
    return list(dict.fromkeys(d for d in digests if d))


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
