"""RayBuilder: builds kernels in Ray actors, a process each. It is a WorkerBuilder whose workers are elsewhere: the cache here and
the shelf of a record store are looked into first, and take what comes back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec

from tilewright.compiler.builder.cache import Cache
from tilewright.compiler.builder.fingerprint import farm_fingerprint
from tilewright.compiler.builder.kernel_shelf import KernelShelf
from tilewright.compiler.builder.requests import KernelReply, WorkerRequest
from tilewright.compiler.builder.worker import answer
from tilewright.compiler.builder.worker_builder import WorkerBuilder
from tilewright.runtime import knobs
from tilewright.runtime.target import Target
from tilewright.search.runner.actor_process import ActorProcess
from tilewright.search.runner.core_claim import unclaimed
from tilewright.search.runner.ray_actors import ActorFacts, ActorKind, ActorLostError, ActorPool, ray_module, want_fingerprint


class BuilderActor:
    """In the actor: it builds in its own process, which a crash or a hang of the code generator ends. It keeps off the cores of
    runners of the same machine."""

    def __init__(self) -> None:
        self._allowed = os.sched_getaffinity(0)

    def where(self) -> bytes:
        return msgspec.json.encode(ActorProcess.here())

    def facts(self) -> bytes:
        from tilewright.passes import mlir  # so that the first build takes no longer than others

        assert mlir
        return msgspec.json.encode(ActorFacts(farm_fingerprint(), os.uname().nodename, os.getpid()))

    def build(self, request: bytes) -> tuple[bytes, float]:
        """The reply, and the seconds that it took here."""
        begin = time.monotonic()
        os.sched_setaffinity(0, unclaimed(self._allowed))
        reply = msgspec.msgpack.encode(answer(msgspec.json.decode(request, type=WorkerRequest)))
        return reply, time.monotonic() - begin


class RayWorkers:
    """What WorkerPool is for a WorkerBuilder, over actors; a thread for each waits for its replies."""

    def __init__(self, make: Callable[[int], Any], size: int,
                 told: Callable[[str, Mapping[str, Any]], None] = lambda what, facts: None) -> None:
        self._ray, self.time_limit = ray_module(), knobs.BUILD_SECONDS.get()
        self.actors = ActorPool(ActorKind("builder", make, self._join), size, told)
        self._threads = ThreadPoolExecutor(size, "tilewright-builder")

    def submit(self, request: WorkerRequest) -> Future[KernelReply]:
        """The reply to come. What two builders lost is a reply with `ok` false; it does not raise."""
        return self._threads.submit(self._ask, request)

    def map(self, requests: Iterable[WorkerRequest]) -> list[KernelReply]:
        """All replies, in the order of the requests."""
        return [future.result() for future in [self.submit(r) for r in requests]]

    def abandon(self, futures: Collection[Future[KernelReply]]) -> None:
        """Give up requests: those that wait are cancelled, those under way end by themselves."""
        for future in futures:
            future.cancel()

    def warm(self) -> None:
        """The actors start by themselves."""

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.actors.close()

    def _ask(self, request: WorkerRequest) -> KernelReply:
        sent = msgspec.json.encode(request)
        try:
            found = self.actors.request(lambda actor: actor.build.remote(sent), self.time_limit)
        except ActorLostError as error:
            return KernelReply(False, error=f"{request}: {error}")
        reply, worked = found.value
        self.actors.account(found, worked)
        return msgspec.msgpack.decode(reply, type=KernelReply)

    def _join(self, actor: Any, patience: float) -> str:
        facts = msgspec.json.decode(self._ray.get(actor.facts.remote(), timeout=patience), type=ActorFacts)
        name = facts.named("builder")
        want_fingerprint(name, facts.fingerprint, farm_fingerprint())
        return name


class RayBuilder(WorkerBuilder):
    """A Builder that several threads may call at once."""

    def __init__(self, target: Target, workers: RayWorkers, cache: Cache | None = None, inspect: bool = False,
                 shelf: KernelShelf | None = None) -> None:
        super().__init__(target, cache, 1, None, inspect, shelf, workers)
