"""Ingest: a model as it comes, verified, with its dims bound to names and what it asserts turned into facts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tilewright.compiler.dims.bind_dims import DynamicDims, bind_dims
from tilewright.compiler.dims.dim_checks import model_checks
from tilewright.compiler.dims.places import argument_names, take_result_names
from tilewright.compiler.frontends.refuse import refuse_data_dependent, refuse_unsupported
from tilewright.compiler.frontends.source import ModelIR, read_model, select_function
from tilewright.passes.base import PassPipeline
from tilewright.passes.linalg.symbolic import (
    DIMS,
    RANGES,
    UNSIGNED,
    SymbolicShapes,
    argument_attributes,
    result_attributes,
    write_ranges,
)
from tilewright.passes.lowering.define_arithmetic import DefineArithmetic, concerns
from tilewright.passes.mlir import arith, functions, ir, new_context, operations, walk
from tilewright.passes.pipeline.pipelines import legalize_passes
from tilewright.runtime.errors import IngestError, PassError
from tilewright.runtime.program.program import Argument, Check, DimInfo
from tilewright.runtime.shape import LARGEST, Dim, ShapeRange
from tilewright.runtime.tensor import DType


@dataclass(frozen=True)
class Ingested:
    """A model ready for the passes.

    text: the module, one public @main with `tw.dims` on its arguments and `tw.ranges` on the function.
    inputs, outputs: in the order of @main; a dimension passed as a scalar is an input with dims None.
    checks: conditions on the dims that the model asserts and that do not hold for every shape of the range.
    """

    text: str
    dims: tuple[DimInfo, ...]
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    checks: tuple[Check, ...]

    def number(self, name: object) -> int | None:
        """Position of the input of this name, or "arg{i}" for the one at position i; None when there is none."""
        if not isinstance(name, str):
            return None
        if name in self._numbers:
            return self._numbers[name]
        position = int(name[3:]) if re.fullmatch(r"arg\d+", name) else len(self.inputs)
        return position if position < len(self.inputs) else None

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {a.name: i for i, a in reversed(list(enumerate(self.inputs)))}

    def ranges(self) -> ShapeRange:
        """The ranges of all dims."""
        return ShapeRange(tuple((d.name, d.dim()) for d in self.dims))


def ingest(model_ir: ModelIR, dynamic_dims: DynamicDims, function: str | None = None,
           defaults: Mapping[str, Dim] | None = None, everywhere: bool = False) -> Ingested:
    """Read, verify and bind a model.

    Args:
        model_ir: MLIR text, a path to an .mlir file, an `ir.Module`, or an object with `module_text()`.
        dynamic_dims: dimension name (or place, "input_ids.1" or "arg0.1") -> Dim or (lo, hi).
        function: which function to compile when the model has several public ones.
        defaults: ranges of the names in the model's `tw.dims` that `dynamic_dims` does not mention.
        everywhere: calls outside the ranges run too, so that what holds in them alone is checked, and nothing behind this
            takes it for granted: the `tw.ranges` of the text are those of all sizes.

    Raises:
        IngestError: the model cannot be read or compiled; names the operation, its location and the remedy.
    """
    with new_context(unknown=True) as context, ir.Location.unknown():
        module = read_model(model_ir, context)
        fn = select_function(module, function)
        refuse_unsupported(fn)
        _drop_foreign(module)
        unsigned = [UNSIGNED in named for named in result_attributes(fn)]
        names, results = argument_names(fn), take_result_names(fn)
        fn = _legalized(module, fn)
        bound = bind_dims(fn, dynamic_dims, defaults)
        if everywhere:
            fn.attributes[RANGES] = write_ranges(ShapeRange(tuple((d.name, Dim(0, LARGEST)) for d in bound.dims)))
        _plain_indices(fn)
        shapes = SymbolicShapes(fn)
        refuse_data_dependent(fn, shapes)
        checks = model_checks(fn, bound.open)
        block, named = fn.regions[0].blocks[0], argument_attributes(fn)
        inputs = tuple(_argument(n, v, shapes, UNSIGNED in a) for n, v, a in zip(names, block.arguments, named, strict=True))
        returned = operations(block)[-1].operands
        outputs = tuple(_output(n, v, shapes, u) for n, v, u in zip(results, returned, unsigned, strict=True))
        module.operation.verify()
        return Ingested(_defined(module), bound.dims, inputs, outputs, checks)


def _legalized(module: ir.Module, fn: ir.Operation) -> ir.Operation:
    """The model's function with every operation in a form that the passes read."""
    passes = legalize_passes(fn)
    if not passes:
        return fn
    try:
        PassPipeline(passes).run(module)
    except PassError as error:
        raise IngestError(str(error)) from error
    return next(functions(module))


def _drop_foreign(module: ir.Module) -> None:
    """Attributes of dialects that are not known here say how other compilers build an operation."""
    for op in [module.operation, *functions(module), *(inner for fn in functions(module) for inner in walk(fn))]:
        for name in [n for n in op.attributes if isinstance(op.attributes[n], ir.OpaqueAttr)]:
            del op.attributes[name]


def _defined(module: ir.Module) -> str:
    """The module's text, with one meaning for all operands of its arithmetic."""
    text = str(module)
    return str(PassPipeline([DefineArithmetic()]).run(module)) if concerns(text) else text


def _plain_indices(fn: ir.Operation) -> None:
    """Index arguments that are data and no dims become i64: in a kernel, an index argument is a dim."""
    block = fn.regions[0].blocks[0]
    for argument, named in zip(block.arguments, argument_attributes(fn), strict=True):
        if isinstance(argument.type, ir.IndexType) and DIMS not in named:
            argument.set_type(ir.IntegerType.get_signless(64))
            with ir.InsertionPoint.at_block_begin(block):
                cast = arith.IndexCastOp(ir.IndexType.get(), argument)
            argument.replace_all_uses_except(cast.result, cast.operation)
    types = [a.type for a in block.arguments], [v.type for v in operations(block)[-1].operands]
    fn.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*types))


def _argument(name: str, value: ir.Value, shapes: SymbolicShapes, unsigned: bool) -> Argument:
    if isinstance(value.type, ir.RankedTensorType):
        element = DType(str(ir.RankedTensorType(value.type).element_type))
        return Argument(name, element.unsigned if unsigned else element, tuple(map(str, shapes.dims(value))))
    element = DType.I64 if str(value.type) == "index" else DType(str(value.type))
    return Argument(name, element.unsigned if unsigned else element, None)


def _output(name: str, value: ir.Value, shapes: SymbolicShapes, unsigned: bool) -> Argument:
    if not isinstance(value.type, ir.RankedTensorType):
        raise IngestError(f"result {name} of @main is a scalar {value.type}; return a tensor of rank 0 instead")
    return _argument(name, value, shapes, unsigned)
