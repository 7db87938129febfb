"""Joins values of a group of threads: shuffles within a warp, shared memory across warps. Every thread gets the result."""

from __future__ import annotations

from tilewright.passes.codegen.emit import constant, integer_type, when
from tilewright.passes.codegen.gpu_kernel import GpuKernel
from tilewright.passes.codegen.index import Index
from tilewright.passes.families.row_reduction import Combiner
from tilewright.passes.mlir import arith, ir, nvvm
from tilewright.runtime.limits import WARP


def join_threads(kernel: GpuKernel, join: Combiner, value: ir.Value, group: int, thread: Index) -> ir.Value:
    """The values of `group` neighbouring threads as one, in an order that depends on `group` only; all threads take part."""
    distance = min(group, WARP) // 2
    while distance:
        value = join(shuffle(value, distance), value)
        distance //= 2
    if group <= WARP:
        return value
    box = kernel.shared(join.wide, [kernel.threads // WARP])
    when((thread % WARP).eq(0), lambda: box.store(value, [thread // WARP]))
    kernel.barrier()
    first = thread // group * (group // WARP)
    return join.join([box.load([first + i]) for i in range(group // WARP)])


def shuffle(value: ir.Value, distance: int) -> ir.Value:
    """The value of the thread whose number in the warp differs in one bit."""
    t, i32 = value.type, integer_type(32)
    if isinstance(t, ir.FloatType):
        if t.width == 32:
            return _exchange(value, distance)
        bits = integer_type(t.width)
        return arith.bitcast(t, shuffle(arith.bitcast(bits, value), distance))
    if t.width == 32:
        return _exchange(value, distance)
    if t.width < 32:
        return arith.trunci(t, _exchange(arith.extui(i32, value), distance))
    low = _exchange(arith.trunci(i32, value), distance)
    high = _exchange(arith.trunci(i32, arith.shrui(value, constant(t, 32))), distance)
    return arith.ori(arith.extui(t, low), arith.shli(arith.extui(t, high), constant(t, 32)))


def _exchange(value: ir.Value, distance: int) -> ir.Value:
    i32 = integer_type(32)
    return nvvm.shfl_sync(constant(i32, -1), value, constant(i32, distance), constant(i32, WARP - 1), nvvm.ShflKind.bfly,
                          results=[value.type])
