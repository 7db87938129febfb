"""Forms of a kernel against each other: what an operator runs untuned, and each configuration that differs in one option."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from tilewright.passes.spaces.family_registry import parse_config
from tilewright.passes.spaces.in_order import default_of
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.runtime.program.dispatch import select
from tilewright.search.archive.kernel_archive import ArchiveOperator, KernelArchive
from tilewright.search.protocols import Runner
from tilewright.search.space.shapes import Dims
from tilewright.search.space.task import Task


def neighbours(task: Task, most: int) -> list[TileConfig]:
    """What each family runs untuned at the largest, a middling and the smallest shape, then configurations of the space that
    differ from one of these in one option, the families and their options in turn."""
    tables = [default_of(family, task.workload, task.limits, task.ordered) for family in task.families]
    defaults = list(dict.fromkeys(configs[select(root, dict(shape)).kernel] for shape in ends(task.points.shapes)
                                  for configs, root in tables))
    by_option: dict[tuple[str, str], list[TileConfig]] = {}
    for config in task.lattice().configs:
        for default in defaults:
            changed = difference(default, config)
            if len(changed) == 1:
                by_option.setdefault((default.family, changed[0]), []).append(config)
                break
    found = dict.fromkeys(defaults[:most])
    for turn in range(max(map(len, by_option.values()), default=0)):
        found |= dict.fromkeys(options[turn] for options in by_option.values() if turn < len(options))
    return list(found)[:most]


def difference(one: TileConfig, other: TileConfig) -> list[str]:
    """Names of the options in which two configurations of a family differ; all where they are of two families."""
    fields = [f.name for f in dataclasses.fields(one)]
    if type(one) is not type(other):
        return fields
    return [f for f in fields if getattr(one, f) != getattr(other, f)]


def compare(archive: KernelArchive, runner: Runner, left: Any) -> Iterator[dict[str, Any]]:
    """Records of every kernel of an archive at the largest, a middling and the smallest shape of its operator; ratio: its time
    over that of the kernel before it that differs least. left: gives the seconds that are left.
    """
    for operator in archive:
        for shape in ends(operator.shapes):
            times: dict[str, float] = {}
            for kernel in operator.kernels:
                if left() < 1:
                    yield {"record": "left", "operator": operator.workload.name, "config": kernel.config}
                    continue
                found = runner.run(operator.workload.workload(), kernel, archive.code(kernel), dict(shape), 1, left())
                if found.seconds:
                    times[kernel.config] = statistics.median(found.seconds)
                yield {"record": "form", "operator": operator.workload.name, "dims": dict(shape), "config": kernel.config,
                       "us": round(times.get(kernel.config, math.nan) * 1e6, 3) if found.seconds else None,
                       "error": found.error, **_against(operator, kernel.config, times)}


def _against(operator: ArchiveOperator, config: str, times: dict[str, float]) -> dict[str, Any]:
    """Which default a configuration is nearest to, what differs, and the ratio of their times."""
    mine = parse_config(config)
    nearest = min(operator.kernels, key=lambda k: len(difference(parse_config(k.config), mine)) if k.config in times and
                  k.config != config else math.inf)
    if config not in times or nearest.config not in times or nearest.config == config:
        return {}
    other = parse_config(nearest.config)
    changed = {f: [getattr(other, f), getattr(mine, f)] for f in difference(other, mine)} if type(other) is type(mine) else {}
    return {"than": nearest.config, "changed": changed, "ratio": round(times[config] / times[nearest.config], 4)}


def ends(shapes: Sequence[Dims]) -> Sequence[Dims]:
    """The largest of shapes in their order, a middling one and the smallest."""
    return list(dict.fromkeys([shapes[-1], shapes[len(shapes) // 2], shapes[0]]))

