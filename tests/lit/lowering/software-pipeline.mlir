// A ring of stages: the prologue starts all but one; a round waits for the oldest, starts the next, and multiplies.
// RUN: tilewright opt %s --pass 'tile{config="simt{bm=32 bn=32 bk=8 tm=4 tn=4 stages=3}"},emit-micro-kernel{symbol=mm}' | filecheck %s
// RUN: tilewright opt %s --pass 'tile{config="simt{bm=32 bn=32 bk=8 tm=4 tn=4 stages=4}"},emit-micro-kernel{symbol=mm}' | filecheck %s --check-prefix=FOUR

// Both tiles of three stages are in shared memory.
// CHECK: \22shared_bytes\22:7680
// Nothing is copied where there is no step.
// CHECK: [[SOME:%[0-9]+]] = arith.cmpi slt, %c0_i32{{.*}}, [[STEPS:%[0-9]+]] : i32
// CHECK-NEXT: scf.if [[SOME]]
// CHECK-COUNT-2: nvvm.cp.async.commit.group
// CHECK-NOT: nvvm.cp.async.commit.group
// CHECK: scf.for [[STEP:%arg[0-9]+]] = {{%.*}} to [[STEPS]] step
// CHECK-NEXT: nvvm.cp.async.wait.group 1
// CHECK-NEXT: nvvm.barrier
// CHECK: [[AHEAD:%[0-9]+]] = arith.addi [[STEP]], %c2_i32
// CHECK: arith.remui [[AHEAD]], %c3_i32
// CHECK-COUNT-2: nvvm.cp.async.shared.global
// CHECK: nvvm.cp.async.commit.group
// CHECK: arith.remui [[STEP]], %c3_i32
// CHECK: llvm.load {{%.*}} : !llvm.ptr<3> -> vector<4xf32>
// CHECK: llvm.intr.fmuladd
// CHECK: scf.yield
// CHECK: nvvm.cp.async.wait.group 0

// FOUR-COUNT-3: nvvm.cp.async.commit.group
// FOUR: scf.for
// FOUR-NEXT: nvvm.cp.async.wait.group 2
func.func @workload(%a: tensor<?x?xf32> {tw.dims = ["M", "K"], tw.unit = 1}, %b: tensor<?x?xf32> {tw.dims = ["K", "N"], tw.unit = 1},
                    %M: index {tw.dims = ["M"]}, %N: index {tw.dims = ["N"]}, %K: index {tw.dims = ["K"]})
    -> (tensor<?x?xf32> {tw.dims = ["M", "N"], tw.unit = 1}) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty(%M, %N) : tensor<?x?xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<?x?xf32>) -> tensor<?x?xf32>
  %c = linalg.matmul ins(%a, %b : tensor<?x?xf32>, tensor<?x?xf32>) outs(%z : tensor<?x?xf32>) -> tensor<?x?xf32>
  return %c : tensor<?x?xf32>
}
