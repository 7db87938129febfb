// RUN: tilewright opt %s --pass 'tile{config="gpu_pointwise"},emit-micro-kernel{symbol=turn}' | filecheck %s
// RUN: tilewright opt %s --pass 'tile{config="gpu_pointwise{vec=1 tile=32}"},emit-micro-kernel{symbol=turn}' | filecheck %s --check-prefix=TILE


// A thread gathers four elements and stores them at once.
// CHECK: tw.kernel = "{{.*}}mod(M, 4)
// CHECK: llvm.func @turn(
// CHECK-COUNT-4: llvm.load %{{.*}} {alignment = 4 : i64} : !llvm.ptr<1> -> f32
// CHECK: llvm.store %{{.*}} {alignment = 16 : i64} : vector<4xf32>, !llvm.ptr<1>

// Tiles go through shared memory.
// TILE: tw.kernel = "{{.*}}floordiv(M + 31, 32)*floordiv(N + 31, 32)
// TILE: llvm.store %{{.*}} : f32, !llvm.ptr<3>
// TILE: nvvm.barrier
// TILE: llvm.load %{{.*}} : !llvm.ptr<3> -> f32
// TILE: llvm.store %{{.*}} : f32, !llvm.ptr<1>
func.func @workload(%x: tensor<?x?xf32> {tw.dims = ["M", "N"], tw.unit = 1}, %M: index {tw.dims = ["M"]}, %N: index {tw.dims = ["N"]})
    -> (tensor<?x?xf32> {tw.dims = ["N", "M"], tw.unit = 1}) {
  %e = tensor.empty(%N, %M) : tensor<?x?xf32>
  %t = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d1, d0)>, affine_map<(d0, d1) -> (d0, d1)>],
                       iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<?x?xf32>) outs(%e : tensor<?x?xf32>) {
  ^bb0(%a: f32, %o: f32):
    linalg.yield %a : f32
  } -> tensor<?x?xf32>
  return %t : tensor<?x?xf32>
}
