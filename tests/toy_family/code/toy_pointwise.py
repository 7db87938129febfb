"""Code of the toy family: one loop over the elements of a work unit."""

from __future__ import annotations

from toy_family.spaces.toy_pointwise import ToyConfig

from passes.emit import loop
from passes.host_kernel import Grid, HostKernel
from passes.index import Index, delinearize
from passes.mlir import ir
from runtime.shape import Expr


def emit(kernel: HostKernel, config: ToyConfig) -> Grid:
    def body(begin: Index, end: Index, workspace: ir.Value) -> Grid:
        ev, value = kernel.evaluator, kernel.results[0]
        extents = kernel.shapes.dims(value)
        total = Expr.of(1)
        for extent in extents:
            total = total * extent

        def element(number: Index) -> None:
            at = delinearize(number, [ev.emit(e) for e in extents])
            kernel.outputs[0].store(ev.element(value, at), at)

        loop(begin * config.chunk, (end * config.chunk).min(ev.emit(total)), 1, element, index=kernel.index)
        return Grid(units=total.ceildiv(config.chunk))

    return kernel.build(body)
