"""Calls that are launched together: one parallel loop over the work of all of them, in phases.

Each call has an entry of four words: its work in units of GRAIN, the work units of its kernel, the kernel, its slots. Threads
take the work of a phase in pieces, so that they share it by what it takes, and whoever has a piece runs those units of the
kernels that begin there. Who finds none left waits until all of the phase is done, then goes on with the next one. Nobody waits
who has work, so a phase ends with any number of threads; which thread ran a unit has no influence on its result. One thread alone
runs the calls in their order. Phases of little work at the end are the caller's alone: the others leave before, so that nobody
else reads the words that it waits for.
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
PHASE = 16  # words of a phase, two lines of a cache
_SPINS = 1000  # until a thread that waits lets others run: some 30 microseconds
_PAUSE = {"x86_64": '  llvm.call_intrinsic "llvm.x86.sse2.pause"() : () -> ()'}

_LENGTHS = 8  # powers of two of pieces, from PIECES on, up to which launches are told apart

_LENGTH = """
llvm.func internal @tw_phases_$N(%head: !llvm.ptr, %begin: i64, %end: i64, %workspace: !llvm.ptr) {
  llvm.call @tw_phases(%head, %begin, %end, %workspace) : (!llvm.ptr, i64, i64, !llvm.ptr) -> ()
  llvm.return
}"""
_FIELDS = """\
  %at = llvm.mul %number, %width : i64
  %phase = llvm.getelementptr %head[%at] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %group_at = llvm.getelementptr %phase[1] : (!llvm.ptr) -> !llvm.ptr, i64
  %total_at = llvm.getelementptr %phase[2] : (!llvm.ptr) -> !llvm.ptr, i64
  %claims_at = llvm.getelementptr %phase[3] : (!llvm.ptr) -> !llvm.ptr, i64
  %each_at = llvm.getelementptr %phase[4] : (!llvm.ptr) -> !llvm.ptr, i64
  %least_at = llvm.getelementptr %phase[5] : (!llvm.ptr) -> !llvm.ptr, i64
  %done_at = llvm.getelementptr %phase[8] : (!llvm.ptr) -> !llvm.ptr, i64"""  # where the words of the phase `%number` lie

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
llvm.func @sched_yield() -> i32
llvm.func internal @tw_phases(%head: !llvm.ptr, %begin: i64, %end: i64, %workspace: !llvm.ptr)
    attributes {passthrough = ["noinline"]} {
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %width = llvm.mlir.constant(PHASE : i64) : i64
  %half = llvm.mlir.constant(32 : i64) : i64
  %mask = llvm.mlir.constant(4294967295 : i64) : i64
  %front_one = llvm.mlir.constant(4294967296 : i64) : i64
  %spins = llvm.mlir.constant(SPINS : i64) : i64
  %count = llvm.load %head : !llvm.ptr -> i64
  %threads_at = llvm.getelementptr %head[1] : (!llvm.ptr) -> !llvm.ptr, i64
  %threads = llvm.load %threads_at : !llvm.ptr -> i64
  %twofold = llvm.add %threads, %threads : i64
  %shared_at = llvm.getelementptr %head[2] : (!llvm.ptr) -> !llvm.ptr, i64
  %shared = llvm.load %shared_at : !llvm.ptr -> i64
  llvm.br ^turn(%begin : i64)
^turn(%turn: i64):
  %turns = llvm.icmp "slt" %turn, %end : i64
  llvm.cond_br %turns, ^phase(%one : i64), ^exit
^phase(%number: i64):
  %odd = llvm.and %turn, %one : i64
  %back = llvm.icmp "ne" %odd, %zero : i64
$FIELDS
  %group = llvm.load %group_at : !llvm.ptr -> !llvm.ptr
  %total = llvm.load %total_at : !llvm.ptr -> i64
  %claims = llvm.load %claims_at : !llvm.ptr -> i64
  %each = llvm.load %each_at : !llvm.ptr -> i64
  %least = llvm.load %least_at : !llvm.ptr -> i64
  llvm.br ^look(%zero : i64)
^look(%did: i64):
  %word = llvm.load %phase atomic acquire {alignment = 8 : i64} : !llvm.ptr -> i64
  %front = llvm.lshr %word, %half : i64
  %behind = llvm.and %word, %mask : i64
  %left = llvm.sub %behind, %front : i64
  %some = llvm.icmp "sgt" %left, %zero : i64
  llvm.cond_br %some, ^claim, ^told(%did : i64)
^claim:
  %share = llvm.udiv %left, %twofold : i64
  %wanted = llvm.intr.smax(%share, %least) : (i64, i64) -> i64
  %taken = llvm.intr.smin(%wanted, %left) : (i64, i64) -> i64
  %forward = llvm.mul %taken, %front_one : i64
  %fewer = llvm.sub %word, %taken : i64
  %later = llvm.add %word, %forward : i64
  %next = llvm.select %back, %fewer, %later : i1, i64
  %pair = llvm.cmpxchg %phase, %word, %next acq_rel monotonic {alignment = 8 : i64} : !llvm.ptr, i64
  %mine = llvm.extractvalue %pair[1] : !llvm.struct<(i64, i1)>
  llvm.cond_br %mine, ^run, ^look(%did : i64)
^run:
  %last = llvm.sub %behind, %taken : i64
  %low = llvm.select %back, %last, %front : i1, i64
  %high = llvm.add %low, %taken : i64
  %from = llvm.mul %low, %each : i64
  %upto = llvm.mul %high, %each : i64
  %to = llvm.intr.smin(%upto, %total) : (i64, i64) -> i64
  llvm.call @tw_pieces(%group, %from, %to, %workspace) : (!llvm.ptr, i64, i64, !llvm.ptr) -> ()
  %more = llvm.add %did, %taken : i64
  llvm.br ^look(%more : i64)
^told(%own: i64):
  %any = llvm.icmp "ne" %own, %zero : i64
  llvm.cond_br %any, ^tell, ^waits
^tell:
  %before = llvm.atomicrmw add %done_at, %own acq_rel {alignment = 8 : i64} : !llvm.ptr, i64
  llvm.br ^waits
^waits:
  %helps = llvm.icmp "ne" %turn, %zero : i64
  %left_over = llvm.select %helps, %shared, %count : i1, i64
  %ends = llvm.icmp "sge" %number, %left_over : i64
  llvm.cond_br %ends, ^over, ^wait(%zero : i64)
^wait(%waited: i64):
  %done = llvm.load %done_at atomic acquire {alignment = 8 : i64} : !llvm.ptr -> i64
  %all = llvm.icmp "eq" %done, %claims : i64
  llvm.cond_br %all, ^ahead, ^hold
^hold:
  %long = llvm.icmp "ugt" %waited, %spins : i64
  llvm.cond_br %long, ^yield, ^pause
^pause:
$PAUSE
  %waits = llvm.add %waited, %one : i64
  llvm.br ^wait(%waits : i64)
^yield:
  %yielded = llvm.call @sched_yield() : () -> i32
  llvm.br ^wait(%zero : i64)
^ahead:
  %following = llvm.add %number, %one : i64
  llvm.br ^phase(%following : i64)
^over:
  %turned = llvm.add %turn, %one : i64
  llvm.br ^turn(%turned : i64)
^exit:
  llvm.return
}
$LENGTHS
llvm.func internal @tw_in_turn(%head: !llvm.ptr, %workspace: !llvm.ptr) {
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %width = llvm.mlir.constant(PHASE : i64) : i64
  %entry_words = llvm.mlir.constant(ENTRY : i64) : i64
  %count = llvm.load %head : !llvm.ptr -> i64
  llvm.br ^phase(%one : i64)
^phase(%number: i64):
  %at = llvm.mul %number, %width : i64
  %phase = llvm.getelementptr %head[%at] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %group_at = llvm.getelementptr %phase[1] : (!llvm.ptr) -> !llvm.ptr, i64
  %group = llvm.load %group_at : !llvm.ptr -> !llvm.ptr
  %calls = llvm.load %group : !llvm.ptr -> i64
  llvm.br ^call(%zero : i64)
^call(%call: i64):
  %skipped = llvm.mul %call, %entry_words : i64
  %behind = llvm.add %skipped, %one : i64
  %entry = llvm.getelementptr %group[%behind] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %units_at = llvm.getelementptr %entry[UNITS] : (!llvm.ptr) -> !llvm.ptr, i64
  %units = llvm.load %units_at : !llvm.ptr -> i64
  %second = llvm.add %call, %one : i64
  %more = llvm.icmp "slt" %second, %calls : i64
  %any = llvm.icmp "sgt" %units, %zero : i64
  llvm.cond_br %any, ^run, ^next
^run:
  %kernel_at = llvm.getelementptr %entry[KERNEL] : (!llvm.ptr) -> !llvm.ptr, i64
  %kernel = llvm.load %kernel_at : !llvm.ptr -> !llvm.ptr
  %slots_at = llvm.getelementptr %entry[SLOTS] : (!llvm.ptr) -> !llvm.ptr, i64
  %slots = llvm.load %slots_at : !llvm.ptr -> !llvm.ptr
  llvm.call %kernel(%slots, %zero, %units, %workspace) : !llvm.ptr, (!llvm.ptr, i64, i64, !llvm.ptr) -> ()
  llvm.br ^next
^next:
  llvm.cond_br %more, ^call(%second : i64), ^following
^following:
  %later = llvm.add %number, %one : i64
  %left = llvm.icmp "sle" %later, %count : i64
  llvm.cond_br %left, ^phase(%later : i64), ^exit
^exit:
  llvm.return
}
llvm.func internal @tw_together(%table: !llvm.ptr, %head: !llvm.ptr, %threads: i64, %work: !llvm.ptr, %stride: i64)
    attributes {passthrough = ["noinline"]} {
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %entry_words = llvm.mlir.constant(ENTRY : i64) : i64
  %width = llvm.mlir.constant(PHASE : i64) : i64
  %small = llvm.mlir.constant(PIECES : i64) : i64
  %claim = llvm.mlir.constant(CLAIM : i64) : i64
  %bits = llvm.mlir.constant(31 : i64) : i64
  %count = llvm.load %head : !llvm.ptr -> i64
  %single = llvm.icmp "eq" %threads, %one : i64
  llvm.cond_br %single, ^in_turn, ^phase(%one, %one, %zero, %zero : i64, i64, i64, i64)
^phase(%number: i64, %useful: i64, %before: i64, %large: i64):
$FIELDS
  %group = llvm.load %group_at : !llvm.ptr -> !llvm.ptr
  %calls = llvm.load %group : !llvm.ptr -> i64
  llvm.br ^sum(%zero, %zero : i64, i64)
^sum(%call: i64, %sum: i64):
  %more = llvm.icmp "slt" %call, %calls : i64
  llvm.cond_br %more, ^entry, ^known
^entry:
  %skipped = llvm.mul %call, %entry_words : i64
  %behind = llvm.add %skipped, %one : i64
  %entry = llvm.getelementptr %group[%behind] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %own = llvm.load %entry : !llvm.ptr -> i64
  %longer = llvm.add %sum, %own : i64
  %second = llvm.add %call, %one : i64
  llvm.br ^sum(%second, %longer : i64, i64)
^known:
  %enough = llvm.add %calls, %small : i64
  %little = llvm.icmp "slt" %sum, %enough : i64
  %scale = llvm.lshr %sum, %bits : i64
  %each = llvm.add %scale, %one : i64
  %up = llvm.add %sum, %scale : i64
  %claims = llvm.udiv %up, %each : i64
  %least = llvm.select %little, %claims, %claim : i1, i64
  llvm.store %claims, %phase : i64, !llvm.ptr
  llvm.store %sum, %total_at : i64, !llvm.ptr
  llvm.store %claims, %claims_at : i64, !llvm.ptr
  llvm.store %each, %each_at : i64, !llvm.ptr
  llvm.store %least, %least_at : i64, !llvm.ptr
  llvm.store %zero, %done_at : i64, !llvm.ptr
  %used = llvm.select %little, %useful, %threads : i1, i64
  %last_large = llvm.select %little, %large, %number : i1, i64
  %following = llvm.add %number, %one : i64
  %all = llvm.add %before, %sum : i64
  %phases = llvm.icmp "slt" %number, %count : i64
  llvm.cond_br %phases, ^phase(%following, %used, %all, %last_large : i64, i64, i64, i64), ^launch
^launch:
  %alone = llvm.icmp "eq" %used, %one : i64
  llvm.cond_br %alone, ^in_turn, ^share
^in_turn:
  llvm.call @tw_in_turn(%head, %work) : (!llvm.ptr, !llvm.ptr) -> ()
  llvm.return
^share:
  %threads_at = llvm.getelementptr %head[1] : (!llvm.ptr) -> !llvm.ptr, i64
  llvm.store %used, %threads_at : i64, !llvm.ptr
  %shared_at = llvm.getelementptr %head[2] : (!llvm.ptr) -> !llvm.ptr, i64
  llvm.store %last_large, %shared_at : i64, !llvm.ptr
  %field = llvm.getelementptr %table[LOOP] : (!llvm.ptr) -> !llvm.ptr, i64
  %loop = llvm.load %field : !llvm.ptr -> !llvm.ptr
$CHOSEN
  llvm.call %loop(%table, %each_thread, %head, %used, %used, %work, %stride)
      : !llvm.ptr, (!llvm.ptr, !llvm.ptr, !llvm.ptr, i64, i64, !llvm.ptr, i64) -> ()
  llvm.return
}
"""


