// RUN: tilewright opt %s --pass "lift-control-flow" | filecheck %s

// The loop moves to a frame, its body to a function over the dims and the counter; main only calls.
// CHECK-LABEL: func.func @main
// CHECK: %[[R:.*]] = call @frame_1
// CHECK: return %[[R]]
// CHECK: func.func @body_0(%{{.*}}: tensor<?xf32> {tw.dims = ["N"]}, %{{.*}}: index {tw.dims = ["N"]}, %{{.*}}: index {tw.dims = ["i0"]})
// CHECK: linalg.generic
// CHECK: func.func @frame_1
// CHECK-SAME: tw.frame
// CHECK: scf.while
// CHECK: func.call @body_0
func.func @main(%x: tensor<?xf32> {tw.dims = ["N"]}) -> tensor<?xf32> attributes {tw.ranges = {N = [1, 8, 1], i0 = [0, 3, 1]}} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %r:2 = scf.while (%i = %c0, %a = %x) : (index, tensor<?xf32>) -> (index, tensor<?xf32>) {
    %more = arith.cmpi slt, %i, %c3 : index
    scf.condition(%more) %i, %a : index, tensor<?xf32>
  } do {
  ^bb0(%j: index, %b: tensor<?xf32>):
    %y = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} outs(%b : tensor<?xf32>) {
    ^bb0(%o: f32):
      %s = arith.addf %o, %o : f32
      linalg.yield %s : f32
    } -> tensor<?xf32>
    %next = arith.addi %j, %c1 : index
    scf.yield %next, %y : index, tensor<?xf32>
  } attributes {tw.counters = ["i0", ""], tw.largest = ["2", ""], tw.steps = ["1", ""]}
  return %r#1 : tensor<?xf32>
}
