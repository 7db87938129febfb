"""Sites: the branches and loops on data of a program for a GPU, as its native host program names them to the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.compiler.host.plan_steps import If, Loop, Place, Step, sites_of
from tilewright.passes.codegen.emit import gep, integer_type
from tilewright.passes.codegen.index import Index
from tilewright.passes.mlir import ir, llvm
from tilewright.runtime.device import CONTROL_WORDS
from tilewright.runtime.gpu.control_kernels import STATE_BYTES
from tilewright.runtime.program.arena_plan import ALIGNMENT


@dataclass(frozen=True)
class SettledLoop:
    """A loop that is over. turns: how often it ran, below 0 where the device alone knows. start, second: where a tensor that it
    carries may lie, besides its first buffer."""

    site: int
    turns: ir.Value
    start: ir.Value
    second: ir.Value


@dataclass(frozen=True)
class Sites:
    """state: the device's memory for all sites. room: memory for CONTROL_WORDS of each. settled: of what loops carried out, by
    where the plan says it lies."""

    steps: Sequence[If | Loop]
    state: ir.Value
    room: ir.Value
    settled: dict[Place, SettledLoop] = field(default_factory=dict)

    def number(self, step: If | Loop) -> int:
        """The site of a branch or loop."""
        return next(n for n, s in enumerate(self.steps) if s is step)

    def words(self, site: int, values: Mapping[str, ir.Value]) -> ir.Value:
        """The words of a site, with these values stored now."""
        i64, byte = integer_type(64), integer_type(8)
        state = gep(self.state, Index(STATE_BYTES * site).value(i64), byte)
        words = gep(self.room, Index(len(CONTROL_WORDS) * site).value(i64), i64)
        for name, value in {"state": state, "site": Index(site).value(i64), **values}.items():
            llvm.StoreOp(value, gep(words, Index(CONTROL_WORDS.index(name)).value(i64), i64))
        return words


def state_bytes(steps: Sequence[Step]) -> int:
    """Bytes of the device's memory that the sites of a plan take."""
    return -(-STATE_BYTES * len(sites_of(steps)) // ALIGNMENT) * ALIGNMENT
