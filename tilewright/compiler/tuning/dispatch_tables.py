"""Dispatch tables: from the rules of each family, which measure nothing, or from what a search found."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import msgspec

from tilewright.compiler.compilation.options import CompileOptions, Deterministic, OutOfRange, Precision
from tilewright.compiler.compilation.outlined_model import OutlinedModel
from tilewright.passes.spaces.family_registry import families_of
from tilewright.passes.spaces.in_order import default_of
from tilewright.passes.spaces.numerics import PLAIN, Numerics
from tilewright.passes.spaces.threads import one_thread_when_small, small_of
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Kind, Workload
from tilewright.runtime.errors import BuildError
from tilewright.runtime.limits import GpuLimits, HostLimits
from tilewright.runtime.program.certificate import Certificate
from tilewright.runtime.program.dispatch import DispatchTable, Leaf, Node, leaves, renumbered, within
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.shape import Expr
from tilewright.search.protocols import Builder, BuildResult
from tilewright.search.search_strategy.decision_tree import guarded
from tilewright.search.search_strategy.outcome import Tuned


def numerics_of(options: CompileOptions) -> Numerics:
    """What the options let kernels do to results."""
    return Numerics(options.precision is Precision.TF32, options.winograd, options.deterministic is Deterministic.BATCH)


class UnbuildableError(BuildError):
    """No family took an operator. key: of its workload."""

    def __init__(self, message: str, log: str, key: str) -> None:
        super().__init__(message, log)
        self.key = key


Reach = Mapping[str, Mapping[str, tuple[float, float]]]
"""Workload key -> the least and the largest value of its local dims, of those that are known."""


@dataclass
class Tables:
    """Tables in the order of the workloads, with the object code and LLVM IR of their kernels by digest.

    refused: workload name -> why its preferred family did not take it. certificates: of the tables that a search made. usual:
    workload key -> the certificate of what runs untuned, where the search measured that beside them.
    incumbent: do they run already, and were not made by the rules of their families alone? used: (workload key, configuration) of
    all that was ever in a table, the untuned too: whoever compiles the same model asks for these. untuned: the tables before a
    search put others in their places. families: workload key -> those of its rules, the preferred one first, whether or not its
    range reaches their kernels. reach: of the local dims.
    """

    tables: list[DispatchTable] = field(default_factory=list)
    code: dict[str, bytes] = field(default_factory=dict)
    llvm_ir: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    certificates: list[Certificate] = field(default_factory=list)
    usual: dict[str, Certificate] = field(default_factory=dict)
    incumbent: bool = False
    used: dict[tuple[str, str], None] = field(default_factory=dict)
    untuned: list[DispatchTable] = field(default_factory=list)
    families: dict[str, tuple[str, ...]] = field(default_factory=dict)
    reach: Reach = field(default_factory=dict)

    @property
    def changed(self) -> list[DispatchTable]:
        """Those of operators that have other kernels, or another dispatch, than untuned."""
        before = {t.workload: (t.kernels, t.root) for t in self.untuned}
        return [t for t in self.tables if before[t.workload] != (t.kernels, t.root)]

    def with_untuned(self, workloads: Collection[str]) -> Tables:
        """With the untuned tables of operators, by their keys, and the certificates of these, where the search measured them."""
        before = {t.workload: t for t in self.untuned}
        tables = [before[t.workload] if t.workload in workloads else t for t in self.tables]
        certificates = (self.usual.get(c.workload) if c.workload in workloads else c for c in self.certificates)
        return replace(self, tables=tables, certificates=[c for c in certificates if c is not None])


def default_tables(workloads: Sequence[Workload], limits: HostLimits | GpuLimits, builder: Builder,
                   numerics: Numerics = PLAIN, reach: Reach = MappingProxyType({})) -> Tables:
    """Build the default configurations of every workload; a workload that its family refuses falls to the next one.

    On a GPU a kernel is reached only where its guards hold; the last configuration has none. On the host little work stays on one
    thread.

    Args:
        reach: kernels that no shape within it is dispatched to are not built.
    Raises:
        BuildError: no family, not even the generic one, could build a workload.
    """
    made = Tables(reach=reach)
    done: dict[str, DispatchTable] = {}
    on_gpu = isinstance(limits, GpuLimits)
    pending = [(w, list(families_of(w, limits, numerics))) for w in workloads]
    while pending:
        rules = [default_of(families[0], w, limits, numerics.ordered) for w, families in pending]
        choices = [_reached(*rule, reach.get(w.key, {}), on_gpu) for (w, _), rule in zip(pending, rules, strict=True)]
        candidates = [(w, c) for (w, _), (configs, _) in zip(pending, choices, strict=True) for c in configs]
        results = iter(builder.build(candidates))
        again = []
        for (w, families), (configs, root), (every, _) in zip(pending, choices, rules, strict=True):
            built = [next(results) for _ in configs]
            failed = [r.error for r in built if r.kernel is None] or _spilled(w, built)
            if not failed:
                kernels = [r.kernel for r in built if r.kernel is not None]
                alone = small_of(limits)
                tree = guarded(root, kernels, Leaf(len(kernels) - 1)) if on_gpu else one_thread_when_small(root, w, alone)
                done[w.key] = _table(w, built, tree, made)
                made.families[w.key] = tuple(dict.fromkeys(c.family for c in every))
            elif len(families) > 1:
                made.refused[w.name] = f"{families[0]}: {failed[0]}"
                again.append((w, families[1:]))
            else:
                raise UnbuildableError(f"no kernel family can build {w.name}: {failed[0]}", w.ir, w.key)
        pending = again
    made.tables = [done[w.key] for w in workloads]
    made.untuned = made.tables
    return made


def _spilled(workload: Workload, built: Sequence[BuildResult]) -> list[str]:
    """What is wrong with kernels of a product with the work on its rows that do not fit the registers: two launches do."""
    if workload.kind is not Kind.PRODUCT_ROWS:
        return []
    return [f"{r.kernel.config} spills {r.kernel.spills} bytes" for r in built if r.kernel is not None and r.kernel.spills]


def _reached(configs: Sequence[TileConfig], root: Node, ranges: Mapping[str, tuple[float, float]],
             on_gpu: bool) -> tuple[tuple[TileConfig, ...], Node]:
    """What shapes within the ranges are dispatched to; on a GPU the last configuration stays, to which guards send them."""
    tree = within(root, ranges)
    kept = sorted({leaf.kernel for leaf in leaves(tree)} | ({len(configs) - 1} if on_gpu else set()))
    return tuple(configs[k] for k in kept), renumbered(tree, {k: i for i, k in enumerate(kept)})


def untuned_tables(model: OutlinedModel, builder: Builder) -> Tables:
    """The default tables of a model's operators, as far as the declared ranges reach."""
    compilation = model.compilation
    return default_tables(model.workloads, compilation.limits, builder, numerics_of(compilation.options), _reach_of(model))


