"""Lattice: all configurations of a workload as one indexed space, with arrays of what is known of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.passes.spaces.family_registry import config_text, cost_of, space_of
from tilewright.passes.spaces.in_order import space_in_order
from tilewright.passes.spaces.kernel_cost import KernelCost
from tilewright.passes.spaces.segments import for_sequences
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.errors import OptionError
from tilewright.runtime.limits import Limits
from tilewright.runtime.shape import Expr
from tilewright.search.space.array_types import Floats, Ints
from tilewright.search.space.kernel_facts import KernelFacts


class Lattice:
    """Configurations numbered from 0. Two are neighbours when one coordinate differs by one step of the values in use.

    Args:
        configs: distinct configurations of one or more families.
    """

    def __init__(self, workload: Workload, limits: Limits, configs: Sequence[TileConfig]) -> None:
        self.workload, self.limits = workload, limits
        self.configs = tuple(dict.fromkeys(configs))
        if not self.configs:
            raise OptionError(f"{workload.name}: no legal configuration")
        self.texts = tuple(map(config_text, self.configs))
        self._number = {text: i for i, text in enumerate(self.texts)}
        self.families = tuple(dict.fromkeys(c.family for c in self.configs))
        self.facts: dict[int, KernelFacts] = {}
        self._described: dict[int, KernelCost] = {}
        self.extents: dict[str, Expr] = {}
        for family in self.families:
            self.extents.update({f"{family}.{n}": e for n, e in cost_of(family).extents(workload).items()})

    @staticmethod
    def of(workload: Workload, limits: Limits, families: Sequence[str], extra: Sequence[TileConfig] = (),
           ordered: bool = False) -> Lattice:
        """The whole space of the families, with `extra` configurations that lie beside its steps. ordered: as far as it keeps
        the order of sums."""
        found = [*extra]
        for family in families:
            found += space_in_order(family, workload, limits) if ordered else space_of(family).space(workload, limits)
        if workload.segments:
            found = [c for c in found if for_sequences(c) == c]
        return Lattice(workload, limits, found)

    def note(self, text: str, facts: KernelFacts) -> bool:
        """Take what a built kernel tells of a configuration; was it of the lattice, and new? The form of the lattice is told
        (search/cost_model/form.py), which tells this one."""
        number = self._number.get(text)
        if number is None or self.facts.get(number) == facts:
            return False
        self.facts[number] = facts
        return True

    @cached_property
    def config_columns(self) -> dict[str, Floats]:
        """[configuration] of every coordinate and feature, under `family.name`; NaN where a family has no such."""
        columns: dict[str, Floats] = {}
        for family, members in self._members.items():
            costs = [self._costs[i] for i in members]
            for described in ([c.coordinates for c in costs], [c.features for c in costs]):
                for name in dict.fromkeys(n for each in described for n in each):
                    column = columns.setdefault(f"{family}.{name}", np.full(len(self), np.nan))
                    column[members] = [each.get(name, np.nan) for each in described]
        return columns

    @cached_property
    def _members(self) -> dict[str, list[int]]:
        """The indices of each family's configurations."""
        return {f: [i for i, c in enumerate(self.configs) if c.family == f] for f in self.families}

    def __len__(self) -> int:
        return len(self.configs)

    def __iter__(self) -> Iterator[TileConfig]:
        return iter(self.configs)

    def number(self, text: str) -> int | None:
        """The index of a configuration's text."""
        return self._number.get(text)

    def sample(self, count: int, rng: np.random.Generator) -> list[int]:
        """Distinct indices, drawn evenly."""
        return [int(i) for i in rng.choice(len(self), min(count, len(self)), replace=False)]

    def neighbours(self, index: int) -> list[int]:
        """Indices one step away along one coordinate: the nearest value in use on each side that gives a member."""
        found = []
        family, place = self._places[index]
        for axis in range(len(place)):
            for direction in (-1, 1):
                step = list(place)
                step[axis] += direction
                while 0 <= step[axis] < self._values_in_use[family][axis]:
                    near = self._at.get((family, tuple(step)))
                    if near is not None:
                        found.append(near)
                        break
                    step[axis] += direction
        return found

    def kernel_cost(self, index: int) -> KernelCost:
        """Of one configuration, which describes no other."""
        if index not in self._described:
            config = self.configs[index]
            self._described[index] = cost_of(config.family).kernel_cost(config, self.workload, self.limits)
        return self._described[index]

    @cached_property
    def _costs(self) -> list[KernelCost]:
        return list(map(self.kernel_cost, range(len(self))))

    @cached_property
    def _grid(self) -> tuple[list[tuple[str, tuple[int, ...]]], dict[str, list[int]]]:
        places: list[tuple[str, tuple[int, ...]]] = [("", ())] * len(self)
        used: dict[str, list[int]] = {}
        for family in self.families:
            members = self._members[family]
            rows = np.array([list(self._costs[i].coordinates.values()) for i in members])
            levels = [np.unique(column) for column in rows.T]
            used[family] = [len(v) for v in levels]
            steps = np.stack([np.searchsorted(v, column) for v, column in zip(levels, rows.T, strict=True)], axis=1)
            for i, step in zip(members, steps.tolist(), strict=True):
                places[i] = (family, tuple(step))
        return places, used

    @property
    def _places(self) -> list[tuple[str, tuple[int, ...]]]:
        return self._grid[0]

    @property
    def _values_in_use(self) -> dict[str, list[int]]:
        return self._grid[1]

    @cached_property
    def _at(self) -> dict[tuple[str, tuple[int, ...]], int]:
        return {place: i for i, place in enumerate(self._places)}

    def per_extent(self, what: str, missing: int) -> Ints:
        """[configuration, extent] of a field of the cost descriptions; `missing` where it says nothing."""
        return np.asarray(self._per_extent(what, missing, np.int64))

    def _per_extent(self, what: str, missing: float, kind: type[np.number[Any]]) -> Any:
        found = np.full((len(self), len(self.extents)), missing, kind)
        given: dict[str, list[Any]] = {f: [getattr(self._costs[i], what) for i in m] for f, m in self._members.items()}
        for column, name in enumerate(self.extents):
            family, short = name.split(".")
            rows = self._members[family]
            found[rows, column] = [each.get(short, missing) for each in given[family]]
        return found

    @cached_property
    def tiles(self) -> Ints:
        return self.per_extent("tiles", 1)

    @cached_property
    def pads(self) -> Ints:
        return self.per_extent("pads", 1)

    @cached_property
    def whole(self) -> Ints:
        """Tiles of the extents whose padding is counted by `pads`; 1 for others, whose tails are counted by `least`."""
        return np.asarray(np.where(self.per_extent("pads", 0) > 0, self.tiles, 1))

    @cached_property
    def blocks(self) -> Ints:
        """Tiles of the extents whose tails are counted by `least`; 1 for others."""
        return np.asarray(np.where(self.per_extent("least", 0) > 0, self.tiles, 1))

    @cached_property
    def partial(self) -> Floats:
        return np.asarray(self._per_extent("partial", 1.0, np.float64))

    @cached_property
    def copied(self) -> tuple[Floats, Ints]:
        """Bytes that a work unit copies for each element of an extent, and the number of that extent."""
        numbers = {n: i for i, n in enumerate(self.extents)}
        found = [(a.copied, c.family) for a, c in zip(self._costs, self.configs, strict=True)]
        return (np.array([f.bytes if f else 0 for f, _ in found], np.float64),
                np.array([numbers[f"{family}.{f.along}"] if f else 0 for f, family in found], np.int64))

    @cached_property
    def least(self) -> Ints:
        return self.per_extent("least", 1)

    @cached_property
    def halved(self) -> Ints:
        return self.per_extent("halved", 0)

    @cached_property
    def units(self) -> Ints:
        return self.per_extent("units", 0)

    @cached_property
    def most(self) -> Ints:
        return self.per_extent("most", np.iinfo(np.int64).max)

    @cached_property
    def rates(self) -> Floats:
        """Share of the peak that each inner block can reach."""
        return np.array([a.rate for a in self._costs])
