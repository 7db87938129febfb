"""sink-reshapes: elementwise operations behind a contraction run over the axes that it has.

A convolution in groups has an axis of groups and one of filters, which its readers see as one; a product over pixels has one axis
of them, which its readers see as rows and columns. Each reader's loops are split, or merged, as the contraction's are, and the
reshape moves behind it, so that both are one kernel. So do those that read a copy of its own kernel reshaped, and those that read
elements repeated by whole factors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.contraction import sums_products
from tilewright.passes.base import Pass
from tilewright.passes.linalg.copies import COPY
from tilewright.passes.linalg.data_movement import movement
from tilewright.passes.linalg.loop_groups import can_merge, merge
from tilewright.passes.linalg.reshape import RESHAPES, Reshaper
from tilewright.passes.linalg.split_loop import can_split, split_loop
from tilewright.passes.linalg.structured import defined_by, erase_unused, inputs, iterator_kinds, main_of, uncast
from tilewright.passes.linalg.symbolic import reassociation
from tilewright.passes.mlir import ir, maps_of, operations, owner, position

_MOST = 32  # operations that are looked at behind one


@dataclass(frozen=True)
class SinkReshapes(Pass):
    """Where every operand can be seen with the new axes."""

    name: ClassVar[str] = "sink-reshapes"

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            views, sunk = Reshaper(fn), set[ir.Operation]()
            for op in operations(fn.regions[0].blocks[0]):
                if op.name == "linalg.generic" and "reduction" not in iterator_kinds(op) and COPY not in op.attributes:
                    made = _sink(op, views, sunk)
                    if made is not None:
                        sunk.add(made)
            erase_unused(fn)


def _sink(op: ir.Operation, views: Reshaper, sunk: set[ir.Operation]) -> ir.Operation | None:
    """The operation over the axes of the first contraction that it reads reshaped; sunk: those behind one already."""
    for number, value in enumerate(inputs(op)):
        reshape = defined_by(uncast(value), *RESHAPES)
        source = owner(uncast(reshape.operands[0])) if reshape is not None else None
        if reshape is None or source is None or not (source in sunk or COPY in source.attributes or sums_products(source)
                                                     or (_repeats(source) and _alone(op, number, reshape))):
            continue
        made = _along(op, number, reshape, views)
        if made is not None:
            return made
    return None


def _repeats(op: ir.Operation) -> bool:
    """Does it only repeat elements along axes that its operand does not have?"""
    access = movement(op)
    return access is not None and len(access.results) < access.n_dims


def _alone(op: ir.Operation, number: int, reshape: ir.Operation) -> bool:
    """Does no other operand run along the axes that the reshape of this one splits? It would be read with gaps."""
    *maps, _ = maps_of(op)
    split = {maps[number].results[a] for a, group in enumerate(reassociation(reshape)) if len(group) > 1}
    return not any(e in split for n, m in enumerate(maps) if n != number for e in m.results)


def _is_reduced(op: ir.Operation) -> bool:
    """Is the result, or what elementwise operations make of it, read by a reduction? That is fused over the axes it has; a
    product only reads."""
    seen, wanted = {op}, [op]
    while wanted and len(seen) < _MOST:
        for use in (u for r in wanted.pop().results for u in r.uses):
            reader = use.owner.operation if isinstance(use.owner, ir.OpView) else use.owner
            if reader in seen or not reader.results:
                continue
            seen.add(reader)
            if reader.name.startswith("linalg.") and "reduction" in iterator_kinds(reader):
                if sums_products(reader):
                    continue
                return True
            wanted.append(reader)
    return False


def _along(op: ir.Operation, number: int, reshape: ir.Operation, views: Reshaper) -> ir.Operation | None:
    """`op` with the loops that it reads operand `number` by split or merged as the axes of the reshape are."""
    made = None
    expands = reshape.name == "tensor.expand_shape"
    split = views.shapes.dims(reshape.results[0] if expands else reshape.operands[0])
    for axis, group in reversed(list(enumerate(reassociation(reshape)))):
        if len(group) < 2 or (sum(split[a].constant != 1 for a in group) < 2 and (expands or _is_reduced(op))):  # no loop is lost
            continue
        here = made or op
        read = maps_of(here)[number].results
        loops = [position(read[a]) for a in (group if expands else [axis])]
        known = [d for d in loops if d is not None]
        if len(known) < len(loops):
            return made
        if expands and can_merge(here, known, views):
            made = merge(here, known, views)
        elif not expands and can_split(here, known[0]):
            made = split_loop(here, known[0], [split[a] for a in group], views)
        else:
            return made
    return made
