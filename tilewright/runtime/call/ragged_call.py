"""From the arguments of a ragged call to those of the program, packed rows and offsets, and back to the caller's kind."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple, NoReturn

import msgspec
import numpy as np

from tilewright.runtime.call.jagged import Jagged, Offsets, checked_offsets, offsets_of, starts_of
from tilewright.runtime.call.ragged_arguments import (
    Lengths,
    aligned,
    device_offsets,
    from_blocks,
    from_list,
    is_nested,
    is_on_device,
    nested,
    offsets_by_number,
    stored_elements,
)
from tilewright.runtime.call.signature import Signature
from tilewright.runtime.errors import DTypeError, ShapeError
from tilewright.runtime.program.program import Argument, DimInfo, Program
from tilewright.runtime.ragged_dim import factors_of, offsets_name


class Kind(Enum):
    """How a caller holds sequences."""

    PACKED = "packed"
    JAGGED = "jagged"
    LIST = "list"
    NESTED = "nested"


class PackedCall(NamedTuple):
    """The program's inputs, offsets and sums last, and what turns its results into the caller's kind. nested: of calls with
    nested tensors of torch: the offsets as it has them."""

    inputs: list[Any]
    kind: Kind
    offsets: Mapping[str, Offsets]
    nested: Any = None


class RaggedCall:
    """How one program with ragged dims is called.

    Attributes:
        signature: of what users pass, without the offsets and sums.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._hidden = len(program.ragged) + len(program.sums)
        self._dims = {d.name: d for d in program.ragged}
        self.inputs = program.inputs[: len(program.inputs) - self._hidden]
        self.signature = Signature(msgspec.structs.replace(program, inputs=self.inputs))
        self._rows = [i for i, a in enumerate(self.inputs) if a.ragged]
        arguments = (*self.inputs, *program.outputs)
        self._is_simple = (len(program.ragged) == 1 == self._hidden and bool(self._rows) and self.signature.is_flat
                           and not any(a.block for a in arguments) and not program.ragged[0].has_gaps)

    def simple(self, args: Sequence[Any]) -> PackedCall | None:
        """A call by position whose sequences are all tw.Jagged or all lists, in a program of rows of one ragged dim; None of any
        other. Native code looks at all else, and `pack` says what is wrong."""
        if not self._is_simple or len(args) != len(self.inputs):
            return None
        kind = type(args[self._rows[0]])
        if kind is not Jagged and kind is not list:
            return None
        flat, offsets = list(args), None
        for number in self._rows:
            value = flat[number]
            if type(value) is not kind:
                return None
            found = value if kind is Jagged else from_list(value)
            if found is None:
                return None
            flat[number] = found.values
            if offsets is None:
                offsets = found.offsets
            elif found.offsets is not offsets and not np.array_equal(found.offsets, offsets):
                return None
        assert offsets is not None
        flat.append(offsets)
        return PackedCall(flat, Kind.JAGGED if kind is Jagged else Kind.LIST, {self.program.ragged[0].name: offsets})

    def pack(self, args: Sequence[Any], named: Mapping[str, Any]) -> PackedCall:
        """Arguments by position or by name: tw.Jagged, lists of arrays, jagged torch tensors, or arrays of packed rows with
        `<dim>_lengths=` or `<dim>_offsets=` beside them.

        Raises:
            ShapeError: lengths that differ, do not add up or are outside the range. DTypeError: arguments as of other calls.
        """
        given, dims = dict(named), self.program.ragged
        on_device = self._on_device(args, given)
        if on_device is not None:
            return on_device
        known = {d.name: o for d in dims if (o := _stated(d, given)) is not None}
        if not given and len(args) in (len(self.inputs) + len(dims), len(self.inputs) + self._hidden):
            ends = args[len(self.inputs): len(self.inputs) + len(dims)]
            known |= {d.name: checked_offsets(e, offsets_name(d.name)) for d, e in zip(dims, ends, strict=True)}
            args = args[: len(self.inputs)]
        flat = self.signature.bind(args, given)
        kinds: list[Kind] = []
        whole: Any = None
        sources: dict[str, str] = dict.fromkeys(known, "the call")
        for number in self._rows:
            argument, value = self.inputs[number], flat[number]
            own: Lengths
            if isinstance(value, list | tuple):
                flat[number], own = from_blocks(value, argument, self._dims)
                kinds.append(Kind.LIST)
            elif argument.block:
                _refuse_kind(value, argument)
                continue
            elif isinstance(value, Jagged):
                flat[number], own = self._rows_of(value, argument), {argument.ragged: value.offsets}
                kinds.append(Kind.JAGGED)
            elif is_nested(value):
                whole, rows, own = nested(value, argument)
                flat[number] = aligned(rows, own[argument.ragged], self._dims[argument.ragged])
                kinds.append(Kind.NESTED)
            else:
                continue
            for name, offsets in own.items():
                source = sources.setdefault(name, f"argument {argument.name}")
                _agree(known.setdefault(name, offsets), offsets, name, f"argument {argument.name}", source)
        self._by_number(known, flat, sources)
        for dim in dims:
            if dim.name not in known:
                raise ShapeError(f"dim {dim.name}: no argument says how long the sequences are; pass tw.Jagged(values, lengths), "
                                 f"or {dim.name}_lengths= beside the packed rows")
            check_lengths(dim, known[dim.name])
        self._same_count(known, sources)
        sums = {d.name: self._summed(d.name, known) for d in self.program.dims if factors_of(d.name)}
        self._check_extents(flat, sums)
        inputs = [*flat, *(known[d.name] for d in dims), *(sums[n] for n in self.program.sums)]
        return PackedCall(inputs, kinds[0] if kinds else Kind.PACKED, known, whole)

    def _on_device(self, args: Sequence[Any], named: Mapping[str, Any]) -> PackedCall | None:
        """A call whose lengths lie on a GPU, where nobody waits for them: packed rows, or nested tensors of torch. None where the
        host has them.

        Raises:
            ShapeError: those of one dim are on the device and of another one not; or extents of arrays follow from them.
        """
        dims, flat, offsets, whole = self.program.ragged, list(args), list[Any](), None
        given = dict(named)
        if not given and len(flat) == len(self.inputs) + len(dims):
            offsets, flat = flat[len(self.inputs):], flat[: len(self.inputs)]
        else:
            stated = [device_offsets(given, d.name, offsets_name(d.name)) for d in dims]
            if all(o is None for o in stated) and len(dims) == 1:
                values = [*flat, *given.values()]
                whole = next((v for v in values if is_nested(v) and is_on_device(v)), None)
                stated = [None if whole is None else whole.offsets()]
            offsets = stated
        if not any(is_on_device(o) for o in offsets):
            return None
        lacking = [d.name for d, o in zip(dims, offsets, strict=True) if not is_on_device(o)]
        if whole is not None and dims[0].has_gaps:
            raise ShapeError(f"nested tensors on the device have no rows between their sequences, and {dims[0].name} is aligned "
                             f"to {dims[0].align}; pass the rows with {offsets_name(dims[0].name)}=")
        if lacking or self.program.sums:
            what = f"the lengths of {lacking[0]} are not" if lacking else f"{self.program.sums[0]} is the extent of an array"
            raise ShapeError(f"lengths on the device: {what}; pass all lengths as NumPy arrays")
        for name in [n for d in dims for n in (f"{d.name}_lengths", offsets_name(d.name))]:
            given.pop(name, None)
        flat = list(self.signature.bind(flat, given))
        for number in self._rows:
            if is_nested(flat[number]):
                whole = flat[number].contiguous()
                flat[number], offsets = whole.values(), [whole.offsets()]
            elif not is_on_device(flat[number]):
                raise ShapeError(f"argument {self.inputs[number].name}: wanted packed rows on the device, where the lengths are, "
                                 f"got {type(flat[number]).__name__}; pass an array of the rows of all sequences")
        if whole is None:
            return PackedCall([*flat, *offsets], Kind.PACKED, {})
        return PackedCall([*flat, *offsets], Kind.NESTED, {}, offsets[0])

    def result(self, call: PackedCall, returned: Any) -> Any:
        """The results as the caller has its sequences."""
        outputs = self.program.outputs
        if call.kind is Kind.PACKED:
            return self.signature.result(returned)
        values = [returned] if len(outputs) == 1 else list(returned)
        made = [_as_kind(call, v, o, self._dims) if o.ragged else v for v, o in zip(values, outputs, strict=True)]
        return self.signature.result(made[0] if len(made) == 1 else tuple(made))

    def _by_number(self, known: dict[str, Offsets], flat: Sequence[Any], sources: Mapping[str, str]) -> None:
        """The offsets of dims whose lengths follow from the numbers of the sequences."""
        for dim in self.program.ragged:
            if not dim.length:
                continue
            stated = known.get(dim.name, next(iter(known.values()), None))
            count = self._count(dim, flat) if stated is None else len(stated) - 1
            own = offsets_by_number(dim, count)
            source = sources.get(dim.name, "the call")
            _agree(own, known.setdefault(dim.name, own), dim.name, source, f"its expression {dim.length}")

    def _count(self, dim: DimInfo, flat: Sequence[Any]) -> int:
        """How many sequences there are, by an array with an axis for them or by the rows."""
        outer = next(d for d in self.program.dims if d.name == dim.over)
        for value, argument in zip(flat, self.inputs, strict=True):
            shape: tuple[int, ...] = tuple(getattr(value, "shape", ()))
            if argument.dims and dim.over in argument.dims and len(shape) == len(argument.dims):
                return shape[argument.dims.index(dim.over)]
        rows = next((len(v) for v, a in zip(flat, self.inputs, strict=True)
                     if a.dims and factors_of(a.dims[0]) == (dim.name,) and len(getattr(v, "shape", ()))), None)
        if rows is not None:
            ends = starts_of(offsets_by_number(dim, outer.hi), dim.align)
            at = int(np.searchsorted(ends, rows))
            if at < len(ends) and ends[at] == rows:
                return max(at, outer.lo)
            raise ShapeError(f"dim {dim.name}: the lengths {dim.length} of no number of sequences add up to {rows} rows; pass "
                             "all sequences")
        raise ShapeError(f"dim {dim.name}: no argument says how many sequences there are; pass {offsets_name(dim.name)}=")

    def _same_count(self, known: Mapping[str, Offsets], sources: Mapping[str, str]) -> None:
        """One number of sequences for all ragged dims, and that of the model where it has constants for each."""
        first, *others = self.program.ragged
        count = len(known[first.name])
        outer = next(d for d in self.program.dims if d.name == first.over)
        if outer.lo == outer.hi != count - 1:
            source = sources.get(first.name, "the call")
            raise ShapeError(f"dim {first.name} has {count - 1} lengths in {source}, so {outer.name} = {count - 1}; wanted "
                             f"{outer.lo}, one for each {outer.name} of the model; one without rows has length 0")
        for dim in others:
            if len(known[dim.name]) != count:
                raise ShapeError(f"dim {dim.name} has {len(known[dim.name]) - 1} lengths in {sources.get(dim.name, 'the call')}, "
                                 f"and {first.name} {count - 1}; wanted one of each for each {dim.over}")

    def _check_extents(self, flat: Sequence[Any], sums: Mapping[str, int]) -> None:
        for number in self._rows:
            argument, shape = self.inputs[number], tuple(getattr(flat[number], "shape", ()))
            name = (argument.dims or ("",))[0]
            if shape and name in sums and shape[0] != sums[name]:
                gaps = [f"{n} aligned to {self._dims[n].align}" for n in factors_of(name) if self._dims[n].has_gaps]
                raise ShapeError(f"argument {argument.name} has {shape[0]} rows, and the lengths of "
                                 f"{' * '.join(factors_of(name))} add up to {sums[name]}{', with ' * bool(gaps)}"
                                 f"{' and '.join(gaps)}; pass one length for each sequence")

    def _rows_of(self, value: Jagged, argument: Argument) -> Any:
        """The rows of sequences that are aligned as the dim is."""
        dim = self._dims[argument.ragged]
        if value.align != dim.align and not np.array_equal(value.starts, starts_of(value.offsets, dim.align)):
            raise ShapeError(f"argument {argument.name}: wanted sequences aligned to {dim.align} rows, got {value.align}; pass "
                             f".aligned({dim.align}) of it, which copies, or make it with align={dim.align}")
        return value.values

    def _summed(self, name: str, known: Mapping[str, Offsets]) -> int:
        """The sum over all sequences that a dim of this name is."""
        first, *others = ((known[n], self._dims[n].align) for n in factors_of(name))
        if not others:
            return int(starts_of(*first)[-1])
        found = np.diff(starts_of(*first))
        for own in others:
            found = found * np.diff(starts_of(*own))
        return int(found.sum())


