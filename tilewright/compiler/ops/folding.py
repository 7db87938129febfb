"""Images from the windows that cover them: what overlaps is added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product

from tilewright.compiler.ops.body import computed_in
from tilewright.compiler.ops.graph import Size, Tensor, shown, size, want_rank
from tilewright.compiler.ops.padding import pad
from tilewright.compiler.ops.pointwise import add, cast
from tilewright.compiler.ops.reshaping import reshape, transpose, unsqueeze
from tilewright.compiler.ops.slicing import narrow, select
from tilewright.compiler.ops.sliding_windows import Spatial, per_axis
from tilewright.runtime.errors import ShapeError
from tilewright.runtime.shape import Expr

_AXES = 2  # of an image
_KERNEL = 2  # the first axis of the kernel, behind images and channels; those of the windows follow
_MOST_AT_ONCE = 9  # parts of a kernel that are added at once; of more, rows and columns one after the other
_NAME = "fold"


@dataclass(frozen=True)
class _Axis:
    """An axis of the image: its extent, and extent, step, zeros before and spread of the windows on it.

    The image lies in pieces of one step each; a window begins at one, and reaches over a few.
    """

    extent: Expr
    kernel: int
    stride: int
    low: int
    dilation: int

    @property
    def windows(self) -> Expr:
        return (self.extent + 2 * self.low - self.dilation * (self.kernel - 1) - 1) // self.stride + 1

    @property
    def first(self) -> int:
        """The piece that the image begins in."""
        return self.low // self.stride

    @property
    def pieces(self) -> Expr:
        """How many pieces it lies in."""
        return (self.extent + self.low).ceildiv(self.stride) - self.first

    @property
    def taps(self) -> list[int]:
        """How many pieces behind its window each part of the kernel lies."""
        if self.stride == 1:
            return [k * self.dilation for k in range(self.kernel)]
        return list(range((self.dilation * (self.kernel - 1)) // self.stride + 1))

    def in_pieces(self, x: Tensor, at: int) -> Tensor:
        """The axis `at` of x, which is the kernel, as two: its parts, and the elements of a piece."""
        count = len(self.taps)
        if self.stride > 1:
            x = _longer(_spread(x, at, self.dilation), at, count * self.stride)
        return reshape(x, [*x.dims[:at], count, self.stride, *x.dims[at + 1:]])


def fold(
    x: Tensor, shape: Sequence[Size], kernel: Spatial, *, stride: Spatial = 1, padding: Spatial = 0, dilation: Spatial = 1
) -> Tensor:
    """x [N, C kh kw, windows] as the image [N, C, *shape] whose windows it holds, as torch.nn.functional.fold.

    An element of the image is the sum of the elements of x that stand for it, kh kw at most: in their order, of larger kernels
    those of a row first. 0 where none does. 16-bit floats add in f32.

    Args:
        shape: height and width of the image. kernel, stride, padding, dilation: of the windows; an integer or one for each axis.
    Raises:
        ShapeError: extents that do not belong to such an image. OptionError: a kernel or a step below 1, or padding below 0.
    """
    want_rank(_NAME, "the windows", x, 3)
    if len(shape) != _AXES:
        raise ShapeError(f"{_NAME}: an image of {len(shape)} axes; wanted its height and width")
    numbers = (per_axis(_NAME, what, v, _AXES, least) for what, v, least in (
        ("kernel", kernel, 1), ("stride", stride, 1), ("padding", padding, 0), ("dilation", dilation, 1)))  # fmt: skip
    rows, columns = (_Axis(size(_NAME, s), *given) for s, *given in zip(shape, *numbers, strict=True))
    taps, channels = rows.kernel * columns.kernel, x.dims[1].constant
    if channels is not None and channels % taps:
        raise ShapeError(f"{_NAME}: axis 1 of {shown(x.dims)} is no multiple of the {taps} elements of a window")
    n, c = x.dims[0], x.dims[1] // taps
    wide = cast(x, computed_in(x.dtype))
    apart = reshape(wide, [n, c, rows.kernel, columns.kernel, rows.windows, columns.windows], assume_equal=True)
    axes, count = {0: rows, 1: columns}, len(rows.taps) * len(columns.taps)
    summed = _summed(apart, axes) if count <= _MOST_AT_ONCE else _summed(_summed(apart, {1: columns}), {0: rows})
    turned = transpose(summed, [0, 1, 4, 2, 5, 3])
    image = reshape(turned, [n, c, rows.pieces * rows.stride, columns.pieces * columns.stride])
    for at, axis in enumerate((rows, columns), 2):
        image = narrow(image, at, axis.low - axis.first * axis.stride, axis.extent)
    return cast(image, x.dtype)


def _summed(x: Tensor, axes: Mapping[int, _Axis]) -> Tensor:
    """x [N, C, kh, kw, windows, windows] with the pieces of the image in place of the windows on some axes of the image, and the
    elements of a piece in place of the kernel."""
    for n, axis in sorted(axes.items(), reverse=True):
        x = axis.in_pieces(x, _KERNEL + n)

    def moved(taps: Sequence[tuple[int, int]]) -> Tensor:
        """A part of the kernel where it is added to the image. taps: its number and how far it is behind its window."""
        part = x
        for place, (n, (number, _)) in reversed(list(enumerate(zip(axes, taps, strict=True)))):
            part = select(part, _KERNEL + n + place, number)
        low: list[Size] = [0] * part.rank
        high: list[Size] = [0] * part.rank
        for (n, axis), (_, tap) in zip(axes.items(), taps, strict=True):
            at = _KERNEL + _AXES + n
            low[at], high[at] = tap - axis.first, axis.pieces + axis.first - tap - axis.windows
        return pad(part, low, high)

    return reduce(add, map(moved, product(*(list(enumerate(axis.taps)) for axis in axes.values()))))


def _spread(x: Tensor, at: int, dilation: int) -> Tensor:
    """Zeros between the elements of an axis, and behind the last one."""
    if dilation == 1:
        return x
    apart = _longer(unsqueeze(x, at + 1), at + 1, dilation)
    return reshape(apart, [*x.dims[:at], x.dims[at] * dilation, *x.dims[at + 1:]])


def _longer(x: Tensor, at: int, extent: int) -> Tensor:
    """An axis cut off, or with zeros behind it."""
    low: list[Size] = [0] * x.rank
    return pad(x, low, [Expr.of(extent) - d if a == at else 0 for a, d in enumerate(x.dims)])
