"""RunValues: what the code of one run of a host program shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.compiler.host.joined_parts import Joining
from tilewright.passes.codegen.index import Index
from tilewright.passes.mlir import ir


@dataclass(frozen=True)
class RunValues:
    """Values that all launches of one `tw_run` share. slots: room for a launch's arguments. work: the first thread's workspace,
    stride: bytes to the next one's. dims: the model's. operands, given: room for the pointers of a call that shares its function,
    and the model's dims in memory. entry: where a call that is launched with others puts what it needs; null of others. joins: of
    a call, by its operand, parts that its kernel may join at once."""

    table: ir.Value
    scalars: ir.Value
    slots: ir.Value
    threads: ir.Value
    work: ir.Value
    stride: Index
    dims: Mapping[str, Index]
    operands: ir.Value
    given: ir.Value
    entry: ir.Value
    joins: Mapping[int, Joining] = field(default_factory=dict)
