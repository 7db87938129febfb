"""Selection: from evidence to the few kernels that are kept and the tree that dispatches among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from passes.spaces.registry import config_text, space_of
from runtime.dispatch import Leaf, Node, Split, leaves
from runtime.shape import Expr
from search.cover import cover
from search.evidence import Evidence
from search.features import FeatureSpace
from search.regions import Choices, dispatch_tree, select
from search.space import Floats
from search.task import Task, TuneOptions


@dataclass(frozen=True)
class Selection:
    """configs: lattice numbers; root: over their positions.

    At each point of the task: regrets and seconds expected, and seconds of what runs untuned, 0 where nothing is known.
    """

    configs: tuple[int, ...]
    root: Node
    regrets: Floats
    seconds: Floats
    untuned: Floats

    def leaf(self, dims: Mapping[str, int]) -> Leaf:
        return select(self.root, dims)


def select_kernels(task: Task, space: FeatureSpace, evidence: Evidence, options: TuneOptions) -> Selection:
    """A cover within half of the regret that is allowed, which leaves the other half to the tree, and its regions."""
    weights = np.array(task.points.weights)
    configs, times = evidence.cautious
    least = times.min(axis=2)
    chosen = list(cover(least, weights, options.max_regret / 2, options.max_kernels).kernels)
    everywhere = [i for i in range(len(configs)) if serves_all(space, configs[i])]
    if not set(chosen) & set(everywhere):
        chosen.append(min(everywhere, key=lambda i: float(least[i] @ weights)))
    kept = times[chosen]
    offered = tuple(Leaf(k, 0 if t == max(evidence.threads) else t) for k in range(len(chosen)) for t in evidence.threads)
    variants = kept.transpose(0, 2, 1).reshape(len(offered), -1)
    expressions = [*map(Expr.dim, task.workload.dims), *space.lattice.extents.values()]
    root = dispatch_tree(Choices(task.points.shapes, variants, weights, offered), expressions, options.max_regret)
    used = sorted({leaf.kernel for leaf in leaves(root)} | {_fallback(space, configs, chosen)})
    root = _renumbered(root, {k: i for i, k in enumerate(used)})
    final = tuple(configs[chosen[k]] for k in used)
    picked = [select(root, dict(s)) for s in task.points.shapes]
    place = {t: i for i, t in enumerate(evidence.threads)} | {0: len(evidence.threads) - 1}
    seconds = np.array([times[chosen[used[leaf.kernel]], s, place[leaf.threads]] for s, leaf in enumerate(picked)])
    return Selection(final, root, np.maximum(seconds / least.min(axis=0) - 1, 0), seconds, _untuned(task, space, evidence))


def _untuned(task: Task, space: FeatureSpace, evidence: Evidence) -> Floats:
    """Expected seconds of the default dispatch at each point; 0 where its kernel was never measured."""
    defaults, root = space_of(task.families[0]).default(task.workload, task.limits)
    curves = [evidence.curves.get(n) if (n := space.lattice.number(config_text(c))) is not None else None for c in defaults]
    found = np.zeros(len(task.points))
    for s, shape in enumerate(task.points.shapes):
        leaf = select(root, dict(shape))
        curve, threads = curves[leaf.kernel], leaf.threads or max(evidence.threads)
        if curve is not None and threads in evidence.threads and np.isfinite(curve.mean[s, evidence.threads.index(threads)]):
            found[s] = np.exp(curve.mean[s, evidence.threads.index(threads)])
    return found


def serves_all(space: FeatureSpace, config: int) -> bool:
    """Has the kernel no bound on any extent?"""
    return not space.lattice.anatomy(config).most


def _fallback(space: FeatureSpace, configs: list[int], chosen: list[int]) -> int:
    """A chosen kernel that serves every shape, to fall back to where guards of others do not hold."""
    return next(k for k, i in enumerate(chosen) if serves_all(space, configs[i]))


def _renumbered(node: Node, number: Mapping[int, int]) -> Node:
    if isinstance(node, Leaf):
        return Leaf(number[node.kernel], node.threads)
    return Split(node.expr, node.bound, _renumbered(node.below, number), _renumbered(node.above, number))