def check_lengths(dim: DimInfo, offsets: Offsets) -> None:
    """ShapeError that names the sequence whose length is outside the range of the dim."""
    lengths = np.diff(offsets)
    wrong = np.flatnonzero((lengths < dim.lo) | (lengths > dim.hi) | (lengths % dim.multiple_of != 0))
    if wrong.size:
        number = wrong[0]
        raise ShapeError(f"dim {dim.name} = {lengths[number]} of sequence {number} is outside its range {dim.dim()}; compile "
                         "with a wider range")


def refuse_offsets(dim: DimInfo, given: Any, point: str) -> NoReturn:
    """ShapeError of offsets that the host program of a call refused, at the values of dims that `point` tells; it names the
    first sequence that is wrong. On a device nobody looks at single ones."""
    what = f"argument {offsets_name(dim.name)}"
    if isinstance(given, np.ndarray):
        offsets = checked_offsets(given, what)
        check_lengths(dim, offsets)
        end = starts_of(offsets, dim.align)[-1]
        raise ShapeError(f"{what}: the last sequence ends at {end}, and the rows do not (at {point})"
                         "; pass the end of each sequence, up to the last row")
    raise ShapeError(f"{what}: wanted 0, then the end of each sequence up to the last row, with lengths in {dim.dim()} (at "
                     f"{point}); pass such offsets")


