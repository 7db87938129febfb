// RUN: tilewright opt %s --pass "uncollapse-contraction" | filecheck %s

// CHECK-LABEL: func.func @main
// CHECK: %[[C:.*]] = linalg.generic {{.*}} iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]
// CHECK-SAME: ins(%arg0, %arg1 : tensor<?x12x?x64xf32>, tensor<?x12x64x?xf32>)
// CHECK: %[[V:.*]] = tensor.collapse_shape %[[C]] {{\[}}[0, 1], [2], [3]]
// CHECK: return %[[V]]
func.func @main(%arg0: tensor<?x12x?x64xf32> {tw.dims = ["B", 12, "S", 64]}, %arg1: tensor<?x12x64x?xf32> {tw.dims = ["B", 12, 64, "S"]}) -> tensor<?x?x?xf32> attributes {tw.ranges = {B = [1, 8, 1], S = [1, 128, 1]}} {
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %c12 = arith.constant 12 : index
  %cst = arith.constant 0.000000e+00 : f32
  %b = tensor.dim %arg0, %c0 : tensor<?x12x?x64xf32>
  %s = tensor.dim %arg0, %c2 : tensor<?x12x?x64xf32>
  %collapsed = tensor.collapse_shape %arg0 [[0, 1], [2], [3]] : tensor<?x12x?x64xf32> into tensor<?x?x64xf32>
  %collapsed_14 = tensor.collapse_shape %arg1 [[0, 1], [2], [3]] : tensor<?x12x64x?xf32> into tensor<?x64x?xf32>
  %28 = arith.muli %b, %c12 : index
  %29 = tensor.empty(%28, %s, %s) : tensor<?x?x?xf32>
  %30 = linalg.fill ins(%cst : f32) outs(%29 : tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  %31 = linalg.batch_matmul ins(%collapsed, %collapsed_14 : tensor<?x?x64xf32>, tensor<?x64x?xf32>) outs(%30 : tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  return %31 : tensor<?x?x?xf32>
}
