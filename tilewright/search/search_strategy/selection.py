"""Selection: from evidence to the few kernels that are kept and the tree that dispatches among them.

What would run untuned stays wherever no other kernel was found faster beside it (judged.py). Where nothing was timed beside it,
it has a head start: another kernel takes its place at a shape only where it is faster beyond what the measurements leave open.
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
from tilewright.search.search_strategy.decision_tree import Choices, dispatch_tree, grafted
from tilewright.search.search_strategy.evidence import Evidence
from tilewright.search.search_strategy.judged import Judged, Variant
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
_DEFAULT = -1  # stands in a tree for what runs untuned at each shape
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
                   hopeful: bool = False, judged: Judged | None = None) -> Selection:
    """A cover within half of the regret that is allowed, which leaves the other half to the tree, and its decision tree.

    usual: the default kernel. hopeful: what is expected counts, whether it was measured or not: a choice that is yet to be
    verified. judged: what was timed beside the default kernel; None: nothing was.
    """
    weights = np.array(task.points.weights)
    configs, times = evidence.cautious()
    untuned = _untuned(task, usual, space, evidence)
    late = expected = evidence.cautious(0.0)[1]
    if judged is not None and not hopeful:
        priced = np.where(_faster(task, space, evidence, untuned, judged), expected, _NEVER * expected)
    else:
        if not hopeful:
            doubted = evidence.cautious(_DOUBT)[1] * (1 + _unseen(task, space, evidence, configs, untuned))
            late = np.maximum(doubted, _beside(space, evidence, configs, untuned))
        priced = _priced(configs, times, late, untuned, evidence.threads)
    if judged is not None and hopeful:
        priced = priced * _untried(space, evidence, untuned, judged, options.max_regret)
    if not hopeful:
        priced = np.where(_slower(expected, configs, untuned), _NEVER * priced, priced)
    least = priced.min(axis=2)
    chosen = list(cover(least, weights, options.max_regret / 2, options.max_kernels or _KERNELS).kernels)
    everywhere = [i for i in range(len(configs)) if serves_all(space, configs[i])]
    if not set(chosen) & set(everywhere):
        chosen.append(min(everywhere, key=lambda i: float(least[i] @ weights)))
    offered = tuple(Leaf(k, 0 if t == max(evidence.threads) else t) for k in range(len(chosen)) for t in evidence.threads)
    variants = priced[chosen].transpose(0, 2, 1).reshape(len(offered), -1)
    default = None if judged is None else _default_tree(usual, space, configs, chosen, options)
    if default is not None:
        offered, variants = (Leaf(_DEFAULT), *offered), np.vstack([_default_times(priced, configs, untuned), variants])
    expressions = [*map(Expr.dim, task.workload.dims), *space.lattice.extents.values()]
    choices = Choices(task.points.shapes, variants, weights, offered)
    root = aligned_tree(task.workload, choices, expressions, options.max_regret) if space.form.whole_vectors else \
        dispatch_tree(choices, expressions, options.max_regret)
    if default is not None:
        root = grafted(root, _DEFAULT, default)
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


def _faster(task: Task, space: FeatureSpace, evidence: Evidence, untuned: Sequence[_Plain | None], judged: Judged) -> np.ndarray:
    """[configuration, shape, thread choice]: is it what runs untuned there, or was it found faster beside that?"""
    row, column = _rows(space, evidence), {t: i for i, t in enumerate(evidence.threads)}
    found = np.zeros((len(row), len(space.shapes), len(column)), np.bool_)
    apart, stands, numbers = _apart(space), set(verified(task)), {shape: i for i, shape in enumerate(space.shapes)}
    reach = apart[:, [i for i, shape in enumerate(space.shapes) if shape in stands]].min(axis=1)
    places = _places(space, evidence, untuned)
    curves = {space.lattice.texts[c]: curve for c, curve in evidence.curves.items()}
    for other, usual in judged.found:
        if other[0] in row and other[1] in column and usual in places:
            shapes = places[usual]
            own, plain_times = (curves[config].mean[:, column[threads]] for config, threads in (other, usual))
            faster = judged.is_faster((other, usual), numbers, apart, reach, _over(own, plain_times))
            found[row[other[0]], shapes, column[other[1]]] = faster[shapes]
    for s, plain in enumerate(untuned):
        if plain is None:
            found[:, s] = True
        else:
            found[row[space.lattice.texts[plain.config]], s, plain.column] = True
    return found


def _over(own: Floats, other: Floats) -> Floats:
    """The difference of logarithms, 0 where one is not finite."""
    both = np.isfinite(own) & np.isfinite(other)
    return np.where(both, np.where(both, own, 0.0) - np.where(both, other, 0.0), 0.0)


def _untried(space: FeatureSpace, evidence: Evidence, untuned: Sequence[_Plain | None], judged: Judged, regret: float) -> Floats:
    """[configuration, shape, thread choice]: by how much to take it longer. What was compared often enough and not found faster
    is not hoped for any more; and where something was found faster, what was not tried is to save more than the regret that is
    allowed: comparing it takes time from other shapes."""
    row, column = _rows(space, evidence), {t: i for i, t in enumerate(evidence.threads)}
    found, places = np.ones((len(row), len(space.shapes), len(column))), _places(space, evidence, untuned)
    known: dict[int, list[tuple[int, int, float]]] = {}
    for (other, usual), told in judged.found.items():
        for s in places.get(usual, ()) if other[0] in row and other[1] in column else ():
            if (here := told.get(space.shapes[s])) is not None:
                price = _NEVER if here.settled and not here.faster else 1.0 if here.faster else 1 + regret
                known.setdefault(s, []).append((row[other[0]], column[other[1]], price))
    for s, tried in known.items():
        if any(price == 1.0 for _, _, price in tried):
            found[:, s] = 1 + regret
        for c, t, price in tried:
            found[c, s, t] = price
    return found


def _places(space: FeatureSpace, evidence: Evidence, untuned: Sequence[_Plain | None]) -> dict[Variant, list[int]]:
    """What runs untuned, and at which shapes."""
    found: dict[Variant, list[int]] = {}
    for s, plain in enumerate(untuned):
        if plain is not None:
            found.setdefault((space.lattice.texts[plain.config], evidence.threads[plain.column]), []).append(s)
    return found


def _rows(space: FeatureSpace, evidence: Evidence) -> dict[str, int]:
    """Text of each configuration of the evidence, in the order of `Evidence.cautious`."""
    return {space.lattice.texts[c]: i for i, c in enumerate(sorted(evidence.curves))}


def _default_tree(usual: Untuned, space: FeatureSpace, configs: Sequence[int], chosen: list[int],
                  options: TuneOptions) -> Node | None:
    """The tree of what runs untuned over positions in `chosen`, to which it adds what that lacks; None where the space does not
    have all of it, or these are more kernels than may be."""
    defaults, root = usual
    reached = sorted({leaf.kernel for leaf in leaves(root)})
    numbers = {k: space.lattice.number(config_text(defaults[k])) for k in reached}
    row = {c: i for i, c in enumerate(configs)}
    rows = {k: row[n] for k, n in numbers.items() if n is not None and n in row}
    every = list(dict.fromkeys([*chosen, *rows.values()]))
    if len(rows) < len(reached) or (options.max_kernels is not None and len(every) > options.max_kernels):
        return None
    chosen[:] = every
    return renumbered(root, {k: every.index(r) for k, r in rows.items()})


def _default_times(priced: Floats, configs: Sequence[int], untuned: Sequence[_Plain | None]) -> Floats:
    """[shape]: of what runs untuned; infinite where nothing is known of that."""
    row = {c: i for i, c in enumerate(configs)}
    return np.array([np.inf if u is None else priced[row[u.config], s, u.column] for s, u in enumerate(untuned)])


def serves_all(space: FeatureSpace, config: int) -> bool:
    """Has the kernel no bound on any extent, and no guard that fails at a shape of the space?"""
    if space.lattice.kernel_cost(config).most:
        return False
    return bool(space.guarded(Pairs.product([config], range(len(space.shapes)), [1])).all())


def _fallback(space: FeatureSpace, configs: list[int], chosen: list[int]) -> int:
    """A chosen kernel that serves every shape, to fall back to where guards of others do not hold."""
    return next(k for k, i in enumerate(chosen) if serves_all(space, configs[i]))
