"""Emits the binder of a program: native code that takes a Python call, as LLVM IR (runtime/host/native_call.py has its contract).

It takes a call only where nothing is to convert or to say: every tensor is exactly an ndarray, of the very dtype object, the
right rank and aligned, and C-contiguous or, an input, copied so by NumPy's own function; dims agree and lie in their ranges;
scalars are exact ints and floats, and the thread rounds to nearest where one is rounded; `out=` is absent or as good, and apart
from all inputs; `threads=` is an exact int. A second function takes what the first does not, where tensors of PyTorch are among
the arrays. Anything else, a failed check of the model too, is passed to Python unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import mul
from typing import NamedTuple

from tilewright.compiler.builder.llvm_text import Value, fits
from tilewright.compiler.host.call_arrays import ArrayText, NumpyText, Seen, TorchText
from tilewright.compiler.host.call_helpers import COPIES, KEYWORDS, TENSOR, head
from tilewright.compiler.host.call_jagged import PACKED, jagged_ir, takes_jagged
from tilewright.compiler.host.count_shapes import count_ir
from tilewright.runtime.call.binder import Binder, Site
from tilewright.runtime.call.dlpack import DLPACK_TYPES
from tilewright.runtime.call.python_abi import ALIGNED, CONTIGUOUS, LENGTH, TYPE, WORDS, WRITEABLE
from tilewright.runtime.call.shape_counts import COUNTS
from tilewright.runtime.float_environment import is_in_ir
from tilewright.runtime.host.host_cpu import machine
from tilewright.runtime.host.native_call import ENTRY
from tilewright.runtime.program.program import Argument, Program
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

# One core of today does some 64 operations and moves some 32 bytes a nanosecond. Above 50 us a call lets other Python
# threads run: that costs 35 ns alone, and tens of microseconds when another thread takes its turn.
FLOPS_PER_NS, BYTES_PER_NS, RELEASE_NS = 64, 32, 50_000

# Pairs of a result and another array that `out=` is looked at for here; each is code, and where there are more Python looks.
PAIRS = 4096

# Most arrays of a program that takes tensors of PyTorch natively: their code is as long as that for NumPy's.
TENSORS = 1000

_LARGEST_DIM = (1 << 31) - 1  # of calls taken here
_FLOATS = {DType.F32: "float", DType.F64: "double"}
_TORCH_ENTRY = "enter_tensors"


class _MemoryRange(NamedTuple):
    """An array: its first byte and its size in bytes."""

    data: Value
    bytes: Value


def call_path_ir(program: Program, work: Sequence[tuple[Expr, Expr]], arch: str | None = None) -> str:
    """The binder, or "" where sizes may leave 63 bits.

    Args:
        work: (operations, bytes) of each kernel call, over the model dims; decides whether the GIL is released.
        arch: in LLVM's words, default this machine's.
    """
    binder = Binder(program)
    highest = {d.name: min(d.hi, _LARGEST_DIM) for d in program.dims}
    extents = [a.spec().dims for a in (*(t for *_, t in binder.tensors), *program.outputs)]
    if not all(fits(e, highest) for shape in extents for e in (*shape, _bytes(shape))):
        return ""
    tensors = [argument for *_, argument in binder.tensors]
    arrays = [*tensors, *program.outputs]
    path = _CallPath(program, binder, work, NumpyText(len(arrays), copies=not program.donated))
    if program.donated and not path.takes_out:
        return ""
    parts = [head(len(WORDS) + len(arrays) + len(program.constants)), COPIES, KEYWORDS, count_ir(len(program.dims)),
             is_in_ir(arch or machine())]
    entry = ENTRY
    if takes_jagged(program):
        parts.append(jagged_ir(program, ENTRY))
        entry = PACKED
    if not tensors or program.donated or len(arrays) > TENSORS or any(a.dtype not in DLPACK_TYPES for a in arrays):
        return "\n".join([*parts, path.emit(entry)])
    torch = _CallPath(program, binder, work, TorchText(len(arrays)))
    return "\n".join([*parts, TENSOR, torch.emit(_TORCH_ENTRY), path.emit(entry, _TORCH_ENTRY)])


class _CallPath:
    def __init__(self, program: Program, binder: Binder, work: Sequence[tuple[Expr, Expr]], text: ArrayText) -> None:
        self.program, self.binder, self.work, self.text = program, binder, work, text
        self.inputs = [argument for *_, argument in binder.tensors]
        self.pointers = len(self.inputs) + len(program.constants)  # before the results in `tensors`
        self.dims: dict[str, Value] = {}

    @property
    def takes_out(self) -> bool:
        """Is a call with `out=` taken here?"""
        outputs = len(self.program.outputs)
        return outputs * (len(self.inputs) + outputs) <= PAIRS

    def emit(self, name: str, other: str = "") -> str:
        """The function of this name. What it does not take goes to the function `other`, or to Python."""
        outputs = self.program.outputs
        t = self.text
        t.label("entry")
        rank = max((len(o.dims or ()) for o in outputs), default=0)
        for room, count in (("tensors", self.pointers + len(outputs)), ("scalars", len(self.binder.scalars)),
                            ("dims", len(self.program.dims)), ("made", len(outputs)), ("shape", rank)):
            t.do(f"%{room} = alloca [{max(count, 1)} x i64]")
        t.do("%overflow = alloca i32")
        t.do("%result = alloca ptr")
        t.do("%out = alloca ptr")
        t.rooms()
        t.do("%given = and i64 %nargsf, 9223372036854775807")  # the top bit is PY_VECTORCALL_ARGUMENTS_OFFSET
        t.require_equal("%given", len(self.program.inputs))
        seen, inputs = self._inputs()
        self._scalars()
        threads = self._threads()
        taken = self._solid(seen, inputs)
        sizes = [[t.expr(e, self.dims) for e in o.spec().dims] for o in outputs]
        for shape, output in zip(sizes, outputs, strict=True):
            for size, expr in zip(shape, output.spec().dims, strict=True):
                if expr.constant is None and expr.symbol is None:
                    t.require(t.value(f"icmp sge i64 {size}, 0"))
        for i, _ in enumerate(self.program.constants):
            word = t.word(len(self.inputs) + len(outputs) + i, "i64")
            t.store(word, "i64", "%tensors", 8 * (len(self.inputs) + i))
        for i in range(len(outputs)):
            t.store("null", "ptr", "%made", 8 * i)
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
            self._given(given, sizes, taken)
        if not self.program.donated:
            t.label("allocate")
            self._allocate(sizes)
        t.label("run")
        self._run(threads, other)
        start = f"define {'internal ' if name != ENTRY else ''}ptr @{name}(ptr %callable, ptr %args, i64 %nargsf, ptr %names) {{"
        return "\n".join([start, *t.lines, "}", ""])

    # -- inputs

    def _inputs(self) -> tuple[list[tuple[Value, Seen]], list[list[Value]]]:
        """Check all tensor inputs and bind the dims; the arrays and their extents."""
        t = self.text
        sizes: list[list[Value]] = []
        seen: list[tuple[Value, Seen]] = []
        for number, (position, _, _, argument) in enumerate(self.binder.tensors):
            given = t.load("%args", 8 * position, "ptr")
            seen.append((given, t.take(given, argument, number)))
            sizes.append([t.load(seen[-1][1].extents, 8 * axis, "i64") for axis, _ in enumerate(argument.dims or ())])
        for number, (dim, site) in enumerate(zip(self.program.dims, self.binder.sources, strict=True)):
            value = self.dims[dim.name] = self._site(site, sizes)
            t.require_between(dim.lo, value, min(dim.hi, _LARGEST_DIM))
            if dim.multiple_of > 1:
                t.require_equal(t.value(f"urem i64 {value}, {dim.multiple_of}"), 0)
            t.store(value, "i64", "%dims", 8 * number)
        for number, site in self.binder.repeats:
            if site.tensor < 0:
                t.require_equal(self._site(site, sizes), self.dims[self.program.dims[number].name])
        for argument, shape in zip(self.inputs, sizes, strict=True):
            for size, expr in zip(shape, argument.spec().dims, strict=True):
                t.require_equal(size, t.expr(expr, self.dims))
        return seen, sizes

    def _solid(self, seen: Sequence[tuple[Value, Seen]], sizes: Sequence[Sequence[Value]]) -> list[_MemoryRange]:
        """Where the memory of each input is, or of the copy of one with gaps."""
        found = []
        for number, ((array, what), shape, argument) in enumerate(zip(seen, sizes, self.inputs, strict=True)):
            data = self.text.solid(array, what)
            self.text.store(data, "ptr", "%tensors", 8 * number)
            found.append(_MemoryRange(data, self._size(shape, argument)))
        return found

    def _site(self, site: Site, sizes: Sequence[Sequence[Value]]) -> Value:
        t = self.text
        if site.tensor < 0:
            return self._integer(site.argument)
        found = sizes[site.tensor][site.axis]
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

    def _given(self, out: Value, sizes: Sequence[Sequence[Value]], taken: Sequence[_MemoryRange]) -> None:
        """`out=`: the keyword's value is the result."""
        t, outputs = self.text, self.program.outputs
        items = t.word("tuple_items", "i64")
        if len(outputs) != 1:
            t.require_equal(t.load(out, TYPE, "ptr"), t.word("tuple"), "ptr")
            t.require_equal(t.load(out, LENGTH, "i64"), len(outputs))
        others = [(memory, number) for number, memory in enumerate(taken)]
        for number, (shape, argument) in enumerate(zip(sizes, outputs, strict=True)):
            array = out if len(outputs) == 1 else t.load(t.at(out, items), 8 * number, "ptr")
            seen = t.look(array, argument, len(self.inputs) + number, CONTIGUOUS | ALIGNED | WRITEABLE)
            for axis, size in enumerate(shape):
                t.require_equal(t.load(seen.extents, 8 * axis, "i64"), size)
            memory = _MemoryRange(seen.data, self._size(shape, argument))
            for other, source in others:
                self._check_apart(memory, other, self._is_donated(source, number))
            others.append((memory, -1))
            t.store(memory.data, "ptr", "%tensors", 8 * (self.pointers + number))
        t.do(f"call void {t.word('incref')}(ptr {out})")
        t.do(f"store ptr {out}, ptr %result")
        t.do("br label %run")

    def _is_donated(self, tensor: int, output: int) -> bool:
        return tensor >= 0 and (self.binder.tensors[tensor][0], output) in self.program.donated

    def _check_apart(self, a: _MemoryRange, b: _MemoryRange, may_be_same: bool) -> None:
        """Two arrays share no byte. An empty one shares none, wherever it is; Python sees to those inside another."""
        t = self.text
        ends = [t.at(m.data, m.bytes) for m in (a, b)]
        after = t.value(f"icmp uge ptr {a.data}, {ends[1]}")
        before = t.value(f"icmp uge ptr {b.data}, {ends[0]}")
        apart = t.value(f"or i1 {after}, {before}")
        if may_be_same:
            apart = t.value(f"or i1 {apart}, {t.value(f'icmp eq ptr {a.data}, {b.data}')}")
        t.require(apart)

    def _allocate(self, sizes: Sequence[Sequence[Value]]) -> None:
        """No `out`: fresh arrays. A failed allocation has set the exception."""
        t = self.text
        for number, (shape, output) in enumerate(zip(sizes, self.program.outputs, strict=True)):
            data = t.make(shape, output, len(self.inputs) + number, number)
            t.store(data, "ptr", "%tensors", 8 * (self.pointers + number))
        t.do("store ptr null, ptr %result")
        t.do("br label %run")

    def _size(self, shape: Sequence[Value], argument: Argument) -> Value:
        """Bytes of an array of these extents."""
        total: Value = str(argument.dtype.bytes)
        for size in shape:
            total = self.text.value(f"mul i64 {total}, {size}")
        return total

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

    def _drop(self) -> None:
        """Release what was allocated; Py_DecRef does nothing with null."""
        t = self.text
        for number in range(len(self.program.outputs)):
            t.do(f"call void {t.word('decref')}(ptr {t.load('%made', 8 * number, 'ptr')})")

    def _return(self) -> None:
        t, count = self.text, len(self.program.outputs)
        t.do("%fresh = icmp eq ptr %kept, null")
        t.do("br i1 %fresh, label %collect, label %hand")
        t.label("hand")
        t.do("ret ptr %kept")
        t.label("collect")
        if count == 1:
            t.do(f"ret ptr {t.load('%made', 0, 'ptr')}")
            return
        results = t.value(f"call ptr {t.word('tuple_new')}(i64 {count})")
        t.do(f"br i1 {t.value(f'icmp eq ptr {results}, null')}, label %failed, label %fill")
        t.label("fill")
        for number in range(count):
            made = t.load("%made", 8 * number, "ptr")
            t.value(f"call i32 {t.word('tuple_set_item')}(ptr {results}, i64 {number}, ptr {made})")
        t.do(f"ret ptr {results}")


def _bytes(shape: Sequence[Expr]) -> Expr:
    """The most bytes of an array of these extents."""
    return reduce(mul, shape, Expr.of(8))
