"""What a fake CUDA driver knows: handles, queued work, failures to come; and how a C function becomes a method."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tilewright.runtime.emulator import EmulatorDevice

INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONTEXT, INVALID_HANDLE, NOT_FOUND = 1, 2, 201, 400, 500
LAUNCH_FAILED, NOT_SUPPORTED, CAPTURE_UNSUPPORTED, UNKNOWN = 719, 801, 900, 999
CONTEXT_BASE = 0x1000
RELAXED = 2
_TYPES = {"p": ctypes.c_void_p, "i": ctypes.c_int, "u": ctypes.c_uint32, "q": ctypes.c_uint64}


def entry(name: str, types: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Marks a method as a function of the driver: a letter of `_TYPES` for each argument. None is success."""

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        function.__dict__["entry"] = (name, types)
        return function

    return mark


def put(address: int | None, value: int, kind: Any = ctypes.c_uint64) -> None:
    """Write through a pointer of the caller's, which may be null."""
    if address:
        kind.from_address(address).value = value


class FakeError(Exception):
    """The CUresult of the call that raises it."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass
class Event:
    """`after`: runs what must have run before the event; `time`: of the clock, once it has."""

    after: Callable[[], None] = lambda: None
    time: float | None = None
    graph: Graph | None = None


@dataclass
class Graph:
    """What a capture recorded as work, or what was added as nodes.

    conditions: handle -> device, default value, flags. parent: of a conditional node's body the graph that has the node.
    """

    number: int
    mode: int = 0
    work: list[Callable[[], None]] = field(default_factory=list)
    broken: bool = False
    references: int = 1
    owners: list[tuple[int, int]] = field(default_factory=list)
    nodes: list[Any] = field(default_factory=list)
    conditions: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    parent: Graph | None = None


@dataclass
class Stream:
    """Queued work; `capture` takes it while one is under way."""

    device: int
    number: int
    queue: deque[Callable[[], None]] = field(default_factory=deque)
    capture: Graph | None = None
    running: bool = False


def machine_code_key(address: int) -> bytes:
    """An ELF file up to the table of its sections, at the end."""
    return ctypes.string_at(address, ctypes.c_uint64.from_address(address + 40).value)


@dataclass
class Library:
    """PTX, and its modules by device, made when a kernel first runs. assembled: it was given as machine code."""

    image: bytes
    assembled: bool = False
    modules: dict[int, Any] = field(default_factory=dict)


class FakeState:
    """Attributes:
        log: (function, stream) of every call in order. launches: (symbol, grid, block, shared bytes, cluster, stream);
        early: of each of them, may it begin before those in front of it end?
        errors: what the emulators found, and what no driver would forgive. unknown: functions called that are not here.
        libraries: all that were loaded, in order. assembled: beginning of machine code -> the PTX that runs in its place.
        consented: shared bytes allowed by (kernel, device). live: (device, address) -> bytes.
    """

    def __init__(self, archs: tuple[str, ...] = ("sm_90a",), version: int = 13000, memory: int = 1 << 36) -> None:
        self.devices = [EmulatorDevice(a, memory_bytes=memory) for a in archs]
        self.archs, self.version = archs, version
        self.log: list[tuple[str, int]] = []
        self.launches: list[tuple[str, tuple[int, ...], tuple[int, ...], int, tuple[int, ...], int]] = []
        self.early: list[bool] = []
        self.errors: list[str] = []
        self.unknown: list[str] = []
        self.assembled: dict[bytes, bytes] = {}
        self.consented: dict[tuple[int, int], int] = {}
        self.live: dict[tuple[int, int], int] = {}
        self.clock = 0.0
        self.multiprocessors = 132
        self.lost = 0
        self.libraries: list[Library] = []
        self._failures: dict[str, tuple[int, int, int]] = {}
        self._actions: dict[str, Callable[[], None]] = {}
        self._streams: dict[int, Stream] = {}
        self._objects: dict[int, Any] = {}
        self._handles = itertools.count(0x7000_0000_1000, 64)
        self._numbers = itertools.count(1)
        self._local = threading.local()
        self.lock = threading.RLock()
        self._callbacks: dict[str, Any] = {}
        self._texts: dict[str, Any] = {}
        self.handle_of: dict[int, int] = {}
        self.updates: list[tuple[int, bool | None]] = []
        self.graph_bytes: dict[int, int] = {}
        self.instantiated = 0
        self.flights = 0
        self.kept: list[Any] = []
        self.entries = {m.entry[0]: (m, m.entry[1]) for n in dir(self) if hasattr(m := getattr(self, n), "entry")}

    def fail(self, function: str, code: int, after: int = 0, times: int = 1) -> None:
        """The next calls of `function` but `after` return `code`."""
        self._failures[function] = (code, after, times)

    def at(self, function: str, action: Callable[[], None]) -> None:
        """Before the next call of `function`, something else happens."""
        self._actions[function] = action

    def calls(self, function: str) -> int:
        """How often a function was called."""
        return sum(name == function for name, _ in self.log)

    def callback(self, name: str) -> int:
        """Address of a function."""
        if name not in self._callbacks:
            method, types = self.entries.get(name, (None, ""))
            made = ctypes.CFUNCTYPE(ctypes.c_int, *(_TYPES[t] for t in types))(lambda *given: self._call(name, method, given))
            self._callbacks[name] = made
        return ctypes.cast(self._callbacks[name], ctypes.c_void_p).value or 0

    def _call(self, name: str, method: Callable[..., Any] | None, given: tuple[Any, ...]) -> int:
        with self.lock:
            action = self._actions.pop(name, None)
            if action is not None:
                action()
            self.log.append((name, 0))
            code, after, times = self._failures.pop(name, (0, 0, 0))
            if code and (after or times > 1):
                self._failures[name] = (code, after - 1, times) if after else (code, 0, times - 1)
            if code and not after:
                return code
            if method is None:
                self.unknown.append(name)
                return NOT_SUPPORTED
            try:
                return method(*given) or 0
            except FakeError as error:
                return error.code
            except Exception as error:
                self.errors.append(f"{name}: {type(error).__name__}: {error}")
                return UNKNOWN

    # handles

    def new(self, value: Any) -> int:
        handle = next(self._handles)
        self._objects[handle] = value
        return handle

    def object(self, handle: int | None, kind: Any) -> Any:
        found = self._objects.get(handle or 0)
        if not isinstance(found, kind):
            raise FakeError(INVALID_HANDLE)
        return found

    def drop(self, handle: int) -> None:
        if self._objects.pop(handle, None) is None:
            raise FakeError(INVALID_HANDLE)

    # contexts

    def contexts(self) -> list[int]:
        """The stack of the calling thread."""
        if not hasattr(self._local, "contexts"):
            self._local.contexts = []
        found: list[int] = self._local.contexts
        return found

    def device(self) -> int:
        """Of the current context."""
        stack = self.contexts()
        if not stack or not stack[-1]:
            raise FakeError(INVALID_CONTEXT)
        return stack[-1] - CONTEXT_BASE

    # queues

    def stream(self, handle: int | None) -> Stream:
        """The stream of a call, which is noted in the log."""
        key = handle or 0
        self.log[-1] = (self.log[-1][0], key)
        if key <= RELAXED:
            key = 0 if key == 1 else key  # names of the same stream
            device = self.device()
            return self._streams.setdefault(-1 - device - 256 * key, Stream(device, -1 - key))
        if key not in self._streams:
            raise FakeError(INVALID_HANDLE)
        return self._streams[key]

    def do(self, stream: Stream, work: Callable[[], None]) -> None:
        """Queue work, or record it."""
        (stream.queue if stream.capture is None else stream.capture.work).append(work)

    def drain(self, stream: Stream) -> None:
        """Run what is queued."""
        if stream.running:
            return  # what a garbage collection waits for comes when the work under way is over
        stream.running = True
        try:
            while stream.queue:
                work = stream.queue.popleft()
                if not self.lost:
                    work()
        finally:
            stream.running = False
        if self.lost:
            raise FakeError(self.lost)

    def forbid_in_capture(self) -> None:
        """What a driver does not allow while this thread or, globally, another captures."""
        open_captures = [s.capture for s in self._streams.values() if s.capture is not None and s.capture.mode != RELAXED]
        if open_captures and getattr(self._local, "mode", 0) != RELAXED:
            for graph in open_captures:
                graph.broken = True
            raise FakeError(CAPTURE_UNSUPPORTED)
