"""The partitions of a model: the one that is taken, beside operations alone, program order and the best pair first."""

from __future__ import annotations

from tilewright.compiler.compilation.options import CompileOptions
from tilewright.compiler.compilation.outlined_model import passes_of
from tilewright.passes.base import PassPipeline
from tilewright.passes.dispatch_creation.fuse import Fuse
from tilewright.passes.dispatch_creation.partition_summary import PartitionSummary, partition_summary
from tilewright.passes.linalg.structured import main_of
from tilewright.passes.mlir import ir, new_context
from tilewright.runtime.limits import Limits


def partitions_of(source: str, limits: Limits) -> list[PartitionSummary]:
    """Of the MLIR that was compiled, with the default options: alone, greedy, gain, and last the one that is taken."""
    passes = passes_of(CompileOptions(), limits)
    at = next(n for n, p in enumerate(passes) if isinstance(p, Fuse))
    usual = passes[at]
    assert isinstance(usual, Fuse)
    ways = [Fuse(epilogues=False, loads=usual.loads), *(Fuse(loads=usual.loads, partition=w) for w in ("greedy", "gain")), usual]
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(source)
        PassPipeline(passes[:at]).run(module)
        return [partition_summary(fn, way) for fn in main_of(module) for way in ways]
