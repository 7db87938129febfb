// RUN: tilewright opt %s --pass "resolve-reshape" | filecheck %s

// CHECK-LABEL: func.func @main
// CHECK-NOT: tensor.reshape
// CHECK: %[[E:.*]] = tensor.expand_shape %arg0 {{\[}}[0], [1], [2, 3]] output_shape [%{{.*}}, %{{.*}}, 12, 64]
// CHECK: %[[C:.*]] = tensor.collapse_shape %arg0 {{\[}}[0, 1], [2]] : tensor<?x?x768xf32> into tensor<?x768xf32>
// CHECK: %[[F:.*]] = tensor.collapse_shape %arg0 {{\[}}[0], [1, 2]] : tensor<?x?x768xf32> into tensor<?x?xf32>
// CHECK: %[[G:.*]] = tensor.expand_shape %[[F]] {{\[}}[0], [1, 2]] output_shape [%{{.*}}, 384, %{{.*}}]
// CHECK: return %[[E]], %[[C]], %[[G]]
func.func @main(%arg0: tensor<?x?x768xf32> {tw.dims = ["B", "S", 768]}) -> (tensor<?x?x12x64xf32>, tensor<?x768xf32>, tensor<?x384x?xf32>) attributes {tw.ranges = {B = [1, 8, 1], S = [1, 128, 1]}} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c12 = arith.constant 12 : index
  %c64 = arith.constant 64 : index
  %c384 = arith.constant 384 : index
  %c768 = arith.constant 768 : index
  %b = tensor.dim %arg0, %c0 : tensor<?x?x768xf32>
  %s = tensor.dim %arg0, %c1 : tensor<?x?x768xf32>
  %m = arith.muli %b, %s : index
  %t = arith.muli %s, %c2 : index
  %heads = tensor.from_elements %b, %s, %c12, %c64 : tensor<4xindex>
  %0 = tensor.reshape %arg0(%heads) : (tensor<?x?x768xf32>, tensor<4xindex>) -> tensor<?x?x12x64xf32>
  %rows = tensor.from_elements %m, %c768 : tensor<2xindex>
  %1 = tensor.reshape %arg0(%rows) : (tensor<?x?x768xf32>, tensor<2xindex>) -> tensor<?x768xf32>
  %both = tensor.from_elements %b, %c384, %t : tensor<3xindex>
  %2 = tensor.reshape %arg0(%both) : (tensor<?x?x768xf32>, tensor<3xindex>) -> tensor<?x384x?xf32>
  return %0, %1, %2 : tensor<?x?x12x64xf32>, tensor<?x768xf32>, tensor<?x384x?xf32>
}
