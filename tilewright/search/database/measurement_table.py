"""Measurement tables: every configuration of an operator at every shape, so that searches are replayed exactly.

A file is JSON Lines, an operator a line.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from tilewright.passes.spaces.family_registry import config_text, parse_config
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.errors import ArtifactError
from tilewright.search.database.workload_form import WorkloadForm
from tilewright.search.space.array_types import Floats
from tilewright.search.space.shapes import Dims

SCHEMA = 1


class OperatorTable(msgspec.Struct, frozen=True, dict=True):
    """One operator of a model.

    calls: of the model. seconds: [configuration][shape] of one launch; 0 where the kernel does not run.
    build_seconds: of each configuration. measure_seconds: of one measurement of each. defaults: the first configurations are
    those that run untuned.
    """

    name: str
    workload: WorkloadForm
    calls: int
    shapes: tuple[Dims, ...]
    configs: tuple[str, ...]
    seconds: tuple[tuple[float, ...], ...]
    build_seconds: tuple[float, ...]
    measure_seconds: tuple[float, ...]
    defaults: int = 1
    schema: int = SCHEMA

    @cached_property
    def times(self) -> Floats:
        """[configuration, shape], infinite where the kernel does not run."""
        found = np.array(self.seconds, np.float64)
        return np.asarray(np.where(found > 0, found, np.inf))

    @cached_property
    def operator(self) -> Workload:
        return self.workload.workload()

    @cached_property
    def tiles(self) -> tuple[TileConfig, ...]:
        return tuple(map(parse_config, self.configs))

    def default_times(self) -> Floats:
        """[shape]: the best of the default kernel."""
        return np.asarray(self.times[: self.defaults].min(axis=0))

    def number(self, config: TileConfig) -> int:
        """The index of a configuration; ValueError where the table does not hold it."""
        return self.configs.index(config_text(config))


def read_tables(path: Path) -> list[OperatorTable]:
    """All operators of a file; ArtifactError names a line that cannot be read."""
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            table = msgspec.json.decode(line, type=OperatorTable)
        except msgspec.DecodeError as error:
            raise ArtifactError(f"{path}:{number} is no measurement table: {error}") from error
        if table.schema != SCHEMA:
            raise ArtifactError(f"{path}:{number} has schema {table.schema}, wanted {SCHEMA}; measure it again")
        found.append(table)
    return found


def write_tables(path: Path, tables: list[OperatorTable]) -> None:
    """One line an operator."""
    path.write_bytes(b"".join(msgspec.json.encode(t) + b"\n" for t in tables))
