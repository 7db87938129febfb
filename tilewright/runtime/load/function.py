"""CompiledFunction: a program loaded on a device, called like a Python function."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NoReturn

from tilewright.runtime.call.binder import describe
from tilewright.runtime.call.tvm_function import tvm_function
from tilewright.runtime.errors import ArtifactError, BuildError, OptionError
from tilewright.runtime.host import native_call
from tilewright.runtime.host.host_caller import HostCaller, objects
from tilewright.runtime.host.recompile import can_recompile, recompile
from tilewright.runtime.host.required_features import foreign_machine, missing_features
from tilewright.runtime.load.devices import AnyDevice, caller_for, device_for
from tilewright.runtime.program import artifact, explanation
from tilewright.runtime.program.artifact import Bundle, Memory, Verify
from tilewright.runtime.program.explanation import Explanation, MemoryUse
from tilewright.runtime.program.program import Argument, Program
from tilewright.runtime.shape import ShapeRange


class CompiledFunction:
    """Runs a compiled model: `fn(x, w)` takes and gives numpy arrays, torch tensors or anything with `__dlpack__`.

    Calls are independent: any number of threads may call at once, also after a fork. A call whose arguments need no
    conversion (numpy arrays of the exact dtype, contiguous, `out=` too) is taken by native code; all others, and those
    that fail, by `tilewright.runtime.host.host_caller.HostCaller`. Both give the same results.

    Args:
        code: object code by its digest. constants: bytes of each constant by its digest.
        llvm_ir: LLVM IR of each object by the object's digest, saved for machines that cannot run the code.
        threads: most threads of a call (None: all the process may use).
    """

    def __new__(cls, program: Program, *_: Any, **__: Any) -> CompiledFunction:
        is_native = cls is CompiledFunction and native_call.can_take(program)
        return super().__new__(native_call.callable_type(CompiledFunction) if is_native else cls)

    def __init__(
        self,
        program: Program,
        code: Mapping[str, Memory],
        constants: Mapping[str, Memory],
        device: AnyDevice,
        *,
        llvm_ir: Mapping[str, str] | None = None,
        threads: int | None = None,
    ) -> None:
        self.program = program
        self._bundle = Bundle(program, code, constants, llvm_ir or {})
        self._caller = caller_for(program, code, constants, device, threads)
        self._kept: tuple[object, ...] = ()
        is_native = native_call.can_take(program) and type(self) is native_call.callable_type(CompiledFunction)
        if is_native and isinstance(self._caller, HostCaller):
            self._kept = native_call.attach(self, CompiledFunction, self._caller)

    def __call__(self, /, *args: Any, out: Any = None, threads: int | None = None, stream: Any = None, **named: Any) -> Any:
        """Run the model at the shapes of the arguments.

        Args:
            args, named: one per input, in order or by its name; scalars as Python numbers. An input that is called out, threads
                or stream is given by position.
            out: array, or tuple of arrays, for the results; exact dtype and shape, contiguous, apart from all inputs.
            threads: most threads of this call.
            stream: CUDA only: where to enqueue, anything with `__cuda_stream__`; the default is the current stream of the
                arrays' library. Calls with CUDA arrays return at once; their errors come with a later wait.
        Returns:
            One array, or a tuple when the model has several results, or what the model nests them in; torch tensors when an
            argument is one.
        Raises:
            DTypeError, ShapeError: an argument does not fit; nothing has run. DeviceError: out of memory.
        """
        if named or not self._caller.signature.is_flat:
            return self._caller.call(*args, out=out, threads=threads, stream=stream, **named)
        return self._caller(*args, out=out, threads=threads, stream=stream)

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
        return explanation.explain(self.program, dims)

    def memory(self, *, threads: int | None = None, **dims: int) -> MemoryUse:
        """Bytes of arena, constants and results at these dims."""
        return explanation.memory(self.program, dims, self._caller.thread_count(threads))

    def dispatch_source(self) -> str:
        """The dispatch function as text."""
        return self.program.dispatch_source

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as one file that `load` runs without the compiler; ArtifactError when it cannot be."""
        artifact.write_artifact(path, [self._bundle])

    def to_tvm_ffi(self) -> Any:
        """This function as a `tvm_ffi.Function`: inputs to results, or inputs and outputs to None, all flat; keeps this alive.

        Raises:
            OptionError: apache-tvm-ffi is not installed.
        """
        is_flat = self._caller.signature.is_flat
        return tvm_function(self if is_flat else self.call_flat, len(self.inputs), len(self.outputs))

    def call_flat(self, *args: Any, out: Any = None) -> Any:
        """The program's own inputs and results."""
        return self._caller(*args, out=out)

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(describe, arguments)) for arguments in (self.inputs, self.outputs))
        dims = "".join(f"; {name} in {dim}" for name, dim in self.dims.items())
        return f"CompiledFunction({inputs} -> {outputs}{dims}; {self.program.target})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a CompiledFunction cannot be pickled or copied; save() it to a file and load() that")


def load(path: str | os.PathLike[str], device: AnyDevice | None = None, verify: Verify = "code") -> CompiledFunction:
    """Open a saved model.

    Args:
        device: where to run; None is the host CPU when the file holds code for one, else the device of its first target.
        verify: "code" checks the hashes of all but the constants, "all" reads those too.
    Raises:
        ArtifactError: not a saved model, damaged, of another version, or for another machine.
    """
    if verify not in ("code", "all"):
        raise OptionError(f"verify={verify!r}: wanted 'code' or 'all'")
    opened = artifact.Artifact(path)
    if verify == "all":
        opened.verify_all()
    groups = [g.target.partition(":")[0] for g in opened.manifest.groups]
    kind = device.name.partition(":")[0] if device is not None else "host" if "host" in groups or not groups else groups[0]
    stored = list(opened.bundles(kind))
    if not stored:
        kinds = ", ".join(sorted({g.target for g in opened.manifest.groups})) or "nothing"
        raise ArtifactError(f"{opened.path} holds code for {kinds} and none for {kind}; compile it for {kind}")
    lacking = [_lacking(bundle) for bundle in stored]
    runnable = next((b for b, missing in zip(stored, lacking, strict=True) if not missing), None)
    chosen = runnable or stored[-1]
    program = chosen.program()
    code = _recompiled(chosen, program, lacking[-1]) if runnable is None else chosen.code()
    lost = {program.runtime_object, *objects(program)} - {""} - set(code)
    if lost:
        raise ArtifactError(f"{path} is damaged: it holds no code {', '.join(sorted(lost))}; save it again")
    if device is None:
        device = device_for(program, code)
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
    if not {program.runtime_object, *objects(program)} <= set(llvm_ir):
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

