"""The fallback family `generic`: every output element computed on demand. Covers every region, by construction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits

_PLACE_BYTES = 4  # of integers that name places; narrower ones are masks and codes


@dataclass(frozen=True)
class GenericConfig(TileConfig):
    """lanes: elements per vector along the unit-stride axis of the result; chunk: elements of a row in one work unit.

    rows: of the result that a vector walks down before the next one starts, so that they share what depends on its columns
    alone. permute: places that a table names for the columns, when they lie within a vector, are taken out of one register.
    """

    family: ClassVar[str] = "generic"
    lanes: int = 16
    chunk: int = 4096
    rows: int = 1
    permute: bool = False


def space(workload: Workload, limits: HostLimits) -> Iterator[GenericConfig]:
    """All legal configurations."""
    for lanes, chunk, rows, permute in product((1, 4, 8, 16, 32), (256, 1024, 4096, 16384), (1, 8, 32), (False, True)):
        config = GenericConfig(lanes, chunk, rows, permute)
        if why_invalid(config, workload, limits) is None:
            yield config


def why_invalid(config: GenericConfig, workload: Workload, limits: HostLimits) -> str | None:
    """The rule that the configuration breaks, or None."""
    if config.lanes & (config.lanes - 1):
        return f"lanes-power-of-two: {config.lanes} lanes"
    widest = max(o.dtype.bytes for o in (*workload.inputs, *workload.outputs))
    if config.lanes * widest > 4 * limits.vector_bytes:
        return f"lanes-fit: {config.lanes} lanes of {widest} bytes need more than four {limits.vector_bytes}-byte registers"
    if config.chunk % config.lanes:
        return f"chunk-whole-vectors: {config.chunk} is no multiple of {config.lanes}"
    if config.rows < 1:
        return f"rows-positive: {config.rows} rows under a vector"
    if config.rows > 1 and not has_column_table(workload) and not has_shared_table(workload):
        return "rows-share: no operand gives places to the columns of several rows"
    if config.permute and not has_column_table(workload):
        return "permute-columns: no operand gives places to the columns of all rows"
    if config.permute and (config.rows == 1 or not limits.permutes or 4 * config.lanes != limits.vector_bytes):
        return "permute-words: permutations are of the words of a register, for rows that share their places"
    return None


def has_column_table(workload: Workload) -> bool:
    """Does an operand name a place for each column of the first result, the same for all of several rows?"""
    return any(loops == {along} for loops, along, _ in _tables(workload))


def has_shared_table(workload: Workload) -> bool:
    """Does an operand name a place for each column of the first result, the same for the rows along its last axis but one?"""
    return any(along in loops and row not in loops for loops, along, row in _tables(workload, _PLACE_BYTES))


def _tables(workload: Workload, least: int = 1) -> list[tuple[set[int], int, int | None]]:
    """Of each operand of integers, `least` bytes each, the loops that it depends on, the loop of the columns of the first result
    and that of its rows."""
    out = workload.outputs[0] if workload.outputs else None
    if out is None or out.along is None or len(out.dims) < 2 or not out.axes:
        return []
    row = next((axis.fastest for axis in reversed(out.axes) if axis.fastest not in (None, out.along)), None)
    return [({d for a in o.axes for d in a.loops}, out.along, row)
            for o in workload.inputs if not o.dtype.is_float and o.axes and o.dtype.bytes >= least]
