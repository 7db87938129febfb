"""What the toy family runs untuned."""

from __future__ import annotations

from toy_family.spaces.toy_pointwise import ToyConfig

from passes.workload import Workload
from runtime.dispatch import Leaf, Node
from runtime.limits import HostLimits


def default(workload: Workload, limits: HostLimits) -> tuple[tuple[ToyConfig, ...], Node]:
    return (ToyConfig(),), Leaf(0)
