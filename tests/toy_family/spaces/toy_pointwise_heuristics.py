"""What the toy family runs untuned."""

from __future__ import annotations

from toy_family.spaces.toy_pointwise import ToyConfig

from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.dispatch import Leaf, Node


def default(workload: Workload, limits: HostLimits) -> tuple[tuple[ToyConfig, ...], Node]:
    return (ToyConfig(),), Leaf(0)
