// RUN: tilewright opt %s --pass 'tile{config="mma{bm=32 bn=32 bk=32 wm=16 wn=16 stages=3}"},emit-micro-kernel{symbol=mm}' | filecheck %s
// RUN: tilewright opt %s --pass 'tile{config="mma{bm=32 bn=32 bk=32 wm=16 wn=16 stages=3 vec=1 index=64}"},emit-micro-kernel{symbol=mm}' | filecheck %s --check-prefix=FREE
// RUN: tilewright opt %s --pass 'tile{config="mma{bm=32 bn=32 bk=32 wm=16 wn=16 split-k=2 min-blocks-per-sm=2}"},emit-micro-kernel{symbol=mm}' | filecheck %s --check-prefix=SPLIT


// A block per tile; whole chunks of 16 bytes by guards on extents, strides and offsets.
// CHECK: tw.kernel = "{{.*}}floordiv(M + 31, 32)*floordiv(N + 31, 32){{.*}}mod(K, 8){{.*}}mod(operand0.stride0, 8)
// CHECK: llvm.func @mm(%{{.*}}: !llvm.ptr<1> {llvm.noalias, llvm.readonly}, %{{.*}}: i64
// CHECK-SAME: nvvm.kernel, nvvm.reqntid = array<i32: 128>
// Chunks of a row are permuted by its number; what is past an edge is filled with zeros.
// CHECK: scf.if
// CHECK: arith.xori
// CHECK: nvvm.cp.async.shared.global %{{.*}}, %{{.*}}, 16, cache = cg, %
// CHECK: nvvm.cp.async.commit.group
// CHECK: scf.for {{.*}} : i32
// CHECK: nvvm.cp.async.wait.group 1
// CHECK: nvvm.barrier
// CHECK: nvvm.cp.async.shared.global
// The left operand lies along k, the right one is turned.
// CHECK: nvvm.ldmatrix %{{.*}} {{{.*}}layout = #nvvm.mma_layout<row>, num = 4
// CHECK: nvvm.ldmatrix %{{.*}} {{{.*}}layout = #nvvm.mma_layout<col>, num = 4
// CHECK: nvvm.mma.sync {{.*}}shape = #nvvm.shape<m = 16, n = 8, k = 16>
// CHECK: scf.yield
// Sums go through shared memory and out in vectors, rounded.
// CHECK: nvvm.cp.async.wait.group 0
// CHECK: nvvm.barrier
// CHECK: llvm.store %{{.*}} : vector<2xf32>, !llvm.ptr<3>
// CHECK: nvvm.barrier
// CHECK: scf.for
// CHECK: llvm.load %{{.*}} : !llvm.ptr<3> -> vector<8xf32>
// CHECK: arith.truncf %{{.*}} : vector<8xf32> to vector<8xf16>
// CHECK: llvm.store %{{.*}} {alignment = 16 : i64} : vector<8xf16>, !llvm.ptr<1>

// FREE: guards\22:[]
// FREE-NOT: nvvm.cp.async.shared.global
// FREE: scf.for {{.*}} : i64
// FREE: nvvm.mma.sync

// SPLIT: tw.kernel = "{{.*}}workspace{{.*}}mm_sum
// SPLIT: llvm.func @mm(
// SPLIT-SAME: nvvm.minctasm = 2 : i32
// SPLIT: nvvm.mma.sync
// SPLIT: llvm.func @mm_sum(
func.func @workload(%a: tensor<?x?xf16> {tw.dims = ["M", "K"], tw.unit = 1}, %b: tensor<?x?xf16> {tw.dims = ["K", "N"], tw.unit = 1},
                    %M: index {tw.dims = ["M"]}, %N: index {tw.dims = ["N"]}, %K: index {tw.dims = ["K"]})
    -> (tensor<?x?xf16> {tw.dims = ["M", "N"], tw.unit = 1}) {
  %zero = arith.constant 0.0 : f16
  %e = tensor.empty(%M, %N) : tensor<?x?xf16>
  %z = linalg.fill ins(%zero : f16) outs(%e : tensor<?x?xf16>) -> tensor<?x?xf16>
  %c = linalg.matmul ins(%a, %b : tensor<?x?xf16>, tensor<?x?xf16>) outs(%z : tensor<?x?xf16>) -> tensor<?x?xf16>
  return %c : tensor<?x?xf16>
}
