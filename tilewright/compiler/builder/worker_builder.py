"""WorkerBuilder: builds kernels in worker processes, each kernel once per machine thanks to the cache."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Future, wait
from types import TracebackType
from typing import Protocol

import msgspec

from tilewright.compiler.builder.build import kernel_symbol
from tilewright.compiler.builder.cache import Cache, cache_key
from tilewright.compiler.builder.codegen import host_target
from tilewright.compiler.builder.fingerprint import fingerprint
from tilewright.compiler.builder.kernel_shelf import KernelShelf
from tilewright.compiler.builder.ptxas import assembler
from tilewright.compiler.builder.requests import KernelReply, KernelRequest, WorkerRequest
from tilewright.compiler.builder.worker_pool import WorkerPool
from tilewright.passes.spaces.family_registry import config_text
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime import knobs
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.target import Target, TargetKind
from tilewright.search.protocols import BuildResult


class _Entry(msgspec.Struct, frozen=True):
    """What the cache stores of a kernel."""

    kernel: MicroKernel
    code: bytes
    llvm_ir: str


class Workers(Protocol):
    """What builds: WorkerPool, or one like it."""

    def submit(self, request: WorkerRequest) -> Future[KernelReply]: ...

    def abandon(self, futures: Collection[Future[KernelReply]]) -> None: ...

    def warm(self) -> None: ...

    def close(self) -> None: ...


def _encoded(kernel: MicroKernel, code: bytes, llvm_ir: str) -> bytes:
    return msgspec.msgpack.encode(_Entry(kernel, code, llvm_ir))


def _machine(target: Target) -> tuple[str, ...]:
    """What the code of a kernel depends on besides the kernel. PTX is the same for a device and the emulator."""
    if target.kind is not TargetKind.HOST:
        return ("ptx", target.arch, assembler(target))
    host = host_target(target)
    return (host.cpu, host.features, host.triple)


class WorkerBuilder:
    """A Builder. Workers start at the first kernel that is not in the cache and stop at `close`.

    Where ptxas is installed, kernels for CUDA devices have machine code beside their PTX, and are told with their registers and
    spills. inspect: so are those for the emulator, without machine code. shelf: where kernels are looked for that the cache has
    not, and which `publish` fills. pool: builds; None: worker processes of this machine.
    timed_out: why kernels were refused of which no reply came within the time limit.
    """

    def __init__(self, target: Target, cache: Cache | None = None, workers: int | None = None,
                 time_limit: float | None = None, inspect: bool = False, shelf: KernelShelf | None = None,
                 pool: Workers | None = None) -> None:
        self.target, self.shelf = target, shelf
        self.inspect = inspect and target.kind is not TargetKind.HOST  # which says nothing of a host kernel
        self.cache = cache or Cache()
        self.pool: Workers = pool or WorkerPool(workers, time_limit)
        self._machine = _machine(target)
        self.timed_out: list[str] = []

    def warm(self) -> None:
        """Start the workers, without waiting for them."""
        self.pool.warm()

    def build(self, candidates: Sequence[tuple[Workload, TileConfig]], seconds: float | None = None) -> list[BuildResult]:
        """Results in the order of the candidates; a failed build is a result with its error and is not cached.

        After `seconds` the kernels that are not built yet are given up.
        """
        keys = [self._key(w, c) for w, c in candidates]
        found = [self._cached(key) for key in keys]
        pending: dict[str, Future[KernelReply]] = {}
        for (w, c), key, result in zip(candidates, keys, found, strict=True):
            if result is None and key not in pending:
                pending[key] = self.pool.submit(self._request(w, c))
        _, late = wait(pending.values(), seconds)
        self.pool.abandon(late)
        built = {key: BuildResult(None, late=True) if future in late else self._result(key, future.result())
                 for key, future in pending.items()}
        return [result or built[key] for key, result in zip(keys, found, strict=True)]

    def publish(self, candidates: Sequence[tuple[Workload, TileConfig]]) -> None:
        """Put kernels that were built on the shelf, where there is one."""
        if self.shelf is not None:
            for (w, c), result in zip(candidates, self.build(candidates), strict=True):
                if result.kernel is not None:
                    self.shelf.put(self._key(w, c), _encoded(result.kernel, result.code, result.llvm_ir))

    def _request(self, workload: Workload, config: TileConfig) -> KernelRequest:
        return KernelRequest(workload.ir, workload.key, kernel_symbol(workload, config), config.family, config_text(config),
                             str(self.target), self.inspect)

    def _key(self, workload: Workload, config: TileConfig) -> str:
        return cache_key(fingerprint(), workload.ir, kernel_symbol(workload, config), config_text(config), *self._machine,
                         *(["inspected"] if self.inspect else []))

    def _cached(self, key: str) -> BuildResult | None:
        if knobs.DUMP.get():
            return None  # a kernel out of the cache leaves no dump
        data = self.cache.get(key)
        if data is None and self.shelf is not None:
            data = self.shelf.get(key)
            if data is not None:
                self.cache.put(key, data)
        if data is None:
            return None
        try:
            entry = msgspec.msgpack.decode(data, type=_Entry)
        except msgspec.DecodeError:
            self.cache.remove(key)
            return None
        return BuildResult(entry.kernel, entry.code, entry.llvm_ir)

    def _result(self, key: str, reply: KernelReply) -> BuildResult:
        if reply.timed_out:
            self.timed_out.append(reply.error)
        if reply.kernel is None:
            return BuildResult(None, error=reply.error, seconds=reply.seconds)
        self.cache.put(key, _encoded(reply.kernel, reply.code, reply.llvm_ir))
        return BuildResult(reply.kernel, reply.code, reply.llvm_ir, seconds=reply.seconds)

    def close(self) -> None:
        self.pool.close()

    def __enter__(self) -> WorkerBuilder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
