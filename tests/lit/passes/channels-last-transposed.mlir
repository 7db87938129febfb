// RUN: tilewright opt %s --pass "channels-last" | filecheck %s

// The image comes with channels last and is wanted so: nothing is copied.
// CHECK-LABEL: func.func @main
// CHECK-NOT: tw.copy
// CHECK: %[[P:.+]] = tensor.pad %arg0 low[0, 1, 1, 0] high[0, 1, 1, 0]
// CHECK: %[[Y:.+]] = linalg.generic {{.*}} ins(%[[P]], %arg1 : tensor<?x10x11x4xf32>, tensor<5x4x3x3xf32>)
// CHECK: %[[Z:.+]] = linalg.generic {{.*}} ins(%[[Y]], %arg2 : tensor<?x8x9x5xf32>, tensor<5xf32>)
// CHECK: return %[[Z]] : tensor<?x8x9x5xf32>
func.func @main(%arg0: tensor<?x8x9x4xf32> {tw.dims = ["B", 8, 9, 4]}, %arg1: tensor<5x4x3x3xf32>, %arg2: tensor<5xf32>) -> tensor<?x8x9x5xf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %b = tensor.dim %arg0, %c0 : tensor<?x8x9x4xf32>
  %te = tensor.empty(%b) : tensor<?x4x8x9xf32>
  %t = linalg.generic {indexing_maps = [affine_map<(a, b, c, d) -> (a, c, d, b)>, affine_map<(a, b, c, d) -> (a, b, c, d)>],
    iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%arg0 : tensor<?x8x9x4xf32>) outs(%te : tensor<?x4x8x9xf32>) {
  ^bb0(%in: f32, %out: f32):
    linalg.yield %in : f32
  } -> tensor<?x4x8x9xf32>
  %p = tensor.pad %t low[0, 0, 1, 1] high[0, 0, 1, 1] {
  ^bb0(%i: index, %j: index, %k: index, %l: index):
    tensor.yield %zero : f32
  } : tensor<?x4x8x9xf32> to tensor<?x4x10x11xf32>
  %e = tensor.empty(%b) : tensor<?x5x8x9xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<?x5x8x9xf32>) -> tensor<?x5x8x9xf32>
  %y = linalg.conv_2d_nchw_fchw {strides = dense<1> : tensor<2xi64>, dilations = dense<1> : tensor<2xi64>}
    ins(%p, %arg1 : tensor<?x4x10x11xf32>, tensor<5x4x3x3xf32>) outs(%z : tensor<?x5x8x9xf32>) -> tensor<?x5x8x9xf32>
  %le = tensor.empty(%b) : tensor<?x8x9x5xf32>
  %last = linalg.generic {indexing_maps = [affine_map<(a, b, c, d) -> (a, b, c, d)>, affine_map<(a, b, c, d) -> (b)>,
    affine_map<(a, b, c, d) -> (a, c, d, b)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
    ins(%y, %arg2 : tensor<?x5x8x9xf32>, tensor<5xf32>) outs(%le : tensor<?x8x9x5xf32>) {
  ^bb0(%in: f32, %bias: f32, %out: f32):
    %s = arith.addf %in, %bias : f32
    linalg.yield %s : f32
  } -> tensor<?x8x9x5xf32>
  return %last : tensor<?x8x9x5xf32>
}
