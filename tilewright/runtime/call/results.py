"""Results of a call: memory for each output, from `out=`, from a donated input, or fresh."""

from __future__ import annotations

import ctypes
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tilewright.runtime.call.binder import Bound, describe
from tilewright.runtime.call.interop import Array, result_view
from tilewright.runtime.call.python_abi import DATA, is_supported
from tilewright.runtime.errors import DTypeError, ShapeError
from tilewright.runtime.limits import LINE
from tilewright.runtime.program.program import Program

LARGE = 1 << 16  # bytes of a result, from which it begins at a line
FEW = 32  # arrays whose pairs are looked at one by one
_pointer_at = ctypes.c_void_p.from_address


def address(array: Array) -> int:
    """Of the first element. Reading the array's field takes a tenth of the time of asking for its interface."""
    if is_supported():
        return _pointer_at(id(array) + DATA).value or 0
    found: int = array.__array_interface__["data"][0]
    return found


class Results:
    """Prepares the outputs of one program's calls. Holds no state of a call."""

    def __init__(self, program: Program) -> None:
        self._outputs = program.outputs
        self.dtypes = [a.dtype.numpy for a in program.outputs]
        self._tensor_names = [a.name for a in program.inputs if a.dims is not None]
        tensor_of = {i: t for t, i in enumerate(i for i, a in enumerate(program.inputs) if a.dims is not None)}
        self._positions = list(tensor_of)
        self._donors = {output: tensor_of[source] for source, output in program.donated}

    def prepare(self, bound: Bound, args: Sequence[Any], out: Any) -> tuple[list[Array], list[Any]]:
        """Output arrays, and the objects to return for them.

        Raises:
            DTypeError, ShapeError: `out` does not fit, or overlaps an input or another output.
        """
        if out is None:
            return self._allocate(bound, args)
        given = out if isinstance(out, tuple | list) else (out,)
        if len(given) != len(self._outputs):
            raise DTypeError(
                f"out: wanted {len(self._outputs)} arrays ({', '.join(map(describe, self._outputs))}), got {len(given)}; pass "
                "one for each result, or leave it out"
            )
        arrays = [
            self._checked(i, value, shape) for i, (value, shape) in enumerate(zip(given, bound.outputs, strict=True))
        ]
        self._check_overlap(bound, arrays)
        return arrays, list(given)

    def _allocate(self, bound: Bound, args: Sequence[Any]) -> tuple[list[Array], list[Any]]:
        arrays: list[Array] = []
        returned: list[Any] = []
        free = _apart([self._span(array) for array in bound.arrays]) if self._donors else set()
        for index, (shape, dtype) in enumerate(zip(bound.outputs, self.dtypes, strict=True)):
            donor = self._donors.get(index)
            if donor is None or donor not in free or not self._may_donate(bound, donor, shape, dtype):
                array, made = self._empty(bound, shape, dtype)
            else:
                array = bound.arrays[donor]
                made = args[self._positions[donor]] if bound.is_shared[donor] else _wrapped(bound, array)
            arrays.append(array)
            returned.append(made)
        return arrays, returned

    def _empty(self, bound: Bound, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Array, Any]:
        """Memory for a result, and the object to return for it."""
        try:
            made = _at_line(shape, dtype)
        except ValueError as error:  # more bytes than addresses
            raise ShapeError(f"a result has the shape {shape}, which no memory holds ({error}); call with smaller shapes"
                             ) from None
        return made, _wrapped(bound, made)

    def _view(self, value: Any, name: str) -> Array:
        return result_view(value, name)

    def _span(self, array: Array) -> tuple[int, int]:
        return _span(array)

    def _may_donate(self, bound: Bound, donor: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
        """Does the buffer fit, and may it be written?"""
        array = bound.arrays[donor]
        return array.shape == shape and array.dtype == dtype and bool(array.flags.writeable)

    def _checked(self, index: int, value: Any, shape: tuple[int, ...]) -> Array:
        argument, dtype, name = self._outputs[index], self.dtypes[index], self._name(index)
        array = self._view(value, name)
        if array.dtype != dtype:
            raise DTypeError(
                f"{name}: wanted {argument.dtype.value} ({dtype.name}), got {array.dtype}; a result is never converted: take "
                f"a fresh numpy.empty({shape}, {dtype.name!r})"
            )
        if array.shape != shape:
            raise ShapeError(f"{name}: wanted shape {shape} as in {describe(argument)}, got {array.shape}; take a fresh "
                             f"numpy.empty({shape}, {dtype.name!r})")
        flags = array.flags
        for is_met, wanted, got in (
            (flags.c_contiguous, "C-contiguous", "memory with gaps or with its axes in another order"),
            (flags.writeable, "writeable", "read-only memory"),
            (flags.aligned, "aligned", f"an address that is no multiple of {dtype.alignment}"),
        ):
            if not is_met:
                raise ShapeError(f"{name}: wanted {wanted} memory, got {got}; take a fresh numpy.empty({shape}, {dtype.name!r})")
        return array

    def _check_overlap(self, bound: Bound, arrays: list[Array]) -> None:
        inputs, outputs = [self._span(array) for array in bound.arrays], [self._span(array) for array in arrays]
        if len(inputs) + len(outputs) > FEW and _are_apart(inputs, outputs, self._donors):
            return
        earlier: list[tuple[int, int]] = []
        for index, span in enumerate(outputs):
            begin, end = span
            for tensor, (first, last) in enumerate(inputs):
                if begin < last and first < end and not (begin == first and self._donors.get(index) == tensor):
                    raise ShapeError(
                        f"{self._name(index)} overlaps the input {self._tensor_names[tensor]}; pass other memory, or "
                        f"compile with donate=({self._tensor_names[tensor]!r},)"
                    )
            for other, (first, last) in enumerate(earlier):
                if begin < last and first < end:
                    raise ShapeError(
                        f"{self._name(index)} overlaps {self._name(other)}; pass separate memory for each result"
                    )
            earlier.append(span)

    def _name(self, index: int) -> str:
        return "out" if len(self._outputs) == 1 else f"out[{index}]"


def _are_apart(inputs: Sequence[tuple[int, int]], outputs: Sequence[tuple[int, int]], donors: Mapping[int, int]) -> bool:
    """Does no output share a byte with an input that it does not take the memory of, or with another output?"""
    found = sorted((span, index) for index, span in enumerate(outputs) if span[0] < span[1])
    if any(a[1] > b[0] for (a, _), (b, _) in pairwise(found)):
        return False
    begins = [begin for (begin, _), _ in found]
    for number, (begin, end) in enumerate(inputs):
        at = bisect_left(begins, end) - 1  # the last output that begins before the input ends
        if begin < end and at >= 0 and found[at][0][1] > begin:
            (first, _), index = found[at]
            if first != begin or donors.get(index) != number:
                return False
    return True


def _wrapped(bound: Bound, array: Array) -> Any:
    return array if bound.wrap is None else bound.wrap(array)


def _apart(spans: Sequence[tuple[int, int]]) -> set[int]:
    """Numbers of the spans that share no byte with another one."""
    order = sorted((span, number) for number, span in enumerate(spans) if span[0] < span[1])
    found = {number for number, (begin, end) in enumerate(spans) if begin >= end}
    reached = 0
    for at, ((begin, end), number) in enumerate(order):
        if reached <= begin and (at + 1 == len(order) or order[at + 1][0][0] >= end):
            found.add(number)
        reached = max(reached, end)
    return found


def _at_line(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array that begins at a line, as native calls make it: where it is large, inside another one."""
    size = math.prod(shape) * dtype.itemsize
    if size < LARGE:
        return np.empty(shape, dtype)
    try:
        room = np.empty(size + LINE - 1, np.uint8)
    except MemoryError:
        return np.empty(shape, dtype)  # which says what was wanted
    return np.ndarray(shape, dtype, room, -address(room) % LINE)


def _span(array: Array) -> tuple[int, int]:
    """First byte and the end of a C-contiguous array; of an empty one a span that overlaps none."""
    count = array.nbytes
    if not count:
        return 0, 0
    begin = address(array)
    return begin, begin + count
