// RUN: tilewright opt %s --pass "channels-last{short=1 lanes=2}" | filecheck %s
// RUN: tilewright opt %s --pass "channels-last{short=1 lanes=2 winograd=true}" | filecheck %s --check-prefix=SAVES
// RUN: tilewright opt %s --pass "channels-last{short=1 lanes=4 winograd=true}" | filecheck %s --check-prefix=FEW

// Filters lie along the vectors where pixels are stepped over, and where the window saves multiplications; not of few channels.
// CHECK-LABEL: func.func @main
// CHECK: linalg.conv_1d_ncw_fcw
// CHECK: linalg.generic {{.*}} attrs = {tw.copy}
// CHECK: linalg.generic {{.*}} outs({{.*}} : tensor<?x2x5xf32>)
// SAVES-LABEL: func.func @main
// SAVES-NOT: linalg.conv_1d_ncw_fcw
// SAVES: linalg.generic {{.*}} outs({{.*}} : tensor<?x5x5xf32>)
// SAVES: linalg.generic {{.*}} outs({{.*}} : tensor<?x2x5xf32>)
// FEW-LABEL: func.func @main
// FEW: linalg.conv_1d_ncw_fcw
// FEW: linalg.conv_1d_ncw_fcw
func.func @main(%arg0: tensor<?x4x7xf32> {tw.dims = ["B", 4, 7]}, %arg1: tensor<5x4x3xf32>, %arg2: tensor<5x5x3xf32>) -> tensor<?x5x2xf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %b = tensor.dim %arg0, %c0 : tensor<?x4x7xf32>
  %e = tensor.empty(%b) : tensor<?x5x5xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<?x5x5xf32>) -> tensor<?x5x5xf32>
  %y = linalg.conv_1d_ncw_fcw {strides = dense<1> : tensor<1xi64>, dilations = dense<1> : tensor<1xi64>}
    ins(%arg0, %arg1 : tensor<?x4x7xf32>, tensor<5x4x3xf32>) outs(%z : tensor<?x5x5xf32>) -> tensor<?x5x5xf32>
  %f = tensor.empty(%b) : tensor<?x5x2xf32>
  %w = linalg.fill ins(%zero : f32) outs(%f : tensor<?x5x2xf32>) -> tensor<?x5x2xf32>
  %r = linalg.conv_1d_ncw_fcw {strides = dense<2> : tensor<1xi64>, dilations = dense<1> : tensor<1xi64>}
    ins(%y, %arg2 : tensor<?x5x5xf32>, tensor<5x5x3xf32>) outs(%w : tensor<?x5x2xf32>) -> tensor<?x5x2xf32>
  return %r : tensor<?x5x2xf32>
}
