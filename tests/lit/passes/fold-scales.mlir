// RUN: tilewright opt %s --pass "fold-scales" | filecheck %s

// What multiplies each result's column multiplies the weights and the bias before it; a product that something else reads stays.
// CHECK-LABEL: func.func @main
// CHECK: %[[WEIGHTS:.*]] = linalg.generic {{.*}} ins(%arg1, %arg3 : tensor<3x4xf32>, tensor<4xf32>)
// CHECK: %[[BIAS:.*]] = linalg.generic {{.*}} ins(%arg2, %arg3 : tensor<4xf32>, tensor<4xf32>)
// CHECK: %[[PRODUCT:.*]] = linalg.matmul ins(%arg0, %[[WEIGHTS]] : tensor<?x3xf32>, tensor<3x4xf32>)
// CHECK: %[[SUM:.*]] = linalg.generic {{.*}} ins(%[[PRODUCT]], %[[BIAS]] : tensor<?x4xf32>, tensor<4xf32>)
// CHECK: %[[SHIFTED:.*]] = linalg.generic {{.*}} ins(%[[SUM]], %arg4 : tensor<?x4xf32>, tensor<4xf32>)
// CHECK-NOT: arith.mulf
// CHECK: %[[OTHER:.*]] = linalg.matmul ins(%arg0, %arg1 : tensor<?x3xf32>, tensor<3x4xf32>)
// CHECK: %[[SCALED:.*]] = linalg.generic {{.*}} ins(%[[OTHER]], %arg3 : tensor<?x4xf32>, tensor<4xf32>)
// CHECK: return %[[SHIFTED]], %[[OTHER]], %[[SCALED]]
#same = affine_map<(d0, d1) -> (d0, d1)>
#column = affine_map<(d0, d1) -> (d1)>
func.func @main(%arg0: tensor<?x3xf32> {tw.dims = ["N", 3]}, %arg1: tensor<3x4xf32> {tw.constant, tw.dims = [3, 4]}, %arg2: tensor<4xf32> {tw.constant, tw.dims = [4]}, %arg3: tensor<4xf32> {tw.constant, tw.dims = [4]}, %arg4: tensor<4xf32> {tw.constant, tw.dims = [4]}) -> (tensor<?x4xf32>, tensor<?x4xf32>, tensor<?x4xf32>) attributes {tw.ranges = {N = [1, 128, 1]}} {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %n = tensor.dim %arg0, %c0 : tensor<?x3xf32>
  %empty = tensor.empty(%n) : tensor<?x4xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<?x4xf32>) -> tensor<?x4xf32>
  %product = linalg.matmul ins(%arg0, %arg1 : tensor<?x3xf32>, tensor<3x4xf32>) outs(%start : tensor<?x4xf32>) -> tensor<?x4xf32>
  %sum = linalg.generic {indexing_maps = [#same, #column, #same], iterator_types = ["parallel", "parallel"]} ins(%product, %arg2 : tensor<?x4xf32>, tensor<4xf32>) outs(%empty : tensor<?x4xf32>) {
  ^bb0(%a: f32, %b: f32, %out: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?x4xf32>
  %shifted = linalg.generic {indexing_maps = [#same, #column, #column, #same], iterator_types = ["parallel", "parallel"]} ins(%sum, %arg3, %arg4 : tensor<?x4xf32>, tensor<4xf32>, tensor<4xf32>) outs(%empty : tensor<?x4xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32, %out: f32):
    %m = arith.mulf %a, %b : f32
    %s = arith.addf %m, %c : f32
    linalg.yield %s : f32
  } -> tensor<?x4xf32>
  %other = linalg.matmul ins(%arg0, %arg1 : tensor<?x3xf32>, tensor<3x4xf32>) outs(%start : tensor<?x4xf32>) -> tensor<?x4xf32>
  %scaled = linalg.generic {indexing_maps = [#same, #column, #same], iterator_types = ["parallel", "parallel"]} ins(%other, %arg3 : tensor<?x4xf32>, tensor<4xf32>) outs(%empty : tensor<?x4xf32>) {
  ^bb0(%a: f32, %b: f32, %out: f32):
    %m = arith.mulf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<?x4xf32>
  return %shifted, %other, %scaled : tensor<?x4xf32>, tensor<?x4xf32>, tensor<?x4xf32>
}
