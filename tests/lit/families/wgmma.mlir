// RUN: tilewright opt %s --pass 'tile{config="wgmma{bm=128 bn=64 stages=4 blocks=132}"},emit-micro-kernel{symbol=mm}' | filecheck %s
// RUN: tilewright opt %s --pass 'tile{config="wgmma{bm=64 bn=64 consumers=1 blocks=0}"},emit-micro-kernel{symbol=mm}' | filecheck %s --check-prefix=TILES


// Blocks take tile after tile; both operands travel as tensor maps, whose alignment is guarded.
// CHECK: tw.kernel = "{{.*}}tensor_map{{.*}}box\22:[64,128],\22swizzle\22:128{{.*}}tensor_map{{.*}}box\22:[64,64]
// CHECK-SAME: min(132, floordiv(N + 63, 64)*floordiv(M + 127, 128))
// CHECK-SAME: mod(operand0.offset, 8)
// CHECK: llvm.func @mm(
// CHECK-SAME: !llvm.ptr {llvm.align = 64 : i64, llvm.byval = !llvm.array<128 x i8>, nvvm.grid_constant}
// CHECK-SAME: nvvm.reqntid = array<i32: 384>
// CHECK: nvvm.mbarrier.init
// CHECK: nvvm.fence.mbarrier.init
// CHECK: nvvm.barrier
// The warpgroup that copies gives registers away; one thread of it fills the ring.
// CHECK: nvvm.setmaxregister decrease 40
// CHECK: scf.for
// CHECK: scf.for
// CHECK: nvvm.mbarrier.try_wait.parity
// CHECK: nvvm.mbarrier.arrive.expect_tx
// CHECK: nvvm.cp.async.bulk.tensor.shared.cluster.global
// CHECK: nvvm.cp.async.bulk.tensor.shared.cluster.global
// CHECK: } else {
// CHECK: nvvm.setmaxregister increase 232
// CHECK: nvvm.mbarrier.try_wait.parity
// CHECK: nvvm.wgmma.fence.aligned
// CHECK-COUNT-4: nvvm.wgmma.mma_async
// CHECK: nvvm.wgmma.commit.group.sync.aligned
// CHECK: nvvm.wgmma.wait.group.sync.aligned 1
// CHECK: nvvm.mbarrier.arrive
// CHECK: nvvm.wgmma.wait.group.sync.aligned 0
// Results pass through shared memory of the warp's own.
// CHECK: nvvm.bar.warp.sync
// CHECK: llvm.store %{{.*}} : vector<2xf32>, !llvm.ptr<3>
// CHECK: nvvm.bar.warp.sync
// CHECK: llvm.store %{{.*}} : vector<8xf16>, !llvm.ptr<1>

// TILES: \22grid\22:[\22floordiv(M + 63, 64)*floordiv(N + 63, 64)\22
// TILES: nvvm.reqntid = array<i32: 256>
func.func @workload(%a: tensor<?x?xf16> {tw.dims = ["M", "K"], tw.unit = 1}, %b: tensor<?x?xf16> {tw.dims = ["K", "N"], tw.unit = 1},
                    %M: index {tw.dims = ["M"]}, %N: index {tw.dims = ["N"]}, %K: index {tw.dims = ["K"]})
    -> (tensor<?x?xf16> {tw.dims = ["M", "N"], tw.unit = 1}) {
  %zero = arith.constant 0.0 : f16
  %e = tensor.empty(%M, %N) : tensor<?x?xf16>
  %z = linalg.fill ins(%zero : f16) outs(%e : tensor<?x?xf16>) -> tensor<?x?xf16>
  %c = linalg.matmul ins(%a, %b : tensor<?x?xf16>, tensor<?x?xf16>) outs(%z : tensor<?x?xf16>) -> tensor<?x?xf16>
  return %c : tensor<?x?xf16>
}
