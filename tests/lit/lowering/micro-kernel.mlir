// What a thread multiplies: rows and columns of its tile in vectors from shared memory, sums carried by the loop.
// RUN: tilewright opt %s --pass 'tile{config="simt{bm=32 bn=32 bk=8 tm=4 tn=4 stages=2}"},emit-micro-kernel{symbol=mm}' | filecheck %s
// RUN: tilewright opt %s --pass 'tile{config="simt{bm=64 bn=64 bk=8 tm=8 tn=8 stages=2}"},emit-micro-kernel{symbol=mm}' | filecheck %s --check-prefix=LARGE

// CHECK: scf.for {{.*}} iter_args({{%.*}} = [[ZERO:%cst]], {{%.*}} = [[ZERO]], {{%.*}} = [[ZERO]], {{%.*}} = [[ZERO]])
// Four rows of four positions of k, and four positions of k of four columns.
// CHECK-COUNT-8: llvm.load {{%.*}} {alignment = 16 : i64} : !llvm.ptr<3> -> vector<4xf32>
// CHECK-COUNT-16: llvm.intr.fmuladd
// CHECK-NOT: llvm.intr.fmuladd
// CHECK-COUNT-8: llvm.load {{%.*}} {alignment = 16 : i64} : !llvm.ptr<3> -> vector<4xf32>
// CHECK-COUNT-16: llvm.intr.fmuladd
// CHECK-NOT: llvm.intr.fmuladd
// CHECK: scf.yield

// Two runs of four columns, 32 apart, so that a warp reads every bank once.
// LARGE: scf.for
// LARGE-COUNT-128: llvm.intr.fmuladd
// LARGE-NOT: llvm.intr.fmuladd
// LARGE: scf.yield
func.func @workload(%a: tensor<?x?xf32> {tw.dims = ["M", "K"], tw.unit = 1}, %b: tensor<?x?xf32> {tw.dims = ["K", "N"], tw.unit = 1},
                    %M: index {tw.dims = ["M"]}, %N: index {tw.dims = ["N"]}, %K: index {tw.dims = ["K"]})
    -> (tensor<?x?xf32> {tw.dims = ["M", "N"], tw.unit = 1}) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty(%M, %N) : tensor<?x?xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<?x?xf32>) -> tensor<?x?xf32>
  %c = linalg.matmul ins(%a, %b : tensor<?x?xf32>, tensor<?x?xf32>) outs(%z : tensor<?x?xf32>) -> tensor<?x?xf32>
  return %c : tensor<?x?xf32>
}
