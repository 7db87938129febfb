"""The binder of a program with many arrays: loops over tables of them, where that of a few is a line of code for each.

Arrays of NumPy and tensors of PyTorch are taken alike, those without gaps alone. Whether `out=` shares memory with anything is
found by sorting; while a call has its arrays where the last one had them, that is known already.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.builder.llvm_text import Value
from tilewright.compiler.host.call_apart import apart_ir
from tilewright.compiler.host.call_arrays import CallText
from tilewright.compiler.host.call_body import CallPath
from tilewright.compiler.host.call_walks import Row, walks_ir
from tilewright.runtime.call.binder import Binder
from tilewright.runtime.call.dlpack import DLPACK_TYPES, SHAPE_AT, TENSOR_BYTES
from tilewright.runtime.call.python_abi import ALIGNED, CONTIGUOUS, LENGTH, TYPE, WRITEABLE
from tilewright.runtime.program.program import Program
from tilewright.runtime.shape import Expr

MANY = 64  # arrays of a program, from which its binder goes by tables
MOST = 4096  # arrays: what a call knows of each takes 80 bytes of the stack


def takes_tables(program: Program, binder: Binder) -> bool:
    """Is the program one that this code is for?"""
    arrays = [*(argument for *_, argument in binder.tensors), *program.outputs]
    return MANY < len(arrays) <= MOST and bool(program.outputs) and bool(binder.tensors) and all(
        a.dtype in DLPACK_TYPES for a in arrays)


class TablePath(CallPath):
    """known: the extents that are no constants, each once."""

    def __init__(self, program: Program, binder: Binder, work: Sequence[tuple[Expr, Expr]]) -> None:
        super().__init__(program, binder, work, CallText())
        extents = [e for a in (*self.inputs, *program.outputs) for e in a.spec().dims]
        self.known = list(dict.fromkeys(e for e in extents if e.constant is None))
        self.count = len(self.inputs) + len(program.outputs)

    def tables(self) -> str:
        """The tables, and the functions that walk them."""
        found = []
        for position, argument in [*((p, a) for p, _, _, a in self.binder.tensors), *enumerate(self.program.outputs)]:
            extents = tuple(-1 - self.known.index(e) if e.constant is None else e.constant for e in argument.spec().dims)
            found.append(Row(position, argument.dtype, extents))
        tensors = {position: number for number, (position, *_) in enumerate(self.binder.tensors)}
        donors = {output: tensors[given] for given, output in self.program.donated}
        inputs = len(self.inputs)
        return walks_ir(found, inputs, self.pointers) + apart_ir(inputs, len(self.program.outputs), donors)

    def _rooms(self) -> None:
        outputs = len(self.program.outputs)
        for room, count in (("tensors", self.pointers + outputs), ("made", outputs), ("known", len(self.known)),
                            ("ranges", 2 * self.count)):
            self._room(room, count)
        self.text.do(f"%records = alloca [{self.count} x [{TENSOR_BYTES} x i8]], align 8")

    def _inputs(self) -> None:
        t = self.text
        flags = CONTIGUOUS | ALIGNED
        self.kinds = t.value(f"call i32 @look(ptr %args, i64 0, i64 {len(self.inputs)}, i32 {flags}, ptr %records)")
        t.require(t.value(f"icmp ne i32 {self.kinds}, 0"))
        self._bind()
        for number, expr in enumerate(self.known):
            size = t.expr(expr, self.dims)
            if expr.symbol is None:
                t.require(t.value(f"icmp sge i64 {size}, 0"))
            t.store(size, "i64", "%known", 8 * number)
        self._require_fit(0, len(self.inputs))

    def _require_fit(self, first: int, end: int) -> None:
        self.text.require(self.text.value(
            f"call i1 @fit(i64 {first}, i64 {end}, ptr %records, ptr %known, ptr %ranges, ptr %tensors)"))

    def _extent(self, tensor: int, axis: int) -> Value:
        t = self.text
        return t.load(t.load("%records", TENSOR_BYTES * tensor + SHAPE_AT, "ptr"), 8 * axis, "i64")

    def _solid(self) -> None:
        """Inputs have no gaps."""

    def _results(self) -> None:
        self._constants()
        self.text.do(f"call void @llvm.memset.p0.i64(ptr %made, i8 0, i64 {8 * len(self.program.outputs)}, i1 false)")

    def _given(self, out: Value) -> None:
        t, outputs, first = self.text, len(self.program.outputs), len(self.inputs)
        items = out
        if outputs == 1:
            t.store(out, "ptr", "%made", 0)
            items = "%made"
        else:
            t.require_equal(t.load(out, TYPE, "ptr"), t.word("tuple"), "ptr")
            t.require_equal(t.load(out, LENGTH, "i64"), outputs)
            items = t.at(out, t.word("tuple_items", "i64"))
        flags = CONTIGUOUS | ALIGNED | WRITEABLE
        found = t.value(f"call i32 @look(ptr {items}, i64 {first}, i64 {self.count}, i32 {flags}, ptr %records)")
        t.store("null", "ptr", "%made", 0)
        t.require(t.value(f"icmp ne i32 {found}, 0"))
        self._require_fit(first, self.count)
        t.require(t.value("call i1 @apart(ptr %ranges)"))
        t.do(f"call void {t.word('incref')}(ptr {out})")
        t.do(f"store ptr {out}, ptr %result")
        t.do("br label %run")

    def _allocate(self) -> None:
        t = self.text
        status = t.value(f"call i32 @make(i32 {self.kinds}, ptr %known, ptr %made, ptr %tensors)")
        t.do("store ptr null, ptr %result")
        t.do(f"switch i32 {status}, label %failed [ i32 0, label %run i32 1, label %refused ]")

    def _drop(self) -> None:
        self.text.do("call void @drop(ptr %made)")

    def _collect(self) -> None:
        t = self.text
        results = t.value("call ptr @collected(ptr %made)")
        t.do(f"br i1 {t.value(f'icmp eq ptr {results}, null')}, label %failed, label %collected")
        t.label("collected")
        t.do(f"ret ptr {results}")
