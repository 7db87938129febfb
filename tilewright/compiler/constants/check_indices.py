"""Constant indices of pools lie within their pools: kernels read tables by them as they are, and files hold no more of their
bits than these need."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.passes.analysis.canonical_spec import KEY
from tilewright.passes.analysis.pools import MOST_ENTRIES, Pools
from tilewright.passes.dispatch_creation.pack_constants import PACK
from tilewright.passes.linalg.symbolic import argument_attributes, read_dims
from tilewright.passes.mlir import flat_operations, functions, ir, operations
from tilewright.runtime.errors import OptionError

ENTRIES = "tw.entries"  # of an argument of @main: entries of the pool that its bytes are indices of


def check_indices(module: ir.Module, bound: Mapping[int, np.ndarray]) -> None:
    """Of an outlined module, whose constant arguments that are indices are then marked with the entries of their pools.
    OptionError names the index that is beyond its pool, where it is laid out for kernels; others are decoded as they are read."""
    named = {ir.StringAttr(fn.attributes["sym_name"]).value: fn for fn in functions(module)}
    indices = {name: books for name, fn in named.items() if KEY in fn.attributes and (books := _indices(fn))}
    for main in (fn for fn in named.values() if indices and KEY not in fn.attributes):
        arguments, given = list(main.regions[0].blocks[0].arguments), argument_attributes(main)
        within: dict[int, int] = {}  # number of an argument -> entries of the smallest pool that it is read by
        for call in (op for op in flat_operations(main.regions[0].blocks[0]) if op.name == "func.call"):
            for operand, (entries, laid_out) in indices.get(ir.FlatSymbolRefAttr(call.attributes["callee"]).value, {}).items():
                if call.operands[operand] not in arguments:
                    continue
                number = arguments.index(call.operands[operand])
                source = read_dims(given[number][PACK])[0].constant if PACK in given[number] else number
                found = None if source is None else bound.get(source)
                if found is None:
                    continue
                largest = int(found.view(np.uint8).max(initial=0))
                if largest >= entries and laid_out:
                    raise OptionError(f"{call.location}: weights name vector {largest} of a pool of {entries}; wanted indices "
                                      f"from 0 to {entries - 1}")
                within[number] = min(max(entries, largest + 1), within.get(number, MOST_ENTRIES))
        for number, entries in within.items():
            given[number][ENTRIES] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), entries)
        main.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in given])


def _indices(fn: ir.Operation) -> dict[int, tuple[int, bool]]:
    """Operand of a workload -> entries of the pool that its bytes name, and whether they are laid out for kernels."""
    arguments = list(fn.regions[0].blocks[0].arguments)
    every = (Pools.of(op) for op in operations(fn.regions[0].blocks[0]))
    return {arguments.index(v): (pools.entries, bool(pools.tile)) for pools in every if pools is not None for book in pools.books
            if (v := pools.op.operands[book.index]) in arguments}
