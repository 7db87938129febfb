// RUN: tilewright opt %s --pass 'tile{config="gpu_rows{vectors-in-registers=2 unroll=1}"},emit-micro-kernel{symbol=sums}' | filecheck %s
// RUN: tilewright opt %s --pass 'tile{config="gpu_rows{threads=64 per_row=64 vec=1}"},emit-micro-kernel{symbol=sums}' | filecheck %s --check-prefix=BLOCK
// RUN: tilewright opt %s --pass 'tile{config="gpu_rows{threads=64 per_row=64 vec=1 blocks=4}"},emit-micro-kernel{symbol=sums}' | filecheck %s --check-prefix=SHARED


// A warp holds a row: two vectors a thread, five exchanges, no loop and no barrier; one thread stores.
// CHECK: tw.kernel = "{{.*}}floordiv(M + 3, 4){{.*}}max(0, N - 256)
// CHECK: llvm.func @sums(
// CHECK-SAME: nvvm.reqntid = array<i32: 128>
// CHECK-NOT: scf.for
// CHECK-COUNT-2: llvm.load %{{.*}} {alignment = 16 : i64} : !llvm.ptr<1> -> vector<4xf32>
// CHECK-COUNT-5: nvvm.shfl.sync bfly
// CHECK-NOT: nvvm.barrier
// CHECK: llvm.store %{{.*}} : f32, !llvm.ptr<1>

// BLOCK: scf.for
// BLOCK-COUNT-5: nvvm.shfl.sync bfly
// BLOCK: llvm.store %{{.*}} : f32, !llvm.ptr<3>
// BLOCK: nvvm.barrier
// BLOCK-COUNT-2: llvm.load %{{.*}} : !llvm.ptr<3> -> f32
// BLOCK: llvm.store %{{.*}} : f32, !llvm.ptr<1>

// Four blocks share a row; a second launch joins what they found, in their order.
// SHARED: \22grid\22:[\22M\22,\224\22,\221\22]{{.*}}\22workspace\22:\2216*M\22
// SHARED-SAME: sums_1{{.*}}\22grid\22:[\22M\22,\221\22,\221\22]
// SHARED: llvm.func @sums(
// SHARED: nvvm.read.ptx.sreg.ctaid.y : i32
// SHARED: scf.for
// SHARED: nvvm.barrier
// SHARED: llvm.store %{{.*}} : f32, !llvm.ptr<1>
// SHARED: llvm.return
// SHARED: llvm.func @sums_1(
// SHARED-NOT: scf.for
// SHARED-COUNT-4: llvm.load %{{.*}} : !llvm.ptr<1> -> f32
// SHARED-COUNT-3: arith.addf
// SHARED: llvm.store %{{.*}} : f32, !llvm.ptr<1>
func.func @workload(%x: tensor<?x?xf32> {tw.dims = ["M", "N"], tw.unit = 1}, %M: index {tw.dims = ["M"]}, %N: index {tw.dims = ["N"]})
    -> (tensor<?xf32> {tw.dims = ["M"], tw.unit = 0}) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty(%M) : tensor<?xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<?xf32>) -> tensor<?xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>],
                       iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<?x?xf32>) outs(%z : tensor<?xf32>) {
  ^bb0(%a: f32, %acc: f32):
    %s = arith.addf %a, %acc : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  return %r : tensor<?xf32>
}
