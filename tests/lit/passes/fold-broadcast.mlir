// RUN: tilewright opt %s --pass "fold-broadcast" | filecheck %s

// CHECK-DAG: #[[A:.*]] = affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)>
// CHECK-DAG: #[[W:.*]] = affine_map<(d0, d1, d2, d3) -> (d3, d2)>
// CHECK-DAG: #[[C:.*]] = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
// CHECK-LABEL: func.func @main
// CHECK: linalg.generic {indexing_maps = [#[[A]], #[[W]], #[[C]]]
// CHECK-SAME: ins(%arg0, %arg1 : tensor<?x?x768xf32>, tensor<768x2304xf32>)
// CHECK-NOT: tensor<?x768x2304xf32>
// CHECK: return
#map = affine_map<(d0, d1, d2) -> (d1, d2)>
#map1 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
func.func @main(%arg0: tensor<?x?x768xf32> {tw.dims = ["B", "S", 768]}, %arg1: tensor<768x2304xf32> {tw.dims = [768, 2304]}) -> tensor<?x?x2304xf32> attributes {tw.ranges = {B = [1, 8, 1], S = [1, 128, 1]}} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %cst = arith.constant 0.000000e+00 : f32
  %dim = tensor.dim %arg0, %c0 : tensor<?x?x768xf32>
  %dim_7 = tensor.dim %arg0, %c1 : tensor<?x?x768xf32>
  %3 = tensor.empty(%dim) : tensor<?x768x2304xf32>
  %4 = linalg.generic {indexing_maps = [#map, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg1 : tensor<768x2304xf32>) outs(%3 : tensor<?x768x2304xf32>) {
  ^bb0(%in: f32, %out: f32):
    linalg.yield %in : f32
  } -> tensor<?x768x2304xf32>
  %5 = tensor.empty(%dim, %dim_7) : tensor<?x?x2304xf32>
  %6 = linalg.fill ins(%cst : f32) outs(%5 : tensor<?x?x2304xf32>) -> tensor<?x?x2304xf32>
  %7 = linalg.batch_matmul ins(%arg0, %4 : tensor<?x?x768xf32>, tensor<?x768x2304xf32>) outs(%6 : tensor<?x?x2304xf32>) -> tensor<?x?x2304xf32>
  return %7 : tensor<?x?x2304xf32>
}

// Without the repeated tensor nothing says how often the sum runs.
// CHECK-LABEL: func.func @sum
// CHECK: linalg.broadcast
func.func @sum(%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> tensor<4xf32> {
  %0 = tensor.empty() : tensor<4x8xf32>
  %1 = linalg.broadcast ins(%arg0 : tensor<4xf32>) outs(%0 : tensor<4x8xf32>) dimensions = [1]
  %2 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]} ins(%1 : tensor<4x8xf32>) outs(%arg1 : tensor<4xf32>) {
  ^bb0(%in: f32, %out: f32):
    %3 = arith.addf %in, %out : f32
    linalg.yield %3 : f32
  } -> tensor<4xf32>
  return %2 : tensor<4xf32>
}