def _reach_of(model: OutlinedModel) -> Reach:
    """Nothing is known where calls outside of the ranges are served too, nor of ragged sequences, nor of counters of
    loops."""
    if model.compilation.options.out_of_range is OutOfRange.FALLBACK or model.plan.ragged:
        return {}
    ranges = model.ingested.ranges().bounds()
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for key, calls in model.uses.items():
        for name in calls[0]:
            given = [use[name] for use in calls]
            if all(e.symbols <= ranges.keys() for e in given):
                ends = [e.bounds(ranges) for e in given]
                found.setdefault(key, {})[name] = min(lo for lo, _ in ends), max(hi for _, hi in ends)
    return found


def tuned_table(workload: Workload, tuned: Tuned, builder: Builder, made: Tables) -> bool:
    """Put what a search found in place of the workload's table, as far as shapes reach it; False, and the table stays, where a
    kernel cannot be built.

    Kernels with guards that some shape may break are reached only where they hold; one without serves the rest, that of the table
    where the search chose none.
    """
    reach = made.reach.get(workload.key, {})
    configs, root = _reached(tuned.configs, tuned.root, reach, on_gpu=False)
    built = builder.build([(workload, c) for c in configs])
    if not any(r.kernel is not None and not _open(r.kernel, reach).guards for r in built):
        built = [*built, *_unguarded(workload, made, reach)]
    kernels = [_open(r.kernel, reach) for r in built if r.kernel is not None]
    free = [k for k, kernel in enumerate(kernels) if not kernel.guards]
    if len(kernels) < len(built) or not free:
        return False
    table = _table(workload, built, guarded(root, kernels, Leaf(free[0])), made)
    made.tables = [table if t.workload == workload.key else t for t in made.tables]
    made.certificates = [c for c in made.certificates if c.workload != workload.key] + [tuned.certificate]
    if tuned.usual is not None:
        made.usual[workload.key] = tuned.usual
    return True


def _open(kernel: MicroKernel, reach: Mapping[str, tuple[float, float]]) -> MicroKernel:
    """The kernel with those of its guards alone that some shape within the reach may break."""
    open_ = tuple(g for g in kernel.guards if not (e := Expr.parse(g)).symbols <= reach.keys() or e.bounds(reach) != (0, 0))
    return msgspec.structs.replace(kernel, guards=open_)


def _unguarded(workload: Workload, made: Tables, reach: Mapping[str, tuple[float, float]]) -> list[BuildResult]:
    """The kernel of the workload's table that serves every shape."""
    table = next(t for t in made.tables if t.workload == workload.key)
    return [BuildResult(k, made.code[k.object], made.llvm_ir[k.object]) for k in table.kernels if not _open(k, reach).guards][:1]


def _table(workload: Workload, built: Sequence[BuildResult], root: Node, made: Tables) -> DispatchTable:
    """Equal code is kept once."""
    kernels: list[MicroKernel] = []
    number: dict[int, int] = {}
    for i, result in enumerate(built):
        assert result.kernel is not None
        if result.kernel not in kernels:
            kernels.append(result.kernel)
        number[i] = kernels.index(result.kernel)
        made.used[workload.key, result.kernel.config] = None
        made.code[result.kernel.object] = result.code
        made.llvm_ir[result.kernel.object] = result.llvm_ir
    return DispatchTable(workload.key, workload.name, workload.dims, tuple(kernels), renumbered(root, number),
                         codes=_codes(workload))


def _codes(workload: Workload) -> int:
    """Bytes of the constants of a product with weights in few bits, or out of pools; 0 of any other."""
    if not any(o.codes and o.constant for o in workload.inputs):
        return 0
    constants = (o for o in workload.inputs if o.constant)
    return sum(math.prod(d.constant or 0 for d in o.dims) * o.dtype.bytes for o in constants)
