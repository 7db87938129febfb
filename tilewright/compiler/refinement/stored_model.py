"""StoredModel: from a saved model to what the compiler had of it after the graph passes, without the values of its constants."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tilewright.compiler.assemble import assemble
from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.compilation.options import CompileOptions
from tilewright.compiler.compilation.outlined_model import OutlinedModel, cut_of, outline
from tilewright.compiler.dims.places import argument_names
from tilewright.compiler.frontends.source import select_function
from tilewright.compiler.tuning.dispatch_tables import Tables
from tilewright.passes.linalg.symbolic import CONSTANT, argument_attributes
from tilewright.passes.mlir import ir, new_context
from tilewright.runtime.errors import OptionError
from tilewright.runtime.program.artifact import Bundle
from tilewright.runtime.program.program import Program
from tilewright.runtime.shape import Dim
from tilewright.runtime.target import Target, TargetKind
from tilewright.runtime.tensor import DType


@dataclass(frozen=True)
class StoredModel:
    """bundle: as it was saved. model: outlined anew, its constants blank: kernels depend on their types and extents alone."""

    bundle: Bundle
    model: OutlinedModel

    @property
    def tables(self) -> Tables:
        """The tables that it was saved with."""
        program = self.bundle.program
        kernels = [k for t in program.tables for k in t.kernels]
        code = {k.object: bytes(self.bundle.code[k.object]) for k in kernels}
        llvm_ir = {k.object: self.bundle.llvm_ir.get(k.object, "") for k in kernels}
        return Tables(list(program.tables), code, llvm_ir, dict(program.refused), list(program.certificates), incumbent=True,
                      untuned=list(program.tables))


def stored_model(bundle: Bundle, options: CompileOptions) -> StoredModel:
    """A saved model, ready to be tuned for this machine.

    Args:
        options: of the search; what decides the results of the model is taken from the model.
    Raises:
        OptionError: it is for a GPU, is ragged, or was compiled by another version or for another CPU, so that its operators
            cannot be told from what it holds.
    """
    program = bundle.program
    target = Target.parse(program.target)
    if target.kind is not TargetKind.HOST or program.ragged:
        what = "ragged models" if program.ragged else f"target {program.target}"
        raise OptionError(f"refine: {what} cannot be refined from a saved model; wanted one of dense dims for a host. Compile it "
                          "again with the option traffic")
    asked = program.asked
    options = replace(options, precision=asked.precision, activations=asked.activations, out_of_range=program.out_of_range,
                      deterministic=asked.deterministic, winograd=asked.winograd, threads=asked.threads,
                      max_regret=asked.max_regret, max_kernels=asked.max_kernels)
    names, blank = _arguments(program)
    inputs = [n for n in names if n not in blank]
    donate = tuple(inputs[i] for i, _ in program.donated)
    dims = {d.name: Dim(d.lo, d.hi, d.multiple_of, d.samples) for d in program.dims}
    model = outline(Compilation(program.source, dims, full_target(target), options, blank, donate), cut_of(asked))
    _refuse_other(program, model)
    return StoredModel(bundle, model)


def _arguments(program: Program) -> tuple[list[str], dict[str, np.ndarray]]:
    """Names of the arguments of the source, and a blank array, which takes no memory, for each that is bound."""
    blank = {}
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(program.source)
        main = select_function(module, "main")
        block = main.regions[0].blocks[0]
        names = argument_names(main)
        for name, value, named in zip(names, block.arguments, argument_attributes(main), strict=True):
            if CONSTANT in named:
                kind = ir.RankedTensorType(value.type)
                zero = np.zeros((), DType(str(kind.element_type)).numpy)
                blank[name] = np.broadcast_to(zero, kind.shape)
    return list(names), blank


def _refuse_other(program: Program, model: OutlinedModel) -> None:
    """OptionError where the graph passes of today make other operators or another plan of the source than those of then."""
    keys = [program.tables[c.table].workload for c in program.calls]
    calls = [(key, c.dims) for key, c in zip(keys, program.calls, strict=True)]
    now = [(c.workload.key, tuple(map(str, c.dims))) for c in model.plan.calls]
    if calls != now or len(model.plan.bound) != len(program.constants) or model.donated != program.donated:
        known = {t.workload for t in program.tables}
        new = [w.name for w in model.workloads if w.key not in known]
        raise OptionError("refine: wanted a model that this version of Tilewright compiled for a CPU such as this one, and the "
                          f"operators of this one are others now ({', '.join(new) or 'in another order'}); compile it again, "
                          "with the option traffic")


def with_tables(stored: StoredModel, tables: Tables) -> Bundle:
    """The model with other tables; its constants, arguments and results stay."""
    return assemble(stored.model, tables, stored.bundle)
