// RUN: tilewright opt %s --pass "constants-along-k" | filecheck %s
// RUN: tilewright opt %s --pass "constants-along-k{types=f16}" | filecheck %s --check-prefix=OTHER

// A constant weight [k, n] of f32 is read through a copy [n, k], which is made at compile time; an argument stays as it is.
// CHECK-LABEL: func.func @main
// CHECK: %[[W:.*]] = linalg.generic {{.*}} ins(%arg1 : tensor<16x4xf32>) outs({{.*}} : tensor<4x16xf32>) attrs = {tw.copy}
// CHECK: linalg.matmul indexing_maps = [{{.*}}] ins(%arg0, %[[W]] : tensor<?x16xf32>, tensor<4x16xf32>)
// CHECK: linalg.matmul ins({{.*}}, %arg2 : tensor<?x4xf32>, tensor<4x8xf32>)
// OTHER-NOT: tw.copy
func.func @main(%arg0: tensor<?x16xf32> {tw.dims = ["N", 16]}, %arg1: tensor<16x4xf32> {tw.constant, tw.dims = [16, 4]}, %arg2: tensor<4x8xf32> {tw.dims = [4, 8]}) -> tensor<?x8xf32> attributes {tw.ranges = {N = [1, 128, 1]}} {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %n = tensor.dim %arg0, %c0 : tensor<?x16xf32>
  %first = tensor.empty(%n) : tensor<?x4xf32>
  %start = linalg.fill ins(%zero : f32) outs(%first : tensor<?x4xf32>) -> tensor<?x4xf32>
  %product = linalg.matmul ins(%arg0, %arg1 : tensor<?x16xf32>, tensor<16x4xf32>) outs(%start : tensor<?x4xf32>) -> tensor<?x4xf32>
  %second = tensor.empty(%n) : tensor<?x8xf32>
  %begin = linalg.fill ins(%zero : f32) outs(%second : tensor<?x8xf32>) -> tensor<?x8xf32>
  %result = linalg.matmul ins(%product, %arg2 : tensor<?x4xf32>, tensor<4x8xf32>) outs(%begin : tensor<?x8xf32>) -> tensor<?x8xf32>
  return %result : tensor<?x8xf32>
}
