// RUN: tilewright opt %s --pass "split-reductions{alike=2}" | filecheck %s

// A list whose squares somebody else reads, too, stays whole: it would be made twice.
// CHECK-LABEL: func.func @read_twice
// CHECK-NOT: expand_shape
// CHECK: return
func.func @read_twice(%x: tensor<4096x256xf32>, %y: tensor<5x24xf32>, %z: tensor<40xf32>)
    -> (tensor<f32>, tensor<f32>, tensor<f32>, tensor<40xf32>) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<f32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<f32>) -> tensor<f32>
  %a = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> ()>],
                       iterator_types = ["reduction", "reduction"]} ins(%x : tensor<4096x256xf32>) outs(%f : tensor<f32>) {
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
  return %a, %c, %c, %s : tensor<f32>, tensor<f32>, tensor<f32>, tensor<40xf32>
}
