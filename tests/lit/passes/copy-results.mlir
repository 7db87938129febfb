// RUN: tilewright opt %s --pass "copy-results" | filecheck %s

// The argument, the window and the second use of %y are copied; %y itself and its full reshape are not.
// CHECK-LABEL: func.func @main
// CHECK-SAME: (%[[X:.+]]: tensor<?x8xf32>
// CHECK: %[[Y:.+]] = linalg.generic {{.*}} ins(%[[X]] : tensor<?x8xf32>)
// CHECK: math.exp
// CHECK: %[[FLAT:.+]] = tensor.collapse_shape %[[Y]]
// CHECK: %[[WINDOW:.+]] = tensor.extract_slice %[[Y]]
// CHECK: %[[X2:.+]] = linalg.generic {{.*}} ins(%[[X]] : tensor<?x8xf32>)
// CHECK: %[[Y2:.+]] = linalg.generic {{.*}} ins(%[[Y]] : tensor<?x8xf32>)
// CHECK: %[[W2:.+]] = linalg.generic {{.*}} ins(%[[WINDOW]] : tensor<?x4xf32>)
// CHECK: return %[[X2]], %[[FLAT]], %[[Y2]], %[[W2]]
func.func @main(%x: tensor<?x8xf32> {tw.dims = ["B", 8]}) -> (tensor<?x8xf32>, tensor<?xf32>, tensor<?x8xf32>, tensor<?x4xf32>) {
  %c0 = arith.constant 0 : index
  %b = tensor.dim %x, %c0 : tensor<?x8xf32>
  %e = tensor.empty(%b) : tensor<?x8xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>],
                       iterator_types = ["parallel", "parallel"]} ins(%x : tensor<?x8xf32>) outs(%e : tensor<?x8xf32>) {
  ^bb0(%a: f32, %o: f32):
    %r = math.exp %a : f32
    linalg.yield %r : f32
  } -> tensor<?x8xf32>
  %flat = tensor.collapse_shape %y [[0, 1]] : tensor<?x8xf32> into tensor<?xf32>
  %window = tensor.extract_slice %y[0, 2] [%b, 4] [1, 1] : tensor<?x8xf32> to tensor<?x4xf32>
  return %x, %flat, %y, %window : tensor<?x8xf32>, tensor<?xf32>, tensor<?x8xf32>, tensor<?x4xf32>
}
