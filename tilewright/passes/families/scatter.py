"""Results written through maps that are no permutations: one thread runs all loops in order, updating the result in memory."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.passes.analysis import op_kinds
from tilewright.passes.codegen.affine_index import evaluate
from tilewright.passes.codegen.emit import loop
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.linalg.structured import loop_extents
from tilewright.passes.mlir import ir, maps_of, owner


def scatters(value: ir.Value) -> bool:
    """Is a result written through a map that is no permutation of its parallel loops?"""
    op = owner(value)
    return op is not None and op.name != "linalg.fill" and op_kinds.scatters(op)


def serial(kernel: KernelFrame, number: int) -> None:
    """Copies the initial tensor to the result, then runs all loops in order, updating the result in memory."""
    ev = kernel.evaluator
    value, memory = kernel.results[number], kernel.outputs[number]
    op = owner(value)
    assert op is not None
    results = list(op.results)
    inputs = len(op.operands) - len(results)
    at = inputs + results.index(value)
    if len(results) > 1:
        raise ValueError(f"{op.name} at {op.location}: several results with maps that are no permutations")

    def copy(coords: list[Index], axes: Sequence[Index]) -> None:
        if axes:
            loop(0, axes[0], 1, lambda i: copy([*coords, i], axes[1:]), index=kernel.index)
        else:
            with ev.kept():
                memory.store(ev.element(op.operands[at], coords), coords)

    def update(loops: list[Index]) -> None:
        if len(loops) < maps_of(op)[0].n_dims:
            extent = ev.emit(loop_extents(op, kernel.shapes)[len(loops)])
            loop(0, extent, 1, lambda i: update([*loops, i]), index=kernel.index)
            return
        coords = [evaluate(e, loops) for e in maps_of(op)[at].results]
        with ev.kept():
            memory.store(ev.region(op, loops, {at: memory.load(coords)}, None)[0], coords)

    copy([], memory.sizes)
    update([])
