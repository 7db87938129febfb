"""RunValues: what the code of one run of a host program shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.compiler.host.joined_parts import Joining
from tilewright.passes.codegen.index import Index
from tilewright.passes.mlir import ir

ADDRESSES, COMMON = 5, 7  # words of `common`: those that are addresses come first


@dataclass(frozen=True)
class RunValues:
    """Values that all launches of one `tw_run` share. slots: room for a launch's arguments. work: the first thread's workspace,
    stride: bytes to the next one's. dims: the model's. operands: room for the pointers of a call that shares its function.
    common: what all those functions are given, in memory, since hundreds of calls of ten arguments are much work for LLVM.
    entry: where a call that is launched with others puts what it needs; null of others. joins: of a call, by its operand, parts
    that its kernel may join at once."""

    table: ir.Value
    scalars: ir.Value
    slots: ir.Value
    threads: ir.Value
    work: ir.Value
    stride: Index
    dims: Mapping[str, Index]
    operands: ir.Value
    common: ir.Value
    entry: ir.Value
    joins: Mapping[int, Joining] = field(default_factory=dict)

    def in_common(self, dims: ir.Value, stride: ir.Value) -> tuple[ir.Value, ...]:
        """What is stored in `common`, in order. dims: the model's, in memory; stride: as a value."""
        return self.table, self.operands, self.scalars, dims, self.work, self.threads, stride
