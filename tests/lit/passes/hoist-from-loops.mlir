// RUN: tilewright opt %s --pass "lift-control-flow,hoist-from-loops" | filecheck %s
// RUN: tilewright opt %s --pass "lift-control-flow,hoist-from-loops{rows=1 work=16}" | filecheck %s --check-prefix=STAYS

// Where a step has rows and work enough, its product stays.
// STAYS-LABEL: func.func @body_0
// STAYS: linalg.vecmat
// STAYS: linalg.vecmat

// The product of what is read at each step is one product over all steps, in front of the loop, and so is the function of w; the
// product of what is carried stays.
// CHECK-LABEL: func.func @main
// CHECK: %[[ALL:.*]] = linalg.generic {{.*}} iterator_types = ["parallel", "parallel", "reduction"]
// CHECK: call @frame_1({{.*}}, %[[ALL]]
// CHECK-LABEL: func.func @body_0
// CHECK: tensor.extract_slice {{.*}} : tensor<?x4xf32> to tensor<1x4xf32>
// CHECK: linalg.vecmat
// CHECK-NOT: linalg.vecmat
// CHECK: return
func.func @main(%x: tensor<?x4xf32> {tw.dims = ["T", 4]}, %w: tensor<4x4xf32> {tw.dims = [4, 4]}) -> tensor<4xf32>
    attributes {tw.ranges = {T = [1, 8, 1], i0 = [0, 7, 1]}} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %zero = arith.constant 0.0 : f32
  %n = tensor.dim %x, %c0 : tensor<?x4xf32>
  %room = tensor.empty() : tensor<4xf32>
  %start = linalg.fill ins(%zero : f32) outs(%room : tensor<4xf32>) -> tensor<4xf32>
  %r:2 = scf.while (%i = %c0, %h = %start) : (index, tensor<4xf32>) -> (index, tensor<4xf32>) {
    %more = arith.cmpi slt, %i, %n : index
    scf.condition(%more) %i, %h : index, tensor<4xf32>
  } do {
  ^bb0(%i: index, %h: tensor<4xf32>):
    %at = tensor.extract_slice %x[%i, 0] [1, 4] [1, 1] : tensor<?x4xf32> to tensor<4xf32>
    %given = linalg.vecmat ins(%at, %w : tensor<4xf32>, tensor<4x4xf32>) outs(%start : tensor<4xf32>) -> tensor<4xf32>
    %new = linalg.vecmat ins(%h, %w : tensor<4xf32>, tensor<4x4xf32>) outs(%given : tensor<4xf32>) -> tensor<4xf32>
    %next = arith.addi %i, %c1 : index
    scf.yield %next, %new : index, tensor<4xf32>
  } attributes {tw.counters = ["i0", ""], tw.largest = ["T - 1", ""], tw.steps = ["1", ""]}
  return %r#1 : tensor<4xf32>
}
