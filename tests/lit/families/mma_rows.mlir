// RUN: tilewright opt %s --pass 'tile{config="mma_rows{bm=16 bn=64 wm=16 lanes=4 vectors-in-registers=1}"},emit-micro-kernel{symbol=sums}' | filecheck %s

// Two panels of 64 columns by tensor cores, into rows in shared memory; then a warp adds up a row, one vector of it in each lane.
// No element of the product goes to memory.
// CHECK: tw.kernel = "{{.*}}floordiv(M + 15, 16)
// CHECK: llvm.func @sums(
// CHECK-SAME: nvvm.reqntid = array<i32: 64>
// CHECK: scf.for
// CHECK: nvvm.cp.async.shared.global
// CHECK: scf.for
// CHECK: nvvm.mma.sync
// CHECK: llvm.store %{{.*}} : vector<2xf32>, !llvm.ptr<3>
// CHECK: nvvm.barrier
// CHECK: scf.for
// CHECK: llvm.load %{{.*}} : !llvm.ptr<3> -> vector<4xf32>
// CHECK-COUNT-5: nvvm.shfl.sync bfly
// CHECK: llvm.store %{{.*}} : f32, !llvm.ptr<1>
// CHECK-NOT: llvm.store
func.func @workload(%x: tensor<?x?xf16> {tw.dims = ["M", "K"], tw.unit = 1}, %w: tensor<?x100xf16> {tw.dims = ["K", 100], tw.unit = 1},
                    %M: index {tw.dims = ["M"]}, %K: index {tw.dims = ["K"]}) -> (tensor<?xf32> {tw.dims = ["M"], tw.unit = 0}) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty(%M) : tensor<?x100xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<?x100xf32>) -> tensor<?x100xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>,
                                        affine_map<(d0, d1, d2) -> (d0, d1)>],
                       iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<?x?xf16>, tensor<?x100xf16>) outs(%z : tensor<?x100xf32>) {
  ^bb0(%a: f16, %b: f16, %acc: f32):
    %c = arith.extf %a : f16 to f32
    %d = arith.extf %b : f16 to f32
    %p = arith.mulf %c, %d : f32
    %s = arith.addf %acc, %p : f32
    linalg.yield %s : f32
  } -> tensor<?x100xf32>
  %re = tensor.empty(%M) : tensor<?xf32>
  %rz = linalg.fill ins(%zero : f32) outs(%re : tensor<?xf32>) -> tensor<?xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>],
                       iterator_types = ["parallel", "reduction"]}
      ins(%y : tensor<?x100xf32>) outs(%rz : tensor<?xf32>) {
  ^bb0(%a: f32, %acc: f32):
    %s = arith.addf %a, %acc : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  return %r : tensor<?xf32>
}
