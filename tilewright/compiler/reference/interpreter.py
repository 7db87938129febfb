"""evaluate(): runs a function of a module in float64 NumPy, operation by operation, as the IR stands."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.compiler.reference.evaluate_structured import Structured, captured
from tilewright.compiler.reference.scalars import Array, apply, declared, element, is_float, is_scalar_op, storage
from tilewright.compiler.reference.tensors import TENSOR_RULES, check_shape, mixed, pad_widths, shape_of, where
from tilewright.passes.mlir import functions, ir, new_context, operations, owner
from tilewright.runtime.errors import DTypeError, IngestError, OptionError, ShapeError
from tilewright.runtime.float_environment import float_environment


@float_environment()
def evaluate(
    model: str | ir.Module,
    inputs: Sequence[npt.ArrayLike],
    function: str | None = None,
    dtype_outputs: bool = False,
) -> list[npt.NDArray[Any]]:
    """Results of a function of `model` in float64; integers are exact in the width of their type, i1 is bool.

    Args:
        model: MLIR text or a module: linalg on tensors, arith, math, tensor, affine, scf.if, scf.for,
            scf.while, scf.index_switch, scf.forall, func.call.
        inputs: one array or number per argument. Float arguments are rounded to the declared type first.
        function: default the one public function, or @main.
        dtype_outputs: round float results to their declared type.

    Raises IngestError for an operation that it does not know, ShapeError for shapes that contradict the IR (a failing
    cf.assert too), DTypeError for a non-integer array where an integer type is declared.
    """
    if isinstance(model, str):
        with new_context():
            return _evaluate(ir.Module.parse(model), inputs, function, dtype_outputs)
    with model.context:
        return _evaluate(model, inputs, function, dtype_outputs)


def _evaluate(
    module: ir.Module, inputs: Sequence[npt.ArrayLike], function: str | None, dtype_outputs: bool
) -> list[npt.NDArray[Any]]:
    interpreter = Interpreter({ir.StringAttr(f.attributes["sym_name"]).value: f for f in functions(module)})
    fn = interpreter.functions[_chosen(interpreter.functions, function)]
    types = list(fn.regions[0].blocks[0].arguments.types)
    if len(inputs) != len(types):
        raise ShapeError(f"the function takes {len(types)} arguments, {len(inputs)} came")
    arguments = [_argument(a, t, i) for i, (a, t) in enumerate(zip(inputs, types, strict=True))]
    with np.errstate(all="ignore"):
        results = interpreter.call(fn, arguments)
    kinds = ir.FunctionType(ir.TypeAttr(fn.attributes["function_type"]).value).results
    if not dtype_outputs:
        return [np.array(r) for r in results]
    with np.errstate(over="ignore"):
        return [r.astype(declared(element(k))) for r, k in zip(results, kinds, strict=True)]


def _chosen(found: Mapping[str, ir.Operation], wanted: str | None) -> str:
    public = [n for n, f in found.items() if _visibility(f) != "private"]
    names = list(found) if wanted is not None else public
    chosen = wanted if wanted is not None else "main" if "main" in public else public[0] if len(public) == 1 else None
    if chosen not in names:
        raise OptionError(f"which function? The module has {', '.join('@' + n for n in names) or 'none'}; "
                          f"{'none was named' if wanted is None else f'@{wanted} was asked for'}")
    return str(chosen)


def _visibility(fn: ir.Operation) -> str:
    return ir.StringAttr(fn.attributes["sym_visibility"]).value if "sym_visibility" in fn.attributes else "public"


def _argument(given: npt.ArrayLike, kind: ir.Type, position: int) -> Array:
    array, t = np.asarray(given), element(kind)
    if isinstance(kind, ir.RankedTensorType):
        check_shape(array, kind, f"argument {position}")
    elif array.ndim:
        raise ShapeError(f"argument {position}: wanted a scalar of type {kind}, came shape {array.shape}")
    if is_float(t):
        with np.errstate(over="ignore"):
            return array.astype(declared(t)).astype(np.float64)
    if array.dtype.kind not in "biu":
        raise DTypeError(f"argument {position}: wanted integers for {kind}, came {array.dtype}")
    return array.astype(storage(t))


@dataclass
class Frame:
    """Values of one block and, through `parent`, of the blocks around it; `indices` are what linalg.index reads."""

    values: dict[ir.Value, Array]
    parent: Frame | None = None
    indices: Sequence[Array] = ()
    speculative: bool = False

    def __getitem__(self, value: ir.Value) -> Array:
        frame: Frame | None = self
        while frame is not None:
            if value in frame.values:
                return frame.values[value]
            frame = frame.parent
        raise IngestError(f"{value} is used before it has a value")

    def inner(
        self, values: dict[ir.Value, Array], indices: Sequence[Array] | None = None, speculative: bool = False
    ) -> Frame:
        return Frame(values, self, self.indices if indices is None else indices, speculative or self.speculative)


@dataclass(frozen=True)
class Interpreter:
    """Walks blocks; `functions` are those of the module by name."""

    functions: Mapping[str, ir.Operation] = field(default_factory=dict)

    def call(self, fn: ir.Operation, arguments: Sequence[Array]) -> list[Array]:
        if len(fn.regions[0].blocks) != 1:
            raise IngestError(f"{where(fn)}: the reference evaluates functions of one block")
        block = fn.regions[0].blocks[0]
        return self.block(block, Frame(dict(zip(block.arguments, arguments, strict=True))))

    def block(self, block: ir.Block, frame: Frame) -> list[Array]:
        """Run all operations; the values of the terminator's operands."""
        *body, last = operations(block)
        for op in body:
            self.step(op, frame)
        return [frame[v] for v in last.operands]

    def step(self, op: ir.Operation, frame: Frame) -> None:
        results = self.operation(op, [frame[v] for v in op.operands], frame)
        frame.values.update(zip(op.results, results, strict=True))

    def operation(self, op: ir.Operation, operands: Sequence[Array], frame: Frame) -> list[Array]:
        name = op.name
        if name in TENSOR_RULES:
            if name == "tensor.extract" and frame.speculative:
                last = [max(n - 1, 0) for n in operands[0].shape]
                operands = [operands[0], *(np.clip(i, 0, n) for i, n in zip(operands[1:], last, strict=True))]
            return [np.asarray(TENSOR_RULES[name](op, operands))]
        if is_scalar_op(name):
            return apply(op, operands)
        if name == "linalg.index":
            return [frame.indices[int(ir.IntegerAttr(op.attributes["dim"]).value)]]
        if name.startswith("linalg.") and len(op.regions) == 1:
            return self.structured(op, operands, frame)
        if name == "func.call":
            return self.call(self.functions[ir.FlatSymbolRefAttr(op.attributes["callee"]).value], operands)
        if name == "cf.assert":
            if not np.all(operands[0]):
                raise ShapeError(f"{where(op)} fails: {ir.StringAttr(op.attributes['msg']).value}")
            return []
        if name == "tensor.pad":
            return [self.pad(op, operands, frame)]
        if name == "tensor.generate":
            return [self.element_wise(op, shape_of(op.results[0].type, operands), frame)]
        if name == "scf.if":
            return self.branch(op, operands[0], frame)
        if name == "scf.index_switch":
            return self.switch(op, operands[0], frame)
        if name == "scf.while":
            return self.loop_while(op, operands, frame)
        if name == "scf.for":
            return self.loop(op, operands, frame)
        if name == "scf.forall":
            return self.forall(op, operands, frame)
        raise IngestError(f"{where(op)}: the reference does not evaluate this operation")

    def structured(self, op: ir.Operation, operands: Sequence[Array], frame: Frame) -> list[Array]:
        def run(block: ir.Block, arguments: Mapping[ir.Value, Array], indices: Sequence[Array],
                wanted: Sequence[ir.Value]) -> list[Array]:
            inner = frame.inner(dict(arguments), indices)
            needed = _needed(block, wanted)
            for body_op in operations(block)[:-1]:
                if any(r in needed for r in body_op.results) or body_op.name == "cf.assert":
                    self.step(body_op, inner)
            return [_spread(inner[v], len(indices)) for v in wanted]

        return Structured.of(op, operands, run).evaluate()

    def element_wise(self, op: ir.Operation, shape: tuple[int, ...], frame: Frame) -> Array:
        """A region from indices to an element, over a whole shape."""
        if 0 in shape:
            return np.empty(shape, storage(element(op.results[0].type)))
        block = op.regions[0].blocks[0]
        grids = [np.asarray(g) for g in np.ogrid[tuple(slice(0, n) for n in shape)]] if shape else []
        values = self.block(block, frame.inner(dict(zip(block.arguments, grids, strict=True))))
        return np.broadcast_to(values[0], shape)

    def pad(self, op: ir.Operation, operands: Sequence[Array], frame: Frame) -> Array:
        source, widths = operands[0], pad_widths(op, operands)
        if any(n < 0 for pair in widths for n in pair):
            raise ShapeError(f"{where(op)}: negative padding {widths}")
        shape = tuple(n + low + high for n, (low, high) in zip(source.shape, widths, strict=True))
        result = self.element_wise(op, shape, frame).copy()
        result[tuple(slice(low, low + n) for n, (low, _) in zip(source.shape, widths, strict=True))] = source
        return check_shape(result, op.results[0].type, where(op))

    def branch(self, op: ir.Operation, condition: Array, frame: Frame) -> list[Array]:
        """scf.if: one side for a scalar condition; both, then a choice per element, over an iteration space."""
        blocks = [r.blocks[0] for r in op.regions if len(r.blocks)]
        if condition.size == 1:
            chosen = blocks[0] if condition.item() else blocks[1] if len(blocks) > 1 else None
            return self.block(chosen, frame.inner({})) if chosen is not None else []
        sides = [self.block(b, frame.inner({}, speculative=True)) for b in blocks]
        return [np.where(condition, a, b) for a, b in zip(*sides, strict=True)] if len(sides) == 2 else []

    def switch(self, op: ir.Operation, chosen: Array, frame: Frame) -> list[Array]:
        """The region of the case that equals the value, else the first one."""
        cases = list(ir.DenseI64ArrayAttr(op.attributes["cases"]))
        number = 1 + cases.index(int(chosen)) if int(chosen) in cases else 0
        return self.block(op.regions[number].blocks[0], frame.inner({}))

    def loop_while(self, op: ir.Operation, operands: Sequence[Array], frame: Frame) -> list[Array]:
        before, after = (region.blocks[0] for region in op.regions)
        carried = list(operands)
        while True:
            holds, *passed = self.block(before, frame.inner(dict(zip(before.arguments, carried, strict=True))))
            if not holds.item():
                return passed
            carried = self.block(after, frame.inner(dict(zip(after.arguments, passed, strict=True))))

    def loop(self, op: ir.Operation, operands: Sequence[Array], frame: Frame) -> list[Array]:
        lower, upper, step = (int(x) for x in operands[:3])
        carried, block = list(operands[3:]), op.regions[0].blocks[0]
        for i in range(lower, upper, step):
            carried = self.block(block, frame.inner(dict(zip(block.arguments, [np.asarray(i), *carried], strict=True))))
        return carried

    def forall(self, op: ir.Operation, operands: Sequence[Array], frame: Frame) -> list[Array]:
        """Iterations in order; each sees the shared tensors as they were in front of the loop."""
        block, names = op.regions[0].blocks[0], ("staticLowerBound", "staticUpperBound", "staticStep")
        bounds = [mixed(op, operands, name, segment) for segment, name in enumerate(names)]
        shared = list(operands[len(operands) - len(op.results):])
        made = dict(zip(list(block.arguments)[len(bounds[0]):], shared, strict=True))
        *body, last = operations(block)
        for place in itertools.product(*(range(*each) for each in zip(*bounds, strict=True))):
            inner = frame.inner(dict(zip(block.arguments, [*map(np.asarray, place), *shared], strict=True)))
            for body_op in body:
                self.step(body_op, inner)
            for put in operations(last.regions[0].blocks[0]):
                values = [inner[put.operands[0]], made[put.operands[1]], *(inner[v] for v in list(put.operands)[2:])]
                made[put.operands[1]] = np.asarray(TENSOR_RULES[put.name](put, values))
        return list(made.values())


def _spread(value: Array, rank: int) -> Array:
    """A captured scalar as a value over the iteration space."""
    return value if value.ndim == rank else value.reshape((1,) * rank)


def _needed(block: ir.Block, wanted: Sequence[ir.Value]) -> set[ir.Value]:
    """All values that `wanted` depends on, results of operations of the block included."""
    found: set[ir.Value] = set()
    open_values = list(wanted)
    while open_values:
        value = open_values.pop()
        if value in found:
            continue
        found.add(value)
        op = owner(value)
        if op is not None and op.block == block:
            open_values += [*op.operands, *captured(op)]
            found.update(op.results)
    return found

