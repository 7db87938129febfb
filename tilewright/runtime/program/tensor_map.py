"""TensorMap: a box of a strided tensor that a GPU copies to and from shared memory by itself (TMA).

Axes are listed innermost first; the innermost has stride 1. A device turns a TensorMap into the 128 bytes that a kernel takes as
a parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.runtime.errors import DeviceError
from tilewright.runtime.program.kernel import OUTER, Param
from tilewright.runtime.tensor import DType

MAP_BYTES = 128
MAP_ALIGNMENT = 64
MOST_AXES = 5
ALIGNMENT = 16  # bytes of the address and of every stride
_LONGEST_BOX = 256
DTYPES: tuple[DType, ...] = (DType.F16, DType.BF16, DType.F32, DType.F8E4M3, DType.F8E5M2, DType.I8, DType.I32, DType.F64)
HEAD_WORDS = 4  # of `to_words`, before the axes


@dataclass(frozen=True)
class TensorMap:
    """address: of the first element, in bytes; sizes: elements; strides: bytes, of all axes but the innermost; box: elements of
    one copy; swizzle: bytes of a row within which chunks of 16 bytes are permuted, or 0."""

    dtype: DType
    address: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem:
            raise DeviceError(f"tensor map of {self.sizes} {self.dtype.value}: {problem}")

    def _problem(self) -> str:
        inner = self.box[0] * self.dtype.bytes if self.box else 0
        if not 1 <= len(self.sizes) <= MOST_AXES or len(self.box) != len(self.sizes) or len(self.strides) != len(self.sizes) - 1:
            return f"1 to {MOST_AXES} axes wanted, with a box of as many and a stride for all but the first"
        if self.dtype not in DTYPES:
            return f"element type {self.dtype.value} is not supported"
        if self.address % ALIGNMENT or any(s % ALIGNMENT for s in self.strides):
            return f"address 0x{self.address:x} and strides {self.strides} must be multiples of {ALIGNMENT} bytes"
        if min(self.sizes) < 1 or any(not 0 < s < 1 << 40 for s in self.strides):
            return f"sizes {self.sizes} and strides {self.strides} must be positive"
        if any(not 1 <= b <= _LONGEST_BOX for b in self.box) or inner % ALIGNMENT:
            return f"box {self.box} must be of 1 to {_LONGEST_BOX} elements, its rows whole multiples of {ALIGNMENT} bytes"
        if self.swizzle not in (0, 32, 64, 128) or (self.swizzle and inner > self.swizzle):
            return f"rows of {inner} bytes do not fit a swizzle of {self.swizzle}"
        return ""

    @staticmethod
    def of_operand(param: Param, dtype: DType, address: int, shape: Sequence[int], strides: Sequence[int]) -> TensorMap:
        """What a launch passes for a slot of kind "tensor_map". strides: in elements, of all axes of the operand. Where the
        sequences of a batch are an axis, it is of one sequence."""
        words = [address, DTYPES.index(dtype), len(param.axes), param.swizzle]
        for axis, box in zip(param.axes, param.box, strict=True):
            words += [1, 1, box] if axis == OUTER else [shape[axis], strides[axis], box]
        return TensorMap.from_words(words)

    @staticmethod
    def from_words(words: Sequence[int]) -> TensorMap:
        """From what a host program passes: address, number of the element type, axes, swizzle, then size, stride in elements and
        box of each axis, innermost first. Nothing is copied of an empty tensor, so that it may have a map."""
        address, dtype, rank, swizzle = words[:HEAD_WORDS]
        kind = DTYPES[dtype]
        axes = [words[HEAD_WORDS + 3 * a : HEAD_WORDS + 3 * a + 3] for a in range(rank)]
        empty = any(size == 0 for size, _, _ in axes)
        strides = tuple(ALIGNMENT if empty or size == 1 else stride * kind.bytes for size, stride, _ in axes[1:])
        sizes, box = tuple(max(size, 1) for size, _, _ in axes), tuple(box for _, _, box in axes)
        return TensorMap(kind, address, sizes, strides, box, swizzle)
