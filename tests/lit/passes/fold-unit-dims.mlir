// RUN: tilewright opt %s --pass "fold-unit-dims" | filecheck %s

// CHECK-DAG: #[[ALL:.*]] = affine_map<(d0, d1) -> (d0, d1)>
// CHECK-DAG: #[[ROW:.*]] = affine_map<(d0, d1) -> (d0)>
// CHECK-LABEL: func.func @main
// CHECK: %[[X:.*]] = tensor.collapse_shape %arg0 {{\[}}[0, 1], [2]] : tensor<1x?x768xf32> into tensor<?x768xf32>
// CHECK: %[[SUM:.*]] = linalg.generic {indexing_maps = [#[[ALL]], #[[ROW]]], iterator_types = ["parallel", "reduction"]} ins(%[[X]] : tensor<?x768xf32>) outs(%{{.*}} : tensor<?xf32>)
// CHECK: linalg.generic {indexing_maps = [#[[ALL]], #[[ROW]], #[[ALL]]]
// CHECK-SAME: ins(%{{.*}}, %[[SUM]] : tensor<?x768xf32>, tensor<?xf32>)
// CHECK: tensor.expand_shape %{{.*}} {{\[}}[0, 1], [2]] output_shape [1, %{{.*}}, 768]
#map1 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map6 = affine_map<(d0, d1, d2) -> (d0, d1, 0)>
func.func @main(%arg0: tensor<1x?x768xf32> {tw.dims = [1, "T", 768]}) -> tensor<1x?x768xf32> attributes {tw.ranges = {T = [1, 128, 1]}} {
  %c1 = arith.constant 1 : index
  %cst = arith.constant 0.000000e+00 : f32
  %dim = tensor.dim %arg0, %c1 : tensor<1x?x768xf32>
  %36 = tensor.empty(%dim) : tensor<1x?x1xf32>
  %37 = linalg.fill ins(%cst : f32) outs(%36 : tensor<1x?x1xf32>) -> tensor<1x?x1xf32>
  %38 = linalg.generic {indexing_maps = [#map1, #map6], iterator_types = ["parallel", "parallel", "reduction"]} ins(%arg0 : tensor<1x?x768xf32>) outs(%37 : tensor<1x?x1xf32>) {
  ^bb0(%in: f32, %out: f32):
    %78 = arith.addf %in, %out : f32
    linalg.yield %78 : f32
  } -> tensor<1x?x1xf32>
  %31 = tensor.empty(%dim) : tensor<1x?x768xf32>
  %43 = linalg.generic {indexing_maps = [#map1, #map6, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg0, %38 : tensor<1x?x768xf32>, tensor<1x?x1xf32>) outs(%31 : tensor<1x?x768xf32>) {
  ^bb0(%in: f32, %in_0: f32, %out: f32):
    %78 = arith.subf %in, %in_0 : f32
    linalg.yield %78 : f32
  } -> tensor<1x?x768xf32>
  return %43 : tensor<1x?x768xf32>
}

// A concatenation loses the axes of extent 1 that it does not join along.
// CHECK-LABEL: func.func @joined
// CHECK: %[[A:.*]] = tensor.collapse_shape %arg0 {{\[}}[0, 1], [2]] : tensor<1x?x1xf32> into tensor<?x1xf32>
// CHECK: %[[C:.*]] = tensor.concat dim(1) %[[A]], %{{.*}} : (tensor<?x1xf32>, tensor<?x3xf32>) -> tensor<?x4xf32>
// CHECK: tensor.expand_shape %[[C]] {{\[}}[0, 1], [2]] output_shape [1, %{{.*}}, 4]
func.func @joined(%arg0: tensor<1x?x1xf32> {tw.dims = [1, "T", 1]}, %arg1: tensor<1x?x3xf32> {tw.dims = [1, "T", 3]})
    -> tensor<1x?x4xf32> attributes {tw.ranges = {T = [1, 128, 1]}} {
  %0 = tensor.concat dim(2) %arg0, %arg1 : (tensor<1x?x1xf32>, tensor<1x?x3xf32>) -> tensor<1x?x4xf32>
  return %0 : tensor<1x?x4xf32>
}

// A softmax loses the axes of extent 1 that it does not run along.
// CHECK-LABEL: func.func @weights
// CHECK: %[[S:.*]] = tensor.collapse_shape %arg0 {{\[}}[0], [1, 2]] : tensor<?x1x7xf32> into tensor<?x7xf32>
// CHECK: linalg.softmax dimension(1) ins(%[[S]] : tensor<?x7xf32>)
func.func @weights(%arg0: tensor<?x1x7xf32> {tw.dims = ["T", 1, 7]}) -> tensor<?x1x7xf32>
    attributes {tw.ranges = {T = [1, 128, 1]}} {
  %c0 = arith.constant 0 : index
  %dim = tensor.dim %arg0, %c0 : tensor<?x1x7xf32>
  %0 = tensor.empty(%dim) : tensor<?x1x7xf32>
  %1 = linalg.softmax dimension(2) ins(%arg0 : tensor<?x1x7xf32>) outs(%0 : tensor<?x1x7xf32>) -> tensor<?x1x7xf32>
  return %1 : tensor<?x1x7xf32>
}
