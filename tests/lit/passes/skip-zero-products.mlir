// RUN: tilewright opt %s --pass "lift-control-flow,skip-zero-products{work=16}" | filecheck %s
// RUN: tilewright opt %s --pass "lift-control-flow,skip-zero-products" | filecheck %s --check-prefix=SMALL
// RUN: tilewright opt %s --pass "lift-control-flow,skip-zero-products{work=16 steps=1}" | filecheck %s --check-prefix=LONG

// The product of the state, which begins as zeros, is computed from the second step on, with the bias that is added to it; the
// product of the other state, which begins as x, at each step.
// CHECK-LABEL: func.func @body_0
// CHECK-NOT: linalg.matmul
// CHECK: call @frame_
// CHECK: linalg.matmul
// CHECK: return
// CHECK: func.func @body_
// CHECK: linalg.matmul
// CHECK: arith.addf
// CHECK: func.func @body_
// CHECK-NOT: linalg.matmul
// CHECK: arith.addf
// CHECK: scf.if
// SMALL-NOT: scf.if
// LONG-NOT: scf.if
func.func @main(%x: tensor<4x4xf32> {tw.dims = [4, 4]}, %w: tensor<4x4xf32> {tw.constant, tw.dims = [4, 4]},
                %t: index {tw.dims = ["T"]}) -> (tensor<4x4xf32>, tensor<4x4xf32>)
    attributes {tw.ranges = {T = [1, 8, 1], i0 = [0, 7, 1]}} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %zero = arith.constant 0.0 : f32
  %room = tensor.empty() : tensor<4x4xf32>
  %start = linalg.fill ins(%zero : f32) outs(%room : tensor<4x4xf32>) -> tensor<4x4xf32>
  %r:3 = scf.while (%i = %c0, %h = %start, %g = %x) : (index, tensor<4x4xf32>, tensor<4x4xf32>)
      -> (index, tensor<4x4xf32>, tensor<4x4xf32>) {
    %more = arith.cmpi slt, %i, %t : index
    scf.condition(%more) %i, %h, %g : index, tensor<4x4xf32>, tensor<4x4xf32>
  } do {
  ^bb0(%i: index, %h: tensor<4x4xf32>, %g: tensor<4x4xf32>):
    %product = linalg.matmul ins(%h, %w : tensor<4x4xf32>, tensor<4x4xf32>) outs(%start : tensor<4x4xf32>) -> tensor<4x4xf32>
    %new = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
        iterator_types = ["parallel", "parallel"]} ins(%product, %x : tensor<4x4xf32>, tensor<4x4xf32>) outs(%room : tensor<4x4xf32>) {
    ^bb0(%a: f32, %b: f32, %o: f32):
      %s = arith.addf %a, %b : f32
      linalg.yield %s : f32
    } -> tensor<4x4xf32>
    %other = linalg.matmul ins(%g, %w : tensor<4x4xf32>, tensor<4x4xf32>) outs(%start : tensor<4x4xf32>) -> tensor<4x4xf32>
    %next = arith.addi %i, %c1 : index
    scf.yield %next, %new, %other : index, tensor<4x4xf32>, tensor<4x4xf32>
  } attributes {tw.counters = ["i0", "", ""], tw.largest = ["T - 1", "", ""], tw.steps = ["1", "", ""]}
  return %r#1, %r#2 : tensor<4x4xf32>, tensor<4x4xf32>
}
