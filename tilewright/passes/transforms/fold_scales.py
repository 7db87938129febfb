"""fold-scales: a product of a contraction's result with constants goes into its weights, where these are constants too.

So a convolution, or a dense layer, with a batch norm in its inference form is one with other weights and a bias: what multiplies
each filter's result multiplies the filter instead, and a bias that was added before it. Both products are computed at compile
time, in f64, and rounded once: each weight is off by half a unit in its last place at most, as by its own rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.compile_time import constant_arguments, follows
from tilewright.passes.analysis.contraction import OUT, product_of, sums_products
from tilewright.passes.base import Pass
from tilewright.passes.linalg.builders import elementwise
from tilewright.passes.linalg.reshape import RESHAPES, Reshaper
from tilewright.passes.linalg.structured import (
    body,
    erase_unused,
    inits,
    inputs,
    is_zero_tensor,
    iterator_kinds,
    main_of,
    rebuild,
    replace,
    use_count,
    users,
)
from tilewright.passes.mlir import arith, ir, maps_of, operations, owner, position, replace_all_uses
from tilewright.passes.transforms.find_codes import CODES


@dataclass(frozen=True)
class FoldScales(Pass):
    """Of weights in f32 and f64 that are multiplied as they are."""

    name: ClassVar[str] = "fold-scales"

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            folder = _Folder(Reshaper(fn), constant_arguments(fn))
            for op in operations(fn.regions[0].blocks[0]):
                folder.visit(op)
            erase_unused(fn)


@dataclass(frozen=True)
class _Chain:
    """A contraction, the operations between it and a reader, last first, and the reader's loop along each axis of its result.

    added: of those operations the constant that each adds, by the number of its operand; None of a copy.
    """

    root: ir.Operation
    ops: tuple[tuple[ir.Operation, int | None], ...]
    loops: tuple[int, ...]


@dataclass(frozen=True)
class _Folder:
    """constants: what is known at compile time."""

    views: Reshaper
    constants: set[ir.Value]

    def visit(self, op: ir.Operation) -> None:
        if op.name in (*RESHAPES, "tensor.cast", "linalg.generic") and len(op.results) == 1:
            if follows(op, self.constants):
                self.constants.update(op.results)
            elif _is_elementwise(op):
                self._fold(op)

    def _fold(self, op: ir.Operation) -> None:
        """The first product in the body of `op` that goes into weights."""
        arguments = list(body(op).arguments)
        for multiply in operations(body(op)):
            if multiply.name != "arith.mulf" or not all(v in arguments and use_count(v) == 1 for v in multiply.operands):
                continue
            first, second = (arguments.index(v) for v in multiply.operands)
            for number, factor in ((first, second), (second, first)):
                if first != second and op.operands[factor] in self.constants and self._into_weights(op, number, factor):
                    self._without(op, multiply, number, factor)
                    return

    def _into_weights(self, op: ir.Operation, number: int, factor: int) -> bool:
        """Scales the weights behind operand `number` by operand `factor`, where each of its elements belongs to weights of its
        own."""
        chain = self._chain(op, number)
        product = product_of(chain.root) if chain is not None else None
        if chain is None or product is None or not isinstance(product.element, ir.F32Type | ir.F64Type):
            return False
        maps, scale = maps_of(chain.root), op.operands[factor]
        loop_of = dict(zip(chain.loops, (position(e) for e in maps[OUT].results), strict=True))
        wanted = [loop_of.get(at) if (at := position(e)) is not None else None for e in maps_of(op)[factor].results]
        for which in (0, 1):
            weights, axes = chain.root.operands[which], [position(e) for e in maps[which].results]
            if weights not in self.constants or _in_codes(weights):
                continue
            if product.casts[which] or weights.type.element_type != scale.type.element_type:
                continue
            if None in wanted or any(axes.count(d) != 1 for d in wanted):
                continue
            biases = [(link, n) for link, n in chain.ops if n is not None]
            if any(maps_of(link)[n].n_dims != len(chain.loops) or not self._beside(op, factor, chain, link, n)
                   for link, n in biases):
                continue
            with ir.InsertionPoint(op), op.location:
                chain.root.operands[which] = self._scaled(weights, scale, [axes.index(d) for d in wanted])
                for link, n in biases:
                    link.operands[n] = self._scaled(link.operands[n], scale, range(len(wanted)))
            for link in (chain.root, *(o for o, _ in reversed(chain.ops))):
                link.move_before(op)
            return True
        return False

    def _beside(self, op: ir.Operation, factor: int, chain: _Chain, link: ir.Operation, number: int) -> bool:
        """Does a bias have the axes of the scale, along the same loops?"""
        bias, scale = maps_of(link)[number], maps_of(op)[factor]
        return bias == scale and list(self.views.shapes.dims(link.operands[number])) == \
            list(self.views.shapes.dims(op.operands[factor])) and maps_of(link)[-1] == maps_of(op)[-1] and \
            not any(n is None for _, n in chain.ops)

    def _scaled(self, value: ir.Value, scale: ir.Value, axes: Sequence[int]) -> ir.Value:
        """A constant with its elements multiplied by those of `scale`, which lies along some of its axes."""
        rank = ir.RankedTensorType(value.type).rank
        maps = [ir.AffineMap.get_identity(rank), ir.AffineMap.get(rank, 0, [ir.AffineExpr.get_dim(a) for a in axes])]
        into = self.views.empty(self.views.shapes.dims(value), ir.RankedTensorType(value.type).element_type)
        made = elementwise([value, scale], into, lambda v: arith.mulf(v[0], v[1]), maps)
        self.constants.add(made)
        return self.views.as_type(made, value.type)

    def _chain(self, op: ir.Operation, number: int) -> _Chain | None:
        """From operand `number` back to a contraction that nothing else reads the result of."""
        value, found = op.operands[number], list[tuple[ir.Operation, int | None]]()
        loops = [position(e) for e in maps_of(op)[number].results]
        while None not in loops and _readers(value) == 1 and (source := owner(value)) is not None:
            if sums_products(source):
                known = tuple(d for d in loops if d is not None)
                return _Chain(source, tuple(found), known) if is_zero_tensor(inits(source)[0]) else None
            read = self._passed(source)
            if read is None:
                return None
            found.append((source, read[1]))
            maps = maps_of(source)
            along = dict(zip((position(e) for e in maps[-1].results), loops, strict=True))
            loops = [along.get(position(e)) for e in maps[read[0]].results]
            value = source.operands[read[0]]
        return None

    def _passed(self, op: ir.Operation) -> tuple[int, int | None] | None:
        """The operand that an operation only copies, or adds a constant to, and the number of that constant."""
        if not _is_elementwise(op):
            return None
        arguments, last = list(body(op).arguments), operations(body(op))[-1].operands[0]
        if last in arguments[:-1]:
            return arguments.index(last), None
        add = owner(last)
        if add is None or add.name != "arith.addf" or not all(v in arguments[:-1] for v in add.operands):
            return None
        first, second = (arguments.index(v) for v in add.operands)
        for number, constant in ((first, second), (second, first)):
            if first != second and op.operands[constant] in self.constants:
                return number, constant
        return None

    def _without(self, op: ir.Operation, multiply: ir.Operation, number: int, factor: int) -> None:
        """`op` without a factor; what it multiplied where nothing else is left of it."""
        maps, arguments = maps_of(op), list(body(op).arguments)
        replace_all_uses(multiply.results[0], arguments[number])
        multiply.erase()
        if operations(body(op))[0].name == "linalg.yield" and maps[number] == maps[-1] and \
                operations(body(op))[0].operands[0] == arguments[number] and op.operands[number].type == op.results[0].type:
            replace(op, [op.operands[number]])
            return
        kept = [n for n in range(len(maps)) if n != factor]
        count = len(inputs(op)) - 1
        values = [op.operands[n] for n in kept]
        made = rebuild(op, values[:count], values[count:], [maps[n] for n in kept], iterator_kinds(op),
                       lambda block: block.erase_argument(factor))
        replace(op, list(made.results))


def _is_elementwise(op: ir.Operation) -> bool:
    """One result of parallel loops, each along one axis of it."""
    if op.name != "linalg.generic" or len(op.results) != 1 or "reduction" in iterator_kinds(op):
        return False
    return bool(maps_of(op)[-1].is_permutation)


def _readers(value: ir.Value) -> int:
    """How often a value is read, by operations that are not dead themselves."""
    return sum(not user.results or any(use_count(r) for r in user.results) for user in users(value))


def _in_codes(weights: ir.Value) -> bool:
    """Is it a decoding, which stays in codes?"""
    made = owner(weights)
    return made is not None and CODES in made.attributes
