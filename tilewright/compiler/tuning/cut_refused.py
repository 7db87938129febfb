"""Operators that code generators refuse are cut: the partition is made again with their last operation a kernel of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tilewright.compiler.compilation.compilation import Compilation
from tilewright.compiler.compilation.outlined_model import Cut, OutlinedModel, outline
from tilewright.compiler.tuning.dispatch_tables import Tables, UnbuildableError
from tilewright.passes.spaces.workload import Kind
from tilewright.runtime.log import LOG, timed

ROUNDS = 4  # partitions that are tried after the first one

Built = tuple[OutlinedModel, Tables]


def built_with_cuts(compilation: Compilation, tables_of: Callable[[OutlinedModel], Tables], first: Cut | None = None) -> Built:
    """A model and its tables. Where the preferred family refuses an operator of several operations, other partitions are tried,
    in each of which all that were refused so far are cut; the first one is kept unless another one has fewer refusals.

    Args:
        first: what the partition is asked to be.
    Raises:
        BuildError: no family could build an operator, however it was cut.
    """
    asked = first or Cut()
    cuts = list(asked.apart)
    model = _outlined(compilation, asked)
    best: Built | None = None
    cut: dict[str, str] = {}
    for number in range(ROUNDS + 1):
        unbuilt: UnbuildableError | None = None
        try:
            with timed("kernels"):
                tables = tables_of(model)
            if best is None or len(tables.refused) < len(best[1].refused):
                best = model, tables
            refused = {w.key: (w.name, tables.refused[w.name]) for w in model.workloads if w.name in tables.refused}
        except UnbuildableError as error:
            unbuilt = error
            refused = {error.key: (next(w.name for w in model.workloads if w.key == error.key), str(error))}
        more = [pair for key in refused for pair in _through(model, key)]
        if unbuilt is not None and not more and not asked.alone:  # no kernel serves several tensors
            asked = replace(asked, alone=True)
            model = _outlined(compilation, replace(asked, apart=tuple(cuts)))
            continue
        if not more or number == ROUNDS:
            break
        for key, (name, reason) in refused.items():
            if _through(model, key):
                cut[name] = f"{reason}; cut"
                LOG.info("%s is cut: %s", name, reason)
        cuts += more
        model = _outlined(compilation, replace(asked, apart=tuple(cuts)))
    if best is None:
        assert unbuilt is not None
        raise unbuilt
    model, tables = best
    return model, replace(tables, refused=_noted(tables.refused, cut, model))


def _outlined(compilation: Compilation, cut: Cut) -> OutlinedModel:
    with timed("graph passes"):
        return outline(compilation, cut)


def _noted(refused: Mapping[str, str], cut: Mapping[str, str], model: OutlinedModel) -> dict[str, str]:
    """What was refused, of the operators that are there, and of those that were cut."""
    there = {w.name for w in model.workloads}
    return {**{name: reason for name, reason in cut.items() if name not in there}, **refused}


def _through(model: OutlinedModel, key: str) -> Sequence[tuple[int, int]]:
    """The cuts between the last operation of each call of a workload and all others; none where it has one operation. A product
    with the work on its rows is cut between these two."""
    calls = model.operations.get(key, ())
    if any(w.key == key and w.kind is Kind.PRODUCT_ROWS for w in model.workloads):
        return [(number, number) for numbers in calls for number in numbers]
    return [(number, numbers[-1]) for numbers in calls for number in numbers[:-1]]
