"""Constant indices of pools lie within their pools: kernels read tables by them as they are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.passes.analysis.canonical_spec import KEY
from tilewright.passes.analysis.pools import Pools
from tilewright.passes.dispatch_creation.pack_constants import PACK
from tilewright.passes.linalg.symbolic import argument_attributes, read_dims
from tilewright.passes.mlir import flat_operations, functions, ir, operations
from tilewright.runtime.errors import OptionError


def check_indices(module: ir.Module, bound: Mapping[int, np.ndarray]) -> None:
    """Of an outlined module with its constants laid out. OptionError names the index that is beyond its pool."""
    named = {ir.StringAttr(fn.attributes["sym_name"]).value: fn for fn in functions(module)}
    indices = {name: books for name, fn in named.items() if KEY in fn.attributes and (books := _indices(fn))}
    for main in (fn for fn in named.values() if indices and KEY not in fn.attributes):
        arguments, given = list(main.regions[0].blocks[0].arguments), argument_attributes(main)
        for call in (op for op in flat_operations(main.regions[0].blocks[0]) if op.name == "func.call"):
            for operand, entries in indices.get(ir.FlatSymbolRefAttr(call.attributes["callee"]).value, {}).items():
                number = arguments.index(call.operands[operand])
                source = read_dims(given[number][PACK])[0].constant if PACK in given[number] else number
                found = None if source is None else bound.get(source)
                largest = 0 if found is None else int(found.view(np.uint8).max(initial=0))
                if largest >= entries:
                    raise OptionError(f"{call.location}: weights name vector {largest} of a pool of {entries}; wanted indices "
                                      f"from 0 to {entries - 1}")


def _indices(fn: ir.Operation) -> dict[int, int]:
    """Operand of a workload -> entries of the pool that its bytes name, where they are laid out for kernels."""
    arguments = list(fn.regions[0].blocks[0].arguments)
    every = (Pools.of(op) for op in operations(fn.regions[0].blocks[0]))
    return {arguments.index(pools.op.operands[book.index]): pools.entries for pools in every
            if pools is not None and pools.tile for book in pools.books}
