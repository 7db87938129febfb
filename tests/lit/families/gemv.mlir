// RUN: tilewright opt %s --pass 'tile{config="gemv{rows=4 warps=2}"},emit-micro-kernel{symbol=mm}' | filecheck %s
// RUN: tilewright opt %s --pass 'tile{config="gemv{rows=4 warps=2 cluster-k=2}"},emit-micro-kernel{symbol=mm}' | filecheck %s --check-prefix=CLUSTER
// RUN: tilewright opt %s --pass 'tile{config="gemv{rows=4 warps=2 split-k=2}"},emit-micro-kernel{symbol=mm}' | filecheck %s --check-prefix=SPLIT


// A block for 4 rows and 32 columns; whole vectors along k by guards.
// CHECK: tw.kernel = "{{.*}}floordiv(M + 3, 4)*floordiv(N + 31, 32){{.*}}mod(K, 4){{.*}}mod(operand1.stride0, 4)
// CHECK: nvvm.kernel, nvvm.minctasm = 4 : i32, nvvm.reqntid = array<i32: 64>
// Weights and rows go from memory into registers, whole steps first, then what is left of k with zeros behind it.
// CHECK: scf.for
// CHECK: llvm.load %{{.*}} {alignment = 16 : i64} : !llvm.ptr<1> -> vector<4xf32>
// CHECK: llvm.intr.fmuladd
// CHECK: scf.if
// CHECK: arith.select %{{.*}}, %{{.*}}, %{{.*}} : vector<4xf32>
// Lanes along k join, then warps, in order.
// CHECK: nvvm.shfl.sync bfly
// CHECK: nvvm.barrier
// CHECK: arith.addf

// CLUSTER: nvvm.cluster_dim = array<i32: 2, 1, 1>
// CLUSTER: nvvm.cluster.arrive
// CLUSTER: nvvm.cluster.wait
// CLUSTER: nvvm.mapa
// CLUSTER: llvm.load %{{.*}} : !llvm.ptr<7> -> f32
// CLUSTER: nvvm.cluster.wait

// SPLIT: tw.kernel = "{{.*}}workspace{{.*}}mm_sum
// SPLIT: llvm.func @mm_sum(
func.func @workload(%a: tensor<?x?xf32> {tw.dims = ["M", "K"], tw.unit = 1}, %b: tensor<?x?xf32> {tw.dims = ["N", "K"], tw.unit = 1},
                    %M: index {tw.dims = ["M"]}, %N: index {tw.dims = ["N"]}, %K: index {tw.dims = ["K"]})
    -> (tensor<?x?xf32> {tw.dims = ["M", "N"], tw.unit = 1}) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty(%M, %N) : tensor<?x?xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<?x?xf32>) -> tensor<?x?xf32>
  %c = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]} ins(%a, %b : tensor<?x?xf32>, tensor<?x?xf32>) outs(%z : tensor<?x?xf32>) {
    ^bb0(%x: f32, %y: f32, %acc: f32):
      %p = arith.mulf %x, %y : f32
      %s = arith.addf %acc, %p : f32
      linalg.yield %s : f32
  } -> tensor<?x?xf32>
  return %c : tensor<?x?xf32>
}
