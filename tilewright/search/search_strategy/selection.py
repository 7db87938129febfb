"""Selection: from evidence to the few kernels that are kept and the tree that dispatches among them.

What would run untuned has a head start: another kernel takes its place at a shape only where it is faster beyond what the
measurements leave open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.passes.spaces.family_registry import config_text
from tilewright.runtime.program.dispatch import Leaf, Node, leaves, renumbered, select
from tilewright.runtime.shape import Expr
from tilewright.search.cost_model.feature_space import FeatureSpace
from tilewright.search.cost_model.pairs import Pairs
from tilewright.search.search_strategy.aligned_tree import aligned_tree
from tilewright.search.search_strategy.cover import cover
from tilewright.search.search_strategy.decision_tree import Choices, dispatch_tree
from tilewright.search.search_strategy.evidence import Evidence
from tilewright.search.search_strategy.neighbours import neighbour_regrets
from tilewright.search.search_strategy.tune_options import TuneOptions
from tilewright.search.space.array_types import Floats
from tilewright.search.space.shapes import Dims
from tilewright.search.space.task import Task, Untuned

_FASTER = 0.02  # share that a kernel must be faster than the untuned choice
# Seconds besides where it takes more or fewer threads: lines change cores at two speeds for seconds at a time, mostly the fast
# one.
_MORE, _FEWER = 1.5e-7, 1e-6
_DOUBT = 1.5  # deviations with which it is compared
_PRICE = 20.0  # of each share that it is not
_OCTAVE, _MOST = 0.8, 3.0  # share that a kernel is taken slower an octave from where it was measured, and at most
_UNSEEN = 0.1  # beside it, where the next shape that is verified is nearer
_NEARBY = 0.03  # octaves
# Share besides, where the speed of the device drifts, where it was measured but not the untuned one: the machine may have been
# faster then; and where it was measured beside it, but once: a disturbed measurement looks like a fast kernel, and a search keeps
# what looks fast.
_ALONE, _ONCE = 0.3, 0.1
_NEVER = 1e3  # times the price of what is expected to be slower than the untuned choice, whatever it would save in leaves
_KERNELS = 8  # most of a table, where the options name no number
VERIFIED = 64  # shapes that the chosen kernels are measured at in the end


@dataclass(frozen=True)
class Selection:
    """configs: lattice numbers; root: over their positions.

    At each point of the task: regrets that follow from the nearest measurements (neighbours.py), seconds expected, and those of
    the default kernel, 0 where nothing is known of it.
    """

    configs: tuple[int, ...]
    root: Node
    regrets: Floats
    seconds: Floats
    untuned: Floats

    def leaf(self, dims: Mapping[str, int]) -> Leaf:
        return select(self.root, dims)


def select_kernels(task: Task, usual: Untuned, space: FeatureSpace, evidence: Evidence, options: TuneOptions,
                   hopeful: bool = False) -> Selection:
    """A cover within half of the regret that is allowed, which leaves the other half to the tree, and its decision tree.

    usual: the default kernel. hopeful: what is expected counts, whether it was measured or not: a choice that is yet to be
    verified.
    """
    weights = np.array(task.points.weights)
    configs, times = evidence.cautious()
    untuned = _untuned(task, usual, space, evidence)
    late = expected = evidence.cautious(0.0)[1]
    if not hopeful:
        doubted = evidence.cautious(_DOUBT)[1] * (1 + _unseen(task, space, evidence, configs, untuned))
        late = np.maximum(doubted, _beside(space, evidence, configs, untuned))
    priced = _priced(configs, times, late, untuned, evidence.threads)
    if not hopeful:
        priced = np.where(_slower(expected, configs, untuned), _NEVER * priced, priced)
    least = priced.min(axis=2)
    chosen = list(cover(least, weights, options.max_regret / 2, options.max_kernels or _KERNELS).kernels)
    everywhere = [i for i in range(len(configs)) if serves_all(space, configs[i])]
    if not set(chosen) & set(everywhere):
        chosen.append(min(everywhere, key=lambda i: float(least[i] @ weights)))
    kept = priced[chosen]
    offered = tuple(Leaf(k, 0 if t == max(evidence.threads) else t) for k in range(len(chosen)) for t in evidence.threads)
    variants = kept.transpose(0, 2, 1).reshape(len(offered), -1)
    expressions = [*map(Expr.dim, task.workload.dims), *space.lattice.extents.values()]
    choices = Choices(task.points.shapes, variants, weights, offered)
    root = aligned_tree(task.workload, choices, expressions, options.max_regret) if space.form.whole_vectors else \
        dispatch_tree(choices, expressions, options.max_regret)
    used = sorted({leaf.kernel for leaf in leaves(root)} | {_fallback(space, configs, chosen)})
    root = renumbered(root, {k: i for i, k in enumerate(used)})
    final = tuple(configs[chosen[k]] for k in used)
    picked = [select(root, dict(s)) for s in task.points.shapes]
    place = {t: i for i, t in enumerate(evidence.threads)} | {0: len(evidence.threads) - 1}
    runs = [(chosen[used[leaf.kernel]], place[leaf.threads]) for leaf in picked]
    seconds = np.array([expected[row, s, column] for s, (row, column) in enumerate(runs)])
    plain = np.array([u.seconds if u else 0.0 for u in untuned])
    dispatched = [(configs[row], evidence.threads[column]) for row, column in runs]
    regrets = neighbour_regrets(evidence.measured, _apart(space), dispatched)
    regrets = np.where(np.isfinite(regrets), regrets, np.maximum(seconds / expected.min(axis=(0, 2)) - 1, 0))
    return Selection(final, root, regrets, seconds, plain)


@dataclass(frozen=True)
class _Plain:
    """What runs untuned at a point: configuration, column of its threads, expected seconds and what they may be at best."""

    config: int
    column: int
    seconds: float
    early: float


def _untuned(task: Task, usual: Untuned, space: FeatureSpace, evidence: Evidence) -> list[_Plain | None]:
    """Of each point; None where nothing is known of that kernel."""
    defaults, root = usual
    numbers = [space.lattice.number(config_text(c)) for c in defaults]
    found: list[_Plain | None] = []
    for s, shape in enumerate(task.points.shapes):
        leaf = select(root, dict(shape))
        number, threads = numbers[leaf.kernel], leaf.threads or max(evidence.threads)
        known = number is not None and number in evidence.curves and threads in evidence.threads
        if number is None or not known:
            found.append(None)
            continue
        column, curve = evidence.threads.index(threads), evidence.curves[number]
        mean, deviation = float(curve.mean[s, column]), float(curve.deviation[s, column])
        found.append(_Plain(number, column, np.exp(mean), np.exp(mean - deviation)) if np.isfinite(mean) else None)
    return found


def verified(task: Task) -> tuple[Dims, ...]:
    """Shapes that stand for the range when the chosen kernels are verified."""
    return task.points.without(task.held_out).thin(VERIFIED).shapes


def _apart(space: FeatureSpace) -> Floats:
    """[shape, shape]: octaves between the extents that differ most."""
    extents = np.log2(np.maximum(space.extents, 1))
    return np.asarray(np.abs(extents[:, None] - extents[None]).max(axis=2))


def _unseen(task: Task, space: FeatureSpace, evidence: Evidence, configs: Sequence[int],
            untuned: Sequence[_Plain | None]) -> Floats:
    """[configuration, shape, thread choice]: share by which the time is doubted: nothing where the kernel was measured there or
    nearby beside the untuned one and again, more with the distance to where it was, and where it was alone or but once."""
    apart = _apart(space)
    stands = set(verified(task))
    reach = apart[:, [i for i, shape in enumerate(space.shapes) if shape in stands]].min(axis=1)
    row, column = {c: i for i, c in enumerate(configs)}, {t: i for i, t in enumerate(evidence.threads)}
    plain = {(u.config, s, evidence.threads[u.column]) for s, u in enumerate(untuned) if u is not None}
    compared = {shape for _, shape, _ in plain & evidence.measured.keys()}
    worth = np.array([_ALONE, _ONCE, 0.0]) * space.form.drifts
    distance = np.full((len(worth), len(configs), len(space.shapes), len(evidence.threads)), np.inf)
    for (config, shape, threads), seen in evidence.measured.items():
        if shape < len(apart) and threads in column:
            place = min(seen.turns, 2) * (shape in compared), row[config], slice(None), column[threads]
            distance[place] = np.minimum(distance[place], apart[:, shape])
    beyond = distance > np.maximum(reach, _NEARBY)[:, None]
    doubt = np.where(distance <= _NEARBY, 0.0, np.minimum(_UNSEEN * beyond + _OCTAVE * distance, _MOST))
    return np.asarray((doubt + worth[:, None, None, None]).min(axis=0))


def _beside(space: FeatureSpace, evidence: Evidence, configs: Sequence[int], untuned: Sequence[_Plain | None]) -> Floats:
    """[configuration, shape, thread choice]: seconds that follow, on a device whose speed drifts, from how much longer than the
    untuned kernel each took at the nearest shape where both were measured; 0 where they never were. From one shape to another
    the machine may have changed its speed."""
    found = np.zeros((len(configs), len(space.shapes), len(evidence.threads)))
    if not space.form.drifts:
        return found
    row, column = {c: i for i, c in enumerate(configs)}, {t: i for i, t in enumerate(evidence.threads)}
    ratios: dict[tuple[int, int], dict[int, float]] = {}
    for (config, shape, threads), seen in evidence.measured.items():
        plain = untuned[shape] if shape < len(untuned) else None
        other = evidence.measured.get((plain.config, shape, evidence.threads[plain.column])) if plain else None
        if other is not None and threads in column:
            once = 1 + _ONCE * (seen.turns < 2)
            ratios.setdefault((row[config], column[threads]), {})[shape] = once * seen.seconds / other.seconds
    apart, plain_seconds = _apart(space), np.array([u.seconds if u else 0.0 for u in untuned])
    for (config, threads), known in ratios.items():
        nearest = apart[:, list(known)].argmin(axis=1)
        found[config, :, threads] = np.array(list(known.values()))[nearest] * plain_seconds
    return found


def _priced(configs: Sequence[int], times: Floats, late: Floats, untuned: Sequence[_Plain | None],
            threads: Sequence[int]) -> Floats:
    """Times to choose by: of the untuned choice what they may be at best, of what may be slower than it a multiple.

    late: times as long as they may be.
    """
    found = times.copy()
    row = {c: i for i, c in enumerate(configs)}
    for s, plain in enumerate(untuned):
        if plain is not None:
            usual = threads[plain.column]
            crossing = np.array([_MORE * (t > usual) + _FEWER * (t < usual) for t in threads])
            slower = (late[:, s] + crossing) / plain.seconds - 1 + _FASTER
            found[:, s] = np.where(np.isfinite(times[:, s]), times[:, s] * (1 + _PRICE * np.maximum(slower, 0)), np.inf)
            found[row[plain.config], s, plain.column] = plain.early
    return found


def _slower(expected: Floats, configs: Sequence[int], untuned: Sequence[_Plain | None]) -> np.ndarray:
    """[configuration, shape, thread choice]: is it expected to be slower there than what runs untuned?"""
    plain = np.array([u.seconds if u else np.inf for u in untuned])
    found = expected > plain[None, :, None]
    row = {c: i for i, c in enumerate(configs)}
    for s, u in enumerate(untuned):
        if u is not None:
            found[row[u.config], s, u.column] = False
    return np.asarray(found)


def serves_all(space: FeatureSpace, config: int) -> bool:
    """Has the kernel no bound on any extent, and no guard that fails at a shape of the space?"""
    if space.lattice.kernel_cost(config).most:
        return False
    return bool(space.guarded(Pairs.product([config], range(len(space.shapes)), [1])).all())


def _fallback(space: FeatureSpace, configs: list[int], chosen: list[int]) -> int:
    """A chosen kernel that serves every shape, to fall back to where guards of others do not hold."""
    return next(k for k, i in enumerate(chosen) if serves_all(space, configs[i]))
