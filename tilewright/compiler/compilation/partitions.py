"""The partitions of a model: the one that is taken, beside operations alone, program order and the best pair first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from tilewright.compiler.compilation.options import CompileOptions
from tilewright.compiler.compilation.outlined_model import Cut, OutlinedModel, cut_of, passes_of, speeds_of, with_cut
from tilewright.compiler.host.plan_steps import Strips
from tilewright.compiler.host.strips import Costs, strips_of
from tilewright.passes.base import PassPipeline
from tilewright.passes.dispatch_creation.fuse import Fuse
from tilewright.passes.dispatch_creation.partition_summary import PartitionSummary, partition_summary
from tilewright.passes.linalg.structured import main_of
from tilewright.passes.mlir import ir, new_context
from tilewright.passes.partition.alternatives import areas_of
from tilewright.passes.partition.cost import Machine
from tilewright.passes.partition.plan import Plan
from tilewright.passes.partition.strip_choice import StripChoice
from tilewright.runtime.limits import HostLimits, Limits
from tilewright.runtime.program.program import Asked


def partitions_of(source: str, limits: Limits, asked: Asked | None = None) -> list[PartitionSummary]:
    """Of the MLIR that was compiled: alone, greedy, gain, and last the one that is taken.

    Args:
        asked: of the compile, also what a search made of the partition; None for the defaults.
    """
    asked = asked or Asked()
    passes = passes_of(CompileOptions(precision=asked.precision, activations=asked.activations), limits)
    at = next(n for n, p in enumerate(passes) if isinstance(p, Fuse))
    usual, taken = passes[at], with_cut(passes, cut_of(asked))[at]
    assert isinstance(usual, Fuse) and isinstance(taken, Fuse)
    ways = [replace(usual, epilogues=False), *(replace(usual, partition=w) for w in ("greedy", "gain")), taken]
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(source)
        PassPipeline(passes[:at]).run(module)
        return [partition_summary(fn, way) for fn in main_of(module) for way in ways]


@dataclass(frozen=True)
class Alternative:
    """Another cut of a model, or other strips of rows. predicted: its time as a share of that of the model's own, the mean over
    some shapes; of strips, that of what is done by them; of products with the work on their rows, that of those that change."""

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
        cuts = [Alternative(Cut(p.way, tuple(p.cuts), model.cut.strips), _share(p, own)) for p in fuse.alternatives(fn, count)]
        rows = _by_rows(model.cut, own, {choice: replace(fuse, strips=choice.value).plan(fn)
                                           for choice in StripChoice if fuse.products})
    return sorted([*cuts, *rows, *_by_strips(model)], key=lambda a: a.predicted)[:count]


def _by_rows(cut: Cut, own: Plan, plans: Mapping[StripChoice, Plan]) -> list[Alternative]:
    """The same cut with other products of a GPU in one kernel with the work on their rows."""
    seen, found = [areas_of(own)], list[Alternative]()
    for choice, plan in plans.items():
        if areas_of(plan) not in seen:
            found.append(Alternative(replace(cut, strips=choice), _share_of_rows(plan, own)))
            seen.append(areas_of(plan))
    return found


def _share_of_rows(plan: Plan, own: Plan) -> float:
    """Predicted time of the products that are one kernel with the work on their rows in one of two plans alone, as a share of
    that in a model's own."""
    sides = [{s.product: s.cycles for s in p.stitched} for p in (plan, own)]
    shares = [new / old for product in sides[0].keys() ^ sides[1].keys()
              for new, old in (times if product in sides[1] else times[::-1]
                               for times in (sides[0] | sides[1])[product]) if old]
    return fmean(shares) if shares else 1.0


def _by_strips(model: OutlinedModel) -> list[Alternative]:
    """The same cut with other launches done by strips of rows."""
    machine, limits = Machine.of(speeds_of(model.compilation.limits)), model.compilation.limits
    if model.donated or model.plan.ragged or not isinstance(limits, HostLimits):
        return []
    ways = {choice: strips_of(model.plan, Costs.of(machine, choice, limits))
            for choice in (model.cut.strips, *StripChoice)}
    seen, found = list[list[Strips]](), list[Alternative]()
    for choice, strips in ways.items():
        if strips not in seen and choice is not model.cut.strips:
            share = _share_of_strips(strips) / _share_of_strips(ways[model.cut.strips])
            found.append(Alternative(replace(model.cut, strips=choice), share))
        seen.append(strips)
    return found


def _share_of_strips(strips: Sequence[Strips]) -> float:
    """Predicted time of what is done by strips, as a share of that of the same launches one after the other."""
    return 1 - fmean(s.gain for s in strips) if strips else 1.0


def _share(plan: Plan, own: Plan) -> float:
    shares = [a / b for a, b in zip(plan.cost.seconds, own.cost.seconds, strict=True) if b]
    return sum(shares) / len(shares) if shares else 1.0
