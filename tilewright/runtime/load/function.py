"""CompiledFunction: a program loaded on a device, called like a Python function."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.runtime.call.binder import describe
from tilewright.runtime.call.shape_counts import SHAPES, ShapeCounts
from tilewright.runtime.call.tvm_function import tvm_function
from tilewright.runtime.cuda.cuda_caller import CudaCaller
from tilewright.runtime.errors import ArtifactError, BuildError, OptionError
from tilewright.runtime.export.c_library import CLibrary, write_c_library
from tilewright.runtime.fork_safe_lock import ForkSafeLock
from tilewright.runtime.host import native_call
from tilewright.runtime.host.host_caller import HostCaller, objects
from tilewright.runtime.host.recompile import can_recompile, recompile
from tilewright.runtime.host.required_features import foreign_machine, missing_features
from tilewright.runtime.interpreter import quick_switches
from tilewright.runtime.load.devices import AnyDevice, DeviceName, caller_for, device_for
from tilewright.runtime.load.version import Version, refuse_other_signature
from tilewright.runtime.program import artifact, explanation
from tilewright.runtime.program.artifact import Bundle, Memory, Verify
from tilewright.runtime.program.artifact_writer import artifact_bytes, write_artifact
from tilewright.runtime.program.explanation import Explanation, MemoryUse
from tilewright.runtime.program.graph_report import GraphReport
from tilewright.runtime.program.html_table import html_table
from tilewright.runtime.program.program import Argument, Program
from tilewright.runtime.program.signing import Key, Keys
from tilewright.runtime.program.traffic import Traffic, traffic_of
from tilewright.runtime.shape import ShapeRange
from tilewright.runtime.target import TargetKind


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
        self._device, self._threads = device, threads
        self._bundle = Bundle(program, code, constants, llvm_ir or {})
        self._caller = caller_for(program, code, constants, device, threads)
        self._kept: tuple[object, ...] = ()
        self._versions: list[Version] = []  # before each reload
        self._left: tuple[Version, ...] = ()  # by rollback; calls may still run in them
        self._reloading = ForkSafeLock()
        self._is_waiting = native_call.can_take(program) and type(self) is native_call.callable_type(CompiledFunction)
        if isinstance(self._caller, HostCaller) and self._caller.has_constants:
            self._start()

    def __call__(self, /, *args: Any, out: Any = None, threads: int | None = None, stream: Any = None, **named: Any) -> Any:
        """Run the model at the shapes of the arguments.

        Args:
            args, named: one per input, in order or by its name; scalars as Python numbers. An input that is called out, threads
                or stream is given by position.
            out: array, or tuple of arrays, for the results; exact dtype and shape, contiguous, apart from all inputs.
            threads: most threads of this call, an integer >= 1.
            stream: CUDA only: where to enqueue, anything with `__cuda_stream__`; the default is the current stream of the
                arrays' library. Calls with CUDA arrays return at once; their errors come with a later wait.
        Returns:
            One array, or a tuple when the model has several results, or what the model nests them in; torch tensors when an
            argument is one.
        Raises:
            DTypeError, ShapeError: an argument does not fit, or has a mask or a gradient; nothing has run or was copied.
            OptionError: `threads` or `stream`. DeviceError: out of memory, or the code is for another architecture or CPU.
        """
        if self._is_waiting:
            self._start()
        caller = self._caller
        if named or caller.ragged is not None or not caller.signature.is_flat:
            return caller.call(*args, out=out, threads=threads, stream=stream, **named)
        return caller(*args, out=out, threads=threads, stream=stream)

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

    def explain(self, shape: Mapping[str, Any] | None = None, /, **dims: Any) -> Explanation:
        """Which kernel serves each call at these dims; `print` it, or take `.calls`, `.to_json()`.

        Args:
            shape, dims: a value for each dim of the model, in a dict or by name; of a ragged dim the length of each sequence.
        Raises:
            OptionError: a dim is missing or unknown, or a value is no integer. ShapeError: it is outside its range.
        """
        return explanation.explain(self.program, _point(shape, dims))

    def memory(self, shape: Mapping[str, Any] | None = None, /, *, threads: int | None = None, **dims: Any) -> MemoryUse:
        """Bytes of arena, constants and results at these dims; arguments and errors as of `explain`."""
        return explanation.memory(self.program, _point(shape, dims), self._caller.thread_count(threads))

    def graphs(self) -> GraphReport:
        """What the CUDA graphs of this function's calls take and do, stream by stream: nodes, bytes, updates a call.

        Raises:
            OptionError: compiled for a target without them.
        """
        if not isinstance(self._caller, CudaCaller):
            raise OptionError(f"graphs: only functions for CUDA have them, and this one is for {self.program.target}; compile "
                              "for cuda")
        return self._caller.graphs()

    def dispatch_source(self) -> str:
        """The dispatch function as text."""
        return self.program.dispatch_source

    def save(self, path: str | os.PathLike[str], *, key: Key | None = None, also: Sequence[CompiledFunction] = ()) -> None:
        """Write the model as one file that `load` runs without the compiler.

        Args:
            path: a file that is there is replaced whole; its mode is kept, and where it is a link, the link.
            key: a private key of Ed25519 to sign the file with: a PEM file, its text, or an object of `cryptography`.
            also: the same model for other kinds of targets; `load` takes the host's code, or, asked by `device=`, theirs.
        Raises:
            ArtifactError: it cannot be written. OptionError: the key is none, or `cryptography` is not installed.
        """
        write_artifact(path, [self._bundle, *(fn._bundle for fn in also)], key=key)

    def export_c(self, folder: str | os.PathLike[str], *, name: str = "model", compiler: str | None = None) -> CLibrary:
        """Write lib<name>.so, <name>.h and example.cpp: the model for C and C++, without Python (docs/deploy.md).

        Args:
            folder: is made where there is none.
            name: a C identifier, which all functions begin with.
            compiler: a C compiler, which links the library; None: the first of cc, gcc and clang on PATH.
        Raises:
            OptionError: compiled for a GPU, or the name is no identifier. BuildError: no compiler, or it fails.
        """
        return write_c_library(self._bundle, Path(folder), name, compiler)

    def to_tvm_ffi(self) -> Any:
        """This function as a `tvm_ffi.Function`: inputs to results, or inputs and outputs to None, all flat; keeps this alive.

        Raises:
            OptionError: apache-tvm-ffi is not installed.
        """
        is_flat = self._caller.signature.is_flat
        return tvm_function(self if is_flat else self.call_flat, len(self.inputs), len(self.outputs))

    def call_flat(self, *args: Any, out: Any = None) -> Any:
        """The program's own inputs and results."""
        if self._is_waiting:
            self._start()
        return self._caller(*args, out=out)

    def count(self, on: bool = True, *, shapes: int = SHAPES) -> None:
        """Count calls by their shape from now on, anew, or no more; `traffic` tells. A native call then takes some 2 ns longer.

        Args:
            shapes: that are told apart, at least; further ones are counted together.
        Raises:
            OptionError: `shapes` is no integer >= 1.
        """
        self._caller.count_in(ShapeCounts(len(self.program.dims), shapes) if on else None)

    def traffic(self) -> Traffic:
        """The calls since `count`, by shape and by the kernels that served them; `.save(path)` for `tilewright refine`.

        Raises:
            OptionError: nothing is counted.
        """
        counts = self._caller.counts
        if counts is None:
            raise OptionError("traffic(): nothing is counted; call count() before the calls that are to be")
        return traffic_of(self.program, *counts.read())

    def reload(self, path: str | os.PathLike[str], *, key: Keys | None = None) -> None:
        """Go on with another artifact of the same model, as `tilewright refine` writes it. A call goes the old way or the new one
        whole; what runs is let finish. The code of versions that were is kept, for `rollback` and for calls that still run;
        constants that both hold are held once. Other threads that call meanwhile wait for Python's lock no longer than for 0.2 ms
        at a time (sys.setswitchinterval), while the artifact is read.

        Args:
            key: as of `tw.load`.
        Raises:
            ArtifactError: as of `tw.load`, or arguments, results, dims or the order of sums differ; nothing has changed then.
        """
        with quick_switches():
            opened = artifact.Artifact(path, keys=key)
            other = _loaded(opened, self._device_text(), self._threads, _Plain, held=self._bundle.constants)
            refuse_other_signature(self.program, other.program, opened.path)
            with self._reloading.of_process():
                self._take_over(other)

    def _take_over(self, other: CompiledFunction) -> None:
        version = Version(other.program, other._device, other._bundle, other._caller)
        if isinstance(version.caller, HostCaller):
            version.caller.hold_constants()
        before = self._version()
        self._go_on_with(version)
        self._versions.append(before)

    def rollback(self) -> None:
        """Go back to what was before the last `reload`.

        Raises:
            OptionError: there was none.
        """
        with self._reloading.of_process():
            if not self._versions:
                raise OptionError("rollback(): there was no reload() to go back from; reload() another artifact instead")
            current = self._version()
            self._go_on_with(self._versions.pop())
            self._left = (*self._left, current)

    def _version(self) -> Version:
        if self._is_waiting:
            self._start()
        return Version(self.program, self._device, self._bundle, self._caller, self._kept)

    def _go_on_with(self, version: Version) -> None:
        """The native entry comes last: until then native calls go the old way."""
        caller, native = version.caller, type(self) is native_call.callable_type(CompiledFunction)
        caller.count_in(self._caller.counts)
        kept = version.kept
        if native and isinstance(caller, HostCaller) and native_call.can_take(version.program) and not kept:
            kept = native_call.attach(caller)
        self.program, self._device, self._bundle = version.program, version.device, version.bundle
        self._caller, self._kept = caller, kept
        if native:
            native_call.enter(self, CompiledFunction, caller if isinstance(caller, HostCaller) else None)

    def _device_text(self) -> str:
        kind, ordinal = self._device.name.partition(":")[0], getattr(self._device, "ordinal", 0)
        return f"{kind}:{ordinal}" if kind == TargetKind.CUDA.value else kind

    def _start(self) -> None:
        """Read the constants, and let native code take the calls from now on. A fork in the middle does not hold up the child."""
        caller = self._caller
        if not isinstance(caller, HostCaller):
            self._is_waiting = False
            return
        caller.hold_constants()
        with caller.lock.of_process():
            if self._is_waiting:
                self._kept = native_call.attach(caller)
                native_call.enter(self, CompiledFunction, caller)
                self._is_waiting = False

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(describe, arguments)) for arguments in (self.inputs, self.outputs))
        dims = "".join(f"; {name} in {dim}" for name, dim in self.dims.items())
        return f"CompiledFunction({inputs} -> {outputs}{dims}; {self.program.target})"

    def _repr_html_(self) -> str:
        """For notebooks: inputs, results and dims."""
        rows = [("input", a.name, describe(a).partition(": ")[2]) for a in self.inputs]
        rows += [("result", a.name, describe(a).partition(": ")[2]) for a in self.outputs]
        rows += [("dim", name, str(dim)) for name, dim in self.dims.items()]
        return html_table(f"CompiledFunction for {self.program.target}", ("", "name", "type or range"), rows)

    def __copy__(self) -> CompiledFunction:
        """Itself: calls change nothing of it."""
        return self

    def __deepcopy__(self, memo: object) -> CompiledFunction:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """By the bytes that `save` would write; like that file, a pickle is native code: take it from no stranger."""
        own = CompiledFunction if type(self) is native_call.callable_type(CompiledFunction) else type(self)
        return _restored, (own, artifact_bytes([self._bundle]), self._device_text(), self._threads)