def _stated(dim: DimInfo, named: dict[str, Any]) -> Offsets | None:
    """What the caller says of a ragged dim by name."""
    lengths, ends = named.pop(f"{dim.name}_lengths", None), named.pop(offsets_name(dim.name), None)
    if lengths is not None and ends is not None:
        raise DTypeError(f"dim {dim.name}: wanted its lengths or its offsets, got both; leave one out")
    if lengths is not None:
        return offsets_of(lengths, f"{dim.name}_lengths")
    return None if ends is None else checked_offsets(ends, offsets_name(dim.name))


def _as_kind(call: PackedCall, value: Any, output: Argument, dims: Mapping[str, DimInfo]) -> Any:
    """A result as the caller has its sequences. What is no rows becomes a list of arrays."""
    if output.block:
        sizes = [[int(e)] * (len(next(iter(call.offsets.values()))) - 1) if e.isdigit() else np.diff(call.offsets[e]).tolist()
                 for e in output.block]
        flat, found, start = value.reshape(-1), [], 0
        for shape in zip(*sizes, strict=True):
            found.append(flat[start : start + prod(shape)].reshape(shape))
            start += stored_elements(output, shape, dims)
        return found
    dim = dims[output.ragged]
    if call.kind is Kind.NESTED:
        torch: Any = sys.modules["torch"]
        if not dim.has_gaps:
            return torch.nested.nested_tensor_from_jagged(value, call.nested)
        starts = torch.from_numpy(starts_of(call.offsets[output.ragged], dim.align)).to(value.device)
        return torch.nested.nested_tensor_from_jagged(value, starts, call.nested.diff())
    offsets = call.offsets[output.ragged]
    if call.kind is Kind.JAGGED:
        return Jagged.checked(value, offsets, dim.align)
    if dim.has_gaps:
        return [value[a : a + n] for a, n in zip(starts_of(offsets, dim.align).tolist(), np.diff(offsets).tolist(), strict=False)]
    ends = offsets.tolist()
    return [value[a:b] for a, b in pairwise(ends)]


def _refuse_kind(value: Any, argument: Argument) -> None:
    """DTypeError of sequences that have to be rows for an argument whose sequences are none."""
    if isinstance(value, Jagged) or is_nested(value):
        raise DTypeError(f"argument {argument.name}: wanted a list of arrays [{', '.join(argument.block)}], one for each sequence"
                         f", or all their elements as [{', '.join(argument.dims or ())}], got {type(value).__name__}"
                         "; pass a list")


def _agree(known: Offsets, given: Offsets, dim: str, what: str, source: str) -> None:
    """Two statements of the lengths of a dim."""
    if known is given:
        return
    if len(known) != len(given):
        raise ShapeError(f"{what} has {len(given) - 1} sequences, {source} has {len(known) - 1}; wanted as many, of dim {dim}")
    if (wrong := np.flatnonzero(np.diff(known) != np.diff(given))).size:
        number = wrong[0]
        raise ShapeError(f"{what}: sequence {number} has {np.diff(given)[number]} rows, and {np.diff(known)[number]} in {source}"
                         f"; wanted one length of dim {dim}")
