"""What the weights of a model are multiplied by: the mean square of each input channel over sample inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.compress.rewriting import finish, inlined
from tilewright.compiler.compress.weights import Weight, weights_of
from tilewright.compiler.frontends.ingest import Ingested
from tilewright.compiler.reference.interpreter import evaluate
from tilewright.passes.base import PassPipeline
from tilewright.passes.linalg.structured import users
from tilewright.passes.linalg.symbolic import SymbolicShapes
from tilewright.passes.mlir import func, functions, ir, maps_of, new_context, operations, position
from tilewright.passes.pipeline.pipelines import recover_passes
from tilewright.runtime.errors import OptionError
from tilewright.runtime.program.structure import Structure

Sample = Any  # arguments of a call: a mapping by name, a tuple by place, or one array


def mean_squares(ingested: Ingested, bound: Mapping[int, np.ndarray], structure: Structure | None,
                 samples: Sequence[Sample]) -> dict[int, np.ndarray]:
    """By the number of a weight's argument: f64 [C], the mean over all that the channel is multiplied by, and over samples; as
    the reference interpreter computes it.

    Raises:
        OptionError: no samples, one that lacks an argument, or activations that are not finite.
    """
    if not len(samples):
        raise OptionError("compress: samples is empty; wanted arguments of at least one call")
    free = {x.name: Structure.leaf(i) for i, x in enumerate(ingested.inputs) if i not in bound}
    parameters = Structure.mapping(free) if structure is None else structure
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(ingested.text)
        PassPipeline(recover_passes()).run(module)
        main = next(functions(module))
        block = main.regions[0].blocks[0]
        arrays = {v: bound[i] for i, v in enumerate(block.arguments) if i in bound}
        numbers = {v: i for i, v in enumerate(block.arguments)}
        found = weights_of(main, arrays, images=True)
        last = operations(block)[-1]
        with ir.InsertionPoint(last), last.location:
            func.ReturnOp([_squares(main, w) for w in found])
        last.erase()
        if "res_attrs" in main.attributes:
            del main.attributes["res_attrs"]
        finish(module, main, arrays)
        totals = [np.zeros(1)] * len(found)
        for sample in samples:
            given = _by_number(parameters, sample)
            missing = [ingested.inputs[numbers[v]].name for v in block.arguments if v not in arrays and numbers[v] not in given]
            if missing:
                raise OptionError(f"compress: a sample without {missing[0]}; wanted all of {parameters.describe()}")
            means = evaluate(module, [arrays[v] if v in arrays else given[numbers[v]] for v in block.arguments])
            totals = [a + b / len(samples) for a, b in zip(totals, means, strict=True)]
    if not all(np.isfinite(t).all() for t in totals):
        raise OptionError("compress: samples give activations that are NaN or infinite, by which no error can be weighted")
    return dict(zip((w.number for w in found), totals, strict=True))


def _by_number(parameters: Structure, sample: Sample) -> dict[int, np.ndarray]:
    """The arrays of a call by the numbers of the arguments that they are."""
    values = sample if isinstance(sample, tuple | Mapping) else (sample,)
    named = values if isinstance(values, Mapping) else dict(zip(parameters.keys, values, strict=False))
    leaves = parameters.flatten(named, "compress: a sample")
    return {number: np.asarray(a) for number, a in zip(sorted(set(parameters.numbers())), leaves, strict=True)}


def _squares(main: ir.Operation, weight: Weight) -> ir.Value:
    """The mean square of each channel of what the first product of a weight multiplies it by, just before the return."""
    op = users(weight.argument)[0]
    which = next(i for i, v in enumerate(op.operands) if v == weight.argument)
    rows, maps = op.operands[1 - which], maps_of(op)
    channel = position(maps[which].results[weight.order[-1]])
    axis = [position(e) for e in maps[1 - which].results].index(channel)
    graph = ops.Graph()
    dims = SymbolicShapes(main).dims(rows)
    x = graph.input("x", [str(d) if d.constant is None else d.constant for d in dims])
    graph.output(ops.mean(x * x, tuple(a for a in range(len(dims)) if a != axis)))
    return inlined(graph, [rows])[0]
