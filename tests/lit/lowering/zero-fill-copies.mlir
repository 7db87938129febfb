// Copies of tiles: what is past an edge reads no byte, and zeros are written for it; the width is a guard of extents and layouts.
// RUN: tilewright opt %s --pass 'tile{config="simt{bm=32 bn=32 bk=8 tm=4 tn=4 stages=2}"},emit-micro-kernel{symbol=mm}' | filecheck %s
// RUN: tilewright opt %s --pass 'tile{config="simt{bm=32 bn=32 bk=8 tm=4 tn=4 stages=2 vec=2}"},emit-micro-kernel{symbol=mm}' | filecheck %s --check-prefix=TWO
// RUN: tilewright opt %s --pass 'tile{config="simt{bm=32 bn=32 bk=8 tm=4 tn=4 stages=2 vec=1}"},emit-micro-kernel{symbol=mm}' | filecheck %s --check-prefix=ONE

// CHECK: mod(K, 4)
// CHECK-SAME: mod(N, 4)
// CHECK-SAME: mod(operand0.offset, 4)
// CHECK-SAME: mod(operand0.stride0, 4)
// CHECK: scf.if
// CHECK: [[ROW:%[0-9]+]] = arith.cmpi slt
// CHECK: [[COLUMN:%[0-9]+]] = arith.cmpi slt
// CHECK: [[INSIDE:%[0-9]+]] = arith.andi [[ROW]], [[COLUMN]] : i1
// CHECK: [[BYTES:%[0-9]+]] = arith.select [[INSIDE]], %c16_i32{{.*}}, %c0_i32
// CHECK: nvvm.cp.async.shared.global {{%.*}}, {{%.*}}, 16, cache = cg, [[BYTES]] : !llvm.ptr<3>, !llvm.ptr<1>, i32

// TWO: mod(K, 2)
// TWO: nvvm.cp.async.shared.global {{%.*}}, {{%.*}}, 8, cache = ca,

// ONE-NOT: mod(
// ONE: nvvm.cp.async.shared.global {{%.*}}, {{%.*}}, 4, cache = ca,
func.func @workload(%a: tensor<?x?xf32> {tw.dims = ["M", "K"], tw.unit = 1}, %b: tensor<?x?xf32> {tw.dims = ["K", "N"], tw.unit = 1},
                    %M: index {tw.dims = ["M"]}, %N: index {tw.dims = ["N"]}, %K: index {tw.dims = ["K"]})
    -> (tensor<?x?xf32> {tw.dims = ["M", "N"], tw.unit = 1}) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty(%M, %N) : tensor<?x?xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<?x?xf32>) -> tensor<?x?xf32>
  %c = linalg.matmul ins(%a, %b : tensor<?x?xf32>, tensor<?x?xf32>) outs(%z : tensor<?x?xf32>) -> tensor<?x?xf32>
  return %c : tensor<?x?xf32>
}
