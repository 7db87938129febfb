"""What batches ask of the operators of a ragged model: its declared lengths, drawn as batches, are what a search tunes for.

The time of a batch is that of its calls over all rows, and of each sequence in the other calls, which choose a kernel for each.
So a batch is one shape of the first, and one for each sequence of the others, and weights add up to the time of all batches.
Shapes that are as good as one are one: batches of a histogram have nearly as many rows each, and what is measured is measured
again in turns with what runs untuned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import log2, prod, sqrt

import numpy as np

from tilewright.compiler.compilation.outlined_model import OutlinedModel
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.program.program import DimInfo
from tilewright.runtime.ragged_dim import factors_of

TAKEN, HELD = 48, 8  # batches that are tuned for, and that the certificate is about
_HELD_SHARE = 0.15  # of the seconds of a search, for the comparison of its result with the untuned model
CERTIFIED_SHARE = 0.5  # of what is left: products of all rows of a batch take tens of milliseconds, each several times
_STEPS = 8  # shapes an octave of each dim that are told apart
_APART = 4  # one of so many shapes of an operator at most is taken out of what is tuned for, where certificates have none else
_SIZES = 4  # numbers of sequences that batches have, where there are no samples of these
Lengths = Mapping[str, Sequence[int]]
Local = list[tuple[Mapping[str, int], float]]


def declares_batches(model: OutlinedModel) -> bool:
    """Says the model which lengths its sequences have?"""
    return any(o.dim.samples for o in model.plan.ragged)


def is_held_to_batches(model: OutlinedModel) -> bool:
    """Is what a search finds held against the untuned model on such batches, on this machine?"""
    options = model.compilation.options
    return options.searches and options.farm is None and not model.compilation.on_gpu and declares_batches(model)


def seconds_to_search(model: OutlinedModel) -> float | None:
    """What is left of the seconds that are asked for, less what holding the result against the untuned model takes."""
    wanted, left = model.compilation.options.seconds, model.compilation.seconds_left
    return left if wanted is None or left is None or not is_held_to_batches(model) else max(0.0, left - _HELD_SHARE * wanted)


def batches_of(model: OutlinedModel, count: int, seed: int) -> Iterator[Lengths]:
    """Batches of lengths: of a dim with samples drawn from these, of any other evenly from its range.

    Args:
        seed: of the draw; batches of different seeds are different ones.
    """
    rng = np.random.default_rng([seed, 0xBA7C])
    dims = [o.dim for o in model.plan.ragged]
    outer = next(d for d in model.ingested.dims if d.name == dims[0].over)
    sizes = [n for n in outer.samples or outer.dim().values(_SIZES) if n]
    for _ in range(count if sizes else 0):
        number = int(rng.choice(sizes))
        yield {d.name: _lengths(d, number, rng) for d in dims}


def _lengths(dim: DimInfo, count: int, rng: np.random.Generator) -> list[int]:
    legal = dim.samples or range(-(-dim.lo // dim.multiple_of) * dim.multiple_of, dim.hi + 1, dim.multiple_of)
    return [legal[i] for i in rng.integers(len(legal), size=count)]


def told_apart(shapes: Local) -> Local:
    """Of shapes that differ little in every dim the one that is run most often, with the weight of all."""
    near: dict[tuple[int, ...], dict[tuple[tuple[str, int], ...], float]] = {}
    for shape, weight in shapes:
        place = tuple(round(_STEPS * log2(n)) for n in shape.values())
        own = near.setdefault(place, {})
        key = tuple(shape.items())
        own[key] = own.get(key, 0.0) + weight
    found: Local = []
    for own in near.values():
        most = max(own.values())
        found.append((dict(next(shape for shape, weight in own.items() if weight == most)), sum(own.values())))
    return found


def demand_of(workload: Workload, model: OutlinedModel, seed: int) -> tuple[Local, list[Mapping[str, int]]]:
    """The shapes that an operator is tuned for, with their weights, and those that its certificate is about."""
    taken, held = (shapes_of(workload, model, list(batches_of(model, n, seed + k))) for k, n in enumerate((TAKEN, HELD)))
    return held_apart(told_apart(taken), held)


def held_apart(tuned: Local, held: Local) -> tuple[Local, list[Mapping[str, int]]]:
    """What is tuned for without what is held out, and that.

    A sequence of a batch that is held out has mostly a length that others have too. Of those lengths the search sees the ones
    that stand for several, so the rest of them is held out. Where that gives too few, as for lengths so short that each
    stands for itself, some of those in between are taken out of what is tuned for, their weight goes to the nearest one.
    """
    seen = [shape for shape, _ in tuned]
    unseen = [shape for shape, _ in told_apart([(shape, weight) for shape, weight in held if shape not in seen])]
    wanted = min(HELD, len(tuned) // _APART)
    if len(unseen) >= wanted:
        return tuned, unseen
    ordered = sorted(tuned, key=lambda pair: prod(pair[0].values()))
    places = np.linspace(0, len(ordered) - 1, wanted - len(unseen) + 2).round().astype(int)[1:-1]
    out = [ordered[i][0] for i in places]
    kept = [pair for pair in tuned if pair[0] not in out]
    weights = {i: weight for i, (_, weight) in enumerate(kept)}
    for i in places:
        shape, weight = ordered[i]
        weights[min(weights, key=lambda k: _apart(kept[k][0], shape))] += weight
    return [(shape, weights[i]) for i, (shape, _) in enumerate(kept)], [*unseen, *out]


def _apart(a: Mapping[str, int], b: Mapping[str, int]) -> float:
    """In octaves."""
    return sum(abs(log2(n / b[name])) for name, n in a.items())


def weight_of_batches(workload: Workload, model: OutlinedModel) -> float:
    """Root of the arithmetic and bytes of all calls of an operator for a batch: those made for each sequence count as often."""
    shapes = shapes_of(workload, model, list(batches_of(model, HELD, 0)))
    total = sum(weight * (workload.flops.evaluate(shape) + 8 * workload.bytes.evaluate(shape)) for shape, weight in shapes)
    return sqrt(max(total / HELD, 1.0))


def shapes_of(workload: Workload, model: OutlinedModel, batches: Sequence[Lengths]) -> Local:
    """The shapes of a workload's local dims in these batches, each with how often it is run; none without work. Free dims are at
    their middle."""
    free = {name: dim.values(3)[len(dim.values(3)) // 2] for name, dim in model.ranges.dims}
    stored = {o.dim.name: o.dim.stored for o in model.plan.ragged}
    found: Local = []
    for lengths in batches:
        sequences = [dict(zip(lengths, own, strict=True)) for own in zip(*lengths.values(), strict=True)]
        sums = {d.name: sum(prod(stored[n](s[n]) for n in factors_of(d.name)) for s in sequences)
                for d in model.ingested.dims if factors_of(d.name)}
        whole = {**free, **sums, model.plan.ragged[0].dim.over: len(sequences)}
        for call in model.plan.calls:
            if call.workload.key != workload.key:
                continue
            for one in sequences if call.segments is not None else [{}]:
                point = {**whole, **one}
                local = {n: e.evaluate(point) for n, e in zip(call.workload.dims, call.dims, strict=True)}
                found += [(local, 1.0)] if all(local.values()) else []
    return found
