// PTX that would still name an LLVM intrinsic is refused, with the architecture that lacks the instruction.
// RUN: not tilewright opt %s --emit ptx --target cuda:sm_80 2>&1 | filecheck %s

// CHECK: error: sm_80 has no instruction for llvm.nvvm.no.such.thing
llvm.func @kernel(%p: !llvm.ptr<1>) attributes {nvvm.kernel} {
  %x = llvm.load %p : !llvm.ptr<1> -> f32
  %y = llvm.call @llvm.nvvm.no.such.thing(%x) : (f32) -> f32
  llvm.store %y, %p : f32, !llvm.ptr<1>
  llvm.return
}
llvm.func @llvm.nvvm.no.such.thing(f32) -> f32
