// Blocks of a contraction: one number a tile, batches outermost, bands of `group` rows of tiles walked column by column; parts of k
// along y.
// RUN: tilewright opt %s --pass 'tile{config="simt{bm=32 bn=64 bk=8 tm=4 tn=4 group-m=4}"},emit-micro-kernel{symbol=mm}' | filecheck %s
// RUN: tilewright opt %s --pass 'tile{config="simt{bm=32 bn=64 bk=8 tm=4 tn=4 group-m=1 split-k=2}"},emit-micro-kernel{symbol=mm}' | filecheck %s --check-prefix=PARTS

// CHECK: \22grid\22:[\22B*floordiv(M + 31, 32)*floordiv(N + 63, 64)\22,\221\22,\221\22]
// CHECK: [[BLOCK:%[0-9]+]] = nvvm.read.ptx.sreg.ctaid.x : i32
// CHECK: [[DOWN:%[0-9]+]] = arith.divsi {{%.*}}, %c32_i32
// CHECK: [[ACROSS:%[0-9]+]] = arith.divsi {{%.*}}, %c64_i32
// CHECK: [[TILES:%[0-9]+]] = arith.muli [[DOWN]], [[ACROSS]]
// CHECK: arith.divui [[BLOCK]], [[TILES]]
// CHECK: [[TILE:%[0-9]+]] = arith.remui [[BLOCK]], {{%.*}}
// CHECK: [[WIDE:%[0-9]+]] = arith.muli [[ACROSS]], %c4_i32
// CHECK: [[BAND:%[0-9]+]] = arith.divui [[TILE]], [[WIDE]]
// CHECK: [[FIRST:%[0-9]+]] = arith.muli [[BAND]], %c4_i32
// The last band may be lower.
// CHECK: [[LEFT:%[0-9]+]] = arith.subi [[DOWN]], [[FIRST]]
// CHECK: [[HEIGHT:%[0-9]+]] = arith.minsi [[LEFT]], %c4_i32
// CHECK: arith.remui {{%.*}}, [[HEIGHT]]
// CHECK: arith.divui {{%.*}}, [[HEIGHT]]

// PARTS: \22grid\22:[\22B*floordiv(M + 31, 32)*floordiv(N + 63, 64)\22,\222\22,\221\22]
// PARTS: [[TILE:%[0-9]+]] = arith.remui
// PARTS: arith.divui [[TILE]], [[ACROSS:%[0-9]+]] : i32
// PARTS: arith.remui [[TILE]], [[ACROSS]] : i32
// PARTS: nvvm.read.ptx.sreg.ctaid.y : i32
func.func @workload(%a: tensor<?x?x?xf32> {tw.dims = ["B", "M", "K"], tw.unit = 2}, %b: tensor<?x?x?xf32> {tw.dims = ["B", "K", "N"], tw.unit = 2},
                    %B: index {tw.dims = ["B"]}, %M: index {tw.dims = ["M"]}, %N: index {tw.dims = ["N"]}, %K: index {tw.dims = ["K"]})
    -> (tensor<?x?x?xf32> {tw.dims = ["B", "M", "N"], tw.unit = 2}) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty(%B, %M, %N) : tensor<?x?x?xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  %c = linalg.batch_matmul ins(%a, %b : tensor<?x?x?xf32>, tensor<?x?x?xf32>) outs(%z : tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  return %c : tensor<?x?x?xf32>
}
