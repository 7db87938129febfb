"""The partitions of a model: the one that is taken, beside operations alone, program order and the best pair first."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.compiler.compilation.options import CompileOptions
from tilewright.compiler.compilation.outlined_model import Cut, OutlinedModel, passes_of, with_cut
from tilewright.passes.base import PassPipeline
from tilewright.passes.dispatch_creation.fuse import Fuse
from tilewright.passes.dispatch_creation.partition_summary import PartitionSummary, partition_summary
from tilewright.passes.linalg.structured import main_of
from tilewright.passes.mlir import ir, new_context
from tilewright.passes.partition.plan import Plan
from tilewright.runtime.limits import Limits


def partitions_of(source: str, limits: Limits) -> list[PartitionSummary]:
    """Of the MLIR that was compiled, with the default options: alone, greedy, gain, and last the one that is taken."""
    passes = passes_of(CompileOptions(), limits)
    at = next(n for n, p in enumerate(passes) if isinstance(p, Fuse))
    usual = passes[at]
    assert isinstance(usual, Fuse)
    ways = [replace(usual, epilogues=False), *(replace(usual, partition=w) for w in ("greedy", "gain")), usual]
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(source)
        PassPipeline(passes[:at]).run(module)
        return [partition_summary(fn, way) for fn in main_of(module) for way in ways]


@dataclass(frozen=True)
class Alternative:
    """Another cut of a model. predicted: its time as a share of that of the model's own, the mean over some shapes."""

    cut: Cut
    predicted: float


def alternatives_of(model: OutlinedModel, count: int) -> list[Alternative]:
    """Up to `count` cuts of a model without branches, loops and ragged dims that give other kernels, the best by prediction
    first."""
    options, limits = model.compilation.options, model.compilation.limits
    passes = with_cut(passes_of(options, limits), model.cut)
    at = next(n for n, p in enumerate(passes) if isinstance(p, Fuse))
    fuse = passes[at]
    assert isinstance(fuse, Fuse)
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(model.ingested.text)
        PassPipeline(passes[:at]).run(module)
        [fn] = main_of(module)
        own = fuse.plan(fn)
        return [Alternative(Cut(p.way, tuple(p.cuts)), _share(p, own)) for p in fuse.alternatives(fn, count)]


def _share(plan: Plan, own: Plan) -> float:
    shares = [a / b for a, b in zip(plan.cost.seconds, own.cost.seconds, strict=True) if b]
    return sum(shares) / len(shares) if shares else 1.0
