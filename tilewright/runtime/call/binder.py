"""Binder: checks the arguments of a call and turns them into memory, dim values and scalar bits.

What can be known is worked out once per program; a call then compares all shapes in one step, and only one that fails
looks for the reason.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tilewright.runtime.call.extents import Shapes, compile_shapes
from tilewright.runtime.call.interop import Array, Wrap, refuse_gradient, refuse_mask, view
from tilewright.runtime.errors import DTypeError, OptionError, ShapeError
from tilewright.runtime.float_environment import float_environment
from tilewright.runtime.program.program import Argument, Program
from tilewright.runtime.shape import ShapeRange

_WORD = 64  # bits of the largest integers that an argument may be
_LONGEST = 60  # characters of a value in a message


class Bound(NamedTuple):
    """A call's arguments. `arrays`: tensor inputs, C-contiguous but for those whose rows may lie apart, of which `strides` tells
    as the native convention has it; `is_shared[i]`: arrays[i] is the caller's own memory.

    `dims` and `scalars` are in the order of the native convention; `outputs` are the shapes of the results; `wrap`
    turns a result into the caller's kind of array, or is None for numpy.
    """

    arrays: list[Array]
    is_shared: list[bool]
    dims: list[int]
    scalars: list[int]
    outputs: Shapes
    wrap: Wrap | None
    strides: list[int]


def converted(array: Array, dtype: np.dtype[Any]) -> Array:
    """A C-contiguous copy in native byte order."""
    return np.require(array.astype(dtype, order="C", copy=True), requirements=("C", "A"))


def row_strides(array: Array) -> list[int] | None:
    """The strides of all axes but the last, in elements, of an array that may be read as it lies: its rows without gaps and all
    strides above 0; None of any other. An axis of extent 1 has none, told as 0."""
    pairs, size = list(zip(array.shape, array.strides, strict=True)), array.itemsize
    if any(extent > 1 and (stride <= 0 or stride % size) for extent, stride in pairs):
        return None
    if array.shape[-1] > 1 and array.strides[-1] != size:
        return None
    return [0 if extent == 1 else stride // size for extent, stride in pairs[:-1]]


@dataclass(frozen=True)
class Site:
    """Where a dim is read: an axis of a tensor that holds factor * dim + offset, or a scalar input (`tensor` -1)."""

    place: str
    argument: int
    tensor: int = -1
    axis: int = -1
    factor: int = 1
    offset: int = 0

    def value(self, shapes: Sequence[tuple[int, ...]], scalars: Mapping[int, int]) -> int:
        if self.tensor < 0:
            return scalars[self.argument]
        return (shapes[self.tensor][self.axis] - self.offset) // self.factor


class Binder:
    """Binds the arguments of one program's calls. Holds no state of a call.

    Args:
        viewed: an array and its kind from an argument that is no numpy array, and the argument's name.
        converted: a C-contiguous array of this dtype from one whose elements are of it.
    Attributes:
        names: the dims. sources: where each is read; repeats: (dim number, place) of all other places it stands at.
        tensors: (position, dtype, rank, argument) of the tensor inputs; scalars: of the scalars that are not dims.
    Raises:
        OptionError: a dim of the program can be read from no input.
    """

    def __init__(self, program: Program, viewed: Callable[[Any, str], tuple[Any, Wrap | None]] = view,
                 converted: Callable[[Any, np.dtype[Any]], Any] = converted) -> None:
        self._viewed, self._converted = viewed, converted
        self._inputs = program.inputs
        self._donates = bool(program.donated)
        self._strided = program.stride_words
        self._ranges: ShapeRange | None = program.ranges() if program.out_of_range == "error" else None
        self.names = [d.name for d in program.dims]
        self.tensors = [(i, a.dtype.numpy, len(a.dims), a) for i, a in enumerate(program.inputs) if a.dims is not None]
        self._shapes = [argument.spec().dims for _, _, _, argument in self.tensors]
        sites = self._all_sites(program)
        self.sources = [sites[name][0] for name in self.names]
        self.repeats = [(i, site) for i, name in enumerate(self.names) for site in sites[name][1:]]
        self._dim_scalars = [site.argument for name in self.names for site in sites[name] if site.tensor < 0]
        self.scalars = [(i, a) for i, a in enumerate(program.inputs) if a.dims is None and i not in self._dim_scalars]
        outputs = [a.spec().dims for a in program.outputs]
        self._extents = compile_shapes([*self._shapes, *outputs], self.names)

    def view(self, args: Sequence[Any]) -> tuple[Sequence[Any], Wrap | None]:
        """The arguments with numpy views of other libraries' arrays, and how results become such a library's.

        Without a way back, or where an input may become a result, the arguments stay as they are.
        """
        if len(args) != len(self._inputs) or self._donates:
            return args, None
        viewed: list[Any] | None = None
        wrap: Wrap | None = None
        for position, _, _, argument in self.tensors:
            value = args[position]
            if type(value) is not np.ndarray:
                array, kind = view(value, argument.name)
                if kind is not None:
                    wrap = wrap or kind
                    viewed = viewed or list(args)
                    viewed[position] = array
        return viewed or args, wrap

    def bind(self, args: Sequence[Any], copies: bool = False) -> Bound:
        """Check and bind the arguments of a call. Nothing is copied before all of them are found good.

        Args:
            copies: is everything copied that has gaps?
        Raises:
            DTypeError: wrong count or element type. ShapeError: wrong rank or extent, or a dim outside its range.
        """
        if len(args) != len(self._inputs):
            missing = ", ".join(a.name for a in self._inputs[len(args):])
            raise DTypeError(
                f"wanted {len(self._inputs)} arguments ({', '.join(map(describe, self._inputs))}), got {len(args)}; "
                + (f"pass {missing} too" if missing else "leave the rest out")
            )
        arrays: list[Array] = []
        wrap: Wrap | None = None
        for position, dtype, rank, argument in self.tensors:
            array = args[position]
            if type(array) is not np.ndarray:
                array, kind = self._viewed(array, argument.name)
                wrap = wrap or kind
            if array.ndim != rank:
                raise ShapeError(
                    f"argument {argument.name}: wanted rank {rank} as in {describe(argument)}, got rank {array.ndim} "
                    f"with shape {array.shape}; reshape it to [{', '.join(argument.dims or ())}]"
                )
            if array.dtype != dtype and array.dtype.newbyteorder("=") != dtype:
                raise DTypeError(
                    f"argument {argument.name}: wanted {argument.dtype.value} ({dtype.name}) as in {describe(argument)}, got "
                    f"{array.dtype.name}; convert it with {argument.name}.astype({dtype.name!r})"
                )
            arrays.append(array)
        shapes = tuple([a.shape for a in arrays])
        given = {i: _integer(args[i], self._inputs[i]) for i in self._dim_scalars}
        dims = [site.value(shapes, given) for site in self.sources]
        scalars = [encode(args[i], argument) for i, argument in self.scalars]
        outputs = self._checked(dims, shapes, given)
        is_shared: list[bool] = []
        strides: list[int] = []
        for number, (array, (_, dtype, _, _)) in enumerate(zip(arrays, self.tensors, strict=True)):
            flags = array.flags
            is_shared.append(array.dtype == dtype and flags.c_contiguous and flags.aligned)
            if number in self._strided:
                apart = row_strides(array) if not copies and flags.aligned and array.dtype == dtype and array.size else None
                is_shared[number] |= apart is not None
                strides += [0] * self._strided[number] if apart is None or flags.c_contiguous else apart
            if not is_shared[number]:
                arrays[number] = self._converted(array, dtype)
        return Bound(arrays, is_shared, dims, scalars, outputs, wrap, strides)

    def _checked(self, dims: list[int], shapes: Shapes, given: Mapping[int, int]) -> Shapes:
        """Shapes of the results, after every shape and dim is found legal."""
        if self.repeats:
            self._check_repeats(dims, shapes, given)
        if self._ranges is not None:
            for value, (_, dim) in zip(dims, self._ranges.dims, strict=True):
                if not dim.lo <= value <= dim.hi or value % dim.multiple_of:
                    self._check_inputs(self._evaluate(dims, shapes), shapes)
                    self._ranges.check(dict(zip(self.names, dims, strict=True)), self._source_places())
        elif dims and not 0 <= min(dims) <= max(dims) < 1 << 63:
            raise ShapeError(f"{self._point(dims)}: a dim is neither negative nor beyond 63 bits")
        extents = self._evaluate(dims, shapes)
        count = len(shapes)
        if extents[:count] != shapes:
            self._check_inputs(extents, shapes)
        for shape in extents[count:]:
            if shape and min(shape) < 0:
                raise ShapeError(
                    f"a result has the shape {shape} at {self._point(dims)}; the model is not defined there"
                )
        return extents[count:]

    def _source_places(self) -> dict[str, str]:
        """Where each dim is read, in words."""
        found = {}
        for name, site in zip(self.names, self.sources, strict=True):
            axis = f", axis {site.axis}" if site.tensor >= 0 else ""
            found[name] = f"argument {self._inputs[site.argument].name}{axis}"
        return found

    def _evaluate(self, dims: list[int], shapes: Shapes) -> Shapes:
        try:
            return self._extents(dims)
        except ZeroDivisionError:
            raise ShapeError(f"a size divides by zero at {self._point(dims)}; the model is not defined there") from None

    def _check_repeats(self, dims: list[int], shapes: Shapes, given: Mapping[int, int]) -> None:
        """A dim that is read at several places has one value."""
        for index, site in self.repeats:
            value = site.value(shapes, given)
            if value != dims[index]:
                raise ShapeError(
                    f"{self.names[index]} = {dims[index]} from {self.sources[index].place} but {value} from "
                    f"{site.place}; these extents must be equal"
                )

    def _check_inputs(self, extents: Shapes, shapes: Shapes) -> None:
        for (_, _, _, argument), wanted, got, exprs in zip(self.tensors, extents, shapes, self._shapes, strict=False):
            for axis, (w, g, expr) in enumerate(zip(wanted, got, exprs, strict=True)):
                if w != g:
                    meaning = f" ({expr})" if expr.constant is None else ""
                    raise ShapeError(
                        f"argument {argument.name}, axis {axis}: wanted extent {w}{meaning} as in "
                        f"{describe(argument)}, got {g} in shape {got}; pass an array of that extent"
                    )

    def _point(self, dims: Sequence[int]) -> str:
        return ", ".join(f"{n} = {v}" for n, v in zip(self.names, dims, strict=True)) or "the only shape"

    def _all_sites(self, program: Program) -> dict[str, list[Site]]:
        """Per dim: the places it is read from, those that give it directly first."""
        sites: dict[str, list[Site]] = {d.name: [] for d in program.dims}
        scaled: list[tuple[str, Site]] = []
        for tensor, ((position, _, _, argument), exprs) in enumerate(zip(self.tensors, self._shapes, strict=True)):
            for axis, expr in enumerate(exprs):
                place = f"{argument.name}.{axis}"
                if expr.symbol in sites:
                    sites[expr.symbol].append(Site(place, position, tensor, axis))
                elif (linear := expr.linear) is not None and linear[0] in sites:
                    scaled.append((linear[0], Site(place, position, tensor, axis, *linear[1:])))
        for dim in program.dims:
            for position, argument in enumerate(program.inputs):
                if argument.dims is None and argument.name in dim.at:
                    sites[dim.name].append(Site(argument.name, position))
        for name, site in scaled:
            if not sites[name]:
                sites[name].append(site)
        for name, found in sites.items():
            if not found:
                raise OptionError(
                    f"dim {name} can be read from no input; inputs are {', '.join(map(describe, program.inputs))}"
                )
        return sites


def describe(argument: Argument) -> str:
    """For people: `arg0: f32[B, 768]`."""
    dims = "" if argument.dims is None else f"[{', '.join(argument.dims)}]"
    return f"{argument.name}: {argument.dtype.value}{dims}"


def shown(value: Any) -> str:
    """A value in a message: itself where that is short, else its type."""
    if isinstance(value, int) and value.bit_length() > _WORD:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, bool | int | float | complex | str | bytes | np.generic | None):
        return f"{repr(value)[:_LONGEST]} of type {type(value).__name__}"
    return f"an object of type {type(value).__name__}"


def encode(value: Any, argument: Argument) -> int:
    """The bit pattern of a scalar input, zero-extended; DTypeError when the value is not one of its type."""
    if not argument.dtype.is_float:
        bits = 8 * argument.dtype.bytes
        number = _integer(value, argument)
        lo, hi = argument.dtype.limits
        if not lo <= number <= hi:
            raise DTypeError(
                f"argument {argument.name}: {number} is not a value of {argument.dtype.value} ({lo}..{hi})"
            )
        return number & ((1 << bits) - 1)
    item = _item(value, argument)
    if not isinstance(item, int | float):
        raise DTypeError(
            f"argument {argument.name}: wanted a number for {describe(argument)}, got {shown(value)}"
        )
    try:
        with float_environment(), np.errstate(over="ignore"):
            pattern = np.asarray(float(item), argument.dtype.numpy).view(f"u{argument.dtype.bytes}")
    except OverflowError:
        raise DTypeError(f"argument {argument.name}: wanted a number for {describe(argument)}, got {shown(item)}, which no "
                         "float holds; pass a smaller one") from None
    return int(pattern)


def _integer(value: Any, argument: Argument) -> int:
    item = _item(value, argument)
    try:
        number = operator.index(item)
    except TypeError:
        raise DTypeError(
            f"argument {argument.name}: wanted an integer for {describe(argument)}, got {shown(value)}; convert it with int()"
        ) from None
    if number.bit_length() > _WORD:
        raise DTypeError(f"argument {argument.name}: wanted an integer for {describe(argument)}, got {shown(number)}; pass one "
                         f"of at most {_WORD}")
    return number


def _item(value: Any, argument: Argument) -> Any:
    """The Python number in a NumPy scalar or a one-element array of any library."""
    refuse_mask(value, argument.name)
    item: Callable[[], Any] | None = getattr(value, "item", None)
    if not callable(item):
        return value
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        refuse_gradient(torch, value, argument.name)
    try:
        return item()
    except (TypeError, ValueError, RuntimeError):
        return value
