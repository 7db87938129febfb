// What is fused behind a contraction, in registers and under the bounds of the result; costly arithmetic is there once, in a loop
// over sums in shared memory.
// RUN: tilewright opt %s --pass 'tile{config="simt{bm=32 bn=32 bk=8 tm=4 tn=4 stages=2}"},emit-micro-kernel{symbol=mm}' | filecheck %s
// RUN: tilewright opt %s --pass 'tile{config="simt{bm=32 bn=32 bk=8 tm=8 tn=4 stages=2}"},emit-micro-kernel{symbol=mm}' | filecheck %s --check-prefix=STAGED

// CHECK: scf.yield
// CHECK: nvvm.cp.async.wait.group 0
// CHECK: [[ROW:%[0-9]+]] = arith.cmpi slt
// CHECK: [[COLUMN:%[0-9]+]] = arith.cmpi slt
// CHECK: [[INSIDE:%[0-9]+]] = arith.andi [[ROW]], [[COLUMN]] : i1
// CHECK: scf.if [[INSIDE]]
// CHECK: [[BIAS:%[0-9]+]] = llvm.load {{%.*}} {alignment = 16 : i64} : !llvm.ptr<1> -> vector<4xf32>
// CHECK: [[SUM:%[0-9]+]] = arith.addf {{%.*}}, [[BIAS]]
// CHECK: [[DONE:%[0-9]+]] = math.tanh [[SUM]]
// CHECK: llvm.store [[DONE]], {{%.*}} {alignment = 16 : i64} : vector<4xf32>, !llvm.ptr<1>

// STAGED: scf.yield
// STAGED: nvvm.cp.async.wait.group 0
// STAGED: nvvm.barrier
// STAGED-COUNT-8: llvm.store {{%.*}} : vector<4xf32>, !llvm.ptr<3>
// STAGED: nvvm.barrier
// STAGED: scf.for
// STAGED: llvm.load {{%.*}} : !llvm.ptr<3> -> vector<4xf32>
// STAGED: scf.if
// STAGED: math.tanh
// STAGED-NOT: math.tanh
// STAGED: llvm.store {{%.*}} {alignment = 16 : i64} : vector<4xf32>, !llvm.ptr<1>
func.func @workload(%a: tensor<?x?xf32> {tw.dims = ["M", "K"], tw.unit = 1}, %b: tensor<?x?xf32> {tw.dims = ["K", "N"], tw.unit = 1},
                    %bias: tensor<?xf32> {tw.dims = ["N"], tw.unit = 0}, %M: index {tw.dims = ["M"]}, %N: index {tw.dims = ["N"]},
                    %K: index {tw.dims = ["K"]}) -> (tensor<?x?xf32> {tw.dims = ["M", "N"], tw.unit = 1}) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty(%M, %N) : tensor<?x?xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<?x?xf32>) -> tensor<?x?xf32>
  %c = linalg.matmul ins(%a, %b : tensor<?x?xf32>, tensor<?x?xf32>) outs(%z : tensor<?x?xf32>) -> tensor<?x?xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>, affine_map<(i, j) -> (i, j)>],
                       iterator_types = ["parallel", "parallel"]}
      ins(%c, %bias : tensor<?x?xf32>, tensor<?xf32>) outs(%e : tensor<?x?xf32>) {
  ^bb0(%x: f32, %w: f32, %o: f32):
    %s = arith.addf %x, %w : f32
    %t = math.tanh %s : f32
    linalg.yield %t : f32
  } -> tensor<?x?xf32>
  return %y : tensor<?x?xf32>
}
