"""From the arguments of a ragged call to those of the program, packed rows and offsets, and back to the caller's kind."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from tilewright.runtime.call.jagged import Jagged, Offsets, checked_offsets, joined, offsets_of
from tilewright.runtime.call.signature import Signature
from tilewright.runtime.errors import DTypeError, ShapeError
from tilewright.runtime.program.program import Argument, DimInfo, Program
from tilewright.runtime.ragged_dim import offsets_name

Kind = Callable[[Any, Offsets], Any]  # a result's rows and offsets as the caller has them


@dataclass(frozen=True)
class PackedCall:
    """The program's inputs, offsets last, and what turns its results into the caller's kind."""

    inputs: list[Any]
    kind: Kind
    offsets: Mapping[str, Offsets]


class RaggedCall:
    """How one program with ragged dims is called.

    Attributes:
        signature: of what users pass, without the offsets.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.inputs = program.inputs[: len(program.inputs) - len(program.ragged)]
        self.signature = Signature(msgspec.structs.replace(program, inputs=self.inputs))

    def pack(self, args: Sequence[Any], named: Mapping[str, Any]) -> PackedCall:
        """Arguments by position or by name: tw.Jagged, lists of arrays, jagged torch tensors, or arrays of packed rows with
        `<dim>_lengths=` or `<dim>_offsets=` beside them.

        Raises:
            ShapeError: lengths that differ, do not add up or are outside the range. DTypeError: arguments as of other calls.
        """
        given = dict(named)
        known = {d.name: o for d in self.program.ragged if (o := _stated(d, given)) is not None}
        if len(args) == len(self.program.inputs) and not given:
            ends = args[len(self.inputs):]
            known |= {d.name: checked_offsets(e, offsets_name(d.name)) for d, e in zip(self.program.ragged, ends, strict=True)}
            args = args[: len(self.inputs)]
        flat = self.signature.bind(args, given)
        kinds: list[Kind] = []
        sources: dict[str, str] = dict.fromkeys(known, "the call")
        for number, argument in enumerate(self.inputs):
            if not argument.ragged:
                continue
            found = _unpacked(flat[number], argument)
            if found is None:
                continue
            rows, offsets, kind = found
            flat[number] = rows
            kinds.append(kind)
            source = sources.setdefault(argument.ragged, f"argument {argument.name}")
            _agree(known.setdefault(argument.ragged, offsets), offsets, argument, source)
        for dim in self.program.ragged:
            if dim.name not in known:
                raise ShapeError(f"dim {dim.name}: no argument says how long the sequences are; pass tw.Jagged(values, lengths), "
                                 f"or {dim.name}_lengths= beside the packed rows")
            check_lengths(dim, known[dim.name])
        for value, argument in zip(flat, self.inputs, strict=True):
            shape: tuple[int, ...] = tuple(getattr(value, "shape", ()))
            if argument.ragged and shape and shape[0] != (end := known[argument.ragged][-1]):
                raise ShapeError(f"argument {argument.name} has {shape[0]} rows, and the lengths of {argument.ragged} add up to "
                                 f"{end}; pass one length for each sequence")
        return PackedCall([*flat, *(known[d.name] for d in self.program.ragged)], kinds[0] if kinds else _rows, known)

    def result(self, call: PackedCall, returned: Any) -> Any:
        """The results as the caller has its sequences."""
        outputs = self.program.outputs
        values = [returned] if len(outputs) == 1 else list(returned)
        made = [call.kind(v, call.offsets[o.ragged]) if o.ragged else v for v, o in zip(values, outputs, strict=True)]
        return self.signature.result(made[0] if len(made) == 1 else tuple(made))


def check_lengths(dim: DimInfo, offsets: Offsets) -> None:
    """ShapeError that names the sequence whose length is outside the range of the dim."""
    lengths = np.diff(offsets)
    wrong = np.flatnonzero((lengths < dim.lo) | (lengths > dim.hi) | (lengths % dim.multiple_of != 0))
    if wrong.size:
        number = wrong[0]
        raise ShapeError(f"dim {dim.name} = {lengths[number]} of sequence {number} is outside its range {dim.dim()}; compile "
                         "with a wider range")


def _stated(dim: DimInfo, named: dict[str, Any]) -> Offsets | None:
    """What the caller says of a ragged dim by name."""
    lengths, ends = named.pop(f"{dim.name}_lengths", None), named.pop(offsets_name(dim.name), None)
    if lengths is not None and ends is not None:
        raise DTypeError(f"dim {dim.name}: wanted its lengths or its offsets, got both; leave one out")
    if lengths is not None:
        return offsets_of(lengths, f"{dim.name}_lengths")
    return None if ends is None else checked_offsets(ends, offsets_name(dim.name))


def _unpacked(value: Any, argument: Argument) -> tuple[Any, Offsets, Kind] | None:
    """Rows and offsets of an argument that has both; None for an array of packed rows."""
    if isinstance(value, Jagged):
        return value.values, value.offsets, lambda rows, offsets: Jagged(rows, offsets=offsets)
    if isinstance(value, list | tuple):
        what = f"argument {argument.name}"
        rows = joined(value, what)
        return rows, offsets_of([len(s) for s in value], what), lambda rows, ends: list(Jagged(rows, offsets=ends))
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor) and value.is_nested:
        if value.layout != torch.jagged:
            raise DTypeError(f"argument {argument.name}: wanted a nested tensor of layout torch.jagged, got {value.layout}; make "
                             "it with torch.nested.nested_tensor(..., layout=torch.jagged)")
        if isinstance(value.shape[1], int):
            raise ShapeError(f"argument {argument.name}: wanted a nested tensor whose sequences lie along axis 1, "
                             "got other lengths along a later axis; transpose it")
        whole = value.contiguous()  # without rows between the sequences, as torch.nested.narrow leaves them
        ends = np.ascontiguousarray(whole.offsets().numpy(), np.int64)
        return whole.values(), ends, lambda rows, _: torch.nested.nested_tensor_from_jagged(rows, whole.offsets())
    return None


def _rows(rows: Any, offsets: Offsets) -> Any:
    return rows


def _agree(known: Offsets, given: Offsets, argument: Argument, source: str) -> None:
    """Two arguments whose sequences have the same lengths."""
    if len(known) != len(given):
        raise ShapeError(f"argument {argument.name} has {len(given) - 1} sequences, {source} has {len(known) - 1}; wanted as "
                         f"many, of dim {argument.ragged}")
    if (wrong := np.flatnonzero(np.diff(known) != np.diff(given))).size:
        number = wrong[0]
        raise ShapeError(f"argument {argument.name}: sequence {number} has {np.diff(given)[number]} rows, and "
                         f"{np.diff(known)[number]} in {source}; wanted one length of dim {argument.ragged}")