def together_ir(arch: str) -> str:
    """The functions `tw_together(table, head, threads, workspaces, stride)` and what it loops with.

    head: PHASE words, the first of which is the number of phases; then for each phase as many, of which the second is the address
    of its group; all others are filled here, the third of the head with the number of the last phase that is no little one. A
    group is the number of its calls, then their entries. The parallel loop has a unit for each thread, which goes through all
    phases: the caller's takes work from the front, every other one from the back, so that what one phase leaves in a core's cache
    is there for the next. arch: in LLVM's words.

    `tw_share(kernel, slots, units, work, low, high, workspace)` runs those of a kernel's units that begin in its pieces
    [low, high) of `work`.
    """
    text = _TEXT.replace("$PAUSE", _PAUSE.get(arch, "")).replace("$FIELDS", _FIELDS)
    text = text.replace("$LENGTHS", "".join(_LENGTH.replace("$N", str(n)) for n in range(_LENGTHS))).replace("$CHOSEN", _chosen())
    for name, number in (("ENTRY", ENTRY), ("UNITS", UNITS), ("KERNEL", KERNEL), ("SLOTS", SLOTS), ("LOOP", PARALLEL_FOR),
                         ("PIECES", PIECES), ("PHASE", PHASE), ("SPINS", _SPINS), ("CLAIM", PIECES // 2)):
        text = text.replace(f"({name} ", f"({number} ").replace(f"[{name}]", f"[{number}]")
    return text


def _chosen() -> str:
    """`%each_thread`: what goes through the phases, by another name for every power of two of `%all`. What the pool learns of a
    loop it keeps by its function and its units, which are threads here, and says nothing of what a unit takes."""
    lines = ["  %length0 = llvm.mlir.addressof @tw_phases_0 : !llvm.ptr"]
    for n in range(1, _LENGTHS):
        lines += [f"  %bound{n} = llvm.mlir.constant({PIECES << n} : i64) : i64",
                  f"  %named{n} = llvm.mlir.addressof @tw_phases_{n} : !llvm.ptr",
                  f'  %longer{n} = llvm.icmp "sge" %all, %bound{n} : i64',
                  f"  %length{n} = llvm.select %longer{n}, %named{n}, %length{n - 1} : i1, !llvm.ptr"]
    return "\n".join(lines).replace(f"%length{_LENGTHS - 1} =", "%each_thread =")


def pieces(workload: Workload, local: dict[str, Index], index: ir.Type) -> ir.Value:
    """Work of a call for its entry, 1 at least."""
    return emit_expr(effort(workload).ceildiv(GRAIN).maximum(1), local).value(index)
