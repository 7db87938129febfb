// RUN: tilewright opt %s --pass "sink-reshapes" | filecheck %s

// The sum behind a contraction in groups has loops of groups and filters; one that reads what no contraction made stays.
// CHECK-LABEL: func.func @main
// CHECK: %[[BIAS:.*]] = tensor.expand_shape %arg2 {{\[}}[0, 1]] output_shape [2, 4] : tensor<8xf32> into tensor<2x4xf32>
// CHECK: %[[SUM:.*]] = linalg.generic {{.*}} ins(%{{.*}}, %[[BIAS]] : tensor<2x4x?xf32>, tensor<2x4xf32>)
// CHECK: %[[WHOLE:.*]] = tensor.collapse_shape %[[SUM]] {{\[}}[0, 1], [2]] : tensor<2x4x?xf32> into tensor<8x?xf32>
// CHECK: %[[OTHER:.*]] = linalg.generic {{.*}} ins(%{{.*}}, %arg2 : tensor<8x?xf32>, tensor<8xf32>)
// CHECK: return %[[WHOLE]], %[[OTHER]]
#x = affine_map<(d0, d1, d2, d3) -> (d0, d3, d2)>
#w = affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)>
#y = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
#same = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
func.func @main(%arg0: tensor<2x3x?xf32> {tw.dims = [2, 3, "P"]}, %arg1: tensor<2x4x3xf32> {tw.dims = [2, 4, 3]}, %arg2: tensor<8xf32> {tw.dims = [8]}, %arg3: tensor<2x4x?xf32> {tw.dims = [2, 4, "P"]}) -> (tensor<8x?xf32>, tensor<8x?xf32>) attributes {tw.ranges = {P = [1, 128, 1]}} {
  %c2 = arith.constant 2 : index
  %zero = arith.constant 0.0 : f32
  %p = tensor.dim %arg0, %c2 : tensor<2x3x?xf32>
  %empty = tensor.empty(%p) : tensor<2x4x?xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<2x4x?xf32>) -> tensor<2x4x?xf32>
  %product = linalg.generic {indexing_maps = [#x, #w, #y], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%arg0, %arg1 : tensor<2x3x?xf32>, tensor<2x4x3xf32>) outs(%start : tensor<2x4x?xf32>) {
  ^bb0(%a: f32, %b: f32, %out: f32):
    %m = arith.mulf %a, %b : f32
    %s = arith.addf %out, %m : f32
    linalg.yield %s : f32
  } -> tensor<2x4x?xf32>
  %flat = tensor.collapse_shape %product [[0, 1], [2]] : tensor<2x4x?xf32> into tensor<8x?xf32>
  %into = tensor.empty(%p) : tensor<8x?xf32>
  %sum = linalg.generic {indexing_maps = [#same, #row, #same], iterator_types = ["parallel", "parallel"]} ins(%flat, %arg2 : tensor<8x?xf32>, tensor<8xf32>) outs(%into : tensor<8x?xf32>) {
  ^bb0(%a: f32, %b: f32, %out: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<8x?xf32>
  %given = tensor.collapse_shape %arg3 [[0, 1], [2]] : tensor<2x4x?xf32> into tensor<8x?xf32>
  %other = linalg.generic {indexing_maps = [#same, #row, #same], iterator_types = ["parallel", "parallel"]} ins(%given, %arg2 : tensor<8x?xf32>, tensor<8xf32>) outs(%into : tensor<8x?xf32>) {
  ^bb0(%a: f32, %b: f32, %out: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<8x?xf32>
  return %sum, %other : tensor<8x?xf32>, tensor<8x?xf32>
}

// What follows elements that are repeated runs over the axes that they are repeated along, unless another operand has them too.
// CHECK-LABEL: func.func @repeated
// CHECK: %[[WIDE:.*]] = linalg.generic {{.*}} ins(%arg0 : tensor<?xf32>)
// CHECK: %[[TWICE:.*]] = linalg.generic {{.*}} ins(%[[WIDE]] : tensor<?x2xf32>)
// CHECK: %[[WHOLE:.*]] = tensor.collapse_shape %[[TWICE]] {{\[}}[0, 1]]
// CHECK: %[[SUM:.*]] = linalg.generic {{.*}} ins(%{{.*}}, %arg1 : tensor<?xf32>, tensor<?xf32>)
// CHECK: return %[[WHOLE]], %[[SUM]]
#flat = affine_map<(d0) -> (d0)>
#read = affine_map<(d0, d1) -> (d0)>
func.func @repeated(%arg0: tensor<?xf32> {tw.dims = ["P"]}, %arg1: tensor<?xf32> {tw.dims = ["2*P"]}) -> (tensor<?xf32>, tensor<?xf32>) attributes {tw.ranges = {P = [1, 128, 1]}} {
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %p = tensor.dim %arg0, %c0 : tensor<?xf32>
  %twice = arith.muli %p, %c2 : index
  %empty = tensor.empty(%p) : tensor<?x2xf32>
  %wide = linalg.generic {indexing_maps = [#read, #same], iterator_types = ["parallel", "parallel"]} ins(%arg0 : tensor<?xf32>) outs(%empty : tensor<?x2xf32>) {
  ^bb0(%a: f32, %out: f32):
    linalg.yield %a : f32
  } -> tensor<?x2xf32>
  %whole = tensor.collapse_shape %wide [[0, 1]] : tensor<?x2xf32> into tensor<?xf32>
  %into = tensor.empty(%twice) : tensor<?xf32>
  %double = linalg.generic {indexing_maps = [#flat, #flat], iterator_types = ["parallel"]} ins(%whole : tensor<?xf32>) outs(%into : tensor<?xf32>) {
  ^bb0(%a: f32, %out: f32):
    %s = arith.addf %a, %a : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %sum = linalg.generic {indexing_maps = [#flat, #flat, #flat], iterator_types = ["parallel"]} ins(%whole, %arg1 : tensor<?xf32>, tensor<?xf32>) outs(%into : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %out: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  return %double, %sum : tensor<?xf32>, tensor<?xf32>
}

// Of the two readers of one row of products, the one that a product reads has its axis of one row, the one that is summed has not.
// CHECK-LABEL: func.func @one_row
// CHECK: %[[PRODUCT:.*]] = linalg.matmul
// CHECK: %[[ROW:.*]] = tensor.collapse_shape %[[PRODUCT]]
// CHECK: linalg.generic {{.*}} ins(%[[PRODUCT]] : tensor<1x8xf32>)
// CHECK: linalg.generic {{.*}} ins(%[[ROW]] : tensor<8xf32>)
func.func @one_row(%arg0: tensor<1x4xf32>, %arg1: tensor<4x8xf32>, %arg2: tensor<8x4xf32>) -> (tensor<1x4xf32>, tensor<f32>) {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<1x8xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<1x8xf32>) -> tensor<1x8xf32>
  %product = linalg.matmul ins(%arg0, %arg1 : tensor<1x4xf32>, tensor<4x8xf32>) outs(%start : tensor<1x8xf32>) -> tensor<1x8xf32>
  %row = tensor.collapse_shape %product [[0, 1]] : tensor<1x8xf32> into tensor<8xf32>
  %into = tensor.empty() : tensor<8xf32>
  %twice = linalg.generic {indexing_maps = [#flat, #flat], iterator_types = ["parallel"]} ins(%row : tensor<8xf32>) outs(%into : tensor<8xf32>) {
  ^bb0(%a: f32, %out: f32):
    %s = arith.addf %a, %a : f32
    linalg.yield %s : f32
  } -> tensor<8xf32>
  %back = tensor.expand_shape %twice [[0, 1]] output_shape [1, 8] : tensor<8xf32> into tensor<1x8xf32>
  %narrow = tensor.empty() : tensor<1x4xf32>
  %begin = linalg.fill ins(%zero : f32) outs(%narrow : tensor<1x4xf32>) -> tensor<1x4xf32>
  %next = linalg.matmul ins(%back, %arg2 : tensor<1x8xf32>, tensor<8x4xf32>) outs(%begin : tensor<1x4xf32>) -> tensor<1x4xf32>
  %square = linalg.generic {indexing_maps = [#flat, #flat], iterator_types = ["parallel"]} ins(%row : tensor<8xf32>) outs(%into : tensor<8xf32>) {
  ^bb0(%a: f32, %out: f32):
    %s = arith.mulf %a, %a : f32
    linalg.yield %s : f32
  } -> tensor<8xf32>
  %point = tensor.empty() : tensor<f32>
  %nothing = linalg.fill ins(%zero : f32) outs(%point : tensor<f32>) -> tensor<f32>
  %sum = linalg.generic {indexing_maps = [#flat, affine_map<(d0) -> ()>], iterator_types = ["reduction"]} ins(%square : tensor<8xf32>) outs(%nothing : tensor<f32>) {
  ^bb0(%a: f32, %out: f32):
    %s = arith.addf %a, %out : f32
    linalg.yield %s : f32
  } -> tensor<f32>
  return %next, %sum : tensor<1x4xf32>, tensor<f32>
}
