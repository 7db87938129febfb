"""linalg operations with a region: evaluated over the whole iteration space at once.

A reduction whose body is `out <op> f(inputs)` becomes one NumPy reduction, a sum of products a matrix product; loops of
a convolution or pooling window are walked. Any other reduction walks its reduction loops, vectorised over the parallel
ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from tilewright.compiler.reference.evaluate_contraction import contract
from tilewright.compiler.reference.loops import IterationSpace, loop_extents, read, used_loops, write
from tilewright.compiler.reference.scalars import Array, element, is_float, signed, wrap
from tilewright.compiler.reference.tensors import where
from tilewright.passes.mlir import ir, maps_of, operations, owner

_FLOAT_CASTS = ("arith.extf", "arith.truncf", "arith.convertf")
_LOWEST, _HIGHEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_COMBINERS: Mapping[str, tuple[np.ufunc, Any]] = MappingProxyType({
    "arith.addf": (np.add, 0.0), "arith.mulf": (np.multiply, 1.0),
    "arith.maximumf": (np.maximum, -np.inf), "arith.minimumf": (np.minimum, np.inf),
    "arith.maxnumf": (np.fmax, np.nan), "arith.minnumf": (np.fmin, np.nan),
    "arith.addi": (np.add, 0), "arith.muli": (np.multiply, 1),
    "arith.maxsi": (np.maximum, _LOWEST), "arith.minsi": (np.minimum, _HIGHEST),
    "arith.andi": (np.bitwise_and, -1), "arith.ori": (np.bitwise_or, 0), "arith.xori": (np.bitwise_xor, 0),
    "math.fma": (np.add, 0.0),
})  # fmt: skip
_PRODUCTS = ("arith.mulf", "arith.muli")


class BodyRunner(Protocol):
    """Evaluates values of a region's block: given block arguments, loop indices and the values wanted."""

    def __call__(self, block: ir.Block, arguments: Mapping[ir.Value, Array], indices: Sequence[Array],
                 wanted: Sequence[ir.Value]) -> list[Array]: ...


@dataclass(frozen=True)
class UfuncCombiner:
    """`out = ufunc(out, value)`, or `ufunc(out, factors[0] * factors[1])` when `factors` are given."""

    ufunc: np.ufunc
    identity: Any
    value: ir.Value
    factors: tuple[ir.Value, ir.Value] | None