class _Plain(CompiledFunction):
    """A function that nobody calls: what `reload` takes apart."""


def _restored(kind: type[CompiledFunction], data: bytes, device: str, threads: int | None) -> CompiledFunction:
    """A function out of its pickle."""
    return _loaded(artifact.Artifact("the pickled function", data), device, threads, kind)


def _point(shape: Mapping[str, Any] | None, dims: Mapping[str, Any]) -> dict[str, Any]:
    if shape is not None and not isinstance(shape, Mapping):
        raise OptionError(f"wanted each dim by its name, got {shape!r}; give it as T={shape!r}, or in a dict")
    return {**(shape or {}), **dims}


def load(path: str | os.PathLike[str], device: AnyDevice | str | None = None, verify: Verify = "lazy", *,
         key: Keys | None = None, shared: bool = False) -> CompiledFunction:
    """Open a saved model. What is damaged, or is not what its code was compiled for, is refused before any of it runs.

    Args:
        device: where to run: "cpu", "cuda", "cuda:1" (for calls with host arrays), "emulator", or a device object; None is the
            host CPU when the file holds code for one, else the device of its first target.
        verify: when constants are held against their hashes: "lazy" as they are first read, which is at the first call; "full"
            now, with all else that the file holds; "none" never. Code and metadata are always checked now.
        key: one public key of Ed25519 or several: PEM files, their texts, or objects of `cryptography`. The file has to be signed
            by one of them.
        shared: constants stay in pages of the file, which all processes that load it share. The file has to stay as it is: where
            it is cut short the process ends.
    Raises:
        ArtifactError: not a saved model, damaged, of another version, or for another machine. SignatureError: not signed by the
            key. OptionError: no such device, no key, or `cryptography` is not installed.
    """
    if verify not in ("lazy", "full", "none"):
        raise OptionError(f"verify={verify!r}: wanted 'lazy', 'full' or 'none'; leave it out for 'lazy'")
    if key is not None and (verify == "none" or shared):
        other = "shared=True" if shared else f"verify={verify!r}"
        raise OptionError(f"key= with {other}: what is trusted has to be checked, in memory that nobody else writes to; leave the"
                          " second out")
    return _loaded(artifact.Artifact(path, keys=key), device, verify=verify, shared=shared)


