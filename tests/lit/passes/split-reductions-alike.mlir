// RUN: tilewright opt %s --pass "split-reductions{alike=3}" | filecheck %s
// RUN: tilewright opt %s --pass "split-reductions" | filecheck %s --check-prefix=APART

// Sums of squares of a large, a small and a one-dimensional tensor: all have the parts of the large one, so that they are alike.
// APART: floordiv 64
// APART-NOT: floordiv
// APART-LABEL: func.func @alike
// APART-NOT: expand_shape
// APART: return
// CHECK: #[[PART:.+]] = affine_map<(d0, d1) -> (d0 floordiv 64)>
// CHECK-LABEL: func.func @alike
// CHECK-COUNT-2: linalg.generic {indexing_maps = [#{{.+}}, #[[PART]]], iterator_types = ["reduction", "reduction"]}
// CHECK: tensor.expand_shape %{{.+}} {{\[\[}}0, 1]] output_shape [1, 40]
// CHECK: linalg.generic {indexing_maps = [#{{.+}}, #[[PART]]], iterator_types = ["reduction", "reduction"]}
func.func @alike(%x: tensor<4096x256xf32>, %y: tensor<5x24xf32>, %z: tensor<40xf32>) -> (tensor<f32>, tensor<f32>, tensor<f32>) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<f32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<f32>) -> tensor<f32>
  %a = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> ()>],
                       iterator_types = ["reduction", "reduction"]} ins(%x : tensor<4096x256xf32>) outs(%f : tensor<f32>) {
  ^bb0(%v: f32, %o: f32):
    %r = arith.addf %o, %v : f32
    linalg.yield %r : f32
  } -> tensor<f32>
  %b = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> ()>],
                       iterator_types = ["reduction", "reduction"]} ins(%y : tensor<5x24xf32>) outs(%f : tensor<f32>) {
  ^bb0(%v: f32, %o: f32):
    %r = arith.addf %o, %v : f32
    linalg.yield %r : f32
  } -> tensor<f32>
  %ez = tensor.empty() : tensor<40xf32>
  %s = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}
      ins(%z : tensor<40xf32>) outs(%ez : tensor<40xf32>) {
  ^bb0(%v: f32, %o: f32):
    %r = arith.mulf %v, %v : f32
    linalg.yield %r : f32
  } -> tensor<40xf32>
  %c = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> ()>], iterator_types = ["reduction"]}
      ins(%s : tensor<40xf32>) outs(%f : tensor<f32>) {
  ^bb0(%v: f32, %o: f32):
    %r = arith.addf %o, %v : f32
    linalg.yield %r : f32
  } -> tensor<f32>
  return %a, %b, %c : tensor<f32>, tensor<f32>, tensor<f32>
}
