// RUN: tilewright opt %s --pass "channels-last{short=8 lanes=4}" | filecheck %s
// RUN: tilewright opt %s --pass "channels-last{short=6 lanes=4}" | filecheck %s --check-prefix=LONG

// Rows of 7 pixels are short: filters lie along the vectors.
// CHECK-LABEL: func.func @main
// CHECK: %[[X:.+]] = linalg.generic {{.*}} ins(%arg0 : tensor<?x3x9xf32>) {{.*}} attrs = {tw.copy}
// CHECK: %[[Y:.+]] = linalg.generic {{.*}} ins(%[[X]], %arg1 : tensor<?x9x3xf32>, tensor<5x3x3xf32>) outs({{.*}} : tensor<?x7x5xf32>)
// CHECK: linalg.generic {{.*}} ins(%[[Y]] : tensor<?x7x5xf32>) {{.*}} attrs = {tw.copy}

// LONG-LABEL: func.func @main
// LONG-NOT: tw.copy
// LONG: linalg.conv_1d_ncw_fcw
func.func @main(%arg0: tensor<?x3x9xf32> {tw.dims = ["B", 3, 9]}, %arg1: tensor<5x3x3xf32>) -> tensor<?x5x7xf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %b = tensor.dim %arg0, %c0 : tensor<?x3x9xf32>
  %e = tensor.empty(%b) : tensor<?x5x7xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<?x5x7xf32>) -> tensor<?x5x7xf32>
  %y = linalg.conv_1d_ncw_fcw {strides = dense<1> : tensor<1xi64>, dilations = dense<1> : tensor<1xi64>}
    ins(%arg0, %arg1 : tensor<?x3x9xf32>, tensor<5x3x3xf32>) outs(%z : tensor<?x5x7xf32>) -> tensor<?x5x7xf32>
  return %y : tensor<?x5x7xf32>
}
