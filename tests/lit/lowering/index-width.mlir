// Coordinates of 32 bits, with a guard for every operand that it has less than 2^31 elements; those of 64 bits have none.
// RUN: tilewright opt %s --pass 'tile{config="gpu_pointwise{vec=1}"},emit-micro-kernel{symbol=twice}' | filecheck %s
// RUN: tilewright opt %s --pass 'tile{config="gpu_pointwise{vec=1 index=64}"},emit-micro-kernel{symbol=twice}' | filecheck %s --check-prefix=WIDE

// CHECK: \22guards\22:[\22{{.*}}floordiv({{.*}}operand0.stride0{{.*}}, 2147483648)
// CHECK: llvm.func @twice(
// CHECK: arith.trunci {{%.*}} : i64 to i32
// CHECK: nvvm.read.ptx.sreg.ctaid.x : i32
// CHECK: llvm.getelementptr {{%.*}}[{{%.*}}] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32

// WIDE: \22guards\22:[]
// WIDE: llvm.func @twice(
// WIDE-NOT: arith.trunci
// WIDE: arith.extsi {{%.*}} : i32 to i64
// WIDE: llvm.getelementptr {{%.*}}[{{%.*}}] : (!llvm.ptr<1>, i64) -> !llvm.ptr<1>, f32
func.func @workload(%x: tensor<?x?xf32> {tw.dims = ["M", "N"], tw.unit = 1}, %M: index {tw.dims = ["M"]}, %N: index {tw.dims = ["N"]})
    -> (tensor<?x?xf32> {tw.dims = ["M", "N"], tw.unit = 1}) {
  %e = tensor.empty(%M, %N) : tensor<?x?xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
                       iterator_types = ["parallel", "parallel"]} ins(%x : tensor<?x?xf32>) outs(%e : tensor<?x?xf32>) {
  ^bb0(%a: f32, %o: f32):
    %s = arith.addf %a, %a : f32
    linalg.yield %s : f32
  } -> tensor<?x?xf32>
  return %y : tensor<?x?xf32>
}
