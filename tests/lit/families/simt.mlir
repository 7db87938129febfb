// RUN: tilewright opt %s --pass 'tile{config="simt{bm=32 bn=32 bk=8 tm=4 tn=4 stages=2}"},emit-micro-kernel{symbol=mm}' | filecheck %s
// RUN: tilewright opt %s --pass 'tile{config="simt{bm=32 bn=32 bk=8 tm=4 tn=4 vec=1 index=64}"},emit-micro-kernel{symbol=mm}' | filecheck %s --check-prefix=FREE
// RUN: tilewright opt %s --pass 'tile{config="simt{bm=32 bn=32 bk=8 tm=4 tn=4 split-k=2 min-blocks-per-sm=2}"},emit-micro-kernel{symbol=mm}' | filecheck %s --check-prefix=SPLIT


// A block per tile; whole vectors by guards on extents, strides and offsets.
// CHECK: tw.kernel = "{{.*}}floordiv(M + 31, 32)*floordiv(N + 31, 32){{.*}}mod(K, 4){{.*}}mod(operand0.stride0, 4)
// CHECK: llvm.mlir.global external @shared_memory() {addr_space = 3 : i32, alignment = 1024 : i64} : !llvm.array<0 x i8>
// CHECK: llvm.func @mm(%{{.*}}: !llvm.ptr<1> {llvm.noalias, llvm.readonly}, %{{.*}}: i64
// CHECK-SAME: nvvm.kernel, nvvm.reqntid = array<i32: 64>
// CHECK: nvvm.read.ptx.sreg.ctaid.x : i32
// The prologue fills one stage, then the loop: wait, copy ahead, multiply.
// CHECK: scf.if
// CHECK: nvvm.cp.async.shared.global %{{.*}}, %{{.*}}, 16, cache = cg, %
// CHECK: nvvm.cp.async.commit.group
// CHECK: scf.for {{.*}} : i32
// CHECK: nvvm.cp.async.wait.group 0
// CHECK: nvvm.barrier
// CHECK: nvvm.cp.async.shared.global
// CHECK: llvm.load %{{.*}} {alignment = 16 : i64} : !llvm.ptr<3> -> vector<4xf32>
// CHECK: llvm.intr.fmuladd
// CHECK: scf.yield
// Sums go out in vectors, under their bounds.
// CHECK: arith.cmpi slt
// CHECK: scf.if
// CHECK: llvm.store %{{.*}}, %{{.*}} {alignment = 16 : i64} : vector<4xf32>, !llvm.ptr<1>

// FREE: guards\22:[]
// FREE: nvvm.cp.async.shared.global %{{.*}}, %{{.*}}, 4, cache = ca, %
// FREE: scf.for {{.*}} : i64
// FREE-NOT: vector<4xf32>, !llvm.ptr<1>

// The parts of k are summed by a second entry, in order.
// SPLIT: tw.kernel = "{{.*}}workspace{{.*}}mm_sum
// SPLIT: llvm.func @mm(
// SPLIT-SAME: nvvm.minctasm = 2 : i32
// SPLIT: nvvm.read.ptx.sreg.ctaid.y
// SPLIT: llvm.func @mm_sum(
// SPLIT: arith.addf
func.func @workload(%a: tensor<?x?xf32> {tw.dims = ["M", "K"], tw.unit = 1}, %b: tensor<?x?xf32> {tw.dims = ["K", "N"], tw.unit = 1},
                    %M: index {tw.dims = ["M"]}, %N: index {tw.dims = ["N"]}, %K: index {tw.dims = ["K"]})
    -> (tensor<?x?xf32> {tw.dims = ["M", "N"], tw.unit = 1}) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty(%M, %N) : tensor<?x?xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<?x?xf32>) -> tensor<?x?xf32>
  %c = linalg.matmul ins(%a, %b : tensor<?x?xf32>, tensor<?x?xf32>) outs(%z : tensor<?x?xf32>) -> tensor<?x?xf32>
  return %c : tensor<?x?xf32>
}
