"""The text of a host program before it is filled: its functions, and the floating-point environment that its launches run in."""

from __future__ import annotations

from tilewright.compiler.host.host_groups import together_ir
from tilewright.runtime.device import ALLOC, RELEASE
from tilewright.runtime.float_environment import MXCSR, RAISED

_SKELETON = """
llvm.func @tw_arena_bytes(%dims: !llvm.ptr, %threads: i64) -> i64 {
  %0 = llvm.mlir.constant(0 : i64) : i64
  llvm.return %0 : i64
}
llvm.func internal @tw_check(%dims: !llvm.ptr) -> i64 {
  %0 = llvm.mlir.constant(0 : i64) : i64
  llvm.return %0 : i64
}
llvm.func internal @tw_launches(%table: !llvm.ptr, %tensors: !llvm.ptr, %scalars: !llvm.ptr, %dims: !llvm.ptr,
    %arena: !llvm.ptr, %threads: i64) -> i64 {
  %0 = llvm.call @tw_check(%dims) : (!llvm.ptr) -> i64
  llvm.return %0 : i64
}
llvm.func @tw_call(%table: !llvm.ptr, %tensors: !llvm.ptr, %scalars: !llvm.ptr, %dims: !llvm.ptr, %threads: i64) -> i64 {
  %bytes = llvm.call @tw_arena_bytes(%dims, %threads) : (!llvm.ptr, i64) -> i64
  %pa = llvm.getelementptr %table[ALLOC] : (!llvm.ptr) -> !llvm.ptr, i64
  %alloc = llvm.load %pa : !llvm.ptr -> !llvm.ptr
  %arena = llvm.call %alloc(%table, %bytes) : !llvm.ptr, (!llvm.ptr, i64) -> !llvm.ptr
  %null = llvm.mlir.zero : !llvm.ptr
  %none = llvm.icmp "eq" %arena, %null : !llvm.ptr
  llvm.cond_br %none, ^empty, ^run
^empty:
  %minus = llvm.mlir.constant(-1 : i64) : i64
  llvm.return %minus : i64
^run:
  %rc = llvm.call @tw_run(%table, %tensors, %scalars, %dims, %arena, %threads)
      : (!llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, i64) -> i64
  %pr = llvm.getelementptr %table[RELEASE] : (!llvm.ptr) -> !llvm.ptr, i64
  %release = llvm.load %pr : !llvm.ptr -> !llvm.ptr
  llvm.call %release(%table, %arena) : !llvm.ptr, (!llvm.ptr, !llvm.ptr) -> ()
  llvm.return %rc : i64
}
llvm.func @tw_dispatch(%call: i64, %dims: !llvm.ptr) -> i64 {
  %0 = llvm.mlir.constant(-1 : i64) : i64
  llvm.return %0 : i64
}
""".replace("ALLOC", str(ALLOC)).replace("RELEASE", str(RELEASE))

_LAUNCHES = """%rc = llvm.call @tw_launches(%table, %tensors, %scalars, %dims, %arena, %threads)
      : (!llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, i64) -> i64"""
# By architecture: the launches in the floating-point environment of all calls, which costs some 4 ns where the caller is in it
# already. The caller's word comes back as it was.
_IN_ENVIRONMENT = {"x86_64": f"""
  %one = llvm.mlir.constant(1 : i64) : i64
  %given = llvm.alloca %one x i32 : (i64) -> !llvm.ptr
  %own = llvm.alloca %one x i32 : (i64) -> !llvm.ptr
  %wanted = llvm.mlir.constant({MXCSR} : i32) : i32
  %modes = llvm.mlir.constant({~RAISED} : i32) : i32
  llvm.call_intrinsic "llvm.x86.sse.stmxcsr"(%given) : (!llvm.ptr) -> ()
  %word = llvm.load %given : !llvm.ptr -> i32
  %mode = llvm.and %word, %modes : i32
  %other = llvm.icmp "ne" %mode, %wanted : i32
  llvm.cond_br %other, ^enter, ^run
^enter:
  llvm.store %wanted, %own : i32, !llvm.ptr
  llvm.call_intrinsic "llvm.x86.sse.ldmxcsr"(%own) : (!llvm.ptr) -> ()
  llvm.br ^run
^run:
  {_LAUNCHES}
  llvm.cond_br %other, ^leave, ^end
^leave:
  llvm.call_intrinsic "llvm.x86.sse.ldmxcsr"(%given) : (!llvm.ptr) -> ()
  llvm.br ^end
^end:
"""}


_SHARED = """
llvm.func internal @tw_launch_{number}(%common: !llvm.ptr, %slots: !llvm.ptr, %first: i64, %entry: !llvm.ptr)
    attributes {{passthrough = ["noinline"]}} {{
  llvm.return
}}
"""


def skeleton(arch: str, shared: int) -> str:
    """All functions; HostProgram fills those whose body is one constant or one call. shared: how many serve several calls."""
    body = _IN_ENVIRONMENT.get(arch, _LAUNCHES)
    return _SKELETON + together_ir(arch) + "".join(_SHARED.format(number=n) for n in range(shared)) + f"""
llvm.func @tw_run(%table: !llvm.ptr, %tensors: !llvm.ptr, %scalars: !llvm.ptr, %dims: !llvm.ptr,
    %arena: !llvm.ptr, %threads: i64) -> i64 {{
  {body}
  llvm.return %rc : i64
}}
"""
