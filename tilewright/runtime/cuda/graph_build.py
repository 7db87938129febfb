"""A call seen without a device, and the executable CUDA graph that is made of it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilewright.runtime.cuda.arena import Gpu, relaxed
from tilewright.runtime.cuda.control_table import CONTROL_KEY, WHILE_TURNS, Way
from tilewright.runtime.cuda.cuda_table import EARLY, RECORD_FIELDS
from tilewright.runtime.cuda.driver import CudaError, checked, start
from tilewright.runtime.cuda.graph_plan import ConditionalPlan, Item, Launched, NodePlan, nodes_of
from tilewright.runtime.cuda.graph_table import COPY_KEY, GRAPH_FIELDS, NODE_FIELDS, node_key
from tilewright.runtime.device import CONTROL, CONTROL_WORDS, COPY, LAUNCH, ControlOp
from tilewright.runtime.gpu.control_kernels import FLAG, OTHERWISE, ControlKernel, copy_blocks
from tilewright.runtime.program.tensor_map import MAP_BYTES

if TYPE_CHECKING:
    from tilewright.runtime.cuda.loaded import LoadedProgram, StreamContext

_I64, _P = ctypes.c_int64, ctypes.c_void_p
_LAUNCH = ctypes.CFUNCTYPE(None, _P, _I64, _I64, _I64, _I64, _P, _I64, _I64, _P, _I64)
_COPY = ctypes.CFUNCTYPE(None, _P, _P, _P, _I64)
_CONTROL = ctypes.CFUNCTYPE(_I64, _P, _I64, _P)
_WORD = {name: number for number, name in enumerate(CONTROL_WORDS)}
_RECORD = {name: number for number, name in enumerate(RECORD_FIELDS)}
_NODE = {name: number for number, name in enumerate(NODE_FIELDS)}
_GRAPH = {name: number for number, name in enumerate(GRAPH_FIELDS)}
_ASSIGN_DEFAULT = 1  # CU_GRAPH_COND_ASSIGN_DEFAULT


class Recorder:
    """Runs a call of a program against a table that launches nothing. seen: its launches, in order. raised: what was raised on
    the way; nothing more is seen then, and `close` raises it."""

    def __init__(self, of: LoadedProgram, context: StreamContext, ways: Mapping[int, Way]) -> None:
        self._of, self._context, self._ways = of, context, ways
        self.seen: list[Launched] = []
        self.raised: BaseException | None = None
        self._failed = False
        self._predicate = of.always
        made = [kind(self._kept(run)) for kind, run in ((_LAUNCH, self._launch), (_COPY, self._copy), (_CONTROL, self._control))]
        self._callbacks: tuple[Any, ...] = tuple(made)
        self.table = context.copied_table()
        for word, callback in zip((LAUNCH, COPY, CONTROL), self._callbacks, strict=True):
            self.table[word] = ctypes.cast(callback, _P).value or 0

    def close(self) -> None:
        """Let go of the program."""
        self._callbacks = ()
        if self.raised is not None:
            raise self.raised

    def _kept(self, run: Callable[..., int | None]) -> Callable[..., int]:
        """A function that native code calls, through which nothing can be raised."""

        def kept(*words: int) -> int:
            if self.raised is None:
                try:
                    return run(*words) or 0
                except BaseException as error:  # of the user's too, such as Ctrl-C; `close` raises it
                    self.raised = error
            return 0

        return kept

    def _launch(self, table: int, number: int, *words: int) -> None:
        x, y, z, slots, count, *_ = words
        if self._failed:
            return
        key = node_key(number)
        if not (x and y and z):
            self.seen.append(Launched(key, 0, None, ()))
            return
        record = self._of.record(number)
        code = 0 if record[_RECORD["function"]] else self._of.load(number)
        if code or max(x, y, z) >= 1 << 31:
            self._failed = True
            self._context.set_error(code or 1, number)
            return
        values = list((ctypes.c_uint64 * count).from_address(slots)) if count else []
        if record[_RECORD["predicate"]]:
            values[record[_RECORD["predicate"]] - 1] = self._predicate
        places = (ctypes.c_uint64 * record[_RECORD["maps"]]).from_address(record[_RECORD["places"]])
        maps = {place: ctypes.string_at(values[place], MAP_BYTES) for place in places}
        most = record[_RECORD["most_x"]]
        grid = (min(x, most) if most else x, y, z)
        entries = record[_RECORD["entries"]]
        known = {entries - 1: ctypes.string_at(values[entries - 1], self._of.entry_bytes(number))} if entries else {}
        self.seen.append(Launched(key, ctypes.addressof(record), grid, tuple(values), maps, known))

    def _copy(self, table: int, target: int, source: int, size: int) -> None:
        if size and not self._failed:
            record = self._of.control_record(ControlKernel.COPY)
            grid = (copy_blocks(size), 1, 1)
            self.seen.append(Launched(COPY_KEY, record, grid, (target, source, size, self._predicate)))

    def _kernel(self, kernel: ControlKernel, words: Sequence[int], blocks: int = 1) -> None:
        record = self._of.control_record(kernel)
        self.seen.append(Launched(CONTROL_KEY | kernel, record, (blocks, 1, 1), tuple(words)))

    def _control(self, table: int, op: int, at: int) -> int:
        """As `control` of control_table.py does for a graph."""
        words = (ctypes.c_uint64 * len(CONTROL_WORDS)).from_address(at)
        state, byte, outer = (words[_WORD[n]] for n in ("state", "byte", "outer"))
        way, flag, other = self._ways[words[_WORD["site"]]], state + FLAG, state + OTHERWISE
        if op == ControlOp.BRANCH:
            words[_WORD["outer"]] = self._predicate
            self._kernel(ControlKernel.TEST, (flag, self._predicate, byte, 0))
            self._predicate = flag
            if way is not Way.PREDICATED:
                self._kernel(ControlKernel.CONDITION, (0, flag))
            return 3
        if op == ControlOp.ELSE:
            self._kernel(ControlKernel.TEST, (other, outer, flag, 1))
            self._predicate = other
            if way is Way.TWO_NODES:
                self._kernel(ControlKernel.CONDITION, (0, other))
            return 0
        if op == ControlOp.LOOP:
            words[_WORD["outer"]], words[_WORD["turn"]] = self._predicate, 0
            self._kernel(ControlKernel.BEGIN, (flag, self._predicate, state))
            self._predicate = flag
            return 0
        if op == ControlOp.TURN:
            turn = words[_WORD["turn"]] = words[_WORD["turn"]] + 1
            self._kernel(ControlKernel.TURN, (flag, byte, state))
            if way is Way.PREDICATED:
                return int(turn <= ctypes.c_int64(words[_WORD["limit"]]).value)
            if turn in (2, WHILE_TURNS + 1):
                self._kernel(ControlKernel.CONDITION, (0, flag))
            return int(turn <= WHILE_TURNS)
        if op == ControlOp.SETTLE:
            target, begin, second, size = (words[_WORD[n]] for n in ("target", "start", "second", "bytes"))
            if size:
                words_of = (target, begin, second, size, state, self._predicate)
                self._kernel(ControlKernel.SETTLE, words_of, copy_blocks(size))
            return 0
        self._predicate = outer
        return -1 if op == ControlOp.DONE else 0


class BuiltGraph:
    """An executable graph with what native code needs of it.

    Attributes:
        address: of its GRAPH_FIELDS. nodes: kernel nodes. bytes: of GPU memory that instantiating it took.
    Raises:
        CudaError: the driver refuses something.
    """

    def __init__(self, of: LoadedProgram, stream: int, items: Sequence[Item], ways: Mapping[int, Way]) -> None:
        self._driver, self._device_context = start(), of.gpu.device.context
        plans = list(nodes_of(items))
        self.nodes = len(plans)
        self._fallback = next(p.seen for p in plans if p.seen is not None)
        width = len(NODE_FIELDS)
        self._words = (ctypes.c_uint64 * (width * len(plans)))()
        self._values = [(ctypes.c_uint64 * max(1, p.words))() for p in plans]
        self._ways = (ctypes.c_uint64 * (1 + max(ways, default=0)))(*(ways[n] for n in sorted(ways)))
        self._next = 0
        driver = self._driver
        owned: list[Callable[[], Any]] = []  # what gives back what there is, the last first
        self._closing = weakref.finalize(self, _destroy, of.gpu, owned)
        self._closing.atexit = False
        with of.gpu.current(), relaxed():
            graph = checked(driver.cuGraphCreate(0), "create a graph")
            owned.append(functools.partial(driver.cuGraphDestroy, graph))
            try:
                self._fill(graph, items)
                before, _ = checked(driver.cuMemGetInfo(), "ask for the free memory")
                executable = checked(driver.cuGraphInstantiate(graph, 0), "instantiate a graph")
                owned.append(functools.partial(driver.cuGraphExecDestroy, executable))
                checked(driver.cuGraphUpload(executable, stream), "upload a graph")
                after, _ = checked(driver.cuMemGetInfo(), "ask for the free memory")
            except CudaError:
                self.close()
                raise
        self.bytes = max(0, int(before) - int(after))
        self.words = (ctypes.c_uint64 * len(GRAPH_FIELDS))()
        for name, value in {"exec": int(executable), "nodes": ctypes.addressof(self._words), "count": len(plans),
                            "ways": ctypes.addressof(self._ways)}.items():
            self.words[_GRAPH[name]] = value
        self.address = ctypes.addressof(self.words)

    def __getitem__(self, field: str) -> int:
        """One of GRAPH_FIELDS."""
        return self.words[_GRAPH[field]]

    def close(self) -> None:
        """Give the executable back; where it is running, once it is done."""
        self._closing()

    def _fill(self, graph: Any, items: Sequence[Item]) -> None:
        """Add the nodes, each behind the one before it."""
        last: Any = None
        set_at = 0
        for item in items:
            if isinstance(item, NodePlan):
                set_at = self._next
                last = self._kernel(graph, last, item)
            else:
                last = self._conditional(graph, last, item, set_at)

    def _kernel(self, graph: Any, last: Any, plan: NodePlan) -> Any:
        """A node as it was seen; one that the call left out is a copy of another, and disabled before the first launch."""
        driver, seen, number = self._driver, plan.seen or self._fallback, self._next
        self._next += 1
        record = (ctypes.c_uint64 * len(RECORD_FIELDS)).from_address(seen.record)
        words = (ctypes.c_uint64 * max(1, len(seen.words)))(*seen.words)
        pointers = [ctypes.addressof(words) + 8 * i for i in range(len(seen.words))]
        kept = []
        for place, data in {**seen.maps, **seen.entries}.items():
            kept.append(_aligned(data))
            pointers[place] = kept[-1][1]
        array = (_P * max(1, len(pointers)))(*pointers)
        params = driver.CUDA_KERNEL_NODE_PARAMS()
        params.func = record[_RECORD["function"]]
        params.gridDimX, params.gridDimY, params.gridDimZ = seen.grid or (1, 1, 1)
        params.blockDimX, params.blockDimY, params.blockDimZ = record[_RECORD["threads"]] % EARLY, 1, 1
        params.sharedMemBytes = record[_RECORD["shared_bytes"]]
        params.kernelParams = ctypes.addressof(array)
        before = [] if last is None else [last]
        node = checked(driver.cuGraphAddKernelNode(graph, before, len(before), params), "add a kernel to a graph")
        at = len(NODE_FIELDS) * number
        values = ctypes.addressof(self._values[number])
        for name, value in {"node": int(node), "key": plan.key, "enabled": 1, "values": values}.items():
            self._words[at + _NODE[name]] = value
        return node

    def _conditional(self, graph: Any, last: Any, plan: ConditionalPlan, set_at: int) -> Any:
        """A conditional node behind node number set_at, which sets its condition. The last node of a loop's body sets it too."""
        driver = self._driver
        handle = checked(driver.cuGraphConditionalHandleCreate(graph, self._device_context, 0, _ASSIGN_DEFAULT),
                         "create a condition of a graph")
        self._values[set_at][0] = int(handle)
        params = driver.CUgraphNodeParams()
        params.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        params.conditional.handle = handle
        kinds = driver.CUgraphConditionalNodeType
        params.conditional.type = kinds.CU_GRAPH_COND_TYPE_WHILE if plan.loops else kinds.CU_GRAPH_COND_TYPE_IF
        params.conditional.size = len(plan.bodies)
        params.conditional.ctx = self._device_context
        before = [] if last is None else [last]
        node = checked(driver.cuGraphAddNode(graph, before, None, len(before), params), "add a conditional node to a graph")
        bodies = list(params.conditional.phGraph_out)[: len(plan.bodies)]
        for body, items in zip(bodies, plan.bodies, strict=True):
            self._fill(body, items)
        if plan.loops:
            self._values[self._next - 1][0] = int(handle)
        return node


def _destroy(gpu: Gpu, owned: list[Callable[[], Any]]) -> None:
    """Whatever the thread is at, which may be a capture."""
    with contextlib.suppress(CudaError), gpu.current(), relaxed():
        while owned:
            owned.pop()()


def _aligned(data: bytes) -> tuple[Any, int]:
    """Memory that holds a tensor map, and where it begins: a multiple of 64."""
    room = (ctypes.c_uint8 * (len(data) + 64))()
    at = ctypes.addressof(room) + -ctypes.addressof(room) % 64
    ctypes.memmove(at, data, len(data))
    return room, at


