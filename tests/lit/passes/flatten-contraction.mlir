// RUN: tilewright opt %s --pass "flatten-contraction" | filecheck %s

// CHECK-LABEL: func.func @main
// CHECK: %[[A:.*]] = tensor.collapse_shape %arg0 {{\[}}[0, 1], [2]] : tensor<?x?x768xf32> into tensor<?x768xf32>
// CHECK: %[[C:.*]] = linalg.matmul ins(%[[A]], %arg1 : tensor<?x768xf32>, tensor<768x2304xf32>)
// CHECK: tensor.expand_shape %[[C]] {{\[}}[0, 1], [2]]
#map = affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)>
#map1 = affine_map<(d0, d1, d2, d3) -> (d3, d2)>
#map2 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
func.func @main(%arg0: tensor<?x?x768xf32> {tw.dims = ["B", "S", 768]}, %arg1: tensor<768x2304xf32> {tw.dims = [768, 2304]}) -> tensor<?x?x2304xf32> attributes {tw.ranges = {B = [1, 8, 1], S = [1, 128, 1]}} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %cst = arith.constant 0.000000e+00 : f32
  %b = tensor.dim %arg0, %c0 : tensor<?x?x768xf32>
  %s = tensor.dim %arg0, %c1 : tensor<?x?x768xf32>
  %0 = tensor.empty(%b, %s) : tensor<?x?x2304xf32>
  %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<?x?x2304xf32>) -> tensor<?x?x2304xf32>
  %2 = linalg.generic {indexing_maps = [#map, #map1, #map2], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%arg0, %arg1 : tensor<?x?x768xf32>, tensor<768x2304xf32>) outs(%1 : tensor<?x?x2304xf32>) {
  ^bb0(%in: f32, %in_0: f32, %out: f32):
    %3 = arith.mulf %in, %in_0 : f32
    %4 = arith.addf %out, %3 : f32
    linalg.yield %4 : f32
  } -> tensor<?x?x2304xf32>
  return %2 : tensor<?x?x2304xf32>
}

// Merging B and S of a slice along S would need a copy.
// CHECK-LABEL: func.func @slice
// CHECK-NOT: tensor.collapse_shape
// CHECK: return
func.func @slice(%arg0: tensor<?x16x768xf32> {tw.dims = ["B", 16, 768]}, %arg1: tensor<768x64xf32> {tw.dims = [768, 64]}, %arg2: tensor<?x8x64xf32> {tw.dims = ["B", 8, 64]}) -> tensor<?x8x64xf32> attributes {tw.ranges = {B = [1, 8, 1]}} {
  %c0 = arith.constant 0 : index
  %b = tensor.dim %arg0, %c0 : tensor<?x16x768xf32>
  %0 = tensor.extract_slice %arg0[0, 0, 0] [%b, 8, 768] [1, 1, 1] : tensor<?x16x768xf32> to tensor<?x8x768xf32>
  %2 = linalg.generic {indexing_maps = [#map, #map1, #map2], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%0, %arg1 : tensor<?x8x768xf32>, tensor<768x64xf32>) outs(%arg2 : tensor<?x8x64xf32>) {
  ^bb0(%in: f32, %in_0: f32, %out: f32):
    %3 = arith.mulf %in, %in_0 : f32
    %4 = arith.addf %out, %3 : f32
    linalg.yield %4 : f32
  } -> tensor<?x8x64xf32>
  return %2 : tensor<?x8x64xf32>
}
