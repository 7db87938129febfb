// RUN: tilewright opt %s --pass "channels-last" | filecheck %s
// RUN: tilewright opt %s --pass "channels-last{waste=0}" | filecheck %s --check-prefix=FULL

// 90 pixels lie along six vectors of 16 with 6 lanes off: within 15 percent.
// CHECK-LABEL: func.func @main
// CHECK: %[[X:.+]] = tensor.collapse_shape %arg0
// CHECK: %[[W:.+]] = tensor.collapse_shape %arg1
// CHECK: linalg.generic {{.*}} ins(%[[X]], %[[W]] : tensor<?x3x90xf32>, tensor<5x3xf32>)
// CHECK: tensor.expand_shape
// CHECK-NOT: tw.copy

// FULL-LABEL: func.func @main
// FULL: %[[X:.+]] = linalg.generic {{.*}} ins(%arg0 : tensor<?x3x9x10xf32>) {{.*}} attrs = {tw.copy}
// FULL: %[[Y:.+]] = linalg.generic {{.*}} ins(%[[X]], %arg1 : tensor<?x9x10x3xf32>, tensor<5x3x1x1xf32>)
// FULL: linalg.generic {{.*}} ins(%[[Y]] : tensor<?x9x10x5xf32>) {{.*}} attrs = {tw.copy}
func.func @main(%arg0: tensor<?x3x9x10xf32> {tw.dims = ["B", 3, 9, 10]}, %arg1: tensor<5x3x1x1xf32>) -> tensor<?x5x9x10xf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %b = tensor.dim %arg0, %c0 : tensor<?x3x9x10xf32>
  %e = tensor.empty(%b) : tensor<?x5x9x10xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<?x5x9x10xf32>) -> tensor<?x5x9x10xf32>
  %y = linalg.conv_2d_nchw_fchw {strides = dense<1> : tensor<2xi64>, dilations = dense<1> : tensor<2xi64>}
    ins(%arg0, %arg1 : tensor<?x3x9x10xf32>, tensor<5x3x1x1xf32>) outs(%z : tensor<?x5x9x10xf32>) -> tensor<?x5x9x10xf32>
  return %y : tensor<?x5x9x10xf32>
}
