"""Calls through CUDA graphs: one executable graph a stream, whose nodes are updated to each call, within a budget of memory.

Native code does a call (graph_table.py); here it is decided whether there is a graph, and it is made where a call needs nodes
that there are none of. docs/graphs.md tells users.
"""

from __future__ import annotations

import statistics
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from tilewright.runtime.cuda.driver import STICKY, CudaError, name_of
from tilewright.runtime.cuda.graph_build import BuiltGraph, Recorder
from tilewright.runtime.cuda.graph_plan import Widen, tree_of, ways_of
from tilewright.runtime.cuda.result_ring import ResultRing
from tilewright.runtime.errors import DeviceError, GraphWarning
from tilewright.runtime.program.data_branches import launches_in
from tilewright.runtime.program.graph_report import GraphReport, StreamReport
from tilewright.runtime.sizes import size_text

if TYPE_CHECKING:
    from tilewright.runtime.cuda.loaded import LoadedProgram, StreamContext

S = TypeVar("S", int, int | None)

FEWEST = 8  # launches of a program from which `auto` looks at graphs
TIMED = 10  # calls of a stream that are timed without a graph, and then with one
_UNTIMED = 2  # first calls of either kind, which load kernels or fill the nodes
_CAPTURED = 900  # CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED


class ProgramGraphs:
    """What the graphs of one program on one device share: the budget, and how they hold its branches and loops.

    clock: seconds, for what `auto` measures.
    """

    def __init__(self, of: LoadedProgram, clock: Callable[[], float] = time.perf_counter) -> None:
        program = of.program
        self._of, self.clock = weakref.ref(of), clock
        self.mode, self.budget = program.graphs, program.graph_memory
        self.lock = threading.Lock()
        self.streams: dict[int, StreamGraph] = {}  # those used last at the end
        self.ways, self.reason = ways_of(program, of.driver_version)
        if self.mode == "auto" and not self.reason and launches_in(tree_of(program)) < FEWEST:
            self.reason = f"the program has fewer than {FEWEST} launches"
        if self.mode == "on" and self.reason:
            raise DeviceError(f'graphs="on": {self.reason}; update the driver, or compile with graphs="auto"')
        self._warned = False

    @property
    def of(self) -> LoadedProgram:
        """The program, which this does not keep."""
        found = self._of()
        assert found is not None, "a program outlives its graphs"
        return found

    def of_stream(self, context: StreamContext) -> StreamGraph | None:
        """The graph of a stream; None where calls go without."""
        return None if self.reason else StreamGraph(self, context)

    def used(self, graph: StreamGraph) -> None:
        """Note that a stream's graph is the one used last."""
        with self.lock:
            self.streams.pop(graph.stream, None)
            self.streams[graph.stream] = graph

    def room_for(self, graph: StreamGraph, built: BuiltGraph) -> bool:
        """Is there room for what a stream's graph takes, once those that were not used for longest are gone? Not those of streams
        that are in a call now: where there is no room but for them, this call goes without.

        Raises:
            DeviceError: one graph takes more than the budget, and graphs were asked for.
        """
        with self.lock:
            others = [s for s in self.streams.values() if s is not graph and s.built is not None]
        total = built.bytes + sum(s.built.bytes for s in others if s.built is not None)
        for other in others:
            if total <= self.budget:
                break
            if other.arena.lock.acquire(blocking=False):
                try:
                    total -= other.built.bytes if other.built is not None else 0
                    other.drop()
                finally:
                    other.arena.lock.release()
        if total <= self.budget or built.bytes <= self.budget:
            return total <= self.budget
        message = f"a CUDA graph of this model takes {size_text(built.bytes)} and graph_memory is {size_text(self.budget)}"
        if self.mode == "on":
            raise DeviceError(f'graphs="on": {message}; give graph_memory="{size_text(built.bytes)}" or more')
        with self.lock:
            warned, self._warned = self._warned, True
        if not warned:
            warnings.warn(f"{message}; calls go without one, give more for them", GraphWarning, stacklevel=2)
        return False

    def report(self) -> tuple[StreamReport, ...]:
        """Of every stream that calls were made on."""
        with self.lock:
            return tuple(s.report() for s in self.streams.values())