@dataclass(frozen=True)
class Structured:
    """A linalg operation and its operands' values."""

    op: ir.Operation
    maps: Sequence[ir.AffineMap]
    inputs: Sequence[Array]
    outputs: Sequence[Array]
    space: IterationSpace
    run: BodyRunner

    @staticmethod
    def of(op: ir.Operation, operands: Sequence[Array], run: BodyRunner) -> Structured:
        maps = maps_of(op)
        extents = loop_extents(maps, [a.shape for a in operands], where(op))
        split = len(operands) - len(op.results)
        return Structured(op, maps, operands[:split], operands[split:], IterationSpace(extents, {}), run)

    @property
    def block(self) -> ir.Block:
        return self.op.regions[0].blocks[0]

    @property
    def yielded(self) -> list[ir.Value]:
        return list(operations(self.block)[-1].operands)

    @property
    def accumulators(self) -> list[ir.Value]:
        """Block arguments of the outputs; linalg.map may have none."""
        return list(self.block.arguments)[len(self.inputs):]

    def evaluate(self) -> list[Array]:
        if 0 in self.space.extents:
            return list(self.outputs)
        reduced = self._reduced_loops()
        if not reduced:
            return self._parallel()
        combiners = [self._combiner(k) for k in range(len(self.outputs))]
        known = [c for c in combiners if c is not None]
        if len(known) == len(combiners) and all(self._is_injective(m) for m in self._output_maps()):
            return self._combined(known, reduced)
        return self._sequential(reduced)

    def _output_maps(self) -> Sequence[ir.AffineMap]:
        return self.maps[len(self.inputs):]

    @staticmethod
    def _is_injective(m: ir.AffineMap) -> bool:
        return all(isinstance(e, (ir.AffineDimExpr, ir.AffineConstantExpr)) for e in m.results)

    def _reduced_loops(self) -> list[int]:
        """Loops that some output does not index on their own."""
        own = [{e.position for e in m.results if isinstance(e, ir.AffineDimExpr)} for m in self._output_maps()]
        return [d for d in range(len(self.space.extents)) if not all(d in o for o in own)]

    def _arguments(self, space: IterationSpace, outputs: Sequence[Array]) -> dict[ir.Value, Array]:
        arrays = [*self.inputs, *outputs][: len(self.block.arguments)]
        return {v: read(a, m, space, where(self.op))
                for v, a, m in zip(self.block.arguments, arrays, self.maps, strict=False)}

    def _parallel(self) -> list[Array]:
        values = self.run(self.block, self._arguments(self.space, self.outputs), self.space.grids(), self.yielded)
        results = []
        for value, out, m in zip(values, self.outputs, self._output_maps(), strict=True):
            axes = [e.position for e in m.results if isinstance(e, ir.AffineDimExpr)]
            if len(axes) == len(m.results) == len(set(axes)):
                results.append(np.broadcast_to(value, self.space.shape).transpose(axes))
            else:
                results.append(out.copy())
                write(results[-1], m, self.space, value, where(self.op))
        return results

    def _combiner(self, k: int) -> UfuncCombiner | None:
        """How result k accumulates; None when the body is not `out <op> f` with an f that reads no output."""
        out = self.accumulators[k] if k < len(self.accumulators) else None
        if out is None:
            return None
        op = owner(_through_casts(self.yielded[k]))
        if op is None or op.name not in _COMBINERS or (op.name == "math.fma" and _through_casts(op.operands[2]) != out):
            return None
        ufunc, identity = _COMBINERS[op.name]
        others = [v for v in op.operands if _through_casts(v) != out]
        if len(others) != len(op.operands) - 1 or any(self._reads_output(v) for v in others):
            return None
        if op.name == "math.fma":
            return UfuncCombiner(ufunc, identity, op.operands[2], (others[0], others[1]))
        product = owner(_through_casts(others[0]))
        if ufunc is np.add and product is not None and product.name in _PRODUCTS and product.block == self.block:
            return UfuncCombiner(ufunc, identity, others[0], (product.operands[0], product.operands[1]))
        return UfuncCombiner(ufunc, identity, others[0], None)

    def _reads_output(self, value: ir.Value) -> bool:
        if value in self.accumulators:
            return True
        op = owner(value)
        if op is None or op.block != self.block:
            return False
        return any(self._reads_output(v) for v in [*op.operands, *captured(op)])

    def _combined(self, combiners: Sequence[UfuncCombiner], reduced: Sequence[int]) -> list[Array]:
        window = self._window_loops(reduced)
        inner = [d for d in reduced if d not in window]
        totals: list[Array | None] = [None] * len(combiners)
        for point in itertools.product(*(range(self.space.extents[d]) for d in window)):
            space = self.space.at(dict(zip(window, point, strict=True)))
            arguments = {v: a for v, a in self._arguments(space, self.outputs).items() if v not in self.accumulators}
            for k, c in enumerate(combiners):
                part = self._accumulate(c, space, arguments, inner)
                totals[k] = part if totals[k] is None else c.ufunc(totals[k], part)
        space = self.space.at(dict.fromkeys(reduced, 0))
        results: list[Array] = []
        for c, total, out, m in zip(combiners, totals, self.outputs, self._output_maps(), strict=True):
            result = np.array(out)
            if total is not None:
                kind = element(self.op.results[len(results)].type)
                start = read(out, m, space, where(self.op))
                value = c.ufunc(start if is_float(kind) else signed(start), total)
                write(result, m, space, value if is_float(kind) else wrap(value, kind), where(self.op))
            results.append(result)
        return results

    def _window_loops(self, reduced: Sequence[int]) -> list[int]:
        """Reduced loops that share an index expression with another loop, as in convolutions."""
        shared = [used_loops(e) for m in self.maps for e in m.results]
        return sorted({d for loops in shared if len(loops) > 1 for d in loops if d in reduced})

    def _accumulate(
        self, c: UfuncCombiner, space: IterationSpace, arguments: Mapping[ir.Value, Array], inner: Sequence[int]
    ) -> Array:
        """One window point: the value reduced over the `inner` loops, which keep size 1."""
        floating = isinstance(c.identity, float)
        if c.factors is not None:
            factors = self.run(self.block, arguments, space.grids(), c.factors)
            a, b = factors if floating else map(signed, factors)
            return contract(a, b, space.shape, inner)
        value = self.run(self.block, arguments, space.grids(), [c.value])[0]
        spread = [e if d in inner else value.shape[d] for d, e in enumerate(space.shape)]
        full = np.broadcast_to(value if floating else signed(value), spread)
        return np.asarray(c.ufunc.reduce(full, axis=tuple(inner), keepdims=True, initial=c.identity))

    def _sequential(self, reduced: Sequence[int]) -> list[Array]:
        results = [np.array(out) for out in self.outputs]
        for point in itertools.product(*(range(self.space.extents[d]) for d in reduced)):
            space = self.space.at(dict(zip(reduced, point, strict=True)))
            values = self.run(self.block, self._arguments(space, results), space.grids(), self.yielded)
            for value, result, m in zip(values, results, self._output_maps(), strict=True):
                write(result, m, space, value, where(self.op))
        return results


def _through_casts(value: ir.Value) -> ir.Value:
    """The value before changes of float precision, which float64 evaluation ignores."""
    op = owner(value)
    while op is not None and op.name in _FLOAT_CASTS:
        value = op.operands[0]
        op = owner(value)
    return value


def captured(op: ir.Operation) -> list[ir.Value]:
    """Operands of all operations in the regions of `op`."""
    return [v for r in op.regions for b in r.blocks for o in operations(b) for v in [*o.operands, *captured(o)]]
