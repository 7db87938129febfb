// RUN: tilewright opt %s --pass "lower-to-llvm{gpu=true}" | filecheck %s
// RUN: tilewright opt %s --pass "lower-to-llvm{gpu=true}" --emit llvm | filecheck %s --check-prefix=LLVM
// RUN: tilewright opt %s --pass "lower-to-llvm{gpu=true}" --emit ptx --target cuda:sm_90a | filecheck %s --check-prefix=PTX
// RUN: not tilewright opt %s --emit ptx 2>&1 | filecheck %s --check-prefix=EARLY
// RUN: not tilewright opt %s --pass "lower-to-llvm{gpu=true}" --emit ptx --target cuda:sm_60 2>&1 | filecheck %s --check-prefix=OLD
// RUN: not tilewright opt %s --emit nonsense 2>&1 | filecheck %s --check-prefix=FORM

// EARLY: error: ops are left that have no lowering: {{.*}}arith.muli
// OLD: error: architecture 'sm_60': wanted sm_80 or later
// FORM: error: --emit 'nonsense': wanted llvm or ptx

// CHECK-LABEL: llvm.func @kernel
// CHECK-NOT: scf.for
// CHECK: llvm.cond_br
// LLVM: define ptx_kernel void @kernel(ptr addrspace(1) %{{.*}})
// LLVM: call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
// PTX: .target sm_90a
// PTX: .visible .entry kernel(
// PTX: mov.u32 {{.*}} %tid.x;
// PTX: st.global
llvm.func @kernel(%p: !llvm.ptr<1>, %n: i32) attributes {nvvm.kernel} {
  %zero = arith.constant 0 : i32
  %one = arith.constant 1 : i32
  %thread = nvvm.read.ptx.sreg.tid.x : i32
  %sum = scf.for %i = %zero to %n step %one iter_args(%s = %thread) -> (i32) : i32 {
    %t = arith.muli %s, %thread : i32
    scf.yield %t : i32
  }
  %q = llvm.getelementptr %p[%thread] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, i32
  llvm.store %sum, %q : i32, !llvm.ptr<1>
  llvm.return
}
