// RUN: tilewright opt %s --pass "fold-reshapes" | filecheck %s

// The expand of a matmul's rows moves behind the bias and the slice, and cancels against the collapse.
// CHECK-LABEL: func.func @main
// CHECK: %[[BIAS:.*]] = linalg.generic {{.*}} ins(%arg1, %arg2 : tensor<?x2304xf32>, tensor<2304xf32>) outs(%{{.*}} : tensor<?x2304xf32>)
// CHECK: %[[Q:.*]] = tensor.extract_slice %[[BIAS]][0, 768] [%{{.*}}, 768] [1, 1] : tensor<?x2304xf32> to tensor<?x768xf32>
// CHECK: %[[HEADS:.*]] = tensor.expand_shape %[[Q]] {{\[}}[0, 1], [2, 3]]
// CHECK: return %[[HEADS]], %[[BIAS]]
#map1 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map2 = affine_map<(d0, d1, d2) -> (d2)>
func.func @main(%arg0: tensor<?x?x1xf32> {tw.dims = ["B", "S", 1]}, %arg1: tensor<?x2304xf32> {tw.dims = ["B*S", 2304]}, %arg2: tensor<2304xf32> {tw.dims = [2304]}) -> (tensor<?x?x12x64xf32>, tensor<?x2304xf32>) attributes {tw.ranges = {B = [1, 8, 1], S = [1, 128, 1]}} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %dim = tensor.dim %arg0, %c0 : tensor<?x?x1xf32>
  %dim_7 = tensor.dim %arg0, %c1 : tensor<?x?x1xf32>
  %7 = tensor.expand_shape %arg1 [[0, 1], [2]] output_shape [%dim, %dim_7, 2304] : tensor<?x2304xf32> into tensor<?x?x2304xf32>
  %5 = tensor.empty(%dim, %dim_7) : tensor<?x?x2304xf32>
  %8 = linalg.generic {indexing_maps = [#map1, #map2, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%7, %arg2 : tensor<?x?x2304xf32>, tensor<2304xf32>) outs(%5 : tensor<?x?x2304xf32>) {
  ^bb0(%in: f32, %in_22: f32, %out: f32):
    %116 = arith.addf %in, %in_22 : f32
    linalg.yield %116 : f32
  } -> tensor<?x?x2304xf32>
  %extracted_slice = tensor.extract_slice %8[0, 0, 768] [%dim, %dim_7, 768] [1, 1, 1] : tensor<?x?x2304xf32> to tensor<?x?x768xf32>
  %heads = tensor.expand_shape %extracted_slice [[0], [1], [2, 3]] output_shape [%dim, %dim_7, 12, 64] : tensor<?x?x768xf32> into tensor<?x?x12x64xf32>
  %rows = tensor.collapse_shape %8 [[0, 1], [2]] : tensor<?x?x2304xf32> into tensor<?x2304xf32>
  return %heads, %rows : tensor<?x?x12x64xf32>, tensor<?x2304xf32>
}
