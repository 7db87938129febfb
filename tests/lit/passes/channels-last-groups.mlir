// RUN: tilewright opt %s --pass "channels-last" | filecheck %s
// RUN: tilewright opt %s --pass "channels-last{lanes=32}" | filecheck %s --check-prefix=FEW
// RUN: tilewright opt %s --pass "channels-last{groups=0}" | filecheck %s --check-prefix=FEW

// One copy pads and transposes; the filters of a group lie along the vectors. Groups of fewer filters than lanes stay, and all of them where groups may not begin.
// CHECK-LABEL: func.func @main
// CHECK: %[[P:.+]] = tensor.pad %arg0 low[0, 0, 1, 1] high[0, 0, 1, 1]
// CHECK: %[[L:.+]] = linalg.generic {{.*}} ins(%[[P]] : tensor<?x12x10x11xf32>) {{.*}} attrs = {tw.copy}
// CHECK: %[[G:.+]] = tensor.expand_shape %[[L]] {{.*}} into tensor<?x10x11x3x4xf32>
// CHECK: linalg.generic {{.*}} ins(%[[G]], %arg1 : tensor<?x10x11x3x4xf32>, tensor<3x16x4x3x3xf32>)
// CHECK: linalg.generic {{.*}} tensor<?x48x8x9xf32>) attrs = {tw.copy}
// FEW-NOT: tw.copy
func.func @main(%arg0: tensor<?x12x8x9xf32> {tw.dims = ["B", 12, 8, 9]}, %arg1: tensor<3x16x4x3x3xf32>) -> tensor<?x48x8x9xf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %b = tensor.dim %arg0, %c0 : tensor<?x12x8x9xf32>
  %g = tensor.expand_shape %arg0 [[0], [1, 2], [3], [4]] output_shape [%b, 3, 4, 8, 9] : tensor<?x12x8x9xf32> into tensor<?x3x4x8x9xf32>
  %p = tensor.pad %g low[0, 0, 0, 1, 1] high[0, 0, 0, 1, 1] {
  ^bb0(%i: index, %j: index, %k: index, %l: index, %m: index):
    tensor.yield %zero : f32
  } : tensor<?x3x4x8x9xf32> to tensor<?x3x4x10x11xf32>
  %e = tensor.empty(%b) : tensor<?x3x16x8x9xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<?x3x16x8x9xf32>) -> tensor<?x3x16x8x9xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(n, g, f, y, x, c, i, j) -> (n, g, c, y + i, x + j)>,
    affine_map<(n, g, f, y, x, c, i, j) -> (g, f, c, i, j)>, affine_map<(n, g, f, y, x, c, i, j) -> (n, g, f, y, x)>],
    iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]}
    ins(%p, %arg1 : tensor<?x3x4x10x11xf32>, tensor<3x16x4x3x3xf32>) outs(%z : tensor<?x3x16x8x9xf32>) {
  ^bb0(%in: f32, %w: f32, %out: f32):
    %t = arith.mulf %in, %w : f32
    %s = arith.addf %out, %t : f32
    linalg.yield %s : f32
  } -> tensor<?x3x16x8x9xf32>
  %r = tensor.collapse_shape %y [[0], [1, 2], [3], [4]] : tensor<?x3x16x8x9xf32> into tensor<?x48x8x9xf32>
  return %r : tensor<?x48x8x9xf32>
}
