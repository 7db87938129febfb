"""Evaluation points: the shapes of local dims that stand for a whole range, with their weights; held-out shapes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.runtime.errors import OptionError
from tilewright.runtime.shape import Dim, Expr, ShapeRange

Dims = tuple[tuple[str, int], ...]
Traffic = Sequence[tuple[Mapping[str, int], float]]


@dataclass(frozen=True)
class Points:
    """Distinct shapes over local dims, smallest volume first. Weights sum to 1.

    measured_weights: the weights are those of given traffic, so that absolute time counts; else each shape counts alike.
    """

    shapes: tuple[Dims, ...]
    weights: tuple[float, ...]
    measured_weights: bool = False

    def __len__(self) -> int:
        return len(self.shapes)

    @staticmethod
    def of(pairs: Iterable[tuple[Mapping[str, int], float]], measured_weights: bool = False) -> Points:
        """Equal shapes are joined."""
        total: dict[Dims, float] = {}
        for shape, weight in pairs:
            key = tuple(shape.items())
            total[key] = total.get(key, 0.0) + weight
        if not total:
            raise OptionError("the range holds no shape to tune for")
        ordered = sorted(total, key=lambda s: (math.prod(v for _, v in s), s))
        whole = sum(total.values())
        return Points(tuple(ordered), tuple(total[s] / whole for s in ordered), measured_weights)

    def without(self, shapes: Iterable[Dims]) -> Points:
        """Without some shapes, as long as one is left."""
        gone = set(shapes)
        left = [(dict(s), w) for s, w in zip(self.shapes, self.weights, strict=True) if s not in gone]
        return Points.of(left, self.measured_weights) if left else self

    def thin(self, most: int) -> Points:
        """At most `most` of the shapes: the heaviest, others spread evenly and, closer to each other, over the small ones.

        Each stands for those nearest to it: the weights are theirs.
       """
        if len(self) <= most:
            return self
        heavy = sorted(range(len(self)), key=lambda i: -self.weights[i])[: most // 2] if self.measured_weights else []
        room = most - len(heavy)
        even = np.linspace(0, len(self) - 1, room - room // 2)
        small = np.geomspace(1, len(self), room // 2) - 1
        keep = sorted({*heavy, *np.round(np.concatenate([even, small])).astype(int).tolist()})
        weights = [0.0] * len(keep)
        for i, weight in enumerate(self.weights):
            weights[min(range(len(keep)), key=lambda j: abs(keep[j] - i))] += weight
        return Points(tuple(self.shapes[i] for i in keep), tuple(weights), self.measured_weights)


@dataclass(frozen=True)
class ShapeDemand:
    """What a model asks of an operator: the range of its dims; for each call, each local dim over them; joint shapes of the model
    with their weights, where they are known. local, held: the operator's own shapes with their weights, and those that nothing is
    tuned for, where these are known instead."""

    ranges: ShapeRange
    uses: Sequence[Mapping[str, Expr]]
    traffic: Traffic = ()
    local: Traffic = ()
    held: Sequence[Mapping[str, int]] = ()


def evaluation_points(ranges: ShapeRange, uses: Sequence[Mapping[str, Expr]], traffic: Traffic = (), count: int = 512) -> Points:
    """Shapes of a workload's local dims over the range of the model.

    Args:
        ranges: of the model's dims. uses: for each call of the workload, each local dim over the model's dims.
        traffic: joint shapes of the model with their weights; then only they count.
        count: most shapes; all of a range that holds no more, else ends, samples, log-spaced values and values that no
            tile size divides.
    """
    shapes = [dict(s) for s, _ in traffic] or list(_spread(ranges, count))
    weights = [w for _, w in traffic] or [1.0] * len(shapes)
    pairs = []
    for use in uses:
        for shape, weight in zip(shapes, weights, strict=True):
            pairs.append(({name: expr.evaluate(shape) for name, expr in use.items()}, weight))
    return Points.of(pairs, bool(traffic))


def held_out(ranges: ShapeRange, uses: Sequence[Mapping[str, Expr]], taken: Iterable[Dims], count: int, seed: int) -> list[Dims]:
    """Shapes drawn evenly in the logarithm of each dim, none of them in `taken`; fewer where the range holds no more."""
    rng = np.random.default_rng([seed, 0x5EED])
    seen = set(taken)
    found: list[Dims] = []
    for _ in range(50 * count):
        if len(found) == count:
            break
        shape = {name: _draw(dim, rng) for name, dim in ranges.dims}
        use = uses[int(rng.integers(len(uses)))]
        local = tuple((name, expr.evaluate(shape)) for name, expr in use.items())
        if local not in seen:
            seen.add(local)
            found.append(local)
    return found


def _draw(dim: Dim, rng: np.random.Generator) -> int:
    first, last = -(-dim.lo // dim.multiple_of), dim.hi // dim.multiple_of
    value = math.exp(rng.uniform(math.log(max(first, 1)), math.log(max(last, 1) + 1)))
    return min(max(int(value), first), last) * dim.multiple_of


def _spread(ranges: ShapeRange, count: int) -> Iterable[dict[str, int]]:
    """Every shape of a small range, else about `count`: the same number of values a dim, the samples among them."""
    sizes = [dim.hi // dim.multiple_of - -(-dim.lo // dim.multiple_of) + 1 for _, dim in ranges.dims]
    grid: list[dict[str, int]] = [{}]
    free = [n for n in sizes if n > 1]
    each = count if math.prod(sizes) <= count else max(3, int(count ** (1 / max(1, len(free)))))
    for (name, dim), size in zip(ranges.dims, sizes, strict=True):
        values = _every(dim) if size <= each else _values(dim, each)
        grid = [{**shape, name: v} for shape in grid for v in values]
    return grid


def _every(dim: Dim) -> list[int]:
    return list(range(-(-dim.lo // dim.multiple_of) * dim.multiple_of, dim.hi + 1, dim.multiple_of))


def _values(dim: Dim, count: int) -> list[int]:
    """Samples, both ends, log-spaced values; every other one moved to a neighbour that few tile sizes divide."""
    chosen = set(dim.values(max(2, count - len(dim.samples or ()))))
    inner = sorted(chosen - {dim.lo, dim.hi})
    for value in inner[::2]:
        rough = _rough(value // dim.multiple_of) * dim.multiple_of
        if dim.contains(rough):
            chosen.discard(value)
            chosen.add(rough)
    return sorted(chosen | set(dim.samples or ()))


def _rough(value: int) -> int:
    """The nearest number from `value` on that 2 and 3 do not divide."""
    while value > 3 and (value % 2 == 0 or value % 3 == 0):
        value += 1
    return value
