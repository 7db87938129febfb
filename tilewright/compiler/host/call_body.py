"""CallPath: the code of a call that all binders share, as LLVM IR; what looks at arrays and makes those of results is theirs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from tilewright.compiler.builder.llvm_text import Value
from tilewright.compiler.host.call_arrays import CallText
from tilewright.runtime.call.binder import Binder, Site
from tilewright.runtime.call.python_abi import TYPE, WORDS
from tilewright.runtime.call.shape_counts import COUNTS
from tilewright.runtime.host.native_call import ENTRY, TABLE
from tilewright.runtime.program.program import Program
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

# One core of today does some 64 operations and moves some 32 bytes a nanosecond. Above 50 us a call lets other Python
# threads run: that costs 35 ns alone, and tens of microseconds when another thread takes its turn.
FLOPS_PER_NS, BYTES_PER_NS, RELEASE_NS = 64, 32, 50_000

LARGEST_DIM = (1 << 31) - 1  # of calls taken here
_FLOATS = {DType.F32: "float", DType.F64: "double"}


class CallPath(ABC):
    """Emits the function that takes a call of a program. takes_out: is a call with `out=` taken here?"""

    takes_out = True

    def __init__(self, program: Program, binder: Binder, work: Sequence[tuple[Expr, Expr]], text: CallText) -> None:
        self.program, self.binder, self.work, self.text = program, binder, work, text
        self.inputs = [argument for *_, argument in binder.tensors]
        self.pointers = len(self.inputs) + len(program.constants)  # before the results in `tensors`
        self.dims: dict[str, Value] = {}

    def emit(self, name: str, other: str = "") -> str:
        """The function of this name. What it does not take goes to the function `other`, or to Python."""
        t = self.text
        t.label("entry")
        self._room("scalars", len(self.binder.scalars))
        self._room("dims", len(self.program.dims))
        t.do("%overflow = alloca i32")
        t.do("%result = alloca ptr")
        t.do("%out = alloca ptr")
        self._rooms()
        t.do("%given = and i64 %nargsf, 9223372036854775807")  # the top bit is PY_VECTORCALL_ARGUMENTS_OFFSET
        t.require_equal("%given", len(self.program.inputs))
        self._inputs()
        self._scalars()
        threads = self._threads()
        self._solid()
        self._results()
        before = next(line for line in reversed(t.lines) if line.endswith(":"))[:-1]
        t.do("store ptr null, ptr %out")
        t.do(f"br i1 {t.value('icmp eq ptr %names, null')}, label %counted, label %keyword")
        t.label("keyword")
        values = t.at("%args", 8 * len(self.program.inputs))
        fewest = t.value(f"call i64 @keywords(ptr {values}, ptr %names, ptr %out, i64 {threads})")
        t.require(t.value(f"icmp ne i64 {fewest}, 0"))
        keyword = t.lines[-1].rstrip(":")
        t.do("br label %counted")
        t.label("counted")
        threads = t.value(f"phi i64 [ {threads}, %{before} ], [ {fewest}, %{keyword} ]")
        given = t.load("%out", 0, "ptr")
        fresh, into = "slow" if self.program.donated else "allocate", "into" if self.takes_out else "slow"
        t.do(f"br i1 {t.value(f'icmp eq ptr {given}, null')}, label %{fresh}, label %{into}")
        if self.takes_out:
            t.label("into")
            self._given(given)
        if not self.program.donated:
            t.label("allocate")
            self._allocate()
        t.label("run")
        self._run(threads, other)
        start = f"define {'internal ' if name != ENTRY else ''}ptr @{name}(ptr %callable, ptr %args, i64 %nargsf, ptr %names) {{"
        return "\n".join([start, *t.lines, "}", ""])

    def _room(self, name: str, words: int) -> None:
        """Memory on the stack."""
        self.text.do(f"%{name} = alloca [{max(words, 1)} x i64]")

    @abstractmethod
    def _rooms(self) -> None:
        """Memory on the stack for arrays: `%tensors` and `%made`, and what else looks at them."""

    # -- inputs

    @abstractmethod
    def _inputs(self) -> None:
        """Check all tensor inputs and bind the dims."""

    @abstractmethod
    def _extent(self, tensor: int, axis: int) -> Value:
        """Of a tensor input that was looked at."""

    @abstractmethod
    def _solid(self) -> None:
        """Find where the memory of each input is, or of the copy of one with gaps."""

    def _bind(self) -> None:
        """The dims, within their ranges."""
        t = self.text
        for number, (dim, site) in enumerate(zip(self.program.dims, self.binder.sources, strict=True)):
            value = self.dims[dim.name] = self._site(site)
            t.require_between(dim.lo, value, min(dim.hi, LARGEST_DIM))
            if dim.multiple_of > 1:
                t.require_equal(t.value(f"urem i64 {value}, {dim.multiple_of}"), 0)
            t.store(value, "i64", "%dims", 8 * number)
        for number, site in self.binder.repeats:
            if site.tensor < 0:
                t.require_equal(self._site(site), self.dims[self.program.dims[number].name])

    def _site(self, site: Site) -> Value:
        t = self.text
        if site.tensor < 0:
            return self._integer(site.argument)
        found = self._extent(site.tensor, site.axis)
        if site.offset:
            found = t.value(f"sub i64 {found}, {site.offset}")
        return found if site.factor == 1 else t.value(f"sdiv i64 {found}, {site.factor}")

    def _integer(self, position: int) -> Value:
        """An argument that is exactly an int of at most 63 bits."""
        t = self.text
        given = t.load("%args", 8 * position, "ptr")
        t.require_equal(t.load(given, TYPE, "ptr"), t.word("int"), "ptr")
        value = t.value(f"call i64 {t.word('long_value')}(ptr {given}, ptr %overflow)")
        t.require_equal(t.load("%overflow", 0, "i32"), 0, "i32")
        return value

    def _scalars(self) -> None:
        t = self.text
        for number, (position, argument) in enumerate(self.binder.scalars):
            if not argument.dtype.is_float:
                bits = self._integer(position)
                low, high = argument.dtype.limits
                t.require_between(low, bits, min(high, (1 << 63) - 1))
                if argument.dtype.bytes < 8:
                    bits = t.value(f"and i64 {bits}, {(1 << 8 * argument.dtype.bytes) - 1}")
            elif argument.dtype in _FLOATS:
                given = t.load("%args", 8 * position, "ptr")
                t.require_equal(t.load(given, TYPE, "ptr"), t.word("float"), "ptr")
                value = t.value(f"call double {t.word('float_value')}(ptr {given})")
                if argument.dtype is DType.F32:
                    t.require(t.value("call i1 @in_environment()"))  # Python rounds as the environment says
                    narrow = t.value(f"fptrunc double {value} to float")
                    bits = t.value(f"zext i32 {t.value(f'bitcast float {narrow} to i32')} to i64")
                else:
                    bits = t.value(f"bitcast double {value} to i64")
            else:  # Python rounds to the narrow formats
                t.require("false")
                bits = "0"
            t.store(bits, "i64", "%scalars", 8 * number)

    def _threads(self) -> Value:
        """The least of the function's threads and the knob, as it is now."""
        t = self.text
        set_to = t.value(f"call ptr {t.word('getenv')}(ptr @knob)")
        found = t.value(f"call i64 @threads(ptr {set_to}, i64 {t.word('threads', 'i64')})")
        t.require(t.value(f"icmp ne i64 {found}, 0"))
        return found

    # -- results

    @abstractmethod
    def _results(self) -> None:
        """The extents of the results, and the constants, which stand in front of them."""

    def _constants(self) -> None:
        """Their addresses, from the table to `tensors`."""
        if self.program.constants:
            before = len(WORDS) + len(self.inputs) + len(self.program.outputs)
            place, size = self.text.at("%tensors", 8 * len(self.inputs)), 8 * len(self.program.constants)
            words = f"getelementptr (i8, ptr @{TABLE}, i64 {8 * before})"
            self.text.do(f"call void @llvm.memcpy.p0.p0.i64(ptr {place}, ptr {words}, i64 {size}, i1 false)")

    @abstractmethod
    def _given(self, out: Value) -> None:
        """`out=`: the keyword's value is the result."""

    @abstractmethod
    def _allocate(self) -> None:
        """No `out`: fresh arrays. A failed allocation has set the exception."""

    @abstractmethod
    def _drop(self) -> None:
        """Release what was allocated; Py_DecRef does nothing with null."""

    @abstractmethod
    def _collect(self) -> None:
        """Return the fresh arrays."""

    # -- the call

    def _run(self, threads: Value, other: str) -> None:
        t = self.text
        work = Expr.of(0)
        for flops, moved in self.work:
            work = work + flops * BYTES_PER_NS + moved * FLOPS_PER_NS
        limit = t.value(f"uitofp i64 {threads} to double")
        limit = t.value(f"fmul double {limit}, {float(RELEASE_NS * FLOPS_PER_NS * BYTES_PER_NS):e}")
        long = t.value(f"fcmp ogt double {t.estimate(work, self.dims)}, {limit}")
        call = f"call i64 {t.word('call')}(ptr {t.word('device')}, ptr %tensors, ptr %scalars, ptr %dims, i64 {threads})"
        t.do(f"br i1 {long}, label %released, label %held")
        t.label("released")
        state = t.value(f"call ptr {t.word('save_thread')}()")
        t.do(f"%after = {call}")
        t.do(f"call void {t.word('restore_thread')}(ptr {state})")
        t.do("br label %done")
        t.label("held")
        t.do(f"%within = {call}")
        t.do("br label %done")
        t.label("done")
        t.do("%status = phi i64 [ %after, %released ], [ %within, %held ]")
        t.do("%failing = icmp ne i64 %status, 0")
        t.do("%kept = load ptr, ptr %result")
        t.do("br i1 %failing, label %again, label %good")
        t.label("again")  # Python runs the call once more and raises
        t.do(f"call void {t.word('decref')}(ptr %kept)")
        self._drop()
        t.drop_copies()
        t.do("br label %python")
        if any("%refused" in line for line in t.lines):
            t.label("refused")
            self._drop()
            t.do("br label %python")
        t.label("good")
        counts = t.value(f"load ptr, ptr @{COUNTS}")
        t.do(f"br i1 {t.value(f'icmp eq ptr {counts}, null')}, label %uncounted, label %count")
        t.label("count")
        t.do(f"call void @count(ptr {counts}, ptr %dims)")
        t.do("br label %uncounted")
        t.label("uncounted")
        t.drop_copies()
        self._return()
        t.label("failed")
        self._drop()
        t.drop_copies()
        t.do("ret ptr null")
        arguments = "ptr %args, i64 %nargsf, ptr %names"
        t.label("slow")
        t.drop_copies()
        t.do(f"ret ptr {t.value(f'call ptr @{other}(ptr %callable, {arguments})')}" if other else "br label %python")
        t.label("python")
        fallback, forward = t.word("fallback"), t.word("vectorcall")
        t.do(f"ret ptr {t.value(f'call ptr {forward}(ptr {fallback}, {arguments})')}")

    def _return(self) -> None:
        t = self.text
        t.do("%fresh = icmp eq ptr %kept, null")
        t.do("br i1 %fresh, label %collect, label %hand")
        t.label("hand")
        t.do("ret ptr %kept")
        t.label("collect")
        self._collect()