def _loaded(opened: artifact.Artifact, device: AnyDevice | str | None, threads: int | None = None,
            function: type[CompiledFunction] = CompiledFunction, *, verify: Verify = "lazy",
            shared: bool = False, held: Mapping[str, Memory] | None = None) -> CompiledFunction:
    """threads: most of a call; default what the model was compiled for. held: constants that are in memory; where they are all
    that the artifact has, they are what is taken."""
    groups = [g.target.partition(":")[0] for g in opened.manifest.groups]
    named = DeviceName.parse(device) if isinstance(device, str) else None
    if named is not None:
        kind = named.kind.value
    elif device is not None:
        kind = _name_of(device).partition(":")[0]
    else:
        kind = "host" if "host" in groups else groups[0]
    stored = list(opened.bundles(kind))
    if not stored:
        kinds = ", ".join(sorted({g.target for g in opened.manifest.groups}))
        raise ArtifactError(f"{opened.path} holds code for {kinds} and none for {kind}; compile it for {kind}")
    lacking = [_lacking(bundle) for bundle in stored]
    runnable = next((b for b, missing in zip(stored, lacking, strict=True) if not missing), None)
    chosen = runnable or stored[-1]
    program, code, constants = chosen.checked(), chosen.code(), chosen.constants(verify != "none", shared)
    taken = held if held is not None and {c.digest for c in program.constants} <= set(held) else constants
    if verify == "full":
        constants.read_all()
        opened.verify_all(besides=set(chosen.group.constants.values()))
    running = _recompiled(chosen, program, lacking[-1]) if runnable is None else code
    if device is None or isinstance(device, str):
        device = device_for(program, running, named.ordinal if named is not None else 0, runs_here=True)
    most = program.asked.threads if threads is None else threads
    made = function(program, running, taken, device, llvm_ir=chosen.llvm_ir(), threads=most)
    made._bundle = replace(made._bundle, code=code)  # what is saved again is what was stored
    return made


def _name_of(device: Any) -> str:
    name = getattr(device, "name", None)
    if not isinstance(name, str):
        raise OptionError(f"device={device!r}: wanted 'cpu', 'cuda', 'cuda:1' or 'emulator', got {type(device).__name__}; "
                          "write it as text")
    return name


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
        made = recompile(llvm_ir)
    except BuildError as error:
        raise ArtifactError(f"{path} needs {missing}, which this CPU lacks, and {error}: {error.log}") from error
    bundle.check_seals(made)
    return made

