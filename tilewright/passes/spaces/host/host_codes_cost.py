"""KernelCost of `host_codes` configurations. MLIR-free."""

from __future__ import annotations

from tilewright.passes.spaces.host.host_codes import Format, HostCodesConfig, extents_of
from tilewright.passes.spaces.kernel_cost import Footprint, KernelCost, fields_of
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.shape import Expr

_DECODED = 3.0  # instructions of a vector of values: shift, mask or shift again, conversion to float
_JOINED = 2.0  # of the bits of another plane: shift, and a choice by a mask
_LOOKED_UP = 2.0  # of values in a register: shift and permutation
_ISSUE = 3.0  # vector instructions a cycle
_STORE = 1.0  # cycles of storing a vector and reading it again


def extents(workload: Workload) -> dict[str, Expr]:
    """Rows stream, columns lie along the vectors, depth is summed over."""
    seen = extents_of(workload)
    return {"batch": workload.size("b"), "rows": seen.rows, "columns": seen.columns, "depth": seen.depth}


def kernel_cost(config: HostCodesConfig, workload: Workload, limits: HostLimits) -> KernelCost:
    """A block decodes each vector once for all of its rows; a panel once for all rows of a chunk."""
    form = Format.of(workload)
    assert form is not None
    rows, vectors = config.mr, config.nv
    if config.dot:
        return _dotted(config, form)
    each = (_LOOKED_UP if config.table else _DECODED) + _JOINED * (form.planes - 1) + form.zero
    products = max(rows * vectors / 2, (rows + vectors) / 2)
    cycles = products if config.decode else max(products, (vectors * each + rows * vectors + rows) / _ISSUE)
    alone = cycles if config.decode else max(1 / 2, vectors * (each + 1) / _ISSUE)
    return KernelCost(
        coordinates={**fields_of(config), "mc": float(config.mc // max(1, config.mr))},
        tiles={"rows": rows, "columns": config.columns},
        pads={"columns": config.lanes},
        least={"rows": max(1, round(alone / cycles * rows))},
        halved={"rows": 0 if config.exact_tails else 1},
        units={"batch": 1, "rows": config.mc, "columns": config.columns * config.panels},
        rate=rows * vectors / 2 / cycles,
        copied=Footprint(round(config.columns * 4 * (each / _ISSUE + _STORE)), "depth") if config.decode else None,
        footprints={"panel": Footprint(config.columns * 4 if config.decode else config.columns * form.bits // 8 or 1, "depth"),
                    "chunk": Footprint(max(config.mc, rows) * 4, "depth")},
        features={"sums": rows * vectors, "bits": form.bits, "instructions_a_vector": each, "group": form.group},
    )


def _dotted(config: HostCodesConfig, form: Format) -> KernelCost:
    """Integers: the codes of a word are masked once for all rows; a product of four bytes and its addition are one instruction or
    two. rate and alone count values of k a vector, as of floats."""
    rows, vectors, each = config.mr, config.nv, 8 // form.bits
    halves = 2 if form.bits == 8 and config.dot < 4 else 1
    masked, added = 2 * each * halves, (1 if config.dot > 2 else 2) * each * halves

    def cycles(count: int) -> float:
        return (vectors * (1 + masked) + count * (vectors * added + each)) / _ISSUE / form.word

    return KernelCost(
        coordinates={**fields_of(config), "mc": float(config.mc // max(1, rows))},
        tiles={"rows": rows, "columns": config.columns},
        pads={"columns": config.lanes},
        least={"rows": max(1, round(cycles(1) / cycles(rows) * rows))},
        halved={"rows": 0 if config.exact_tails else 1},
        units={"batch": 1, "rows": config.mc, "columns": config.columns},
        rate=rows * vectors / 2 / cycles(rows),
        copied=None,
        footprints={"panel": Footprint(config.columns * form.bits // 8 or 1, "depth"),
                    "chunk": Footprint(max(config.mc, rows), "depth")},
        features={"sums": rows * vectors, "bits": form.bits, "instructions_a_vector": cycles(rows) * _ISSUE, "group": form.group},
    )
