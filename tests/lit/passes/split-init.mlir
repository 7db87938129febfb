// RUN: tilewright opt %s --pass "split-init" | filecheck %s

// CHECK-LABEL: func.func @main
// CHECK: %[[BIAS:.*]] = linalg.broadcast ins(%arg2 : tensor<64xf32>)
// CHECK: %[[ZERO:.*]] = linalg.fill ins(%{{.*}} : f32)
// CHECK: %[[CONV:.*]] = linalg.conv_2d_nchw_fchw {{.*}} outs(%[[ZERO]] : tensor<?x64x56x56xf32>)
// CHECK: linalg.generic {{.*}} ins(%[[CONV]], %[[BIAS]] : tensor<?x64x56x56xf32>, tensor<?x64x56x56xf32>)
// CHECK: arith.addf
func.func @main(%arg0: tensor<?x64x58x58xf32> {tw.dims = ["N", 64, 58, 58]}, %arg1: tensor<64x64x3x3xf32> {tw.dims = [64, 64, 3, 3]}, %arg2: tensor<64xf32> {tw.dims = [64]}) -> tensor<?x64x56x56xf32> attributes {tw.ranges = {N = [1, 16, 1]}} {
  %c0 = arith.constant 0 : index
  %dim = tensor.dim %arg0, %c0 : tensor<?x64x58x58xf32>
  %0 = tensor.empty(%dim) : tensor<?x64x56x56xf32>
  %broadcasted = linalg.broadcast ins(%arg2 : tensor<64xf32>) outs(%0 : tensor<?x64x56x56xf32>) dimensions = [0, 2, 3]
  %1 = linalg.conv_2d_nchw_fchw {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>} ins(%arg0, %arg1 : tensor<?x64x58x58xf32>, tensor<64x64x3x3xf32>) outs(%broadcasted : tensor<?x64x56x56xf32>) -> tensor<?x64x56x56xf32>
  return %1 : tensor<?x64x56x56xf32>
}

// An f16 sum would be rounded twice.
// CHECK-LABEL: func.func @half
// CHECK: linalg.matmul {{.*}} outs(%arg2 : tensor<4x4xf16>)
func.func @half(%arg0: tensor<4x4xf16>, %arg1: tensor<4x4xf16>, %arg2: tensor<4x4xf16>) -> tensor<4x4xf16> {
  %0 = linalg.matmul ins(%arg0, %arg1 : tensor<4x4xf16>, tensor<4x4xf16>) outs(%arg2 : tensor<4x4xf16>) -> tensor<4x4xf16>
  return %0 : tensor<4x4xf16>
}