class StreamGraph:
    """The calls of one program on one stream, each under the lock of the stream's arena.

    Attributes:
        built: the graph; None where there is none now. off: why calls go without one from now on; "" while they may have one.
    """

    def __init__(self, of: ProgramGraphs, context: StreamContext) -> None:
        self._shared, self._held_by = weakref.ref(of), weakref.ref(context)
        self.stream, self.arena = context.stream, context.arena
        self.built: BuiltGraph | None = None
        self.off = ""
        self._turns: dict[int, int] = {}
        self._plain: list[float] = []  # seconds of calls without a graph
        self._through: list[float] = []  # and with one
        self._seen = [0, 0]
        self._measures = of.mode == "auto"
        self.calls = self.instantiated = 0
        self.ring = ResultRing()
        self._totals = {"updates": 0, "switches": 0, "launches": 0}  # of graphs that are gone
        of.used(self)

    @property
    def _of(self) -> ProgramGraphs:
        found = self._shared()
        assert found is not None, "a program outlives its graphs"
        return found

    @property
    def _context(self) -> StreamContext:
        found = self._held_by()
        assert found is not None, "a stream's context outlives its graph"
        return found

    def run(self, scalars: int, dims: int) -> int:
        """tw_call, through the graph or without. The stream's table is the way for what a graph does not take."""
        if self.off or (self._measures and len(self._plain) < TIMED):
            return self._timed(self._context.run_stream, scalars, dims, self._plain, 0)
        status = self._timed(self._through_graph, scalars, dims, self._through, 1)
        if status is None:
            status = self._context.run_stream(scalars, dims)
            self.calls += status >= 0
        return status

    def _timed(self, run: Callable[[int, int], S], scalars: int, dims: int, kept: list[float], way: int) -> S:
        """Run, and measure until it is decided."""
        if not self._measures:
            status = run(scalars, dims)
            self.calls += status is not None and status >= 0
            return status
        begin = self._of.clock()
        status = run(scalars, dims)
        if status is not None and status >= 0:
            self.calls += 1
            self._seen[way] += 1
            if self._seen[way] > _UNTIMED:
                kept.append(self._of.clock() - begin)
        if len(self._through) >= TIMED:
            self._measures = False
            plain, through = statistics.median(self._plain), statistics.median(self._through)
            if through >= plain:
                self.off = f"a call takes {through * 1e6:.1f} us with a graph and {plain * 1e6:.1f} us without"
                self.drop()
        return status

    def _through_graph(self, scalars: int, dims: int) -> int | None:
        """None where the call has to go without: nothing has run then."""
        context = self._context
        for _ in range(2):
            if self.built is not None:
                before = self.built["launches"]
                status = context.run_graph(self.built.address, scalars, dims)
                if context.error:
                    return self._after_error(before)
                if status < 0:
                    return None  # the arena is to be provided, or the user captures
                if not self.built["missed"]:
                    self._of.used(self)
                    return status
            if not self._build(scalars, dims):
                return None
        return None

    def _after_error(self, launches: int) -> int | None:
        """What the driver refuses of a graph, before it is launched, calls go without from now on."""
        context, built = self._context, self.built
        assert built is not None
        code = context.error
        if self._of.mode == "on" or code == _CAPTURED or code in STICKY or built["launches"] != launches \
                or self._of.of.has_failure():
            return 0  # whose error the caller raises
        context.take_error()
        self.off = f"the driver refused an update: {name_of(code)}"
        self.drop()
        return None

    def _build(self, scalars: int, dims: int) -> bool:
        """Make the graph that this call needs, wider than the one before; False where the call goes without."""
        of, context = self._of.of, self._context
        recorder = Recorder(of, context, self._of.ways)
        status = context.run_recorded(recorder.table, scalars, dims)
        recorder.close()
        if of.has_failure():
            of.fail(context)
        if status != 0 or context.error or all(s.grid is None for s in recorder.seen) or context.is_captured():
            if context.error:
                context.take_error()  # the way without a graph meets it too, and says it
            return False
        items = Widen(of.program, self._of.ways, self._turns).plan(recorder.seen)
        try:
            built = BuiltGraph(of, self.stream, items, self._of.ways)
        except CudaError as error:
            if self._of.mode == "on" or error.sticky:
                raise
            self.off = f"no graph could be made: {error}"
            self.drop()
            return False
        self.instantiated += 1
        self.drop()
        try:
            fits = self._of.room_for(self, built)
        except DeviceError:
            built.close()
            raise
        if not fits:
            built.close()
            if built.bytes > self._of.budget:
                self.off = f"graph_memory is {size_text(self._of.budget)} and a graph takes {size_text(built.bytes)}"
            return False
        self.built = built
        return True

    def drop(self) -> None:
        """Give the graph back. The stream's arena is locked."""
        built, self.built = self.built, None
        if built is not None:
            for name in self._totals:
                self._totals[name] += built[name]
            built.close()

    def report(self) -> StreamReport:
        """What fn.graphs() says of this stream."""
        built = self.built
        totals = {n: v + (built[n] if built is not None else 0) for n, v in self._totals.items()}
        median = [statistics.median(t) if t else 0.0 for t in (self._plain, self._through)]
        return StreamReport(self._of.of.gpu.ordinal, self.stream, self._state(), built.nodes if built else 0,
                            built.bytes if built else 0, self.calls, self.instantiated, totals["launches"], totals["updates"],
                            totals["switches"], self.ring.hits, *median)

    def _state(self) -> str:
        if self.off:
            return f"without graphs: {self.off}"
        if self._measures:
            return "measuring"
        return "through a graph" if self.built is not None else "no graph yet"


def report_of(loaded: LoadedProgram | None) -> GraphReport:
    """What fn.graphs() gives of a program on one device."""
    if loaded is None or loaded.graphs is None:
        return GraphReport((), "no call has been made on a GPU" if loaded is None else "compiled with graphs=\"off\"")
    return GraphReport(loaded.graphs.report(), loaded.graphs.reason)
