"""How emitted code looks at the arrays of a call and makes those of its results: NumPy's, or PyTorch's tensors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from tilewright.compiler.builder.llvm_text import LlvmText, Value
from tilewright.compiler.host.call_words import word_at
from tilewright.runtime.call.dlpack import BYTE_OFFSET, DLPACK_TYPES, ELEMENT, MANAGED, RANK_AT, SHAPE_AT, TENSOR_BYTES
from tilewright.runtime.call.python_abi import (
    ALIGNED,
    CONTIGUOUS,
    DATA,
    DTYPE,
    EXTENTS,
    FLAGS,
    RANK,
    TYPE,
    WORDS,
)
from tilewright.runtime.host.native_call import TABLE
from tilewright.runtime.program.program import Argument


class Seen(NamedTuple):
    """An array that is as it should be: its first byte, and where its extents lie."""

    data: Value
    extents: Value


class MemoryRange(NamedTuple):
    """Memory of an array: its first byte, and how many bytes to its end."""

    data: Value
    bytes: Value


class Given(NamedTuple):
    """An input that was looked at. bytes: of it without gaps. strides: where those of its rows are told, 0 where they are dense;
    null of one whose rows may not lie apart."""

    seen: Seen
    argument: Argument
    bytes: Value
    strides: Value


class CallText(LlvmText):
    """The body of a function that takes a call. A condition that does not hold leaves for the block `slow`."""

    def __init__(self) -> None:
        super().__init__("slow")

    def word(self, index: int | str, type_: str = "ptr") -> Value:
        """A word of the tables that the runtime fills: by name, or of the program's own by number."""
        if isinstance(index, str):
            return self.value(f"load {type_}, ptr {word_at(index)}")
        return self.load(f"@{TABLE}", 8 * (len(WORDS) + index), type_)

    def drop_copies(self) -> None:
        """Release what was copied of inputs; where a call ends, or leaves for Python."""


class ArrayText(CallText):
    """Looks at one array after the other. arrays: of inputs and results together."""

    def __init__(self, arrays: int) -> None:
        super().__init__()
        self._arrays = arrays

    @abstractmethod
    def rooms(self) -> None:
        """Memory on the stack."""

    @abstractmethod
    def look(self, array: Value, argument: Argument, number: int, flags: int) -> Seen:
        """Require that an object is an array of this type and rank. number: of the array; flags: NumPy's, that it has to have."""

    def take(self, array: Value, argument: Argument, number: int) -> Seen:
        """`look` at an input, whose elements have to be aligned."""
        return self.look(array, argument, number, CONTIGUOUS | ALIGNED)

    def solid(self, array: Value, given: Given) -> MemoryRange:
        """Where the memory of an input is that was taken; of one with gaps a copy is made here, after all checks."""
        return MemoryRange(given.seen.data, given.bytes)

    def no_strides(self, given: Given) -> None:
        """Tell that the rows of an input lie together."""
        if given.strides != "null":
            for axis, _ in enumerate((given.argument.dims or ())[1:]):
                self.store("0", "i64", given.strides, 8 * axis)

    @abstractmethod
    def make(self, shape: Sequence[Value], argument: Argument, number: int, slot: int) -> Value:
        """A fresh array, its object in `%made`; its first byte. Leaves for `failed` where an exception was set."""

    def _stored_shape(self, shape: Sequence[Value]) -> None:
        for axis, size in enumerate(shape):
            self.store(size, "i64", "%shape", 8 * axis)

    def _leave(self, failing: Value, way_out: str) -> None:
        on = self.name()
        self.do(f"br i1 {failing}, label %{way_out}, label %{on}")
        self.label(on)


