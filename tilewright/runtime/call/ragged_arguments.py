"""Arguments of ragged calls that hold their sequences apart: lists of arrays and nested tensors of PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from tilewright.runtime.call.jagged import Jagged, Offsets, array_of, joined, offsets_of, spread
from tilewright.runtime.errors import DTypeError, ShapeError
from tilewright.runtime.program.program import Argument, DimInfo

Lengths = Mapping[str, Offsets]


def from_list(sequences: list[Any]) -> Jagged | None:
    """Arrays of NumPy that agree in type and all axes but the first, or tensors of torch; None of any other list, `from_blocks`
    says what is wrong with it."""
    if not sequences:
        return None
    kind = type(sequences[0])
    try:
        if kind is np.ndarray:
            if {*map(type, sequences)} != {kind}:
                return None
            values = np.concatenate(sequences, dtype=sequences[0].dtype, casting="no")
        else:
            torch = sys.modules.get("torch")
            if torch is None or any(type(s) is not torch.Tensor or s.requires_grad for s in sequences):
                return None
            values = torch.cat(sequences)
    except (TypeError, ValueError, RuntimeError):
        return None
    if values.ndim != sequences[0].ndim:
        return None
    offsets = np.fromiter(accumulate(map(len, sequences), initial=0), np.int64, len(sequences) + 1)
    return Jagged.checked(values, offsets)


def from_blocks(sequences: Sequence[Any], argument: Argument, dims: Mapping[str, DimInfo]) -> tuple[Any, Lengths]:
    """The packed argument, and what the list says of the lengths of each ragged dim.

    Args:
        dims: the ragged ones by name.
    Raises:
        ShapeError, DTypeError: the arrays do not agree with each other or with the argument.
    """
    what = f"argument {argument.name}"
    if not argument.block:
        rows, ends = joined(sequences, what), offsets_of([len(s) for s in sequences], what)
        return aligned(rows, ends, dims[argument.ragged]), {argument.ragged: ends}
    torch = sys.modules.get("torch")
    if torch is None or not all(isinstance(s, torch.Tensor) for s in sequences):
        sequences = [array_of(s, f"{what}: sequence {number}") for number, s in enumerate(sequences)]
    for number, sequence in enumerate(sequences):
        shape = tuple(sequence.shape)
        fits = len(shape) == len(argument.block)
        if not fits or any(e.isdigit() and n != int(e) for n, e in zip(shape, argument.block, strict=True)):
            raise ShapeError(f"{what}: sequence {number} is {sequence.dtype}{list(shape)}; wanted [{', '.join(argument.block)}]")
        if sequence.dtype != sequences[0].dtype:
            raise DTypeError(f"{what}: sequence {number} is {sequence.dtype}, sequence 0 is {sequences[0].dtype}; wanted one "
                             "type")
    known: dict[str, Offsets] = {}
    for axis, name in enumerate(argument.block):
        if name.isdigit():
            continue
        own = offsets_of([s.shape[axis] for s in sequences], what)
        if (wrong := np.flatnonzero(np.diff(known.setdefault(name, own)) != np.diff(own))).size:
            shown = list(sequences[wrong[0]].shape)
            raise ShapeError(f"{what}: sequence {wrong[0]} is of {shown}; wanted one extent {name} in "
                             f"[{', '.join(argument.block)}]")
    flat = [s.reshape(-1) for s in sequences]
    if any(dims[n].has_gaps for n in known):
        flat = [_filled(part, stored_elements(argument, s.shape, dims)) for part, s in zip(flat, sequences, strict=True)]
    return joined(flat, what).reshape(-1, *map(int, (argument.dims or ())[1:])), known


def aligned(rows: Any, offsets: Offsets, dim: DimInfo) -> Any:
    """Rows of sequences one after the other as the dim has them."""
    return spread(rows, offsets, 1, dim.align) if dim.has_gaps else rows


def stored_elements(argument: Argument, shape: Sequence[int], dims: Mapping[str, DimInfo]) -> int:
    """Elements from the part of a sequence, of this shape, to that of the next."""
    return prod(n if e.isdigit() else dims[e].stored(n) for n, e in zip(shape, argument.block, strict=True))


def _filled(part: Any, count: int) -> Any:
    """Elements with as many 0 behind them as make `count`."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(part, torch.Tensor):
        return torch.nn.functional.pad(part, (0, count - len(part)))
    return np.pad(part, (0, count - len(part)))


def is_nested(value: Any) -> bool:
    """Is it a nested tensor of torch?"""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor) and bool(getattr(value, "is_nested", False))


def is_on_device(value: Any) -> bool:
    """Does an array lie on a GPU?"""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return bool(value.is_cuda)
    return type(value) is not np.ndarray and hasattr(value, "__cuda_array_interface__")


def device_offsets(named: Mapping[str, Any], dim: str, name: str) -> Any:
    """The offsets of a ragged dim that a caller gives by name on a GPU, of lengths of torch by its sums there; None of others.

    Raises:
        DTypeError: lengths of another library, whose sums are its own business.
    """
    lengths, offsets = named.get(f"{dim}_lengths"), named.get(name)
    if offsets is not None or not is_on_device(lengths):
        return offsets if is_on_device(offsets) else None
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(lengths, torch.Tensor):
        raise DTypeError(f"{dim}_lengths: wanted a tensor of torch or an array of the host, got {type(lengths).__name__} on a "
                         f"GPU; pass {name}= there")
    return torch.nn.functional.pad(lengths.to(torch.int64).cumsum(0), (1, 0))


def nested(value: Any, argument: Argument) -> tuple[Any, Any, Lengths]:
    """The offsets of a nested tensor as torch has them, its rows, and its offsets by the name of the ragged dim."""
    torch: Any = sys.modules["torch"]
    if value.layout != torch.jagged:
        raise DTypeError(f"argument {argument.name}: wanted a nested tensor of layout torch.jagged, got {value.layout}; make "
                         "it with torch.nested.nested_tensor(..., layout=torch.jagged)")
    if isinstance(value.shape[1], int):
        raise ShapeError(f"argument {argument.name}: wanted a nested tensor whose sequences lie along axis 1, "
                         "got other lengths along a later axis; transpose it")
    whole = value.contiguous()  # without rows between the sequences, as torch.nested.narrow leaves them
    return whole.offsets(), whole.values(), {
        argument.ragged: np.ascontiguousarray(whole.offsets().numpy(), np.int64)}


def offsets_by_number(dim: DimInfo, count: int) -> Offsets:
    """Where the sequences begin of a dim whose lengths follow from their numbers."""
    return offsets_of(dim.lengths_by_number(count), f"dim {dim.name}")
