// RUN: tilewright opt %s --pass "normalize" | filecheck %s

// A sum that starts from 0 is not changed by one more 0: it is never -0.
// CHECK-LABEL: func.func @sum
// CHECK-COUNT-1: linalg.generic
// CHECK-NOT: linalg.generic
// CHECK: return
func.func @sum(%x: tensor<40xf32>) -> tensor<f32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<f32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<f32>) -> tensor<f32>
  %s = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> ()>], iterator_types = ["reduction"]}
      ins(%x : tensor<40xf32>) outs(%f : tensor<f32>) {
  ^bb0(%v: f32, %o: f32):
    %r = arith.addf %o, %v : f32
    linalg.yield %r : f32
  } -> tensor<f32>
  %t = linalg.generic {indexing_maps = [affine_map<() -> ()>, affine_map<() -> ()>], iterator_types = []}
      ins(%s : tensor<f32>) outs(%e : tensor<f32>) {
  ^bb0(%v: f32, %o: f32):
    %r = arith.addf %v, %zero : f32
    linalg.yield %r : f32
  } -> tensor<f32>
  return %t : tensor<f32>
}

// An element may be -0, to which 0 makes a difference; so may a sum that starts from -0.
// CHECK-LABEL: func.func @element
// CHECK: arith.addf
// CHECK: return
func.func @element(%x: tensor<40xf32>) -> tensor<40xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<40xf32>
  %t = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}
      ins(%x : tensor<40xf32>) outs(%e : tensor<40xf32>) {
  ^bb0(%v: f32, %o: f32):
    %r = arith.addf %v, %zero : f32
    linalg.yield %r : f32
  } -> tensor<40xf32>
  return %t : tensor<40xf32>
}

// CHECK-LABEL: func.func @starts_below
// CHECK-COUNT-2: arith.addf
// CHECK: return
func.func @starts_below(%x: tensor<40xf32>) -> tensor<f32> {
  %zero = arith.constant 0.0 : f32
  %start = arith.constant -0.0 : f32
  %e = tensor.empty() : tensor<f32>
  %f = linalg.fill ins(%start : f32) outs(%e : tensor<f32>) -> tensor<f32>
  %s = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> ()>], iterator_types = ["reduction"]}
      ins(%x : tensor<40xf32>) outs(%f : tensor<f32>) {
  ^bb0(%v: f32, %o: f32):
    %r = arith.addf %o, %v : f32
    linalg.yield %r : f32
  } -> tensor<f32>
  %t = linalg.generic {indexing_maps = [affine_map<() -> ()>, affine_map<() -> ()>], iterator_types = []}
      ins(%s : tensor<f32>) outs(%e : tensor<f32>) {
  ^bb0(%v: f32, %o: f32):
    %r = arith.addf %v, %zero : f32
    linalg.yield %r : f32
  } -> tensor<f32>
  return %t : tensor<f32>
}
