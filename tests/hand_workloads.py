"""What outlining writes of the loops of a workload, for workloads that tests make by hand."""

from __future__ import annotations

from dataclasses import replace

from tilewright.passes.spaces.workload import Axes, Axis, Factor, Kind, Workload


def with_loops(workload: Workload, maps: str) -> Workload:
    """The workload with axes; maps: of its inputs, then of its outputs, by the roles of loops, such as "m k,k n,m n".

    Of a contraction the first two inputs are its factors; of attention the first two and, as the mixing's, the weights and the
    third.
    """
    roles = [loop.role for loop in workload.loops]

    def axes(names: str) -> Axes:
        return tuple(Axis((roles.index(name),), (1,)) for name in names.split())

    every = [axes(m) for m in maps.split(",")]
    inputs = tuple(replace(o, axes=a) for o, a in zip(workload.inputs, every, strict=False))
    outputs = tuple(replace(o, axes=a) for o, a in zip(workload.outputs, every[len(inputs):], strict=True))
    factors = tuple(Factor(o.dtype, o.axes, o.unit_axis, n) for n, o in enumerate(inputs))
    if workload.kind is Kind.ATTENTION:
        factors = (*factors[:2], Factor(factors[2].dtype, axes("b m n")), factors[2])
    return replace(workload, inputs=inputs, outputs=outputs,
                   factors=factors if workload.kind in (Kind.CONTRACTION, Kind.PRODUCT_ROWS, Kind.ATTENTION) else ())
