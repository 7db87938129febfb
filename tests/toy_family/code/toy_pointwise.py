"""Code of the toy family: a work unit is a chunk of the last axis of the result, element by element."""

from __future__ import annotations

from toy_family.spaces.toy_pointwise import ToyConfig

from tilewright.passes.codegen.emit import loop
from tilewright.passes.codegen.host_kernel import Grid, HostKernel
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.tiler import Part, Tiler
from tilewright.passes.codegen.units import Unit
from tilewright.passes.mlir import ir


def tile(frame: KernelFrame, config: ToyConfig, tiler: Tiler) -> None:
    dims = frame.shapes.dims(frame.results[0])
    *outer, last = range(len(dims))

    def parts(place: list[Index]) -> dict[str, Part]:
        found = {f"d{a}": Part(x) for a, x in zip(outer, place, strict=False)}
        return found | {f"d{last}": tiler.span(place[-1], config.chunk, dims[last])}

    counts = [*(dims[a] for a in outer), dims[last].ceildiv(config.chunk)]
    tiler.loop(counts, parts, {frame.results[0]: {f"d{a}": (a,) for a in range(len(dims))}})


def emit(kernel: HostKernel, config: ToyConfig) -> Grid:
    rank = ir.RankedTensorType(kernel.results[0].type).rank

    def unit(at: Unit) -> None:
        where = [at.first(f"d{a}") for a in range(rank - 1)]
        low, high = at.span(f"d{rank - 1}")

        def element(column: Index) -> None:
            coords = [*where, column]
            kernel.outputs[0].store(kernel.evaluator.element(kernel.results[0], coords), coords)

        loop(low, high, 1, element, index=kernel.index)

    def body(begin: Index, end: Index, workspace: ir.Value) -> Grid:
        number = kernel.loops[0].numbers(kernel.evaluator)
        loop(begin, end, 1, lambda u: unit(number(u)), index=kernel.index)
        return Grid()

    return kernel.build(body)