class NumpyText(ArrayText):
    """Takes NumPy's arrays. copies: inputs with gaps, or with their axes in another order, are copied by NumPy's own function."""

    def __init__(self, arrays: int, copies: bool) -> None:
        super().__init__(arrays)
        self._copies = copies

    def rooms(self) -> None:
        if self._copies:
            self.do(f"%copies = alloca [{self._arrays} x ptr]")
            self.do("%copied = alloca i64")
            self.do("store i64 0, ptr %copied")

    def take(self, array: Value, argument: Argument, number: int) -> Seen:
        return self.look(array, argument, number, ALIGNED) if self._copies else super().take(array, argument, number)

    def solid(self, array: Value, given: Given) -> MemoryRange:
        if not self._copies:
            return super().solid(array, given)
        contiguous = self.value(f"and i32 {self.load(array, FLAGS, 'i32')}, {CONTIGUOUS}")
        gaps, kept, on = self.name(), self.name(), self.name()
        self.do(f"br i1 {self.value(f'icmp eq i32 {contiguous}, 0')}, label %{gaps}, label %{kept}")
        self.label(gaps)
        ways = [(given.seen.data, given.bytes, kept)]
        if given.strides != "null":
            span = self._rows_apart(array, given)
            apart, copied = self.name(), self.name()
            self.do(f"br i1 {self.value(f'icmp ne i64 {span}, 0')}, label %{apart}, label %{copied}")
            self.label(apart)
            self.do(f"br label %{on}")
            ways.append((given.seen.data, span, apart))
            self.label(copied)
            self.no_strides(given)
        made = self.value(f"call ptr @copied(ptr {array}, ptr %copies, ptr %copied)")
        self.require(self.value(f"icmp ne ptr {made}, null"))
        after = self.lines[-1].rstrip(":")
        ways.append((self.load(made, DATA, "ptr"), given.bytes, after))
        self.do(f"br label %{on}")
        self.label(kept)
        self.do(f"br label %{on}")
        self.label(on)
        data, size = (", ".join(f"[ {way[part]}, %{way[2]} ]" for way in ways) for part in (0, 1))
        return MemoryRange(self.value(f"phi ptr {data}"), self.value(f"phi i64 {size}"))

    def _rows_apart(self, array: Value, given: Given) -> Value:
        rank, bytes_each = len(given.argument.dims or ()), given.argument.dtype.bytes
        return self.value(f"call i64 @rows_apart(ptr {array}, i64 {rank}, i64 {bytes_each}, ptr {given.strides})")

    def drop_copies(self) -> None:
        if self._copies:
            self.do("call void @drop_copies(ptr %copies, ptr %copied)")

    def look(self, array: Value, argument: Argument, number: int, flags: int) -> Seen:
        self.require_equal(self.load(array, TYPE, "ptr"), self.word("ndarray"), "ptr")
        self.require_equal(self.load(array, DTYPE, "ptr"), self.word(number), "ptr")
        self.require_equal(self.load(array, RANK, "i32"), len(argument.dims or ()), "i32")
        self.require_equal(self.value(f"and i32 {self.load(array, FLAGS, 'i32')}, {flags}"), flags, "i32")
        extents = self.load(array, EXTENTS, "ptr") if argument.dims else ""
        return Seen(self.load(array, DATA, "ptr"), extents)

    def make(self, shape: Sequence[Value], argument: Argument, number: int, slot: int) -> Value:
        self._stored_shape(shape)
        dtype = self.word(number)
        self.do(f"call void {self.word('incref')}(ptr {dtype})")
        made = self.value(f"call ptr @fresh(i32 {len(shape)}, ptr %shape, ptr {dtype}, i64 {argument.dtype.bytes})")
        self.store(made, "ptr", "%made", 8 * slot)
        self._leave(self.value(f"icmp eq ptr {made}, null"), "failed")
        return self.load(made, DATA, "ptr")


class TorchText(ArrayText):
    """Takes PyTorch's tensors on the CPU, NumPy's arrays among them, through the C functions of DLPack; makes tensors."""

    def rooms(self) -> None:
        self.do(f"%records = alloca [{self._arrays} x [{TENSOR_BYTES} x i8]], align 8")
        self.do(f"%wanted = alloca [{TENSOR_BYTES} x i8], align 8")
        self.do("%managed = alloca ptr")
        self.do("%tensors_seen = alloca i32")
        self.do("store i32 0, ptr %tensors_seen")
        self.require(self.value(f"icmp ne ptr {self.word('tensor')}, null"))

    def look(self, array: Value, argument: Argument, number: int, flags: int) -> Seen:
        record = self.at("%records", TENSOR_BYTES * number)
        element = DLPACK_TYPES[argument.dtype]
        kind = self.value(f"call i32 @tensor(ptr {array}, ptr {self.word(number)}, i32 {element}, i32 {flags}, ptr {record})")
        self.require(self.value(f"icmp ne i32 {kind}, 0"))
        self.require_equal(self.load(record, RANK_AT, "i32"), len(argument.dims or ()), "i32")
        seen = self.value(f"or i32 {self.load('%tensors_seen', 0, 'i32')}, {kind}")
        self.store(seen, "i32", "%tensors_seen", 0)
        return Seen(self.load(record, 0, "ptr"), self.load(record, SHAPE_AT, "ptr"))

    def make(self, shape: Sequence[Value], argument: Argument, number: int, slot: int) -> Value:
        if not slot:  # arrays of NumPy alone give arrays
            self.require(self.value(f"icmp uge i32 {self.load('%tensors_seen', 0, 'i32')}, 2"))
        self._stored_shape(shape)
        for value, type_, offset in (("null", "ptr", 0), (1, "i64", 8), (len(shape), "i32", RANK_AT),
                                     (DLPACK_TYPES[argument.dtype], "i32", ELEMENT), ("%shape", "ptr", SHAPE_AT),
                                     ("null", "ptr", SHAPE_AT + 8), (0, "i64", BYTE_OFFSET)):
            self.store(str(value), type_, "%wanted", offset)
        refused = self.value("call i32 @room(ptr %wanted, ptr %managed)")
        self._leave(self.value(f"icmp ne i32 {refused}, 0"), "refused")
        managed = self.load("%managed", 0, "ptr")
        data = self.at(self.load(managed, MANAGED, "ptr"), self.load(managed, MANAGED + BYTE_OFFSET, "i64"))
        wrap = self.load(self.word("exchange"), 32, "ptr")
        failed = self.value(f"call i32 {wrap}(ptr {managed}, ptr {self.at('%made', 8 * slot)})")
        self._leave(self.value(f"icmp ne i32 {failed}, 0"), "failed")
        return data
