"""TileConfig: the compile-time choices of one kernel family, a small frozen value with a text form. MLIR-free.

Each space module (passes/spaces/<family>.py) defines a frozen subclass whose fields are the choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import Limits

SHARED = "shared"  # metadata of a field


def shared(default: Any) -> Any:
    """A field of a configuration that all of a space share, so that cost models can learn nothing of it and are not told."""
    return field(default=default, metadata={SHARED: True})


@dataclass(frozen=True)
class TileConfig:
    """Base of all configurations; `family` names the kernel family. Text form: `host_matmul{mr=8 nr=48}`.

    former: option names in older logs, archives and artifacts, each with its name of today; they are read, never written.
    """

    family: ClassVar[str] = ""

    def in_order(self, workload: Workload, limits: Limits) -> TileConfig:
        """The configuration whose sums have one order for every number of rows: this one, unless its family has it otherwise."""
        return self
    former: ClassVar[Mapping[str, str]] = MappingProxyType({})
