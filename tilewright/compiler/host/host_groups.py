"""Calls that are launched together: one parallel loop over the work of all of them.

Each call has an entry of four words: its work in units of GRAIN, the work units of its kernel, the kernel, its slots. The loop
runs over the work of all entries, so that threads share it by what it takes, and whoever has a piece of it runs those units of
the kernels that begin there.
"""

from __future__ import annotations

from tilewright.passes.codegen.index import Index, emit_expr
from tilewright.passes.mlir import ir
from tilewright.passes.spaces.threads import SMALL, effort
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.device import PARALLEL_FOR

ENTRY = 4  # words of a call
WORK, UNITS, KERNEL, SLOTS = range(ENTRY)
PIECES = 8  # of work that one thread does alone
GRAIN = SMALL // PIECES  # half-operations of a piece

_TEXT = """
llvm.func internal @tw_share(%kernel: !llvm.ptr, %slots: !llvm.ptr, %units: i64, %work: i64, %low: i64, %high: i64,
                             %workspace: !llvm.ptr) {
  %one = llvm.mlir.constant(1 : i64) : i64
  %round = llvm.sub %work, %one : i64
  %scaled0 = llvm.mul %low, %units : i64
  %scaled1 = llvm.mul %high, %units : i64
  %up0 = llvm.add %scaled0, %round : i64
  %up1 = llvm.add %scaled1, %round : i64
  %unit0 = llvm.udiv %up0, %work : i64
  %unit1 = llvm.udiv %up1, %work : i64
  %any = llvm.icmp "slt" %unit0, %unit1 : i64
  llvm.cond_br %any, ^run, ^exit
^run:
  llvm.call %kernel(%slots, %unit0, %unit1, %workspace) : !llvm.ptr, (!llvm.ptr, i64, i64, !llvm.ptr) -> ()
  llvm.br ^exit
^exit:
  llvm.return
}
llvm.func internal @tw_pieces(%group: !llvm.ptr, %begin: i64, %end: i64, %workspace: !llvm.ptr) {
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %width = llvm.mlir.constant(ENTRY : i64) : i64
  %count = llvm.load %group : !llvm.ptr -> i64
  llvm.br ^next(%zero, %zero : i64, i64)
^next(%number: i64, %start: i64):
  %more = llvm.icmp "slt" %number, %count : i64
  llvm.cond_br %more, ^entry, ^exit
^entry:
  %skipped = llvm.mul %number, %width : i64
  %at = llvm.add %skipped, %one : i64
  %entry = llvm.getelementptr %group[%at] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %work = llvm.load %entry : !llvm.ptr -> i64
  %stop = llvm.add %start, %work : i64
  %low = llvm.intr.smax(%begin, %start) : (i64, i64) -> i64
  %high = llvm.intr.smin(%end, %stop) : (i64, i64) -> i64
  %following = llvm.add %number, %one : i64
  %some = llvm.icmp "slt" %low, %high : i64
  llvm.cond_br %some, ^share, ^next(%following, %stop : i64, i64)
^share:
  %units_at = llvm.getelementptr %entry[UNITS] : (!llvm.ptr) -> !llvm.ptr, i64
  %units = llvm.load %units_at : !llvm.ptr -> i64
  %kernel_at = llvm.getelementptr %entry[KERNEL] : (!llvm.ptr) -> !llvm.ptr, i64
  %kernel = llvm.load %kernel_at : !llvm.ptr -> !llvm.ptr
  %slots_at = llvm.getelementptr %entry[SLOTS] : (!llvm.ptr) -> !llvm.ptr, i64
  %slots = llvm.load %slots_at : !llvm.ptr -> !llvm.ptr
  %piece0 = llvm.sub %low, %start : i64
  %piece1 = llvm.sub %high, %start : i64
  llvm.call @tw_share(%kernel, %slots, %units, %work, %piece0, %piece1, %workspace)
      : (!llvm.ptr, !llvm.ptr, i64, i64, i64, i64, !llvm.ptr) -> ()
  llvm.br ^next(%following, %stop : i64, i64)
^exit:
  llvm.return
}
llvm.func internal @tw_together(%table: !llvm.ptr, %group: !llvm.ptr, %threads: i64, %work: !llvm.ptr, %stride: i64)
    attributes {passthrough = ["noinline"]} {
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %width = llvm.mlir.constant(ENTRY : i64) : i64
  %small = llvm.mlir.constant(PIECES : i64) : i64
  %count = llvm.load %group : !llvm.ptr -> i64
  llvm.br ^next(%zero, %zero : i64, i64)
^next(%number: i64, %sum: i64):
  %more = llvm.icmp "slt" %number, %count : i64
  llvm.cond_br %more, ^entry, ^launch
^entry:
  %skipped = llvm.mul %number, %width : i64
  %at = llvm.add %skipped, %one : i64
  %entry = llvm.getelementptr %group[%at] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %own = llvm.load %entry : !llvm.ptr -> i64
  %total = llvm.add %sum, %own : i64
  %following = llvm.add %number, %one : i64
  llvm.br ^next(%following, %total : i64, i64)
^launch:
  %each = llvm.add %count, %small : i64
  %little = llvm.icmp "sle" %sum, %each : i64
  %used = llvm.select %little, %one, %threads : i1, i64
  %field = llvm.getelementptr %table[LOOP] : (!llvm.ptr) -> !llvm.ptr, i64
  %loop = llvm.load %field : !llvm.ptr -> !llvm.ptr
  %pieces = llvm.mlir.addressof @tw_pieces : !llvm.ptr
  llvm.call %loop(%table, %pieces, %group, %sum, %used, %work, %stride)
      : !llvm.ptr, (!llvm.ptr, !llvm.ptr, !llvm.ptr, i64, i64, !llvm.ptr, i64) -> ()
  llvm.return
}
"""
def together_ir() -> str:
    """The functions `tw_together(table, group, threads, workspaces, stride)` and what it loops with; a group is the number of its
    calls, then their entries. `tw_share(kernel, slots, units, work, low, high, workspace)` runs those of a kernel's units that
    begin in its pieces [low, high) of `work`."""
    text = _TEXT
    for name, number in (("ENTRY", ENTRY), ("UNITS", UNITS), ("KERNEL", KERNEL), ("SLOTS", SLOTS), ("LOOP", PARALLEL_FOR),
                         ("PIECES", PIECES)):
        text = text.replace(f"({name} ", f"({number} ").replace(f"[{name}]", f"[{number}]")
    return text


def pieces(workload: Workload, local: dict[str, Index], index: ir.Type) -> ir.Value:
    """Work of a call for its entry, 1 at least."""
    return emit_expr(effort(workload).ceildiv(GRAIN).maximum(1), local).value(index)
