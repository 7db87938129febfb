"""Emits the binder of a program: native code that takes a Python call, as LLVM IR (runtime/host/native_call.py has its contract).

It takes a call only where nothing is to convert or to say: every tensor is exactly an ndarray, of the very dtype object, the
right rank and aligned, and C-contiguous or, an input, read as it lies, its rows apart, or copied by NumPy's own function; dims
agree and lie in their ranges; scalars are exact ints and floats, and the thread rounds to nearest where one is rounded; `out=` is
absent or as good, and apart from all inputs; `threads=` is an exact int. A second function takes what the first does not, where
tensors of PyTorch are among the arrays. Anything else, a failed check of the model too, is passed to Python unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import mul

from tilewright.compiler.builder.llvm_text import Value, fits
from tilewright.compiler.host.call_arrays import ArrayText, Given, MemoryRange, NumpyText, Seen, TorchText
from tilewright.compiler.host.call_blocks import ROOM
from tilewright.compiler.host.call_body import LARGEST_DIM, CallPath
from tilewright.compiler.host.call_fresh import FRESH
from tilewright.compiler.host.call_helpers import COPIES, KEYWORDS, ROWS_APART, TENSOR, head
from tilewright.compiler.host.call_jagged import PACKED, jagged_ir, takes_jagged
from tilewright.compiler.host.call_tables import MOST, TablePath, takes_tables
from tilewright.compiler.host.count_shapes import count_ir
from tilewright.runtime.call.binder import Binder
from tilewright.runtime.call.dlpack import DLPACK_TYPES
from tilewright.runtime.call.python_abi import ALIGNED, CONTIGUOUS, LENGTH, TYPE, WORDS, WRITEABLE
from tilewright.runtime.float_environment import is_in_ir
from tilewright.runtime.host.host_cpu import machine
from tilewright.runtime.host.native_call import ENTRY
from tilewright.runtime.program.program import Argument, Program
from tilewright.runtime.shape import Expr

# Pairs of a result and another array that `out=` is looked at for here; each is code, and where there are more Python looks.
PAIRS = 4096



_TORCH_ENTRY = "enter_tensors"


def call_path_ir(program: Program, work: Sequence[tuple[Expr, Expr]], arch: str | None = None) -> str:
    """The binder, or "" where sizes may leave 63 bits.

    Args:
        work: (operations, bytes) of each kernel call, over the model dims; decides whether the GIL is released.
        arch: in LLVM's words, default this machine's.
    """
    binder = Binder(program)
    highest = {d.name: min(d.hi, LARGEST_DIM) for d in program.dims}
    extents = [a.spec().dims for a in (*(t for *_, t in binder.tensors), *program.outputs)]
    if not all(fits(e, highest) for shape in extents for e in (*shape, _bytes(shape))):
        return ""
    tensors = [argument for *_, argument in binder.tensors]
    arrays = [*tensors, *program.outputs]
    parts = [head(len(WORDS) + len(arrays) + len(program.constants)), COPIES, ROWS_APART, FRESH, KEYWORDS,
             count_ir(len(program.dims)), is_in_ir(arch or machine())]
    entry = ENTRY
    if takes_jagged(program):
        parts.append(jagged_ir(program, ENTRY))
        entry = PACKED
    if takes_tables(program, binder):
        tables = TablePath(program, binder, work)
        return "\n".join([*parts, TENSOR, ROOM, tables.tables(), tables.emit(entry)])
    path = _FewArrays(program, binder, work, NumpyText(len(arrays), copies=not program.donated))
    if program.donated and not path.takes_out:
        return ""
    if not tensors or program.donated or len(arrays) > MOST or any(a.dtype not in DLPACK_TYPES for a in arrays):
        return "\n".join([*parts, path.emit(entry)])
    torch = _FewArrays(program, binder, work, TorchText(len(arrays)))
    return "\n".join([*parts, TENSOR, ROOM, torch.emit(_TORCH_ENTRY), path.emit(entry, _TORCH_ENTRY)])


class _FewArrays(CallPath):
    """A line of code for each array."""

    def __init__(self, program: Program, binder: Binder, work: Sequence[tuple[Expr, Expr]], text: ArrayText) -> None:
        super().__init__(program, binder, work, text)
        self.arrays = text
        self.seen: list[tuple[Value, Seen]] = []  # the tensor inputs
        self.extents: list[list[Value]] = []  # of each tensor input
        self.taken: list[MemoryRange] = []  # where their memory is
        self.shapes: list[list[Value]] = []  # of the results
        outputs = len(program.outputs)
        self.takes_out = outputs * (len(self.inputs) + outputs) <= PAIRS

    def _rooms(self) -> None:
        outputs = self.program.outputs
        self._room("tensors", self.pointers + len(outputs) + sum(self.program.stride_words.values()))
        self._room("made", len(outputs))
        self._room("shape", max((len(o.dims or ()) for o in outputs), default=0))
        self.arrays.rooms()

    # -- inputs

    def _inputs(self) -> None:
        """Check all tensor inputs and bind the dims."""
        t = self.text
        for number, (position, _, _, argument) in enumerate(self.binder.tensors):
            given = t.load("%args", 8 * position, "ptr")
            seen = self.arrays.take(given, argument, number)
            self.seen.append((given, seen))
            self.extents.append([t.load(seen.extents, 8 * axis, "i64") for axis, _ in enumerate(argument.dims or ())])
        self._bind()
        for argument, shape in zip(self.inputs, self.extents, strict=True):
            for size, expr in zip(shape, argument.spec().dims, strict=True):
                t.require_equal(size, t.expr(expr, self.dims))

    def _solid(self) -> None:
        """Find where the memory of each input is, or of the copy of one with gaps."""
        words, at = self.program.stride_words, self.pointers + len(self.program.outputs)
        for number, ((array, what), shape, argument) in enumerate(zip(self.seen, self.extents, self.inputs, strict=True)):
            strides = self.text.at("%tensors", 8 * at) if number in words else "null"
            at += words.get(number, 0)
            given = Given(what, argument, self._size(shape, argument), strides)
            self.arrays.no_strides(given)
            memory = self.arrays.solid(array, given)
            self.text.store(memory.data, "ptr", "%tensors", 8 * number)
            self.taken.append(memory)

    def _extent(self, tensor: int, axis: int) -> Value:
        return self.extents[tensor][axis]

    # -- results

    def _results(self) -> None:
        """The extents of the results, and the constants, which stand in front of them."""
        t, outputs = self.text, self.program.outputs
        self.shapes = [[t.expr(e, self.dims) for e in o.spec().dims] for o in outputs]
        for shape, output in zip(self.shapes, outputs, strict=True):
            for size, expr in zip(shape, output.spec().dims, strict=True):
                if expr.constant is None and expr.symbol is None:
                    t.require(t.value(f"icmp sge i64 {size}, 0"))
        self._constants()
        for i in range(len(outputs)):
            t.store("null", "ptr", "%made", 8 * i)

    def _given(self, out: Value) -> None:
        """`out=`: the keyword's value is the result."""
        t, outputs = self.text, self.program.outputs
        items = t.word("tuple_items", "i64")
        if len(outputs) != 1:
            t.require_equal(t.load(out, TYPE, "ptr"), t.word("tuple"), "ptr")
            t.require_equal(t.load(out, LENGTH, "i64"), len(outputs))
        others = [(memory, number) for number, memory in enumerate(self.taken)]
        for number, (shape, argument) in enumerate(zip(self.shapes, outputs, strict=True)):
            array = out if len(outputs) == 1 else t.load(t.at(out, items), 8 * number, "ptr")
            seen = self.arrays.look(array, argument, len(self.inputs) + number, CONTIGUOUS | ALIGNED | WRITEABLE)
            for axis, size in enumerate(shape):
                t.require_equal(t.load(seen.extents, 8 * axis, "i64"), size)
            memory = MemoryRange(seen.data, self._size(shape, argument))
            for other, source in others:
                self._check_apart(memory, other, self._is_donated(source, number))
            others.append((memory, -1))
            t.store(memory.data, "ptr", "%tensors", 8 * (self.pointers + number))
        t.do(f"call void {t.word('incref')}(ptr {out})")
        t.do(f"store ptr {out}, ptr %result")
        t.do("br label %run")

    def _is_donated(self, tensor: int, output: int) -> bool:
        return tensor >= 0 and (self.binder.tensors[tensor][0], output) in self.program.donated

    def _check_apart(self, a: MemoryRange, b: MemoryRange, may_be_same: bool) -> None:
        """Two arrays share no byte. An empty one shares none, wherever it is; Python sees to those inside another."""
        t = self.text
        ends = [t.at(m.data, m.bytes) for m in (a, b)]
        after = t.value(f"icmp uge ptr {a.data}, {ends[1]}")
        before = t.value(f"icmp uge ptr {b.data}, {ends[0]}")
        apart = t.value(f"or i1 {after}, {before}")
        if may_be_same:
            apart = t.value(f"or i1 {apart}, {t.value(f'icmp eq ptr {a.data}, {b.data}')}")
        t.require(apart)

    def _allocate(self) -> None:
        """No `out`: fresh arrays. A failed allocation has set the exception."""
        t = self.text
        for number, (shape, output) in enumerate(zip(self.shapes, self.program.outputs, strict=True)):
            data = self.arrays.make(shape, output, len(self.inputs) + number, number)
            t.store(data, "ptr", "%tensors", 8 * (self.pointers + number))
        t.do("store ptr null, ptr %result")
        t.do("br label %run")

    def _size(self, shape: Sequence[Value], argument: Argument) -> Value:
        """Bytes of an array of these extents."""
        total: Value = str(argument.dtype.bytes)
        for size in shape:
            total = self.text.value(f"mul i64 {total}, {size}")
        return total

    def _drop(self) -> None:
        """Release what was allocated; Py_DecRef does nothing with null."""
        t = self.text
        for number in range(len(self.program.outputs)):
            t.do(f"call void {t.word('decref')}(ptr {t.load('%made', 8 * number, 'ptr')})")

    def _collect(self) -> None:
        t, count = self.text, len(self.program.outputs)
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
