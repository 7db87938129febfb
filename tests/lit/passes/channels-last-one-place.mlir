// RUN: tilewright opt %s --pass "channels-last" | filecheck %s

// A convolution over one axis whose window is one place is a product; one that steps over places stays as it is.

// CHECK-LABEL: func.func @main
// CHECK: %[[F:.+]] = tensor.collapse_shape %arg1
// CHECK-SAME: tensor<48x24x1xf32> into tensor<48x24xf32>
// CHECK: linalg.generic
// CHECK-SAME: iterator_types = ["parallel", "parallel", "parallel", "reduction"]
// CHECK-SAME: ins(%arg0, %[[F]] : tensor<?x24x?xf32>, tensor<48x24xf32>)
// CHECK: linalg.conv_1d_ncw_fcw
// CHECK-NOT: linalg.conv_1d_ncw_fcw
func.func @main(%arg0: tensor<?x24x?xf32> {tw.dims = ["B", 24, "S"]}, %arg1: tensor<48x24x1xf32>)
    -> (tensor<?x48x?xf32>, tensor<?x48x?xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %f0 = arith.constant 0.0 : f32
  %b = tensor.dim %arg0, %c0 : tensor<?x24x?xf32>
  %s = tensor.dim %arg0, %c2 : tensor<?x24x?xf32>
  %h = arith.ceildivui %s, %c2 : index
  %e = tensor.empty(%b, %s) : tensor<?x48x?xf32>
  %z = linalg.fill ins(%f0 : f32) outs(%e : tensor<?x48x?xf32>) -> tensor<?x48x?xf32>
  %e2 = tensor.empty(%b, %h) : tensor<?x48x?xf32>
  %z2 = linalg.fill ins(%f0 : f32) outs(%e2 : tensor<?x48x?xf32>) -> tensor<?x48x?xf32>
  %y = linalg.conv_1d_ncw_fcw {strides = dense<1> : tensor<1xi64>, dilations = dense<1> : tensor<1xi64>}
    ins(%arg0, %arg1 : tensor<?x24x?xf32>, tensor<48x24x1xf32>) outs(%z : tensor<?x48x?xf32>) -> tensor<?x48x?xf32>
  %y2 = linalg.conv_1d_ncw_fcw {strides = dense<2> : tensor<1xi64>, dilations = dense<1> : tensor<1xi64>}
    ins(%arg0, %arg1 : tensor<?x24x?xf32>, tensor<48x24x1xf32>) outs(%z2 : tensor<?x48x?xf32>) -> tensor<?x48x?xf32>
  return %y, %y2 : tensor<?x48x?xf32>, tensor<?x48x?xf32>
}
