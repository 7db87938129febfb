"""Default dispatch tables: the rule of each family chooses a handful of configurations, nothing is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from passes.spaces.registry import space_of
from passes.workload import Kind, Workload
from runtime.dispatch import DispatchTable, Leaf, Node, Split
from runtime.errors import BuildError
from runtime.kernel import MicroKernel
from runtime.limits import HostLimits
from search.protocols import Builder, BuildResult

_PREFERRED = {
    Kind.CONTRACTION: ("host_matmul", "generic"),
    Kind.ROWS: ("host_rows", "generic"),
    Kind.POINTWISE: ("generic",),
    Kind.GENERIC: ("generic",),
}


@dataclass
class Tables:
    """Tables in the order of the workloads, with the object code and LLVM IR of their kernels by digest.

    refused: workload name -> why its preferred family did not take it.
    """

    tables: list[DispatchTable] = field(default_factory=list)
    code: dict[str, bytes] = field(default_factory=dict)
    llvm_ir: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


def default_tables(workloads: Sequence[Workload], limits: HostLimits, builder: Builder) -> Tables:
    """Build the default configurations of every workload; a workload that its family refuses falls to the next one.

    Raises:
        BuildError: no family, not even `generic`, could build a workload.
    """
    made = Tables()
    done: dict[str, DispatchTable] = {}
    pending = [(w, list(_PREFERRED[w.kind])) for w in workloads]
    while pending:
        choices = [space_of(families[0]).default(w, limits) for w, families in pending]
        candidates = [(w, c) for (w, _), (configs, _) in zip(pending, choices, strict=True) for c in configs]
        results = iter(builder.build(candidates))
        again = []
        for (w, families), (configs, root) in zip(pending, choices, strict=True):
            built = [next(results) for _ in configs]
            failed = [r for r in built if r.kernel is None]
            if not failed:
                done[w.key] = _table(w, built, root, made)
            elif len(families) > 1:
                made.refused[w.name] = f"{families[0]}: {failed[0].error}"
                again.append((w, families[1:]))
            else:
                raise BuildError(f"no kernel family can build {w.name}: {failed[0].error}", w.ir)
        pending = again
    made.tables = [done[w.key] for w in workloads]
    return made


def _table(workload: Workload, built: Sequence[BuildResult], root: Node, made: Tables) -> DispatchTable:
    """Equal code is kept once."""
    kernels: list[MicroKernel] = []
    number: dict[int, int] = {}
    for i, result in enumerate(built):
        assert result.kernel is not None
        if result.kernel not in kernels:
            kernels.append(result.kernel)
        number[i] = kernels.index(result.kernel)
        made.code[result.kernel.object] = result.code
        made.llvm_ir[result.kernel.object] = result.llvm_ir
    return DispatchTable(workload.key, workload.name, workload.dims, tuple(kernels), renumber(root, number))


def renumber(node: Node, number: dict[int, int]) -> Node:
    """The tree with its kernels renamed."""
    if isinstance(node, Leaf):
        return Leaf(number[node.kernel], node.threads)
    return Split(node.expr, node.bound, renumber(node.below, number), renumber(node.above, number))
