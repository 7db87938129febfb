"""A model with ragged dims: the check that its sequences do not mix, the model for one of them, and what its callers see."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec.structs import replace as replaced

from tilewright.compiler.compilation.options import CompileOptions, OutOfRange
from tilewright.compiler.dims.op_location import where
from tilewright.compiler.dims.ragged_dims import (
    offsets_arguments,
    one_sequence,
    packed_argument,
    packed_dims,
    sums_arguments,
)
from tilewright.compiler.frontends.ingest import Ingested
from tilewright.passes.analysis.independence import Independence, MixingError
from tilewright.passes.base import PassPipeline
from tilewright.passes.linalg.symbolic import SymbolicShapes
from tilewright.passes.mlir import functions, ir, new_context
from tilewright.passes.pipeline.pipelines import recover_passes
from tilewright.runtime.errors import IngestError, OptionError
from tilewright.runtime.program.program import Check
from tilewright.runtime.shape import Expr
from tilewright.runtime.wording import option

if TYPE_CHECKING:
    from tilewright.compiler.compilation.compilation import Compilation


def refuse_ragged_options(compilation: Compilation) -> None:
    """OptionError for what a ragged model cannot be compiled with."""
    options: CompileOptions = compilation.options
    if options.out_of_range is OutOfRange.FALLBACK:
        raise OptionError(f"{option('out_of_range', 'fallback')} with ragged dims: wanted 'error', since the memory of a call "
                          "follows from the ranges; widen them")


def check_independent(ingested: Ingested) -> None:
    """Raises:
        IngestError: an operation of the model mixes sequences; names it and where it stands.
    """
    outer = next(d.over for d in ingested.dims if d.over)
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(ingested.text)
        PassPipeline(recover_passes()).run(module)
        fn = next(functions(module))
        try:
            Independence(fn, SymbolicShapes(fn), outer).check()
        except MixingError as found:
            raise IngestError(f"{found.op.name} at {where(found.op)} {found.reason}, so the sequences are not independent and no "
                              f"dim may be ragged over {outer}; take it out of the model, or declare the dims as plain ones"
                              ) from None


def for_one_sequence(ingested: Ingested) -> str:
    """The text of the model for one sequence, with the offsets as its last arguments. In the current context."""
    module = ir.Module.parse(ingested.text)
    one_sequence(next(functions(module)), ingested.dims)
    return str(module)


def packed(ingested: Ingested, bound: Collection[int]) -> Ingested:
    """The model as its callers see it: rows of all sequences, then the offsets. Its text stays that of the whole model, and so do
    the arguments that are bound, by their numbers."""
    dims = ingested.dims
    inputs = tuple(a if n in bound else packed_argument(a, dims) for n, a in enumerate(ingested.inputs))
    outputs = tuple(packed_argument(a, dims) for a in ingested.outputs)
    one = {d.over: 1 for d in dims if d.over}
    checks = tuple(Check(str(Expr.parse(c.expr).substitute(one)), c.message) for c in ingested.checks)
    total = {a.dims[0]: f"{a.name}.0" for a in inputs if a.ragged and a.dims}
    own = packed_dims(dims, (*inputs, *outputs))
    scalars = sums_arguments(own, inputs)
    total |= {a.name: a.name for a in scalars}
    own = tuple(replaced(d, at=(total[d.name],)) if d.name in total else d for d in own)
    return replace(ingested, dims=own, inputs=(*inputs, *offsets_arguments(dims), *scalars), outputs=outputs, checks=checks)
