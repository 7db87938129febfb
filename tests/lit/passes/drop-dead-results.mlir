// RUN: tilewright opt %s --pass "drop-dead-results" | filecheck %s

// The maximum of a row, and its unused position.
// CHECK-LABEL: func.func @main
// CHECK: %[[R:.*]] = linalg.generic {{.*}} ins(%arg0 : tensor<?x?xf32>) outs(%{{.*}} : tensor<?xf32>) {
// CHECK-NEXT: ^bb0(%[[IN:.*]]: f32, %[[OUT:.*]]: f32):
// CHECK-NEXT: %[[MAX:.*]] = arith.maximumf %[[IN]], %[[OUT]] : f32
// CHECK-NEXT: linalg.yield %[[MAX]] : f32
// CHECK: return %[[R]]
#map = affine_map<(d0, d1) -> (d0, d1)>
#map1 = affine_map<(d0, d1) -> (d0)>
func.func @main(%arg0: tensor<?x?xf32> {tw.dims = ["M", "S"]}) -> tensor<?xf32> attributes {tw.ranges = {M = [1, 8, 1], S = [1, 128, 1]}} {
  %c0 = arith.constant 0 : index
  %c0_i64 = arith.constant 0 : i64
  %cst = arith.constant 0xFF800000 : f32
  %m = tensor.dim %arg0, %c0 : tensor<?x?xf32>
  %0 = tensor.empty(%m) : tensor<?xi64>
  %1 = linalg.fill ins(%c0_i64 : i64) outs(%0 : tensor<?xi64>) -> tensor<?xi64>
  %2 = tensor.empty(%m) : tensor<?xf32>
  %3 = linalg.fill ins(%cst : f32) outs(%2 : tensor<?xf32>) -> tensor<?xf32>
  %4:2 = linalg.generic {indexing_maps = [#map, #map1, #map1], iterator_types = ["parallel", "reduction"]} ins(%arg0 : tensor<?x?xf32>) outs(%3, %1 : tensor<?xf32>, tensor<?xi64>) {
  ^bb0(%in: f32, %out: f32, %out_22: i64):
    %116 = linalg.index 1 : index
    %117 = arith.index_cast %116 : index to i64
    %118 = arith.maximumf %in, %out : f32
    %119 = arith.cmpf ogt, %in, %out : f32
    %120 = arith.select %119, %117, %out_22 : i64
    linalg.yield %118, %120 : f32, i64
  } -> (tensor<?xf32>, tensor<?xi64>)
  return %4#0 : tensor<?xf32>
}

// The position needs the maximum: nothing is dropped.
// CHECK-LABEL: func.func @argmax
// CHECK: %[[P:.*]]:2 = linalg.generic
// CHECK: return %[[P]]#1
func.func @argmax(%arg0: tensor<4x8xf32>, %3: tensor<4xf32>, %1: tensor<4xi64>) -> tensor<4xi64> {
  %4:2 = linalg.generic {indexing_maps = [#map, #map1, #map1], iterator_types = ["parallel", "reduction"]} ins(%arg0 : tensor<4x8xf32>) outs(%3, %1 : tensor<4xf32>, tensor<4xi64>) {
  ^bb0(%in: f32, %out: f32, %out_22: i64):
    %116 = linalg.index 1 : index
    %117 = arith.index_cast %116 : index to i64
    %118 = arith.maximumf %in, %out : f32
    %119 = arith.cmpf ogt, %in, %out : f32
    %120 = arith.select %119, %117, %out_22 : i64
    linalg.yield %118, %120 : f32, i64
  } -> (tensor<4xf32>, tensor<4xi64>)
  return %4#1 : tensor<4xi64>
}
