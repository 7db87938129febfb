// RUN: tilewright opt %s --pass "lower-precision{element=bf16}" | filecheck %s
// RUN: tilewright opt %s --pass "lower-precision{element=f16 apart=true}" | filecheck %s --check-prefix=APART
// RUN: not tilewright opt %s --pass "lower-precision{element=f32}" 2>&1 | filecheck %s --check-prefix=ELEMENT

// ELEMENT: element='f32'; wanted bf16 or f16

// Arguments are rounded by kernels of their own.
// APART-COUNT-2: attrs = {tw.copy}
// APART: linalg.generic {{.*}} ins(%{{.*}}, %{{.*}} : tensor<?x64xf16>, tensor<64x96xf16>) outs(%{{.*}} : tensor<?x96xf32>)

// CHECK-DAG: arith.truncf {{.*}} : f32 to bf16
// CHECK: linalg.generic {{.*}} ins(%{{.*}}, %{{.*}} : tensor<?x64xbf16>, tensor<64x96xbf16>) outs(%{{.*}} : tensor<?x96xf32>)
// CHECK: arith.extf {{.*}} : bf16 to f32
// CHECK: arith.extf {{.*}} : bf16 to f32
// CHECK: arith.mulf {{.*}} : f32
// CHECK: arith.addf {{.*}} : f32
func.func @main(%x: tensor<?x64xf32> {tw.dims = ["M", 64]}, %w: tensor<64x96xf32> {tw.dims = [64, 96]}) -> tensor<?x96xf32>
    attributes {tw.ranges = {M = [1, 8, 1]}} {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %m = tensor.dim %x, %c0 : tensor<?x64xf32>
  %empty = tensor.empty(%m) : tensor<?x96xf32>
  %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<?x96xf32>) -> tensor<?x96xf32>
  %y = linalg.matmul ins(%x, %w : tensor<?x64xf32>, tensor<64x96xf32>) outs(%init : tensor<?x96xf32>) -> tensor<?x96xf32>
  return %y : tensor<?x96xf32>
}
