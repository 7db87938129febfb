"""HostDevice: kernels in this process, run by the native thread pool of runtime/host/thread_pool.py."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tilewright.runtime.device import ALLOC, CONTEXT, KERNELS, LAUNCH, PARALLEL_FOR, POLL, RELEASE, TABLE_WORDS, LoadedCode
from tilewright.runtime.errors import DeviceError
from tilewright.runtime.host.elf import UnsupportedObjectError, load_object
from tilewright.runtime.host.host_cpu import affinity, cpu_features, has_siblings, host_limits, machine
from tilewright.runtime.host.host_target import lowest_level
from tilewright.runtime.host.interrupts import WORDS, addresses
from tilewright.runtime.host.thread_pool import MOST_THREADS, PATIENCE, SYMBOLS, runtime_object_ir
from tilewright.runtime.host.tile_permission import may_use_tiles
from tilewright.runtime.once import once

_AWAKE = 1 << 18  # looks of a worker for the next loop, some tenth of a second
_FIELDS = {LAUNCH: "tw_launch", PARALLEL_FOR: "tw_parallel_for", ALLOC: "tw_alloc", RELEASE: "tw_release"}


class HostDevice:
    """The CPU of this process.

    Args:
        runtime_object: object code of `runtime_object_ir`, which an artifact carries; equal ones are loaded once, by the
            first table. None makes it, which needs llvmlite and some 50 ms.
    """

    name = "host"

    def __init__(self, runtime_object: bytes | None = None) -> None:
        self._runtime_object = runtime_object

    @functools.cached_property
    def _native(self) -> Mapping[str, int]:
        return _load_native(bytes(self._runtime_object or _make_native())).symbols

    def load(self, objects: Sequence[bytes], kernels: Sequence[bytes] = ()) -> LoadedCode:
        """Load object code; it stays in memory as long as the result lives.

        kernels: objects of kernels, which have the same place in a page whatever they are loaded with.

        Raises:
            DeviceError: a symbol is missing or defined twice, or the code is not for this machine.
        """
        return load_native(objects, kernels)

    def table(self, kernels: Sequence[int]) -> ctypes.Array[ctypes.c_uint64]:
        """A C table, followed by the kernel addresses it points to. Its context is the most threads a loop may use."""
        found = (ctypes.c_uint64 * (TABLE_WORDS + len(kernels)))()
        found[CONTEXT] = min(affinity(), MOST_THREADS)
        found[KERNELS] = ctypes.addressof(found) + TABLE_WORDS * ctypes.sizeof(ctypes.c_uint64)
        for field, symbol in _FIELDS.items():
            found[field] = self._native[symbol]
        found[POLL] = self._native.get("tw_poll", 0)
        found[TABLE_WORDS:] = list(kernels)
        return found

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Threads of the pool do not sleep within, so long as loops follow each other by tenths of a second. For measurements: a
        virtual machine gives the core of a thread that sleeps away, and threads that slept had half of their speed at times, for
        seconds, as if both were on one core (zen4-avx512.md). Where the system says which cores are one, threads sleep as ever:
        those awake would slow the one beside them."""
        address = self._native.get(PATIENCE)
        if address is None or has_siblings():
            yield
            return
        word = ctypes.c_int64.from_address(address)
        before, word.value = word.value, _AWAKE
        try:
            yield
        finally:
            word.value = before

    def properties(self) -> Mapping[str, int | str]:
        """Cores, vector bytes, caches in bytes, features."""
        features = cpu_features()
        found = host_limits(features, machine())
        return {
            "arch": machine(),
            "cores": found.cores,
            "vector_bytes": found.vector_bytes,
            "vector_registers": found.vector_registers,
            "l1": found.l1,
            "l2": found.l2,
            "l3": found.l3,
            "features": " ".join(sorted(features)),
        }


@once
def _make_native() -> bytes:
    from tilewright.runtime.host.object_code import emit_object

    return emit_object(runtime_object_ir(machine()), lowest_level(machine()))


class _Native(NamedTuple):
    code: LoadedCode
    symbols: Mapping[str, int]


@once
def _load_native(code: bytes) -> _Native:
    """The runtime object and its addresses. Its threads run in it, so the cache keeps it until the process ends."""
    loaded = load_native([code])
    found = {symbol: loaded.address(symbol) for symbol in SYMBOLS}
    with contextlib.suppress(KeyError):  # of an artifact from before workers could be kept awake
        found[PATIENCE] = loaded.address(PATIENCE)
    with contextlib.suppress(KeyError):  # of an artifact from before programs could loop
        found["tw_poll"] = loaded.address("tw_poll")
        words = (ctypes.c_uint64 * len(WORDS))(*addresses())
        ctypes.memmove(loaded.address("tw_python"), words, ctypes.sizeof(words))
    _run_in_forked_child(found["tw_forked"])
    return _Native(loaded, found)


def _run_in_forked_child(address: int) -> None:
    libc = ctypes.CDLL(None)
    handler = ctypes.c_void_p(address)
    for name, arguments in (
        ("__register_atfork", (None, None, handler, None)),
        ("pthread_atfork", (None, None, handler)),
    ):
        if hasattr(libc, name):
            register = getattr(libc, name)
            if register(*arguments):
                raise DeviceError("no memory to register the thread pool's fork handler")
            return
    raise DeviceError("this C library has neither __register_atfork nor pthread_atfork")


def load_native(objects: Sequence[bytes], kernels: Sequence[bytes] = ()) -> LoadedCode:
    """Load object code of this machine; errors as `HostDevice.load`."""
    may_use_tiles()  # asks for them
    try:
        return load_object(objects, kernels)
    except UnsupportedObjectError:
        return OrcCode([*objects, *kernels])


class OrcCode:
    """Objects loaded by LLVM's own linker: for machines and objects that runtime/host/elf.py does not know."""

    def __init__(self, objects: Sequence[bytes]) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine_code = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
            reloc="pic", codemodel="small"
        )
        self._jit: Any = llvm.create_lljit_compiler(machine_code, suppress_errors=True)
        library = llvm.JITLibraryBuilder().add_current_process()
        for data in objects:
            library.add_object_img(data)
        self._trackers = []
        try:
            self._trackers.append(library.link(self._jit, "code"))
        except RuntimeError as error:
            raise DeviceError(f"the code cannot be loaded: {error}") from error

    def address(self, symbol: str) -> int:
        """Address of a function; KeyError when there is none, DeviceError when it refers to something missing."""
        try:
            tracker = self._jit.lookup("code", symbol)
        except RuntimeError as error:
            if "Symbols not found" in str(error):
                raise KeyError(symbol) from error
            raise DeviceError(f"{symbol} cannot be loaded: {error}") from error
        self._trackers.append(tracker)
        return int(tracker[symbol])
